"""The level in force, and its entries in the journal."""

from __future__ import annotations

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel
from draftd.fallback.ladder import Cause, Ladder, Signal, ladder_levels
from draftd.journal import Journal, Subject

LADDER = ladder_levels(4, (3, 2), DRAFT_MODEL, (PROMPT_LOOKUP,))
DRIFT = Signal(Cause.ACCEPTANCE_DRIFT, FallbackLevel.SHORT_BLOCK, "0.31 in two windows")
MEMORY = Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE)


def test_fallback_ladder_starts_at_its_top_level() -> None:
    ladder = Ladder(LADDER)
    assert (ladder.position, ladder.level) == (0, LADDER[0])


def test_ladder_level_changes_are_journalled_with_their_cause() -> None:
    journal = Journal()
    ladder = Ladder(LADDER, journal)
    assert ladder.move(2, DRIFT)
    assert ladder.move(4, MEMORY)
    assert ladder.level == LADDER[4]
    kept = [(t.number, t.subject, t.previous, t.current, t.cause, t.evidence) for t in journal.latest(5)]
    assert kept == [
        (1, Subject.LEVEL, "full", "short_block 2", "acceptance_drift", "0.31 in two windows"),
        (2, Subject.LEVEL, "short_block 2", "autoregressive", "memory", ""),
    ]


def test_ladder_move_to_the_current_level_records_no_transition() -> None:
    journal = Journal()
    ladder = Ladder(LADDER, journal)
    ladder.move(3, DRIFT)
    assert not ladder.move(3, MEMORY)
    assert [transition.cause for transition in journal.latest(5)] == [DRIFT.cause]


def test_ladder_level_restored_at_start_is_not_journalled() -> None:
    journal = Journal()
    ladder = Ladder(LADDER, journal)
    ladder.position = 2
    assert ladder.level == LADDER[2]
    assert journal.latest(5) == ()
