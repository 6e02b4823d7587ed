"""Expected tokens and seconds of a step by depth, and the depth with the most tokens per second.

A sequence is expected to get 1 + Σ_j Π_{i≤j} a_i tokens from a draft (acceptance_rates.py); seconds are measured
(costs.py). If a target replays what it rolled back, a step is wider than its draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from draftd.core import PROMPT_LOOKUP, DrafterName
from draftd.engine.limits import MOST_REPLAYED

if TYPE_CHECKING:
    from draftd.engine.depth.costs import Batch
    from draftd.engine.sequence import DecodeSequence, Key


@dataclass(slots=True)
class DepthCandidate:
    """The batch's sequence number `index`, whose depth is to be chosen; it may draft up to `most` tokens.

    `draft`, `lookup`: expected tokens by depth from 0 (1.0), with draft model `drafter` to one deeper than allowed, and
    with `weightless` (prompt lookup or similar) as deep as it has proposals. `ready`: the draft model has taken in the
    text; if not, that takes `prefill_seconds`."""

    index: int
    sequence: DecodeSequence
    most: int
    drafter: DrafterName | None = None
    weightless: DrafterName = PROMPT_LOOKUP
    key: Key | None = None
    ready: bool = False
    prefill_seconds: float = 0.0
    draft: Sequence[float] = (1.0,)
    lookup: Sequence[float] = (1.0,)

    @property
    def has_draft_model(self) -> bool:
        return self.drafter is not None

    def tokens(self, depth: int, lookup: int = 0) -> float:
        """Returns the expected tokens of a step with these depths, by the better of the two drafters."""
        return max(self.draft[min(depth, self.most)], self.lookup[min(lookup, len(self.lookup) - 1)])

    def prefix_probabilities(self, depth: int, lookup: int) -> list[float]:
        """Returns, for each r from 0 to the number of drafted tokens, the probability that the first r are all
        accepted."""
        draft = self.draft[: 1 + (min(depth, self.most) if self.has_draft_model else 0)]
        chosen = max(draft, self.lookup[: lookup + 1], key=lambda tokens: tokens[-1])
        return [1.0, *(more - less for less, more in pairwise(chosen))]


class BestDepths(NamedTuple):
    """The depths with the most expected tokens per second: of the draft model, and of prompt lookup."""

    depth: int
    lookup: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class StepEstimate:
    """Expected tokens and seconds of the next step of a `batch`.

    `others`: tokens expected of sequences whose depth is fixed; they draft `fixed_depth` tokens, `fixed_steps` of these
    with a draft model. `draft_seconds`, `lookup_seconds`: of a step by depth (0: plain) with each drafter. `replays`:
    the target recomputes accepted tokens after a rejection, in front of the next draft."""

    batch: Batch
    candidates: list[DepthCandidate]
    others: float
    fixed_depth: int
    fixed_steps: int
    draft_seconds: list[float]
    lookup_seconds: list[float]
    replays: bool = False
    _replayed: dict[tuple[int, int], tuple[list[float], float]] = field(default_factory=dict)

    def seconds(self, depth: int, lookup: int = 0) -> float:
        """Returns seconds of a step with `depth` forwards of a draft model, verified at the greater of the two
        depths."""
        drafted, width = self._draft_seconds(depth, lookup)
        if not (self.replays and width):
            return self.lookup_seconds[width] + drafted
        last, wider = len(self.lookup_seconds) - 1, self.expected_replay(depth, lookup)[0]
        return drafted + sum(p * self.lookup_seconds[min(width + n, last)] for n, p in enumerate(wider))

    def _draft_seconds(self, depth: int, lookup: int) -> tuple[float, int]:
        """Returns the seconds of the draft model's forwards, and the depth that the target verifies: the deepest of
        both drafters'."""
        steps = max(depth, self.fixed_steps)
        width = max(steps, lookup, self.fixed_depth)
        return (self.draft_seconds[width] - self.lookup_seconds[width]) * steps / width if steps else 0.0, width

    def expected_replay(self, depth: int, lookup: int) -> tuple[list[float], float]:
        """Returns the effect of replays when all candidates draft at these depths. First, by n from 0, the probability
        that replayed tokens make the forward n positions wider than its deepest draft. Second, the expected tokens lost
        by sequences that cannot draft because they have too much to replay."""
        if (cached := self._replayed.get((depth, lookup))) is not None:  # asked for repeatedly in one step
            return cached
        under = [1.0] * MOST_REPLAYED  # by n: the probability that no sequence is wider by more than n
        missed = 0.0
        for c in self.candidates:
            reached = c.prefix_probabilities(depth, lookup)
            own, nothing = _replays(tuple(reached))
            under = [p * own_p for p, own_p in zip(under, own, strict=True)]
            missed += nothing * sum(reached[1:])
        result = [more - less for less, more in pairwise([0.0, *under, 1.0])], missed
        self._replayed[depth, lookup] = result
        return result

    def tokens(self, drafting: Sequence[Sequence[float]], depth: int) -> float:
        """Returns the expected tokens if only some candidates draft, at this depth; `drafting` has their expected
        tokens by depth."""
        gained = sum(tokens[min(depth, len(tokens) - 1)] - 1 for tokens in drafting)
        return self.others + len(self.candidates) + gained

    def best(self, *, if_ready: bool = False) -> BestDepths:
        """Returns the best depths for all candidates, 0 included; the smallest of equals. A sequence drafts less only
        if its plan or its remaining tokens require it. `if_ready`: as if the draft model had taken in all texts."""
        drafting = [(c, c.has_draft_model and (c.ready or if_ready)) for c in self.candidates]
        deepest = max((c.most for c, drafts in drafting if drafts), default=0)
        best: BestDepths | None = None
        for depth in range(deepest + 1):
            for lookup in range(max((len(c.lookup) for c in self.candidates), default=1)):
                tokens = self.others + sum(c.tokens(depth if drafts else 0, lookup) for c, drafts in drafting)
                if self.replays and best is not None:
                    drafted, width = self._draft_seconds(depth, lookup)
                    if tokens <= best.rate * (drafted + min(self.lookup_seconds[width:])):
                        continue  # replays, which are slow to compute, cannot improve it
                    tokens -= self.expected_replay(depth, lookup)[1]
                seconds = self.seconds(depth, lookup)
                if best is None or tokens * best.seconds > best.tokens * seconds:
                    best = BestDepths(depth, lookup, tokens, seconds)
        assert best is not None
        return best


