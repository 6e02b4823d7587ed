"""A model that writes what the conversation asks for, so that no check of a client depends on chance.

The tokenizer is the embedded pair's, with a chat template that takes tools; calls are written in the Hermes form. Only
the logits are scripted. They come from the token ids in the model's own cache: a wrong entry makes the text wrong.
Imports MLX: load the BLAS first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

from draftd.engine.pair import LoadedModels, assemble, load_tokenizer
from draftd.models.tokenizer import Tokenizer

CONTEXT = 65_536
SILENT = "nothing was asked for"
RESULT_CHARACTERS = 200  # of a tool's result in the text after it

_PEAK = 12.0  # logit of the chosen token over all others
_INSTRUCTION = re.compile(r"^\s*(CALL|SAY|COUNT|RECALL) (.+?)\s*$", re.MULTILINE)
_MARK = re.compile(r"<\|(system|developer|user|assistant|tool)\|>")
_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + (m['content'] or '') }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def answer_to(conversation: str) -> str:
    """Returns what the model writes after `conversation`, a text in the chat template.

    The last instruction of a user, or a tool's result after it, decides. An instruction is a line:

    - `CALL name {…}` writes a call of the tool `name` with these arguments.
    - `SAY text` writes the text, with a line break for each `\\n` in it.
    - `COUNT n` writes the numbers from 1 to n.
    - `RECALL text` writes what the user's first instruction was: it shows that the conversation was resumed.
    """
    parts = _MARK.split(conversation)
    turns = list(zip(parts[1::2], parts[2::2], strict=True))
    instructions = [line for role, text in turns if role == "user" for line in _INSTRUCTION.findall(text)]
    for role, text in reversed(turns):
        if role == "tool":
            return f"done: {text[:RESULT_CHARACTERS]}"
        if role == "user" and (lines := _INSTRUCTION.findall(text)):
            return _obey(*lines[-1], first=instructions[0][1])
    return SILENT


def _obey(verb: str, text: str, *, first: str) -> str:
    if verb == "CALL":
        name, _, arguments = text.partition(" ")
        written = json.dumps({"name": name, "arguments": json.loads(arguments or "{}")})
        return f"<tool_call>\n{written}\n</tool_call>"
    if verb == "COUNT":
        return " ".join(map(str, range(1, int(text) + 1)))
    return first if verb == "RECALL" else text.replace("\\n", "\n")


class Talker(nn.Module):
    """A model with mlx-lm's interface. It stores the token ids themselves as keys."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.args = SimpleNamespace(vocab_size=tokenizer.vocab_size)
        (self._end,) = tokenizer.eos_ids
        (self._assistant,) = tokenizer.encode_rendered("<|assistant|>")
        self._next_token = _next_token(tokenizer, self._end)

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
        ids, visible = np.array(keys).astype(np.int64), np.array(mask)
        chosen = [[self._choose(ids[row, visible[row, i]]) for i in range(width)] for row in range(rows)]
        hot = (mx.arange(self.args.vocab_size) == mx.array(chosen)[..., None]).astype(mx.float32)
        return hot * _PEAK

    def _choose(self, text: np.ndarray) -> int:
        """Returns the token after `text`; the end token within a prompt, where no answer has begun."""
        begins = np.flatnonzero(text == self._assistant)
        if not len(begins) or (text[begins[-1] :] == self._end).any():
            return self._end
        prompt, answer = text[: begins[-1]], text[begins[-1] + 1 :]
        return self._next_token(prompt.tobytes(), tuple(answer.tolist()))


def _next_token(tokenizer: Tokenizer, end: int) -> Callable[[bytes, tuple[int, ...]], int]:
    """Returns a function that maps a prompt, as 64-bit ids, and an answer so far to the answer's next token."""
    special = tokenizer.special_tokens
    ids = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size)) if i not in special}
    longest = max(map(len, ids))

    @lru_cache(maxsize=64)
    def planned(prompt: bytes) -> bytes:
        return answer_to(tokenizer.decode(np.frombuffer(prompt, np.int64).tolist())).encode()

    def next_token(prompt: bytes, answer: tuple[int, ...]) -> int:
        # A grammar may have cut the same text into other tokens: what counts is its bytes.
        plan, text = planned(prompt), b"".join(map(tokenizer.token_bytes, answer))
        rest = plan[len(text) :]
        if not rest or not plan.startswith(text):
            return end
        return next(ids[piece] for n in range(longest, 0, -1) if (piece := rest[:n]) in ids)

    return next_token


def talking_models(folder: Path) -> LoadedModels:
    """Loads a target that follows the conversation. `folder` is an empty one, for its tokenizer's files."""
    target = files("draftd.models") / "nano" / "target"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((target / name).read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"chat_template": _TEMPLATE, "tool_parser_type": "json_tools"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(str(folder))
    return assemble(
        Talker(tokenizer),
        None,
        tokenizer,
        model="scripted",
        draft_model=None,
        context_length=CONTEXT,
        backend="scripted",
    )
