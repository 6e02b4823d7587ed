"""One decode round: draft, verify, accept, roll back. With nothing drafted it is autoregressive decoding."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftd.core import DrafterKind
from draftd.engine.batch import Row
from draftd.engine.drafting import Draft, Drafter, merge
from draftd.engine.sampling import Sampling
from draftd.engine.verification import Verifier


@dataclass(frozen=True, slots=True)
class RowRound:
    """What the round decided for one row, before the text is cut at an end: `accepted` tokens, then one more."""

    drafted: int
    accepted: list[int]
    following: int
    draft_forwards: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of all rows. Seconds are wall time; `drafter_errors` names rows whose drafter failed, and why."""

    rows: list[RowRound]
    draft_seconds: float
    verify_seconds: float
    drafter_errors: list[tuple[Row, str]]


def decode_round(
    rows: Sequence[Row],
    sampling: Sampling,
    drafters: Mapping[DrafterKind, Drafter],
    verifier: Verifier,
    vocabulary: int,
    ahead: bool,
    plain: bool = False,
) -> Round:
    """Decodes at least one token for every row. `ahead` allows pipelining into the next round, `plain` no drafts."""
    started = time.perf_counter()
    draft, errors = (None, []) if plain else _draft(rows, sampling, drafters, verifier, vocabulary)
    drafted_at = time.perf_counter()
    if draft is None:
        # A row about to reach its end, or one that will draft next, must not be decoded beyond what is read here.
        ahead = ahead and (plain or all(row.drafter is None for row in rows)) and any(row.remaining > 1 for row in rows)
        results = [RowRound(0, [], token, 0) for token in verifier.advance(rows, sampling, ahead)]
    else:
        verdict = verifier.verify(rows, draft, sampling)
        results = [
            RowRound(*values)
            for values in zip(draft.depths, verdict.accepted, verdict.following, draft.forwards, strict=True)
        ]
    return Round(results, drafted_at - started, time.perf_counter() - drafted_at, errors)


def _draft(
    rows: Sequence[Row],
    sampling: Sampling,
    drafters: Mapping[DrafterKind, Drafter],
    verifier: Verifier,
    vocabulary: int,
) -> tuple[Draft | None, list[tuple[Row, str]]]:
    """Asks each drafter for its rows. A row that cannot be rolled back, or whose drafter fails, is degraded here."""
    groups: dict[DrafterKind, list[int]] = {}
    for i, row in enumerate(rows):
        if row.depth > 0 and row.drafter is not None:
            refusal = verifier.refusal(i, row.depth + 1)
            if refusal:
                row.degrade(refusal)
            else:
                groups.setdefault(row.drafter, []).append(i)
    parts: list[tuple[list[int], Draft]] = []
    errors: list[tuple[Row, str]] = []
    for kind, members in groups.items():
        asked = [rows[i] for i in members]
        own = sampling if len(asked) == len(rows) else sampling.select(members)
        try:
            parts.append((members, drafters[kind].propose(asked, [row.depth for row in asked], own)))
        except Exception as error:
            for row in asked:
                row.degrade(f"the drafter failed: {error}")
                errors.append((row, str(error)))
    return merge(parts, len(rows), vocabulary, sampling.greedy), errors
