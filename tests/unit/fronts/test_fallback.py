"""The fallback in the contract's words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from draftd.core import PROMPT_LOOKUP, FallbackLevel
from draftd.fallback.ladder import Cause, Hold, Signal
from draftd.fallback.probes import CanaryOutcome, CanaryReport, Divergence, ProbeReport, ProbeVerdict
from draftd.fronts.grpc import reply
from draftd.journal import Subject, Transition
from tests.fake_fallback import LADDER, LEASE, NOW, fallback_state


def test_the_state_is_told_in_full() -> None:
    state = fallback_state(
        position=2,
        signal=Signal(Cause.ACCEPTANCE_FLOOR, FallbackLevel.SHORT_BLOCK, "31 %"),
        hold=Hold(2, NOW + 60),
        signals=(Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical for 12 s", hard=True),),
        leases=(LEASE,),
        relapses=1,
        state_file=Path("/state/50551.json"),
    )
    told = reply.fallback(state)
    assert [level.level for level in told.ladder] == [
        "full", "short_block", "short_block", "light_draft", "autoregressive"
    ]  # fmt: skip
    assert [level.max_draft_tokens for level in told.ladder] == [4, 3, 2, 2, 0]
    assert [level.drafter for level in told.ladder] == ["draft_model"] * 3 + ["prompt_lookup", ""]
    assert (told.position, told.cause, told.relapses) == (2, "acceptance_floor: 31 %", 1)
    assert told.since.ToDatetime(UTC).timestamp() == NOW - 90
    assert told.hold.until.ToDatetime(UTC).timestamp() == NOW + 60
    assert told.hold.position == 2
    (demand,) = told.demands
    assert (demand.signal, demand.level, demand.hard) == ("memory", "autoregressive", True)
    assert demand.evidence == "critical for 12 s"
    (lease,) = told.leases
    assert (lease.alert, lease.fingerprint, lease.level) == ("DraftdAcceptanceDrift", "ab12", "short_block")
    assert lease.started.ToDatetime(UTC).timestamp() == NOW - 60
    assert lease.until.ToDatetime(UTC).timestamp() == NOW + 600
    assert told.wait.ToTimedelta().total_seconds() == 300
    assert list(told.loaded_drafters) == ["draft_model"]
    assert told.draft_weight_bytes == 1_400_000
    assert told.state_file == "/state/50551.json"


def test_no_hold_and_a_hold_without_an_end_are_two_things() -> None:
    assert not reply.fallback(fallback_state()).HasField("hold")
    held = reply.fallback(fallback_state(hold=Hold(0)))
    assert held.HasField("hold")
    assert not held.hold.HasField("until")


def test_a_transition_is_told_with_its_evidence() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    told = reply.transition(Transition(at, Subject.LEVEL, "full", "short_block 3", "drift", "0.52", 9))
    assert (told.subject, told.previous, told.current) == ("level", "full", "short_block 3")
    assert (told.cause, told.evidence, told.number, told.at.ToDatetime(UTC)) == ("drift", "0.52", 9, at)


def test_a_probe_that_measured_nothing_says_so() -> None:
    told = reply.probed(ProbeReport(LADDER[0], ProbeVerdict.FAILED, "the engine stopped", seconds=1.5))
    assert (told.verdict, told.reason, told.took.ToMilliseconds()) == ("failed", "the engine stopped", 1500)
    assert not told.HasField("acceptance")
    assert not told.HasField("speedup")
    told = reply.probed(ProbeReport(LADDER[3], ProbeVerdict.BAD, "slow", 0.0, 0.7))
    assert (told.level.drafter, told.acceptance, told.speedup) == (PROMPT_LOOKUP, 0.0, 0.7)
    assert told.HasField("acceptance")


def test_canaries_that_never_ran_have_no_scores() -> None:
    told = reply.canaries(CanaryReport(ProbeVerdict.FAILED, "the engine is busy"))
    assert not told.HasField("score_autoregressive")
    assert not told.HasField("score_speculative")


def test_canaries_tell_scores_complaints_and_where_texts_part() -> None:
    outcomes = (
        CanaryOutcome("json-1", True, True),
        CanaryOutcome("json-2", True, False, Divergence(0, None), "not JSON"),
        CanaryOutcome("tool-1", False, False, Divergence(7, 0.25)),
    )
    told = reply.canaries(CanaryReport(ProbeVerdict.BAD, "below", outcomes, 2.0))
    assert told.score_autoregressive == pytest.approx(2 / 3)
    assert told.score_speculative == pytest.approx(1 / 3)
    assert [result.diverged for result in told.results] == [False, True, True]
    assert not told.results[0].HasField("diverged_at")
    assert told.results[1].HasField("diverged_at")
    assert told.results[1].diverged_at == 0
    assert not told.results[1].HasField("logit_gap")
    assert told.results[1].complaint == "not JSON"
    assert (told.results[2].diverged_at, told.results[2].logit_gap) == (7, 0.25)
