"""One decode round: draft, verify, accept, roll back. With nothing drafted it is autoregressive decoding."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftd.core import DrafterKind
from draftd.engine.decoders import Decoders
from draftd.engine.drafters.base import Draft, merge
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft that is tried although it is not expected to pay: what it tells of, the rows and the depth it is for.

    It has paid where a depth from `paid_from` on is best after it; `expected` tokens were to stand. `pace`: seconds
    that a token takes as it is; `entry`: those that were spent on making the drafter know the rows.
    """

    keys: tuple[Hashable, ...]
    kind: DrafterKind
    rows: tuple[DecodeSequence, ...]
    depth: int
    paid_from: int
    expected: float
    pace: float
    entry: float


@dataclass(slots=True)
class Choice:
    """For each row: tokens to draft, with whom, whether it drafts nothing because that does not pay (`parked`), and
    whether its plan's bound is lower than what would pay (`capped`).

    `ahead`: the round after this one will draft nothing either, so that it may be started ahead. `measuring`: nothing
    is drafted in order to see what that costs. `uncertain`: whether drafting pays hangs on prices that are not known
    well.
    """

    depths: list[int]
    drafters: list[DrafterKind | None]
    parked: list[bool]
    capped: list[bool]
    ahead: bool = False
    measuring: bool = False
    uncertain: bool = False
    trial: Trial | None = None

    @classmethod
    def plain(
        cls, rows: Sequence[DecodeSequence], ahead: bool, *, parked: Sequence[bool] = (), measuring: bool = False
    ) -> Choice:
        """Nobody drafts."""
        none = [False] * len(rows)
        return cls([0] * len(rows), [None] * len(rows), list(parked) or none, none, ahead, measuring)

    @classmethod
    def fixed(cls, rows: Sequence[DecodeSequence]) -> Choice:
        """Each row drafts as many as its plan says."""
        none = [False] * len(rows)
        drafters = [row.drafter for row in rows]
        return cls([row.depth for row in rows], drafters, none, none, all(kind is None for kind in drafters))

    @property
    def drafts(self) -> bool:
        return any(self.depths)


class RowRound(NamedTuple):
    """What the round decided for one row, before the text is cut at an end: `accepted` tokens, then one more."""

    drafted: int
    accepted: list[int]
    following: int
    draft_forwards: int
    parked: bool = False
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """One round of all rows. Seconds are wall time; `drafter_errors` names rows whose drafter failed, and why; `lag` is
    the most tokens that a draft model took in before it drafted."""

    rows: list[RowRound]
    draft_seconds: float
    verify_seconds: float
    drafter_errors: list[tuple[DecodeSequence, str]]
    lag: int = 0


def decode_round(
    rows: Sequence[DecodeSequence],
    sampling: Sampling,
    decoders: Decoders,
    vocabulary: int,
    choice: Choice,
    ahead: bool,
) -> Round:
    """Decodes at least one token for every row; drafts as `choice` says. `ahead` allows pipelining into the next round
    where that is not to draft either."""
    started = time.perf_counter()
    draft, errors = _draft(rows, sampling, decoders, vocabulary, choice) if choice.drafts else (None, [])
    drafted_at = time.perf_counter()
    if draft is None:
        # A row about to reach its end, or one that will draft next, must not be decoded beyond what is read here.
        ahead = ahead and choice.ahead and any(row.remaining > 1 for row in rows)
        tokens = decoders.verifier.advance(rows, sampling, ahead)
        results = [RowRound(0, [], token, 0, parked) for token, parked in zip(tokens, choice.parked, strict=True)]
    else:
        verdict = decoders.verifier.verify(rows, draft, sampling)
        results = [
            RowRound(*values)
            for values in zip(
                draft.depths,
                verdict.accepted,
                verdict.following,
                draft.forwards,
                choice.parked,
                choice.capped,
                strict=True,
            )
        ]
    lag = 0 if draft is None else draft.lag
    return Round(results, drafted_at - started, time.perf_counter() - drafted_at, errors, lag)


def _draft(
    rows: Sequence[DecodeSequence],
    sampling: Sampling,
    decoders: Decoders,
    vocabulary: int,
    choice: Choice,
) -> tuple[Draft | None, list[tuple[DecodeSequence, str]]]:
    """Asks each drafter for its rows. A row that cannot be rolled back, or whose drafter fails, is degraded here."""
    groups: dict[DrafterKind, list[int]] = {}
    for i, row in enumerate(rows):
        kind, depth = choice.drafters[i], choice.depths[i]
        if depth > 0 and kind is not None:
            refusal = decoders.verifier.refusal(i, depth + 1)
            if refusal:
                row.degrade(refusal)
            else:
                row.draft_with(kind)
                groups.setdefault(kind, []).append(i)
    parts: list[tuple[list[int], Draft]] = []
    errors: list[tuple[DecodeSequence, str]] = []
    for kind, members in groups.items():
        asked = [rows[i] for i in members]
        own = sampling if len(asked) == len(rows) else sampling.select(members)
        try:
            parts.append((members, decoders.drafters[kind].propose(asked, [choice.depths[i] for i in members], own)))
        except Exception as error:
            for row in asked:
                row.degrade(f"the drafter failed: {error}")
                errors.append((row, str(error)))
    return merge(parts, len(rows), vocabulary, sampling.settled), errors
