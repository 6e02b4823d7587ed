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


def test_grpc_fallback_reply_carries_every_part_of_the_fallback_state() -> None:
    state = fallback_state(
        position=2,
        signal=Signal(Cause.ACCEPTANCE_FLOOR, FallbackLevel.SHORT_BLOCK, "31 %"),
        hold=Hold(2, NOW + 60),
        signals=(Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical for 12 s", hard=True),),
        leases=(LEASE,),
        relapses=1,
        state_file=Path("/state/50551.json"),
    )
    response = reply.fallback(state)
    assert [level.level for level in response.ladder] == [
        "full", "short_block", "short_block", "light_draft", "autoregressive"
    ]  # fmt: skip
    assert [level.max_draft_tokens for level in response.ladder] == [4, 3, 2, 2, 0]
    assert [level.drafter for level in response.ladder] == ["draft_model"] * 3 + ["prompt_lookup", ""]
    assert (response.position, response.cause, response.relapses) == (2, "acceptance_floor: 31 %", 1)
    assert response.since.ToDatetime(UTC).timestamp() == NOW - 90
    assert response.hold.until.ToDatetime(UTC).timestamp() == NOW + 60
    assert response.hold.position == 2
    (demand,) = response.demands
    assert (demand.signal, demand.level, demand.hard) == ("memory", "autoregressive", True)
    assert demand.evidence == "critical for 12 s"
    (lease,) = response.leases
    assert (lease.alert, lease.fingerprint, lease.level) == ("DraftdAcceptanceDrift", "ab12", "short_block")
    assert lease.started.ToDatetime(UTC).timestamp() == NOW - 60
    assert lease.until.ToDatetime(UTC).timestamp() == NOW + 600
    assert response.wait.ToTimedelta().total_seconds() == 300
    assert list(response.loaded_drafters) == ["draft_model"]
    assert response.draft_weight_bytes == 1_400_000
    assert response.state_file == "/state/50551.json"


def test_fallback_reply_distinguishes_no_hold_from_a_hold_without_end_time() -> None:
    assert not reply.fallback(fallback_state()).HasField("hold")
    response = reply.fallback(fallback_state(hold=Hold(0)))
    assert response.HasField("hold")
    assert not response.hold.HasField("until")


def test_transition_reply_carries_cause_evidence_number_and_time() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    response = reply.transition(Transition(at, Subject.LEVEL, "full", "short_block 3", "drift", "0.52", 9))
    assert (response.subject, response.previous, response.current) == ("level", "full", "short_block 3")
    assert (response.cause, response.evidence, response.number, response.at.ToDatetime(UTC)) == ("drift", "0.52", 9, at)


def test_failed_probe_reply_leaves_acceptance_and_speedup_unset() -> None:
    response = reply.probe_result(ProbeReport(LADDER[0], ProbeVerdict.FAILED, "the engine stopped", seconds=1.5))
    assert (response.verdict, response.reason, response.took.ToMilliseconds()) == ("failed", "the engine stopped", 1500)
    assert not response.HasField("acceptance")
    assert not response.HasField("speedup")
    response = reply.probe_result(ProbeReport(LADDER[3], ProbeVerdict.BAD, "slow", 0.0, 0.7))
    assert (response.level.drafter, response.acceptance, response.speedup) == (PROMPT_LOOKUP, 0.0, 0.7)
    assert response.HasField("acceptance")


def test_canary_reply_without_outcomes_leaves_both_scores_unset() -> None:
    response = reply.canaries(CanaryReport(ProbeVerdict.FAILED, "the engine is busy"))
    assert not response.HasField("score_autoregressive")
    assert not response.HasField("score_speculative")


def test_canary_reply_carries_scores_complaints_and_divergence_positions() -> None:
    outcomes = (
        CanaryOutcome("json-1", True, True),
        CanaryOutcome("json-2", True, False, Divergence(0, None), "not JSON"),
        CanaryOutcome("tool-1", False, False, Divergence(7, 0.25)),
    )
    response = reply.canaries(CanaryReport(ProbeVerdict.BAD, "below", outcomes, 2.0))
    assert response.score_autoregressive == pytest.approx(2 / 3)
    assert response.score_speculative == pytest.approx(1 / 3)
    assert [result.diverged for result in response.results] == [False, True, True]
    assert not response.results[0].HasField("diverged_at")
    assert response.results[1].HasField("diverged_at")
    assert response.results[1].diverged_at == 0
    assert not response.results[1].HasField("logit_gap")
    assert response.results[1].complaint == "not JSON"
    assert (response.results[2].diverged_at, response.results[2].logit_gap) == (7, 0.25)
