"""ControlService's fallback over a real gRPC connection. The controller is a fake: its answers are the test's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from draftd.client.client import CallError, DraftdClient
from draftd.core import FallbackLevel
from draftd.errors import ModelLoadError, NotNow
from draftd.fallback.probes import CanaryOutcome, CanaryReport, ProbeReport, ProbeVerdict
from draftd.journal import Subject
from draftd.v1 import control_pb2 as pb
from draftd.v1 import control_pb2_grpc
from tests.fake_fallback import LADDER, NOW, FakeController
from tests.in_process_daemon import Served, models, serving
from tests.wait_until import until

Ask = Callable[[DraftdClient], object]


@pytest.fixture(scope="module")
def controller() -> FakeController:
    return FakeController()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, controller: FakeController) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), models, controller=controller) as served:
        yield served


@pytest.fixture
def stub(served: Served) -> Iterator[Any]:
    with served.channel() as channel:
        yield control_pb2_grpc.ControlServiceStub(channel)  # type: ignore[no-untyped-call]


def record(served: Served, count: int = 1, cause: str = "drift") -> int:
    """The number of the last one."""
    for _ in range(count):
        served.journal.record(Subject.LEVEL, "full", "short_block 3", cause, "0.52 of 0.71")
    return served.journal.latest(1)[-1].number


@contextlib.contextmanager
def watching(served: Served, after: int | None = None) -> Iterator[Watching]:
    """Watches on a thread; returns when nothing is missed any more."""
    watch = Watching(served.target, after)
    try:
        until(lambda: watch.begun.is_set() or watch.error is not None, 20)
        yield watch
    finally:
        watch.client.close()
        watch.thread.join(20)
        assert not watch.thread.is_alive()


class Watching:
    def __init__(self, target: str, after: int | None) -> None:
        self.client = DraftdClient(target)
        self.begun = threading.Event()
        self.numbers: list[int] = []
        self.error: CallError | None = None
        self.thread = threading.Thread(target=self._read, args=(after,), daemon=True)
        self.thread.start()

    def _read(self, after: int | None) -> None:
        try:
            for transition in self.client.watch(after, begun=self.begun.set):
                self.numbers.append(transition.number)
        except CallError as error:
            self.error = error


def test_level_reply_equals_the_fallback_part_of_status(served: Served) -> None:
    told = served.client.level()
    assert [level.level for level in told.ladder][:2] == ["full", "short_block"]
    assert served.client.status().fallback == told


def test_level_hold_can_expire_be_endless_or_be_released(served: Served) -> None:
    try:
        held = served.client.hold_level(FallbackLevel.LIGHT_DRAFT, 1800.0)
        assert held.ladder[held.position].level == "light_draft"
        assert held.hold.until.ToDatetime(UTC).timestamp() == NOW + 1800
        assert not served.client.hold_level(FallbackLevel.AUTOREGRESSIVE).hold.HasField("until")
        assert served.client.status().fallback.HasField("hold")
    finally:
        assert served.client.release_level().was_held
    again = served.client.release_level()
    assert not again.was_held
    assert not again.fallback.HasField("hold")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("HoldLevel", pb.HoldLevelRequest(level="fast"), "level"),
        ("HoldLevel", pb.HoldLevelRequest(level="full", expires_in=Duration()), "expires_in"),
        ("ListTransitions", pb.ListTransitionsRequest(limit=1001), "limit"),
        ("ListTransitions", pb.ListTransitionsRequest(after_number=10**9), "after_number"),
        ("Watch", pb.WatchRequest(after_number=10**9), "after_number"),
    ],
)
def test_control_request_with_an_invalid_field_is_refused_naming_it(
    stub: Any, method: str, request_: Any, field: str
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(getattr(stub, method)(request_, timeout=20))
    error = CallError(raised.value)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT
    assert error.reason == "INVALID_REQUEST"
    assert list(error.fields) == [field]
    assert "allowed: " in error.fields[field]


def test_refused_level_hold_leaves_the_ladder_unchanged(served: Served, stub: Any, controller: FakeController) -> None:
    before = controller.state()
    with pytest.raises(grpc.RpcError):
        stub.HoldLevel(pb.HoldLevelRequest(level="autoregressive", expires_in=Duration()), timeout=20)
    assert controller.state() == before


def test_listed_transitions_carry_cause_and_evidence(served: Served) -> None:
    last = record(served, 3)
    told = served.client.transitions(2)
    assert [one.number for one in told] == [last - 1, last]
    assert (told[-1].cause, told[-1].evidence) == ("drift", "0.52 of 0.71")
    assert [one.number for one in served.client.transitions(after=last - 1)] == [last]
    assert served.client.transitions(after=last) == []


def test_transition_watchers_get_past_and_new_transitions_once_in_order(served: Served) -> None:
    first = record(served, 3)
    with watching(served, first - 2) as early, watching(served) as late:
        last = record(served, 2)
        until(lambda: len(early.numbers) == 4 and len(late.numbers) == 2, 20)
        assert early.numbers == list(range(first - 1, last + 1))
        assert late.numbers == [last - 1, last]


def test_flag_changes_reach_a_transition_watcher(served: Served) -> None:
    with watching(served) as watch:
        served.client.set_flag("off")
        served.client.set_flag("on")
        until(lambda: len(watch.numbers) == 2, 20)


def test_probe_reply_carries_probed_ladder_level_and_verdict_and_acceptance_and_speedup(
    served: Served, controller: FakeController
) -> None:
    with ended(controller.probes, ProbeReport(LADDER[1], ProbeVerdict.GOOD, "as before", 0.7, 1.4, 0.2)):
        told = served.client.probe(timeout=20)
    assert (told.level.max_draft_tokens, told.verdict, told.acceptance, told.speedup) == (3, "good", 0.7, 1.4)


def test_canary_reply_carries_verdict_score_and_results(served: Served, controller: FakeController) -> None:
    with ended(controller.runs, CanaryReport(ProbeVerdict.GOOD, "none worse", (CanaryOutcome("a", True, True),), 0.2)):
        told = served.client.canaries(timeout=20)
    assert (told.verdict, told.score_speculative, [one.id for one in told.results]) == ("good", 1.0, ["a"])


def test_draft_reload_reply_names_the_draft_model_and_its_weight_bytes(
    served: Served, controller: FakeController
) -> None:
    with ended(controller.reloads, 1_234_567):
        told = served.client.reload_draft(timeout=20)
    assert not controller.forgets[-1]
    assert told.draft_weight_bytes == 1_234_567
    with ended(controller.reloads, 1_234_567):
        served.client.reload_draft(forget=True, timeout=20)
    assert controller.forgets[-1]
    assert told.draft_model == served.client.model().draft_model != ""


@contextlib.contextmanager
def ended(kept: list[Any], outcome: object) -> Iterator[None]:
    """Ends the future that the call in the block waits for."""
    before = len(kept)

    def end() -> None:
        until(lambda: len(kept) > before, 20)
        if isinstance(outcome, Exception):
            kept[-1].set_exception(outcome)
        else:
            kept[-1].set_result(outcome)

    ending = threading.Thread(target=end)
    ending.start()
    yield
    ending.join()


def test_control_commands_refused_by_the_controller_get_failed_precondition(
    served: Served, controller: FakeController
) -> None:
    controller.refusal = NotNow("it is at the top")
    try:
        for ask in (DraftdClient.probe, DraftdClient.canaries, DraftdClient.reload_draft):
            with pytest.raises(CallError) as refused:
                ask(served.client)
            assert refused.value.code == grpc.StatusCode.FAILED_PRECONDITION
            assert refused.value.details == "it is at the top"
            assert refused.value.reason == "NOT_NOW"
    finally:
        controller.refusal = None


def test_failed_draft_reload_gets_failed_precondition_with_the_reason(
    served: Served, controller: FakeController
) -> None:
    with ended(controller.reloads, ModelLoadError("no model.safetensors")), pytest.raises(CallError) as refused:
        served.client.reload_draft(timeout=20)
    assert refused.value.code == grpc.StatusCode.FAILED_PRECONDITION
    assert "no model.safetensors" in refused.value.details


def test_deadline_of_a_canary_call_does_not_cancel_the_canary_run(served: Served, controller: FakeController) -> None:
    began = time.monotonic()
    with pytest.raises(CallError) as late:
        served.client.canaries(timeout=0.5)
    assert late.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 10
    run = controller.runs[-1]
    time.sleep(0.2)  # for a cancellation that must not come
    assert not run.cancelled()
    run.set_result(CanaryReport(ProbeVerdict.GOOD, "late"))
    assert served.client.level().ladder, "it answers still"


def test_probe_that_fails_after_its_caller_left_is_not_logged(
    served: Served, controller: FakeController, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CallError):
        served.client.probe(timeout=0.3)
    time.sleep(1.0)  # the daemon's own clock says a little later that the time is up
    controller.probes[-1].set_exception(RuntimeError("too late"))
    assert served.client.level().ladder
    assert "too late" not in caplog.text


def test_drain_ends_watch_probe_and_canary_calls_with_unavailable(tmp_path: Path) -> None:
    controller = FakeController()
    with serving(tmp_path, models, controller=controller) as served:
        errors: list[CallError] = []

        def ask(what: Ask) -> None:
            try:
                what(served.client)
            except CallError as error:
                errors.append(error)

        asking = [
            threading.Thread(target=ask, args=(what,))
            for what in (DraftdClient.probe, DraftdClient.canaries, lambda client: list(client.watch()))
        ]
        for thread in asking:
            thread.start()
        until(lambda: bool(controller.probes and controller.runs and served.journal._listeners), 20)
        began = time.monotonic()
        served.stop()
        served.join()
        assert time.monotonic() - began < 10
        for thread in asking:
            thread.join(20)
        assert served.orderly
        assert served.tasks_left == []
        assert [error.code for error in errors] == [grpc.StatusCode.UNAVAILABLE] * 3
        assert {error.details for error in errors} == {"the daemon is stopping"}
        assert not controller.probes[0].cancelled()
