"""A controller that is killed at any moment comes back as it was, or one step safer."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from draftd.core import DrafterName, FallbackLevel
from draftd.errors import ConfigError
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.leases import Notice
from draftd.fallback.reports import Verdict
from draftd.fallback.store import FileStore
from tests.unit.control.steered import (
    BOTTOM,
    DWELL,
    LADDER,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    Died,
    MemoryStore,
    Steered,
    Trace,
)

WHOLE = 8 * DWELL


def notice(level: FallbackLevel, *, hard: bool = False, firing: bool = True, starts_at: float = START) -> Notice:
    return Notice("DraftdSomething", "abc", firing, starts_at, level, hard)


def tell(steered: Steered, *notices: Notice) -> None:
    steered.controller._inbox.ask(lambda now: steered.controller._steering.notices(notices, now))
    steered.controller.tick()


def hold(steered: Steered, level: FallbackLevel, expires_in: float | None = None) -> None:
    steered.controller._inbox.ask(lambda now: steered.controller._steering.hold(level, expires_in, now))
    steered.controller.tick()


def whole_story(steered: Steered) -> None:
    """Down by an alert, hard down by another, all the way up again, a hold and its end."""
    tell(steered, notice(SHORT_BLOCK))
    steered.until(DWELL + 5, every=5)
    tell(steered, notice(PLAIN, hard=True, starts_at=START + 1))
    tell(steered, notice(PLAIN, hard=True, firing=False, starts_at=START + 1))
    steered.until(WHOLE, every=5)
    assert steered.rung == TOP
    hold(steered, LIGHT_DRAFT, 10.0)
    steered.until(WHOLE + 20, every=5)


def test_down_is_saved_then_planned_then_bound_then_unloaded_and_up_the_other_way_round() -> None:
    trace = Trace()
    store = MemoryStore(trace)
    steered = Steered(store, trace=trace)
    tell(steered, notice(PLAIN, hard=True))
    begun = trace.done.index("save autoregressive 0")
    assert trace.done[begun:] == ["save autoregressive 0", "move 4", "lower 0", "keep "]
    tell(steered, notice(PLAIN, hard=True, firing=False))
    trace.done.clear()
    steered.until(2 * DWELL + 5)
    assert trace.done == ["keep prompt_lookup", "move 3", "save light_draft 2"]
    trace.done.clear()
    steered.until(3 * DWELL + 5)
    assert trace.done == [
        "keep draft_model,prompt_lookup", "move 2", "keep draft_model", "save short_block 2",
    ]  # fmt: skip


def test_killed_before_anything_that_it_does_it_comes_back_as_it_was_or_one_step_safer() -> None:
    trace = Trace()
    whole_story(Steered(MemoryStore(trace), trace=trace))
    everything = list(trace.done)
    assert len(everything) > 20
    for n in range(len(everything) + 1):
        trace = Trace(dies_before=n)
        store = MemoryStore(trace)
        steered = None
        try:
            steered = Steered(store, trace=trace)
            whole_story(steered)
        except Died as died:
            next_one = str(died)
        else:
            next_one = "the end"
        if steered is None:  # it died before it was made
            assert store.document is None
            continue
        was, since, cause = steered.rung, steered.controller._steering._ladder.since, steered.planner.standing.cause
        store.trace = Trace()
        again = Steered(store, start=steered.start + steered.now)
        said = f"killed before {n}: {next_one}"
        assert was <= again.rung <= max(was + 1, going(steered)), said  # never higher, and no lower than it was going
        if again.rung == was and was != TOP:
            assert again.planner.standing.cause == cause, said
            assert again.controller.state().since == pytest.approx(since), said
        lowest = again.rung
        again.until(WHOLE, every=5)
        assert again.rung == TOP or again.rung <= lowest or again.controller.state().leases, said


def going(steered: Steered) -> int:
    """Where it stands, or was about to stand."""
    return int(steered.controller._steering._ladder.rung)


def test_level_cause_clock_hold_leases_and_baselines_are_as_they_were() -> None:
    store = MemoryStore()
    first = Steered(store)
    first.traffic(10 * DWELL, 0.8)
    tell(first, notice(LIGHT_DRAFT, hard=True))
    before = first.controller.state()
    drift = first.controller.readings().drift
    assert drift
    second = Steered(store, start=START + first.now + 30)
    after = second.controller.state()
    assert second.rung == LIGHT
    assert (after.rung, after.since, after.cause, after.leases) == (
        before.rung, before.since, before.cause, before.leases,
    )  # fmt: skip
    assert list(second.controller.readings().drift) == list(drift)
    assert second.told == []  # nothing has changed
    assert second.planner.standing.cause == "alert"
    hold(second, SHORT_BLOCK, 100.0)
    third = Steered(store, start=second.start + 50)
    assert third.rung == SHORT
    assert third.controller.state().hold == second.controller.state().hold
    third.until(49)
    assert third.rung == SHORT
    third.until(51)
    assert third.rung == LIGHT  # the hold is over, the alert is not


def test_leases_that_ran_out_meanwhile_ask_for_nothing() -> None:
    store = MemoryStore()
    tell(Steered(store), notice(LIGHT_DRAFT, hard=True))
    later = Steered(store, start=START + 1001)
    later.at(1)
    assert later.controller.state().leases == ()
    assert later.rung == LIGHT
    assert later.until(3 * DWELL + 5) == TOP


def test_a_clock_that_went_back_meanwhile_counts_as_no_time() -> None:
    store = MemoryStore()
    first = Steered(store)
    tell(first, notice(LIGHT_DRAFT, hard=True))
    tell(first, notice(LIGHT_DRAFT, hard=True, firing=False))
    first.until(DWELL)
    tell(first, notice(SHORT_BLOCK, firing=False, starts_at=START + 5))  # saves
    second = Steered(store, start=START - 1_000_000)
    assert second.controller.state().since == START - 1_000_000 - DWELL
    second.until(DWELL - 5)
    assert second.rung == LIGHT
    second.until(DWELL + 5)
    assert second.rung == SHORTER


def test_the_canaries_word_outlives_a_restart() -> None:
    store = MemoryStore()
    first = Steered(store, canary_period_seconds=50)
    first.examiner.quality = Verdict.BAD
    assert first.until(60) == BOTTOM
    second = Steered(store, start=START + 70)
    second.examiner.quality = Verdict.BAD
    second.until(2 * DWELL - 10)
    assert second.rung == BOTTOM
    assert second.controller.readings().demands == {"quality": PLAIN}


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 99, "ladder": {}}',
        '{"version": 1, "at": 0, "ladder": {"rung": {"level": "sideways"}}}',
    ],
)
def test_a_state_that_cannot_be_read_is_put_aside_and_the_shortest_block_is_begun_with(
    tmp_path: Path, raw: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fallback.json"
    path.write_text(raw)
    with caplog.at_level(logging.WARNING):
        steered = Steered(FileStore(path))
    assert steered.rung == SHORTER
    assert steered.controller.state().cause == "its saved state could not be read"
    assert (tmp_path / "fallback.json.broken").read_text() == raw
    assert "cannot be used" in caplog.text
    assert steered.until(4 * DWELL) == TOP
    assert Steered(FileStore(path), start=START + steered.now).rung == TOP


def test_a_state_of_another_version_keeps_the_rung_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "fallback.json"
    tell(Steered(FileStore(path)), notice(PLAIN, hard=True))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 2}))
    assert Steered(FileStore(path)).rung == BOTTOM


def test_what_was_learnt_of_other_models_is_not_learnt_of_these() -> None:
    store = MemoryStore()
    first = Steered(store)
    first.traffic(10 * DWELL, 0.8)
    tell(first, notice(LIGHT_DRAFT, hard=True))
    other = Steered(store, pair="others")
    assert other.controller.readings().drift == {}
    assert other.rung == LIGHT


def test_frozen_baselines_outrank_learnt_ones_and_a_broken_file_of_them_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baselines.json"
    path.write_text('{"version": 1, "baselines": {"draft_model/code": {"mean": 0.9, "spread": 0.01}}}')
    store = MemoryStore()
    Steered(store).traffic(10 * DWELL, 0.8)
    assert store.document is not None
    assert store.document["baselines"]["draft_model/code"]["mean"] < 0.9
    steered = Steered(store, baseline=path)
    steered.at(0)
    assert store.document["baselines"]["draft_model/code"]["mean"] == 0.9
    assert steered.controller.readings().drift == {"code": 0.0}
    for at in range(20):
        steered.request(70, 30)
        steered.at(at)
    assert steered.controller.readings().drift["code"] > 1
    path.write_text('{"version": 1, "baselines": {"draft_model/code": {"mean": 9, "spread": 0.01}}}')
    with pytest.raises(ConfigError, match=r"fallback\.baseline.*mean"):
        Steered(baseline=path)


def test_a_state_that_cannot_be_saved_stops_nobody_and_is_told_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    steered = Steered(store)
    steered.at(0)
    store.failure = OSError(28, "No space left on device")
    with caplog.at_level(logging.INFO):
        tell(steered, notice(PLAIN, hard=True))
        assert steered.rung == BOTTOM
        steered.until(10)
        store.failure = None
        steered.until(11)
    assert [record.message for record in caplog.records if "saved" in record.message] == [
        "state.json cannot be saved: [Errno 28] No space left on device; a restart would not find the level of now",
        "state.json can be saved again",
    ]
    assert steered.telemetry.saves_failed >= 10
    assert Steered(store, start=START + 12).rung == BOTTOM


def test_nothing_is_saved_while_nothing_changes() -> None:
    store = MemoryStore()
    steered = Steered(store)
    steered.until(100)
    assert [done for done in store.trace.done if done.startswith("save")] == ["save full 4"]


def test_the_weights_of_a_lower_rung_are_not_kept_once_the_engine_has_loaded() -> None:
    store = MemoryStore()
    tell(Steered(store), notice(PLAIN, hard=True))
    again = Steered(store)
    assert again.planner.rung == LADDER[BOTTOM]
    again.at(1)
    assert again.engine.held == frozenset[DrafterName]()


def test_a_journal_that_ends_elsewhere_is_told_where_the_ladder_stands() -> None:
    store, journal = MemoryStore(), Journal()
    tell(Steered(store, journal=journal), notice(LIGHT_DRAFT, hard=True))
    assert Steered(store, journal=journal).told == [("full", "light_draft prompt_lookup", "alert")]
    journal.record(Subject.LEVEL, "light_draft prompt_lookup", "short_block 2", "recovered", "")  # and killed
    journal.record(Subject.FLAG, "on", "off", "")
    again = Steered(store, journal=journal)
    assert again.told[-1] == ("short_block 2", "light_draft prompt_lookup", "alert")
    assert again.journal.latest(1)[0].evidence.startswith("DraftdSomething fires since")
