"""Logits processors: changes to the target's logits that a request asks for, made before transforms and sampling.

In this order: bias, repetition penalty, presence and frequency penalty, and no end tokens before `min_tokens`
(core.SamplingParams has the formulas). In a block of drafts each position counts the drafts before it as text, so the
target chooses at each place what it would choose without drafts. Drafters ignore all this: a draft that violates a
penalty is rejected by the target's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from draftd.core import SamplingParams
from draftd.engine.sampling.transforms import column, one_hot

_LEAST_PENALTY = 1e-9  # a smaller one orders tokens the same way; float32 logits divided by it would not be finite


def needs_processor(sampling: SamplingParams, min_tokens: int) -> bool:
    """Whether a sequence with these options needs a logits processor."""
    return bool(sampling.logit_bias or min_tokens) or has_penalties(sampling)


def has_penalties(p: SamplingParams) -> bool:
    return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0


class Processor:
    """The logits processor of one sequence. It counts the text in arrays over the vocabulary, on the device, so nothing
    waits for a token that is still being computed."""

    def __init__(
        self,
        sampling: SamplingParams,
        min_tokens: int,
        ends: Sequence[int],
        text: Sequence[int],
        prompt: int,
        vocabulary: int,
    ) -> None:
        """`ends`: tokens that end the text. `text`: the sequence's growing list of tokens; the first `prompt` of them
        precede the answer."""
        self.sampling, self.min_tokens, self._text, self._prompt = sampling, min_tokens, text, prompt
        self._penalised = has_penalties(sampling)
        nothing = mx.zeros(vocabulary)
        ids = mx.array([token for token, _ in sampling.logit_bias], dtype=mx.uint32)
        bias = mx.array([value for _, value in sampling.logit_bias], dtype=mx.float32)
        self.bias = nothing.at[ids].add(bias) if sampling.logit_bias else nothing
        self.ends = _at(nothing, [token for token in ends if token < vocabulary]) > 0
        self.prompted = self.counts = nothing  # occurrences of each token in the prompt and in the answer
        self._counted = 0  # tokens of the text that were counted

    def acts(self, start: int) -> bool:
        """Whether it changes the logits of the token after `start` tokens of the answer."""
        return self._penalised or bool(self.sampling.logit_bias) or start < self.min_tokens

    def follow(self, start: int, unread: mx.array | None) -> None:
        """Counts the text up to `start` tokens of the answer; the last of these may still be unread."""
        length, text = self._prompt + start, self._text
        if not self._penalised or self._counted == length:
            return
        if not self._counted:
            self.prompted = _at(self.prompted, text[: self._prompt])
            self._counted = self._prompt
        self.counts = _at(self.counts, text[self._counted : length])
        if len(text) < length:
            assert unread is not None, "the answer is longer than what is known of it"
            self.counts = self.counts.at[unread].add(1.0)
        self._counted = length


def process(
    logits: mx.array,
    processors: Sequence[Processor | None],
    starts: Sequence[int],
    *,
    unread: mx.array | None = None,
    drafts: mx.array | None = None,
) -> mx.array:
    """Returns `logits`, rows × positions × vocabulary, changed by each row's processor; rows without one stay as they
    are.

    `starts`: by row, tokens of the answer before the first position; `unread`: the last of these tokens, rows × 1, if
    the texts do not have them yet. `drafts`: rows × (positions - 1), the drafted token before each position except the
    first."""
    if not any(processors):
        return logits
    acting = [
        (i, processor) for i, processor in enumerate(processors) if processor is not None and processor.acts(starts[i])
    ]
    if not acting:
        return logits
    for i, processor in acting:
        processor.follow(starts[i], None if unread is None else unread[i])
    rows, some = mx.array([i for i, _ in acting]), [processor for _, processor in acting]
    whole = len(some) == len(processors)
    logits = logits.astype(mx.float32)
    result = logits if whole else logits[rows]
    result = result + mx.stack([processor.bias for processor in some])[:, None]
    if any(has_penalties(processor.sampling) for processor in some):
        result = _less_penalties(result, some, None if drafts is None else drafts[rows])
    first = [starts[i] for i, _ in acting]
    least = [processor.min_tokens for processor in some]
    if any(start < most for start, most in zip(first, least, strict=True)):
        early = mx.array(first)[:, None] + mx.arange(result.shape[1]) < mx.array(least)[:, None]
        ends = mx.stack([processor.ends for processor in some])
        result = mx.where(early[..., None] & ends[:, None], -mx.inf, result)
    if whole:
        return result
    place = {i: n for n, (i, _) in enumerate(acting)}
    order = [place.get(i, len(some) + i) for i in range(len(processors))]
    return mx.concatenate([result, logits])[mx.array(order)]


def _less_penalties(logits: mx.array, some: Sequence[Processor], drafts: mx.array | None) -> mx.array:
    counts = mx.stack([processor.counts for processor in some])[:, None]
    if drafts is not None:
        before = mx.cumsum(one_hot(drafts, logits.shape[-1]), axis=1)
        counts = counts + mx.pad(before, [(0, 0), (1, 0), (0, 0)])
    params = [processor.sampling for processor in some]
    if any(p.repetition_penalty != 1 for p in params):
        seen = counts + mx.stack([processor.prompted for processor in some])[:, None] > 0
        penalty = column([max(p.repetition_penalty, _LEAST_PENALTY) for p in params])
        logits = mx.where(seen, mx.where(logits > 0, logits / penalty, logits * penalty), logits)
    if any(p.presence_penalty or p.frequency_penalty for p in params):
        presence, frequency = (
            column([p.presence_penalty for p in params]),
            column([p.frequency_penalty for p in params]),
        )
        logits = logits - ((counts > 0) * presence + counts * frequency)
    return logits


def _at(counts: mx.array, ids: Sequence[int]) -> mx.array:
    """Returns the counts with one added for each id."""
    return counts.at[mx.array(ids, dtype=mx.uint32)].add(1.0) if len(ids) else counts
