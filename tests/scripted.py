"""A pair of models with a given acceptance, for tests and dry runs without weights and training.

The target's next token is a fixed function of the last token and its position, so that texts are reproducible and never
repeat. The draft computes the same function, but is wrong at a share 1 - acceptance of positions, chosen by a fixed
hash. Both keep real key-value caches and check them: a token at the wrong place in a cache makes the text wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from draftd.core import LIGHT_DRAFT_MODEL, DrafterName
from draftd.engine.drafters.sources import DraftSource
from draftd.engine.pair import LoadedModels, assemble
from draftd.models.answer_format import AnswerFormat
from draftd.models.tokenizer import ChatTemplate, Detokenizer

_PEAK = 12.0  # logit of the chosen token over all others


class ScriptedModel(nn.Module):
    """A model with mlx-lm's interface. At `wrong_per_mille` of the positions it answers with the next token but one.

    It stores the token ids themselves as keys. The answer at a position is computed from the sum of all ids in its
    cache up to there, so that a stale or missing entry changes the text.
    """

    def __init__(
        self, vocab_size: int, wrong_per_mille: int, step_seconds: float, eos: int, eos_after: int | None
    ) -> None:
        super().__init__()
        self._vocab, self._wrong = vocab_size, wrong_per_mille
        self._seconds, self._eos, self._eos_after = step_seconds, eos, eos_after
        self.fail_on_token: int | None = None
        self.on_prompt: Callable[[], object] = lambda: None  # called in each forward of more than 64 tokens

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        if self._seconds:
            time.sleep(self._seconds)
        if inputs.shape[1] > 64:
            self.on_prompt()
        if self.fail_on_token is not None and bool(mx.any(inputs == self.fail_on_token).item()):
            raise RuntimeError(f"scripted failure on token {self.fail_on_token}")
        rows, width = inputs.shape
        layer = cache[0]
        offset = layer.offset
        mask = layer.make_mask(width, return_array=True, window_size=None)
        stored = inputs.astype(mx.float32)[:, None, :, None]
        keys, _ = layer.update_and_fetch(stored, stored)
        keys = keys[:, 0, :, 0]  # rows × length
        if mask is None:  # one new token may see all that is stored
            mask = mx.ones((width, keys.shape[1]), dtype=mx.bool_)
        mask = mx.broadcast_to(mask if mask.ndim == 2 else mask[:, 0], (rows, width, keys.shape[1]))
        total = mx.where(mask, keys[:, None, :], 0.0).sum(axis=-1).astype(mx.int32)
        start = offset if isinstance(offset, mx.array) else mx.array([offset] * rows)
        position = start[:, None] + mx.arange(width)
        chosen = (total * 7 + position * 13 + 5) % (self._vocab - 2) + 1
        scattered = _scatter(position.astype(mx.uint32) * 40503 + total.astype(mx.uint32)) % 1000
        chosen = mx.where(scattered < self._wrong, chosen % (self._vocab - 2) + 1, chosen)
        if self._eos_after is not None:
            chosen = mx.where(position >= self._eos_after, self._eos, chosen)
        hot = (mx.arange(self._vocab) == chosen[..., None]).astype(mx.float32)
        return hot * _PEAK


def _scatter(x: mx.array) -> mx.array:
    """A fixed hash of uint32 (the finaliser of MurmurHash3): wrong positions must not follow a pattern."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


class ByteTokenizer:
    """One token a byte: id b is chr(b). The last id ends the text."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({vocab_size - 1})
        self.end_tokens = {vocab_size - 1: "<end>"}
        self.has_chat_template = True
        self.tools = self.thinking = self.generic_tools = False
        self.template: ChatTemplate | None = None
        self.answers = AnswerFormat()
        self.special_tokens: dict[int, str] = {}

    def grammars(self, vocabulary: int) -> None:
        """Returns None: it supports no grammars."""

    def encode(self, text: str) -> list[int]:
        return [b % self.vocab_size for b in text.encode()]

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *more: Any) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>")

    def encode_rendered(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token % 256 for token in tokens if token not in self.eos_ids).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token % 256])

    def vocabulary(self) -> list[bytes]:
        return [self.token_bytes(token) for token in range(self.vocab_size)]

    @property
    def fingerprint(self) -> str:
        return f"{self.vocab_size} bytes"

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        return Detokenizer(self.token_bytes)


def scripted_models(
    acceptance: float,
    *,
    vocab_size: int = 256,
    context_length: int = 4096,
    step_seconds: float = 0.0,
    draft_step_seconds: float = 0.0,
    eos_after: int | None = None,
    with_draft: bool = True,
    light_acceptance: float | None = None,
) -> LoadedModels:
    """Returns a loaded pair. `acceptance` is the share of drafted tokens that are accepted, 0 to 1, at any position.

    `step_seconds` is the time of each target forward; `eos_after` ends every text at that position. `light_acceptance`
    is that of an additional light draft, which is not loaded at first.
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance: got {acceptance!r}; allowed: 0 to 1")
    eos = vocab_size - 1
    target = ScriptedModel(vocab_size, 0, step_seconds, eos, eos_after)
    draft = ScriptedModel(vocab_size, round(1000 * (1 - acceptance)), draft_step_seconds, eos, eos_after)
    sources: dict[DrafterName, DraftSource] = {}
    if light_acceptance is not None:
        light = ScriptedModel(vocab_size, round(1000 * (1 - light_acceptance)), draft_step_seconds, eos, eos_after)
        sources[LIGHT_DRAFT_MODEL] = DraftSource("light draft model", lambda: light)
    return assemble(
        target,
        draft if with_draft else None,
        ByteTokenizer(vocab_size),
        model="scripted",
        draft_model="scripted-draft" if with_draft else None,
        context_length=context_length,
        backend="scripted",
        sources=sources,
        light_draft_model=None if light_acceptance is None else "scripted-light-draft",
    )
