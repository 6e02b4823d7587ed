"""A model that says what a test wants, and that thinks and calls tools as Qwen's models do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.tool_parsers import json_tools

from draftd.engine.pair import LoadedModels, assemble
from draftd.models.answer_format import AnswerFormat, ToolFormat
from draftd.models.tokenizer import ChatTemplate
from tests.scripted import ByteTokenizer

_VOCABULARY = 256  # a byte each; the last one, which no text has, ends it
_ASSISTANT = "<assistant>"
TEMPLATE = (
    "{% for t in tools or [] %}({{ t | tojson }}){% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"
    f"{_ASSISTANT}"
)


class SpeakingModel(nn.Module):
    """A model whose whole answer to a prompt is given by `reply`."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        super().__init__()
        self._reply = reply

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        rows, width = inputs.shape
        layer = cache[0]
        mask = layer.make_mask(width, return_array=True, window_size=None)
        stored = inputs.astype(mx.float32)[:, None, :, None]
        keys, _ = layer.update_and_fetch(stored, stored)
        keys = keys[:, 0, :, 0]  # rows × length
        if mask is None:  # one new token may see all that is stored
            mask = mx.ones((width, keys.shape[1]), dtype=mx.bool_)
        mask = mx.broadcast_to(mask if mask.ndim == 2 else mask[:, 0], (rows, width, keys.shape[1]))
        seen = [
            [bytes(int(key) for key, there in zip(row, sees, strict=True) if there) for sees in places]
            for row, places in zip(keys.tolist(), mask.tolist(), strict=True)
        ]
        chosen = mx.array([[self._next(text) for text in places] for places in seen])
        return (mx.arange(_VOCABULARY) == chosen[..., None]).astype(mx.float32) * 12.0

    def _next(self, text: bytes) -> int:
        prompt, _, said = text.rpartition(_ASSISTANT.encode())
        answer = self._reply(prompt.decode(errors="replace")).encode()
        return answer[len(said)] if answer.startswith(said) and answer != said else _VOCABULARY - 1


class SpeakingTokenizer(ByteTokenizer):
    def __init__(self) -> None:
        super().__init__(_VOCABULARY)
        self.template = ChatTemplate(TEMPLATE, {})
        self.tools = self.thinking = True
        written = ToolFormat(
            "json_tools", json_tools.tool_call_start, json_tools.tool_call_end, json_tools.parse_tool_call
        )
        self.answers = AnswerFormat(("<think>", "</think>"), written)


def speaking_models(reply: Callable[[str], str]) -> LoadedModels:
    """Returns the model with a draft that is always right."""
    return assemble(
        SpeakingModel(reply),
        SpeakingModel(reply),
        SpeakingTokenizer(),
        model="speaking",
        draft_model="speaking-draft",
        context_length=4096,
        backend="scripted",
    )
