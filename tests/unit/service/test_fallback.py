"""The fallback in the contract's words, and what an operator may ask of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from draftd.core import PROMPT_LOOKUP, FallbackLevel
from draftd.errors import InvalidRequest
from draftd.fallback.journal import Subject, Transition
from draftd.fallback.ladder import Demand, Hold, Signal
from draftd.fallback.reports import CanaryOutcome, CanaryReport, Divergence, ProbeReport, Verdict
from draftd.fronts.grpc import fallback
from tests.fallback import LADDER, LEASE, NOW, standing


def test_the_state_is_told_in_full() -> None:
    state = standing(
        rung=2,
        cause="acceptance_floor: 31 %",
        hold=Hold(2, NOW + 60),
        demands=(Demand(Signal.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical for 12 s", hard=True),),
        leases=(LEASE,),
        relapses=1,
        state_file=Path("/state/50551.json"),
    )
    told = fallback.state(state)
    assert [rung.level for rung in told.ladder] == [
        "full", "short_block", "short_block", "light_draft", "autoregressive"
    ]  # fmt: skip
    assert [rung.max_draft_tokens for rung in told.ladder] == [4, 3, 2, 2, 0]
    assert [rung.drafter for rung in told.ladder] == ["draft_model"] * 3 + ["prompt_lookup", ""]
    assert (told.rung, told.cause, told.relapses) == (2, "acceptance_floor: 31 %", 1)
    assert told.since.ToDatetime(UTC).timestamp() == NOW - 90
    assert told.hold.until.ToDatetime(UTC).timestamp() == NOW + 60
    assert told.hold.rung == 2
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
    assert not fallback.state(standing()).HasField("hold")
    held = fallback.state(standing(hold=Hold(0)))
    assert held.HasField("hold")
    assert not held.hold.HasField("until")


@pytest.mark.parametrize("name", ["", "FULL", "short block", "short_block 3", "off", "LEVEL_FULL", "3"])
def test_a_name_that_is_no_levels_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fallback.level(name)
    assert refused.value.message == f"level: got {name!r}; allowed: full, short_block, light_draft, autoregressive"
    assert {fallback.level(level.label) for level in FallbackLevel} == set(FallbackLevel)


@pytest.mark.parametrize(
    "given",
    [Duration(), Duration(seconds=-1), Duration(seconds=1, nanos=-1_000_000_001), Duration(seconds=2_592_000, nanos=1),
     Duration(seconds=2**63 - 1), Duration(seconds=-(2**63)), Duration(nanos=-1)],
)  # fmt: skip
def test_a_hold_that_cannot_last_so_long_is_refused(given: Duration) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fallback.expires_in(given)
    assert refused.value.field == "expires_in"
    assert "at most 2592000 s" in refused.value.message


def test_a_hold_may_last_from_a_moment_to_thirty_days() -> None:
    assert fallback.expires_in(Duration(nanos=1_000_000)) == 0.001
    assert fallback.expires_in(Duration(seconds=2_592_000)) == 2_592_000


@pytest.mark.parametrize("given", [-1, 1001, -(2**31), 2**31 - 1])
def test_a_limit_beyond_what_is_listed_is_refused(given: int) -> None:
    with pytest.raises(InvalidRequest, match="limit: got .*; allowed: 1 to 1000; 0 is 100"):
        fallback.limit(given)
    assert [fallback.limit(n) for n in (0, 1, 1000)] == [100, 1, 1000]


@pytest.mark.parametrize("given", [-1, 8, 2**63 - 1])
def test_a_number_that_is_yet_to_come_is_refused(given: int) -> None:
    with pytest.raises(InvalidRequest, match="after_number: got .*; allowed: 0 to 7"):
        fallback.after(given, 7)
    assert [fallback.after(n, 7) for n in (0, 7)] == [0, 7]


def transitions(*numbers: int) -> tuple[Transition, ...]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return tuple(Transition(at, Subject.LEVEL, "full", "short_block 3", "drift", "0.52", n) for n in numbers)


def test_the_latest_of_those_after_a_number_are_listed() -> None:
    def numbers(most: int, after: int) -> list[int]:
        return [one.number for one in fallback.listed(transitions(3, 4, 5, 6), most, after).transitions]

    assert numbers(100, 0) == [3, 4, 5, 6]
    assert numbers(2, 0) == [5, 6]
    assert numbers(100, 4) == [5, 6]
    assert numbers(1, 4) == [6]
    assert numbers(100, 6) == []
    (told,) = fallback.listed(transitions(9), 1, 0).transitions
    assert (told.subject, told.previous, told.current) == ("level", "full", "short_block 3")
    assert (told.cause, told.evidence, told.number) == ("drift", "0.52", 9)


def test_a_probe_that_measured_nothing_says_so() -> None:
    told = fallback.probed(ProbeReport(LADDER[0], Verdict.FAILED, "the engine stopped", seconds=1.5))
    assert (told.verdict, told.reason, told.took.ToMilliseconds()) == ("failed", "the engine stopped", 1500)
    assert not told.HasField("acceptance")
    assert not told.HasField("speedup")
    told = fallback.probed(ProbeReport(LADDER[3], Verdict.BAD, "slow", 0.0, 0.7))
    assert (told.rung.drafter, told.acceptance, told.speedup) == (PROMPT_LOOKUP, 0.0, 0.7)
    assert told.HasField("acceptance")


def test_canaries_tell_scores_complaints_and_where_texts_part() -> None:
    outcomes = (
        CanaryOutcome("json-1", True, True),
        CanaryOutcome("json-2", True, False, Divergence(0, None), "not JSON"),
        CanaryOutcome("tool-1", False, False, Divergence(7, 0.25)),
    )
    told = fallback.canaries(CanaryReport(Verdict.BAD, "below", outcomes, 2.0))
    assert told.score_autoregressive == pytest.approx(2 / 3)
    assert told.score_speculative == pytest.approx(1 / 3)
    assert [result.diverged for result in told.results] == [False, True, True]
    assert not told.results[0].HasField("diverged_at")
    assert told.results[1].HasField("diverged_at")
    assert told.results[1].diverged_at == 0
    assert not told.results[1].HasField("logit_gap")
    assert told.results[1].complaint == "not JSON"
    assert (told.results[2].diverged_at, told.results[2].logit_gap) == (7, 0.25)
