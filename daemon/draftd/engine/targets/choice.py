"""A target's state of a sequence, and how a step's logits become tokens: logits processors, grammars, transforms and
the acceptance rule, in this order, with log-probabilities."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from draftd.core import DecodeRequest, TokenLogprobs
from draftd.engine.features import Features
from draftd.engine.sampling.acceptance import Distributions, accept, draw
from draftd.engine.sampling.grammar import GrammarMasks, GrammarState
from draftd.engine.sampling.logprobs import Logprobs, PromptLogprobs
from draftd.engine.sampling.processors import Processor, has_penalties, process
from draftd.engine.sampling.transforms import Sampling, greatest, one_hot, uniforms
from draftd.engine.targets.base import SequenceOptions

NOT_FINITE = "the model's logits are not finite (NaN, infinity, or no token left): its text cannot go on"


@dataclass(slots=True)
class TargetSequence:
    """A target's state of a sequence. `ids`: the text as far as it was read; the last one is not in the cache. `dice`:
    the source of unseeded sampling. `processor`: changes its logits, if anything does; `grammar`: the state of its
    answer; `prompt`: log-probabilities of its prompt."""

    options: SequenceOptions
    ids: list[int]
    dice: random.Random
    processor: Processor | None = None
    grammar: GrammarState | None = None
    prompt: PromptLogprobs | None = None

    def follow(self) -> str:
        """Advances the grammar by the new tokens of the answer. Returns why it cannot go on; empty if it can."""
        if self.grammar is not None:
            try:
                self.grammar.follow(self.ids, self.options.prompt)
            except ValueError as refused:
                return str(refused)
        return ""


def masks_first(sequences: Sequence[DecodeRequest] | Sequence[SequenceOptions]) -> bool:
    """Returns whether grammar masks must be applied before choosing tokens, for the sequences of one batch.

    If not, a choice is made without a mask and checked when it is read: if the grammar allows it, the mask would not
    change it. Random choices, log-probabilities and penalties need the mask first: penalties cannot uncount a forbidden
    token."""
    bound = [sequence for sequence in sequences if sequence.grammar]
    if not bound:
        return False
    counted = any(
        sequence.sampling.filtered or has_penalties(sequence.sampling) or sequence.logprobs is not None
        for sequence in bound
    )
    return counted or not all(sequence.sampling.deterministic for sequence in sequences)


class StepChoice:
    """The choice of tokens for the rows of one step. `starts`: by row, tokens of the answer before the first chosen
    one."""

    def __init__(
        self,
        rows: Sequence[TargetSequence],
        sampling: Sampling,
        starts: Sequence[int],
        masks: GrammarMasks | None,
        logits: mx.array,
        features: Sequence[Features | None],
        *,
        unread: mx.array | None = None,
        drafts: mx.array | None = None,
        depths: Sequence[int] = (),
    ) -> None:
        """`logits`: rows × (k+1) × vocabulary. `features`: of each row, for the step's results. `unread`: each row's
        last token, rows × 1, if it is still on the device; `drafts`: rows × k ids; the first `depths[i]` of row i are
        real."""
        self._rows, self._sampling, self._starts, self._masks = rows, sampling, starts, masks
        self.features = features
        self._greatest = greatest(logits)
        self._greatest_read: list[list[float]] | None = None
        limits = [sequence.options.logprobs for sequence in rows]
        self._logprobs = None if all(most is None for most in limits) else Logprobs(logits, limits)
        logits = process(logits, [sequence.processor for sequence in rows], starts, unread=unread, drafts=drafts)
        self._bound = [row for row, sequence in enumerate(rows) if sequence.grammar is not None]
        self._late = bool(self._bound) and not masks_first([sequence.options for sequence in rows])
        if self._bound and not self._late:
            assert unread is None, "masks are of what may follow a token that was read"
            proposed: Sequence[Sequence[int]] = [()] * len(rows)
            if drafts is not None:
                mx.async_eval(logits)  # the masks are computed meanwhile
                proposed = [ids[:depth] for ids, depth in zip(drafts.tolist(), depths, strict=True)]
            logits = self._mask_logits(logits, rows, proposed)
        self._logits = logits
        self.changed = False  # whether a chosen token was forbidden

    def tokens(self) -> mx.array:
        """Returns one token for each row, rows × 1, still being computed, together with its log-probabilities."""
        if self._sampling.deterministic:
            chosen = self._sampling.choose(self._logits, self._starts)
        else:
            p = self._sampling.distribution(self._logits, self._starts)
            chosen = draw(p, uniforms([sequence.dice for sequence in self._rows], [1] * len(self._rows)))
        mx.async_eval(chosen, self._greatest, *(self._logprobs.of(chosen) if self._logprobs else ()))
        return chosen

    def acceptance(
        self, drafts: mx.array, depths: Sequence[int], q: mx.array | None
    ) -> Callable[[], list[tuple[list[int], int]]]:
        """Returns a function that waits, then gives each row's accepted drafts and the token after them. `drafts` and
        `depths` as in `accept`; `q`: rows × k × vocabulary, the distributions that they were drawn from, None if all
        mass was on them."""
        target: mx.array | Distributions
        if self._sampling.deterministic:
            target = self._sampling.choose(self._logits, self._starts)
        else:
            dice = [sequence.dice for sequence in self._rows]
            u_accept, u_next = uniforms(dice, depths), uniforms(dice, [1] * len(dice))[:, 0]
            q = one_hot(drafts, self._logits.shape[-1]) if q is None else q
            target = Distributions(self._sampling.distribution(self._logits, self._starts), q, u_accept, u_next)
        instead = {row: partial(self._legal, row) for row in self._bound} if self._late else {}
        also = self._logprobs.of if self._logprobs else None
        return partial(accept, drafts, depths, target, also, instead, beside=(self._greatest,))

    def legal(self, row: int, token: int) -> int:
        """Returns the token for a row whose `token` was chosen without a mask: the same one if its grammar allows
        it."""
        return self._legal(row, 0, token) if self._late and self._rows[row].grammar is not None else token

    def error(self, row: int, accepted: int = 0) -> str:
        """Returns why a row cannot go on after `accepted` drafts and one more token: the model's logits are not usable
        numbers, or the grammar forbids the text. Empty if it can. The choice must be computed."""
        if self._greatest_read is None:
            self._greatest_read = self._greatest.tolist()
        if not all(map(math.isfinite, self._greatest_read[row][: accepted + 1])):
            return NOT_FINITE
        return self._rows[row].follow()

    def read_logprobs(self) -> Sequence[Sequence[TokenLogprobs]]:
        """The log-probabilities of each row's chosen tokens, for rows that ask for them."""
        return self._logprobs.read() if self._logprobs else [()] * len(self._rows)

    def _legal(self, row: int, place: int, token: int) -> int:
        """Returns the token at a place where `token` was chosen without a mask: if the grammar allows it, it is also
        the choice under the mask."""
        sequence = self._rows[row]
        assert sequence.grammar is not None
        if not sequence.grammar.take(token):
            masked = self._mask_logits(self._logits[row : row + 1, place : place + 1], [sequence], [()])
            token = int(self._sampling.select([row]).choose(masked, [self._starts[row]], place).item())
            self.changed = True
            sequence.grammar.take(token)
        return token

    def _mask_logits(
        self, logits: mx.array, rows: Sequence[TargetSequence], proposed: Sequence[Sequence[int]]
    ) -> mx.array:
        """Returns `logits`, rows × width × vocabulary, with -inf for tokens that the grammars forbid after each
        proposed token."""
        assert self._masks is not None
        return mx.where(
            self._masks.of([sequence.grammar for sequence in rows], proposed, logits.shape[1]), logits, -mx.inf
        )
