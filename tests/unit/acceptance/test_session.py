"""Requests to a daemon, timed as they arrive; and the ladder, held at the top while the pair is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from draftd.client import timing
from draftd.client.client import Ask, CallError
from draftd.client.gathering import gather
from draftd.client.prompts import Prompt
from draftd.client.timing import Capture, TimedChunk, capture
from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DepthMode,
    DrafterName,
    FallbackLevel,
    FinishReason,
    ModePreference,
    WorkloadClass,
)
from draftd.fallback.ladder import Hold
from draftd.protocol import duration
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance import session as module
from draftd_acceptance.report.figures import name
from draftd_acceptance.session import NotMeasurable, ask_for, departure, hold_ladder, tick_of
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, GrantedPlan, RunPlace, ServerTiming, Stage, Tick
from tests.fake_fallback import NOW, FakeController
from tests.fake_ticks import place
from tests.in_process_daemon import Served as Daemon
from tests.in_process_daemon import serving
from tests.scripted import scripted_models
from tests.wait_until import until

Event = pb.GenerateResponse | float | BaseException
_ASK = Ask(prompt="hello")


class Gone(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A call that ends like one whose connection is lost."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"

    def trailing_metadata(self) -> tuple[()]:
        return ()


def started() -> pb.GenerateResponse:
    plan = pb.DecodePlan(
        mode=pb.DECODE_MODE_SPECULATIVE,
        max_draft_tokens=4,
        drafter=DRAFT_MODEL,
        level="full",
        variant="on",
        reason="request: speculative",
    )
    return pb.GenerateResponse(started=pb.Started(request_id="r1", model="m", prompt_tokens=7, plan=plan))


def chunk(text: str, ids: Sequence[int] = (), drafted: int = 0) -> pb.GenerateResponse:
    marks = [i < drafted for i in range(len(ids))]
    return pb.GenerateResponse(chunk=pb.Chunk(text=text, token_ids=ids, from_draft=marks, text_lengths=[1] * len(ids)))


def finished(tokens: int, degraded: str = "") -> pb.GenerateResponse:
    timings = pb.Timings(queue=duration(0.01), prefill=duration(0.02), time_to_first_token=duration(0.09))
    counts = pb.DraftCounts(
        steps=3,
        drafts=2,
        drafted_tokens=8,
        accepted_tokens=3,
        cut_tokens=1,
        accepted_per_position=[2, 1],
        drafted_per_position=[2, 2, 2, 2],
        rollbacks=2,
        rolled_back_tokens=5,
        draft_forwards=8,
        target_forwards=3,
        draft_time=duration(0.004),
        verify_time=duration(0.03),
        break_even_tokens=1.5,
    )
    usage = pb.Usage(input_tokens=7, output_tokens=tokens)
    return pb.GenerateResponse(
        finished=pb.Finished(
            reason=pb.FINISH_REASON_LENGTH, usage=usage, timings=timings, counts=counts, degraded=degraded
        )
    )


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Capture]:
    """Returns a function that captures events: a message, seconds that pass without waiting, or an exception at the
    end."""
    now = SimpleNamespace(seconds=100.0)
    clock = SimpleNamespace(perf_counter=lambda: now.seconds, time=lambda: 1_700_000_000.0)
    monkeypatch.setattr(timing, "time", clock)

    def take(*events: Event, timeout: float = 9.0) -> Capture:
        def generate_raw(request: pb.GenerateRequest, **options: Any) -> Iterator[pb.GenerateResponse]:
            assert (request.prompt, options["timeout"]) == ("hello", timeout)
            for event in events:
                if isinstance(event, float):
                    now.seconds += event
                elif isinstance(event, BaseException):
                    raise event
                else:
                    yield event

        return capture(SimpleNamespace(generate_raw=generate_raw), _ASK, timeout=timeout)  # type: ignore[arg-type]

    return take


def test_request_record_holds_timings_tokens_plan_and_counts_of_whole_stream(heard: Callable[..., Capture]) -> None:
    where = RunPlace(Stage.SWEEP, 2, "k4", 1, "p", "chat", WorkloadClass.CHAT)
    taken = heard(
        0.05, started(), 0.05, chunk("a", [11]), 0.2, chunk("bcd", [12, 13, 14], 2), 0.1, chunk("", [15]),
        0.1, chunk("ef"), 0.02, finished(5, degraded="the cache is full"), 0.01,
    )  # fmt: skip
    tick = tick_of(taken, where, session_began=90.0)
    assert tick.place is where
    assert tick.elapsed == pytest.approx(10.0)
    assert tick.asked_at == 1_700_000_000.0
    assert tick.ended == pytest.approx(0.53)
    # Text without a token, held back until the end, is no chunk of tokens; a token without text is.
    assert [(c.tokens, c.from_draft) for c in tick.chunks] == [(1, 0), (3, 2), (1, 0)]
    assert [c.at for c in tick.chunks] == pytest.approx([0.1, 0.3, 0.4])
    assert (tick.error, tick.prompt_tokens, tick.output_tokens) == ("", 7, 5)
    assert tick.finish_reason is FinishReason.LENGTH
    assert tick.granted == GrantedPlan(DecodeMode.SPECULATIVE, 4, DRAFT_MODEL, "full", "on", "request: speculative")
    assert tick.degraded == "the cache is full"
    assert tick.served == ServerTiming(0.01, 0.02, 0.09, None)
    counts = tick.counts
    assert (counts.steps, counts.drafts, counts.drafted, counts.accepted) == (3, 2, 8, 3)
    assert counts.emitted == 5 == counts.accepted + counts.steps - counts.cut
    assert (counts.rollbacks, counts.rolled_back, counts.draft_forwards, counts.target_forwards) == (2, 5, 8, 3)
    assert (counts.draft_seconds, counts.verify_seconds, counts.break_even_tokens) == (0.004, 0.03, 1.5)
    assert (counts.drafted_per_position, counts.accepted_per_position) == ([2, 2, 2, 2], [2, 1])
    assert tick.text is None
    assert tick_of(taken, where, 90.0, keep_text=True).text == "abcdef"
    assert gather(taken.responses).text == "abcdef"


def test_request_record_digest_depends_on_tokens_not_on_chunking(heard: Callable[..., Capture]) -> None:
    one = tick_of(heard(started(), chunk("ab", [1, 2]), chunk("c", [3]), finished(3)), place(), 0.0)
    same = tick_of(heard(started(), chunk("a", [1]), 0.5, chunk("bc", [2, 3], 1), finished(3)), place(), 0.0)
    other = tick_of(heard(started(), chunk("a", [1]), chunk("bc", [3, 2]), finished(3)), place(), 0.0)
    assert one.digest == same.digest != other.digest


def test_request_record_of_stream_failing_midway_keeps_chunks_received_before(heard: Callable[..., Capture]) -> None:
    taken = heard(started(), 0.1, chunk("a", [1]), 0.3, CallError(Gone()))
    assert isinstance(taken.failure, CallError)
    tick = tick_of(taken, place(), 0.0)
    assert tick.error == "UNAVAILABLE: connection reset"
    assert tick.chunks == (TimedChunk(pytest.approx(0.1), 1, 0),)
    assert tick.ended == pytest.approx(0.4)
    assert (tick.finish_reason, tick.served, tick.output_tokens) == (None, None, 1)


def test_request_record_of_call_failing_at_once_holds_only_error(heard: Callable[..., Capture]) -> None:
    tick = tick_of(heard(CallError(Gone())), place(), 0.0)
    assert (tick.error, tick.chunks, tick.granted, tick.served) == ("UNAVAILABLE: connection reset", (), None, None)


@pytest.mark.parametrize("events", [(), (started(),), (started(), chunk("a", [1]))])
def test_request_record_of_stream_without_final_message_holds_error(
    heard: Callable[..., Capture], events: tuple[pb.GenerateResponse, ...]
) -> None:
    tick = tick_of(heard(*events), place(), 0.0)
    assert tick.error == "the stream ended before its answer did"
    assert tick.finish_reason is None


def test_keyboard_interrupt_during_acceptance_request_propagates(heard: Callable[..., Capture]) -> None:
    with pytest.raises(KeyboardInterrupt):
        heard(started(), KeyboardInterrupt())


def test_concurrent_acceptance_requests_capture_separate_streams() -> None:
    """Concurrent requests do not share their arrival times."""

    def answers(name: int) -> Capture:
        def generate_raw(request: pb.GenerateRequest, **options: Any) -> Iterator[pb.GenerateResponse]:
            yield started()
            for i in range(50):
                yield chunk("x", [1000 * name + i])
            yield finished(50)

        return capture(SimpleNamespace(generate_raw=generate_raw), _ASK, timeout=9.0)  # type: ignore[arg-type]

    taken: dict[int, Capture] = {}
    threads = [threading.Thread(target=lambda n=n: taken.update({n: answers(n)})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {n: gather(one.responses).tokens for n, one in taken.items()} == {
        n: tuple(1000 * n + i for i in range(50)) for n in range(4)
    }


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def served(tmp_path: Path, controller: FakeController) -> Iterator[Daemon]:
    with serving(tmp_path, lambda: scripted_models(0.7), controller=controller) as made:
        yield made


def test_acceptance_session_holds_ladder_at_top_level_and_releases_hold_at_end(
    served: Daemon, controller: FakeController
) -> None:
    with hold_ladder(served.client):
        assert controller.now.hold is not None
        assert (controller.now.hold.position, controller.now.position) == (0, 0)
        assert controller.now.hold.until is not None  # a harness that is killed leaves nothing behind for long
    assert controller.now.hold is None


def test_acceptance_session_renews_ladder_hold_repeatedly_with_fixed_expiry(
    served: Daemon, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.02)
    renewals = []
    hold = controller.hold

    def counted(level: FallbackLevel, expires_in: float | None) -> None:
        renewals.append(expires_in)
        hold(level, expires_in)

    monkeypatch.setattr(controller, "hold", counted)
    with hold_ladder(served.client):
        until(lambda: len(renewals) >= 3, 10)
    assert set(renewals) == {module._HOLD_SECONDS}


def test_acceptance_session_leaves_operator_hold_on_top_ladder_level(
    served: Daemon, controller: FakeController
) -> None:
    mine = Hold(0, None)
    controller.now = replace(controller.now, hold=mine)
    with hold_ladder(served.client):
        assert controller.now.hold is mine
    assert controller.now.hold is mine


def test_acceptance_session_leaves_operator_hold_that_replaced_session_hold(
    served: Daemon, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.02)
    theirs = Hold(len(controller.now.ladder) - 1, NOW + 9999)
    with hold_ladder(served.client):
        controller.now = replace(controller.now, hold=theirs)
        until(lambda: not any(t.name == "draftd-hold" for t in module.threading.enumerate()), 10)  # type: ignore[attr-defined]
    assert controller.now.hold is theirs


def test_acceptance_session_refuses_daemon_held_at_lower_ladder_level(
    served: Daemon, controller: FakeController
) -> None:
    controller.now = replace(controller.now, hold=Hold(len(controller.now.ladder) - 1, None))
    with (
        pytest.raises(NotMeasurable, match=r"level: got 'held at autoregressive'.*draftd level release"),
        hold_ladder(served.client),
    ):
        raise AssertionError


def test_acceptance_session_refuses_daemon_whose_speculation_flag_is_off(served: Daemon) -> None:
    served.client.set_flag("off")
    with pytest.raises(NotMeasurable, match=r"flag: got 'off'.*draftd flag set on"), hold_ladder(served.client):
        raise AssertionError


def test_acceptance_session_runs_at_full_level_on_daemon_without_ladder(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7)) as plain, hold_ladder(plain.client):
        assert plain.client.status().level == "full"


LOOKUP = PROMPT_LOOKUP
PROMPT = Prompt("p", (("system", "Be brief."), ("user", "Hello")), WorkloadClass.CODE, 20)


def answered(granted: GrantedPlan | None, **changes: object) -> Tick:
    made = Tick(
        RunPlace(Stage.SWEEP, 1, "", 1, "p", "g"), 0, 0, 1, (), finish_reason=FinishReason.STOP, granted=granted
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def granted(
    length: int,
    drafter: DrafterName | None = DRAFT_MODEL,
    level: str = "full",
    depth: DepthMode = DepthMode.FIXED,
) -> GrantedPlan:
    mode = DecodeMode.SPECULATIVE if length else DecodeMode.AUTOREGRESSIVE
    return GrantedPlan(mode, length, drafter if length else None, level, "on", "why", depth)


@pytest.mark.parametrize(
    ("arm", "given", "said"),
    [
        (Arm(4), granted(4), ""),
        (Arm(4, LOOKUP), granted(4, LOOKUP), ""),
        (Arm(6, automatic=True), granted(6, depth=DepthMode.AUTOMATIC), ""),
        (Arm(6, automatic=True), granted(6, LOOKUP, depth=DepthMode.AUTOMATIC), ""),  # the daemon chooses
        (Arm(6, automatic=True), granted(6), "asked for automatic depth, the daemon chose fixed: why"),
        (Arm(6), granted(6, depth=DepthMode.AUTOMATIC), "asked for fixed depth, the daemon chose automatic: why"),
        (Arm(2), granted(2, level="short_block"), ""),  # no less than requested
        (AUTOREGRESSIVE, granted(0, level="autoregressive"), ""),
        (Arm(4), granted(2, level="short_block"), "asked for 4, the daemon allowed 2: level short_block (why)"),
        (Arm(4), granted(0), "asked for speculative, the daemon decoded autoregressive: why"),
        (AUTOREGRESSIVE, granted(4), "asked for autoregressive, the daemon decoded speculative: why"),
        (
            Arm(4),
            granted(4, LOOKUP, "light_draft"),
            "asked for draft_model, the daemon took prompt_lookup: level light_draft (why)",
        ),
    ],
)
def test_acceptance_session_reports_granted_plan_that_differs_from_requested_arm(
    arm: Arm, given: GrantedPlan, said: str
) -> None:
    assert departure(answered(given), arm) == said


def test_degraded_or_cancelled_answer_counts_as_departure_from_requested_sweep_arm() -> None:
    assert departure(answered(granted(4), degraded="ladder: swap"), Arm(4)) == "went on autoregressively: ladder: swap"
    assert departure(answered(granted(4), finish_reason=FinishReason.CANCELLED), Arm(4)).startswith("ended before")
    assert departure(answered(None, error="UNAVAILABLE"), Arm(4)) == ""  # it has its error


def test_sweep_arm_and_prompt_set_mode_depth_drafter_and_prompt_of_request() -> None:
    ask = ask_for(PROMPT, Arm(4, LOOKUP), chat=True, seed=0, repetition=1)
    assert (ask.messages, ask.prompt, ask.max_tokens) == (PROMPT.messages, None, 20)
    assert (ask.mode, ask.max_draft_tokens, ask.drafter) == (ModePreference.SPECULATIVE, 4, LOOKUP)
    assert ask.depth_mode is DepthMode.FIXED
    assert ask.workload is WorkloadClass.CODE
    assert ask.sampling.greedy
    plain = ask_for(PROMPT, AUTOREGRESSIVE, chat=False, seed=0, repetition=1)
    assert (plain.messages, plain.prompt) == (None, "Hello")
    assert (plain.mode, plain.max_draft_tokens, plain.drafter) == (ModePreference.AUTOREGRESSIVE, None, None)


def test_automatic_depth_arm_requests_automatic_mode_without_drafter() -> None:
    ask = ask_for(PROMPT, Arm(6, automatic=True), chat=True, seed=0, repetition=1)
    assert (ask.mode, ask.max_draft_tokens, ask.drafter) == (ModePreference.SPECULATIVE, 6, None)
    assert ask.depth_mode is DepthMode.AUTOMATIC


def test_sampled_requests_of_all_arms_share_seed_for_same_prompt_and_repetition() -> None:
    seeds = {
        ask_for(PROMPT, arm, chat=True, seed=3, repetition=2).sampling.seed
        for arm in (Arm(0, None, 0.8), Arm(4, temperature=0.8))
    }
    assert len(seeds) == 1
    assert None not in seeds


@pytest.mark.parametrize(
    "arm",
    [
        AUTOREGRESSIVE,
        Arm(4),
        Arm(12, LOOKUP),
        Arm(4, temperature=0.8, concurrency=16),
        Arm(3, temperature=1e-5),
        Arm(6, automatic=True),
        Arm(4, LOOKUP, automatic=True, concurrency=2),
    ],
)
def test_sweep_arm_id_parses_back_to_same_arm(arm: Arm) -> None:
    assert Arm.parse(arm.id) == arm
    assert arm.baseline.baseline == arm.baseline


@pytest.mark.parametrize("name", ["", "k", "ar4", "k4x2", "K4", "auto", "auto0", "k4-t1.2.3", "k4-t1e"])
def test_sweep_arm_parse_returns_none_for_invalid_id(name: str) -> None:
    assert Arm.parse(name) is None


def test_automatic_depth_arm_display_name_states_depth_limit_and_concurrency() -> None:
    assert name("auto6") == "Automatic, up to 6 a step"
    assert name("auto6-x2") == "Automatic, up to 6 a step, 2 at a time"