def best_depth(expected: Sequence[float], seconds: Sequence[float]) -> int:
    """Returns the depth with the most tokens per second, the smallest of equals. `expected` tokens and `seconds` (or
    any multiple) are by depth, starting at the same one."""
    depths = range(min(len(expected), len(seconds)))
    return max(depths, key=lambda depth: expected[depth] / seconds[depth])


@lru_cache(maxsize=256)
def _replays(reached: tuple[float, ...]) -> tuple[list[float], float]:
    """Returns two results for a sequence whose first r drafted tokens are all accepted with probability `reached[r]`.
    First, by n from 0, the probability that replayed tokens make its part of a forward at most n positions wider than
    its draft. Second, the probability that it drafts nothing.

    A draft rejected after r accepted tokens adds r + 1 tokens to the replay. A fully accepted draft, or a step without
    a draft, empties the replay."""
    rejected = [more - less for more, less in pairwise(reached)]  # after 0 accepted tokens, after 1, …
    deepest = len(rejected)
    # visits[n]: expected steps with n tokens to replay, from one empty replay to the next
    most, visits = min(deepest, MOST_REPLAYED), [1.0]
    for n in range(1, most + deepest + 1):
        visits.append(
            sum(visits[n - more] * rejected[more - 1] for more in range(max(1, n - most), min(n, deepest) + 1))
        )
    whole, drafts, nothing = sum(visits), visits[: most + 1], visits[most + 1 :]
    own = [(sum(drafts[: n + 1]) + sum(nothing[: max(0, deepest + n - most)])) / whole for n in range(MOST_REPLAYED)]
    return own, sum(nothing) / whole
