"""A controller that is killed at any moment comes back as it was, or one step safer."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from draftd.core import DrafterName
from draftd.errors import ConfigError
from draftd.fallback.ladder import Cause
from draftd.fallback.probes import ProbeVerdict
from draftd.fallback.store import StateStore
from draftd.journal import Journal, Subject
from tests.unit.fallback.controlled import (
    BOTTOM,
    COOLDOWN,
    LADDER,
    LIGHT,
    LIGHT_DRAFT,
    PLAIN,
    SHORT,
    SHORT_BLOCK,
    SHORTER,
    START,
    TOP,
    Controlled,
    Died,
    MemoryStore,
    Trace,
    notice,
    tell,
)

WHOLE = 8 * COOLDOWN


def whole_story(controlled: Controlled) -> None:
    """Plays a step down by an alert, a hard one by another, the way up again, a hold and its end."""
    tell(controlled, notice(SHORT_BLOCK))
    controlled.until(COOLDOWN + 5, every=5)
    tell(controlled, notice(PLAIN, hard=True, starts_at=START + 1))
    tell(controlled, notice(PLAIN, hard=True, firing=False, starts_at=START + 1))
    controlled.until(WHOLE, every=5)
    assert controlled.position == TOP
    controlled.controller.hold(LIGHT_DRAFT, 10.0)
    controlled.until(WHOLE + 20, every=5)


def test_fallback_step_down_is_saved_before_it_applies_and_step_up_after() -> None:
    trace = Trace()
    store = MemoryStore(trace)
    controlled = Controlled(store, trace=trace)
    tell(controlled, notice(PLAIN, hard=True))
    begun = trace.done.index("save autoregressive 0")
    assert trace.done[begun:] == ["save autoregressive 0", "move 4", "lower 0", "keep "]
    tell(controlled, notice(PLAIN, hard=True, firing=False))
    trace.done.clear()
    controlled.until(2 * COOLDOWN + 5)
    assert trace.done == ["keep prompt_lookup", "move 3", "save light_draft 2"]
    trace.done.clear()
    controlled.until(3 * COOLDOWN + 5)
    assert trace.done == [
        "keep draft_model,prompt_lookup", "move 2", "keep draft_model", "save short_block 2",
    ]  # fmt: skip


def test_fallback_controller_killed_at_any_moment_restarts_no_higher() -> None:
    trace = Trace()
    whole_story(Controlled(MemoryStore(trace), trace=trace))
    everything = list(trace.done)
    assert len(everything) > 20
    for n in range(len(everything) + 1):
        trace = Trace(dies_before=n)
        store = MemoryStore(trace)
        controlled = None
        try:
            controlled = Controlled(store, trace=trace)
            whole_story(controlled)
        except Died as died:
            next_one = str(died)
        else:
            next_one = "the end"
        if controlled is None:  # it died before it was made
            assert store.text is None
            continue
        was, since, cause = (
            controlled.position,
            controlled.ladder.state.since,
            controlled.ladder.signal,
        )
        store.trace = Trace()
        again = Controlled(store, start=controlled.start + controlled.now)
        said = f"killed before {n}: {next_one}"
        # Never higher, and no lower than it was going, or than a hold whose end was not saved.
        hold = again.controller.state().hold
        assert was <= again.position <= max(was + 1, going(controlled), hold.position if hold else 0), said
        if again.position == was and was != TOP and hold is None:
            assert again.controller.state().signal == cause, said
            assert again.controller.state().since == pytest.approx(since), said
        lowest = again.position
        again.until(WHOLE, every=5)
        assert again.position == TOP or again.position <= lowest or again.controller.state().leases, said


def going(controlled: Controlled) -> int:
    """Returns the position in force or about to be in force."""
    return controlled.ladder.state.position


def test_fallback_restart_restores_level_cause_hold_leases_and_drift_baselines() -> None:
    store = MemoryStore()
    first = Controlled(store)
    first.traffic(10 * COOLDOWN, 0.8)
    tell(first, notice(LIGHT_DRAFT, hard=True))
    before = first.controller.state()
    drift = first.controller.state().drift
    assert drift
    second = Controlled(store, start=START + first.now + 30)
    after = second.controller.state()
    assert second.position == LIGHT
    assert (after.position, after.since, after.signal, after.leases) == (
        before.position, before.since, before.signal, before.leases,
    )  # fmt: skip
    assert list(second.controller.state().drift) == list(drift)
    assert second.told == []  # nothing has changed
    assert after.signal is not None
    assert after.signal.cause is Cause.ALERT
    second.controller.hold(SHORT_BLOCK, 100.0)
    third = Controlled(store, start=second.start + 50)
    assert third.position == SHORT
    assert third.controller.state().hold == second.controller.state().hold
    third.until(49)
    assert third.position == SHORT
    third.until(51)
    assert third.position == LIGHT  # the hold has ended, the alert has not


def test_restarted_fallback_controller_writes_no_state_before_a_change() -> None:
    store = MemoryStore()
    tell(Controlled(store), notice(LIGHT_DRAFT, hard=True))
    store.failure = OSError(28, "No space left on device")
    second = Controlled(store, start=START + 5)
    second.at(1)
    assert second.controller.state().unsaved == ""
    tell(second, notice(PLAIN, hard=True, starts_at=START + 6))
    assert "No space left on device" in second.controller.state().unsaved
    store.failure = None
    second.at(2)
    assert second.controller.state().unsaved == ""


def test_alert_leases_that_expired_during_downtime_are_dropped_at_restart() -> None:
    store = MemoryStore()
    tell(Controlled(store), notice(LIGHT_DRAFT, hard=True))
    later = Controlled(store, start=START + 1001)
    later.at(1)
    assert later.controller.state().leases == ()
    assert later.position == LIGHT
    assert later.until(3 * COOLDOWN + 5) == TOP


def test_clock_set_back_during_downtime_counts_as_zero_elapsed_time_for_the_ladder() -> None:
    store = MemoryStore()
    first = Controlled(store)
    tell(first, notice(LIGHT_DRAFT, hard=True))
    tell(first, notice(LIGHT_DRAFT, hard=True, firing=False))
    first.until(COOLDOWN)
    tell(first, notice(SHORT_BLOCK, firing=False, starts_at=START + 5))  # saves
    second = Controlled(store, start=START - 1_000_000)
    assert second.controller.state().since == START - 1_000_000 - COOLDOWN
    second.until(COOLDOWN - 5)
    assert second.position == LIGHT
    second.until(COOLDOWN + 5)
    assert second.position == SHORTER


def test_bad_canary_verdict_survives_a_restart() -> None:
    store = MemoryStore()
    first = Controlled(store, canary_period_seconds=50)
    first.runner.quality = ProbeVerdict.BAD
    assert first.until(60) == BOTTOM
    second = Controlled(store, start=START + 70)
    second.runner.quality = ProbeVerdict.BAD
    second.until(2 * COOLDOWN - 10)
    assert second.position == BOTTOM
    assert second.asked_for() == {"quality": PLAIN}


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 2}',
        '{"version": 99, "ladder": {}}',
        '{"version": 2, "at": 0, "level": {"kind": "sideways"}}',
    ],
)
def test_unreadable_fallback_state_file_is_set_aside_and_drafting_starts_disabled(
    tmp_path: Path, raw: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fallback.json"
    path.write_text(raw)
    with caplog.at_level(logging.WARNING):
        controlled = Controlled(StateStore(path))
    assert controlled.position == BOTTOM
    signal = controlled.controller.state().signal
    assert signal is not None
    assert signal.text == "unreadable_state: the saved state could not be read"
    assert (tmp_path / "fallback.json.broken").read_text() == raw
    assert "cannot be used" in caplog.text
    assert controlled.until(6 * COOLDOWN) == TOP
    assert Controlled(StateStore(path), start=START + controlled.now).position == TOP


def test_daemon_killed_with_an_unreadable_fallback_state_restarts_with_drafting_disabled(tmp_path: Path) -> None:
    path = tmp_path / "fallback.json"
    path.write_text("{")
    assert Controlled(StateStore(path)).position == BOTTOM  # and killed before its first look
    assert Controlled(StateStore(path)).position == BOTTOM


def test_fallback_state_of_another_version_still_restores_its_level(tmp_path: Path) -> None:
    path = tmp_path / "fallback.json"
    tell(Controlled(StateStore(path)), notice(PLAIN, hard=True))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "version": 3}))
    assert Controlled(StateStore(path)).position == BOTTOM


def test_baseline_file_overrides_measured_acceptance_baselines_and_is_validated(tmp_path: Path) -> None:
    path = tmp_path / "baselines.json"
    path.write_text('{"version": 1, "baselines": {"draft_model/code": {"mean": 0.9, "spread": 0.01}}}')
    store = MemoryStore()
    Controlled(store).traffic(10 * COOLDOWN, 0.8)
    assert store.document is not None
    assert store.document["baselines"]["draft_model/code"]["mean"] < 0.9
    controlled = Controlled(store, baseline=path)
    controlled.runner.verdict = ProbeVerdict.BAD
    controlled.at(0)
    assert store.document["baselines"]["draft_model/code"]["mean"] == 0.9
    assert controlled.controller.state().drift == {"code": 0.0}
    for at in range(20):
        controlled.request(70, 30)
        controlled.at(at)
    assert controlled.controller.state().drift["code"] > 1
    path.write_text('{"version": 1, "baselines": {"draft_model/code": {"mean": 9, "spread": 0.01}}}')
    with pytest.raises(ConfigError, match=r"fallback\.baseline.*mean"):
        Controlled(baseline=path)


def test_unsavable_fallback_state_is_logged_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    controlled = Controlled(store)
    controlled.at(0)
    store.failure = OSError(28, "No space left on device")
    with caplog.at_level(logging.INFO):
        tell(controlled, notice(PLAIN, hard=True))
        assert controlled.position == BOTTOM
        controlled.until(10)
        store.failure = None
        controlled.until(11)
    assert [record.message for record in caplog.records if "saved" in record.message] == [
        "state.json cannot be saved: No space left on device; a restart would not know the present level",
        "state.json can be saved again",
    ]
    assert store.errors >= 10
    assert Controlled(store, start=START + 12).position == BOTTOM


def test_fallback_controller_saves_only_its_initial_state_while_nothing_changes() -> None:
    store = MemoryStore()
    controlled = Controlled(store)
    controlled.until(100)
    assert [done for done in store.trace.done if done.startswith("save")] == ["save full 4"]


def test_restart_at_the_autoregressive_level_releases_draft_weights() -> None:
    store = MemoryStore()
    tell(Controlled(store), notice(PLAIN, hard=True))
    again = Controlled(store)
    assert again.ladder.level == LADDER[BOTTOM]
    again.at(1)
    assert again.engine.held == frozenset[DrafterName]()


def test_restart_adds_current_fallback_level_to_a_journal_ending_at_another_level() -> None:
    store, journal = MemoryStore(), Journal()
    tell(Controlled(store, journal=journal), notice(LIGHT_DRAFT, hard=True))
    assert Controlled(store, journal=journal).told == [("full", "light_draft prompt_lookup", "alert")]
    journal.record(Subject.LEVEL, "light_draft prompt_lookup", "short_block 2", "recovered", "")  # and killed
    journal.record(Subject.FLAG, "on", "off", "")
    again = Controlled(store, journal=journal)
    assert again.told[-1] == ("short_block 2", "light_draft prompt_lookup", "alert")
    assert again.journal.latest(1)[0].evidence.startswith("DraftdSomething has fired since")
