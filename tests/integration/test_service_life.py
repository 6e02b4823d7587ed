"""The daemon from loading to its end: health, queue, deadlines, drain; over a real gRPC connection."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftd.client.client import CallError
from draftd.core import FinishReason
from draftd.engine.handle import EngineState
from draftd.engine.pair import LoadedModels
from draftd.engine.scheduler import Scheduler
from draftd.errors import ModelLoadError
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Answer, Served, collect, models, serving
from tests.scripted import scripted_models
from tests.wait_until import until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_grpc_health_follows_the_model_from_loading_to_drain(tmp_path: Path) -> None:
    gate = threading.Event()

    def gated() -> LoadedModels:
        assert gate.wait(30)
        return scripted_models(0.7)

    with serving(tmp_path, gated, wait=False) as served, served.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        seen: list[int] = []

        def watch() -> None:
            try:
                for update in health.Watch(health_pb2.HealthCheckRequest(service="draftd.v1.InferenceService")):
                    seen.append(update.status)
            except grpc.RpcError:
                pass

        watcher = threading.Thread(target=watch)
        watcher.start()
        until(lambda: seen == [NOT_SERVING])
        with pytest.raises(CallError, match="still loading") as caught:
            collect(served.client.generate("x"))
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert caught.value.retry_after is not None
        status = served.client.status()
        assert (status.state, status.progress) == (control_pb2.DAEMON_STATE_LOADING, "")
        assert [name for name in ("model", "prefix_cache", "group") if status.HasField(name)] == []
        with pytest.raises(CallError, match="still loading"):
            served.client.model()
        check = health_pb2.HealthCheckRequest(service="draftd.v1.ControlService")
        assert health.Check(check).status == SERVING
        gate.set()
        until(lambda: seen == [NOT_SERVING, SERVING])
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        status = served.client.status()
        assert (status.progress, status.HasField("model")) == ("", True)
        served.worker.state = EngineState.LOADING  # as where its process begins anew
        until(lambda: seen == [NOT_SERVING, SERVING, NOT_SERVING])
        served.worker.state = EngineState.READY
        until(lambda: seen == [NOT_SERVING, SERVING, NOT_SERVING, SERVING])
        served.stop()
        until(lambda: seen == [NOT_SERVING, SERVING] * 2 + [NOT_SERVING])
        served.join()
        watcher.join(10)
        assert served.orderly
        assert served.tasks_left == []


def test_stopping_daemon_does_not_announce_a_model_loaded_late(tmp_path: Path) -> None:
    gate, drained = threading.Event(), threading.Event()

    def gated() -> LoadedModels:
        assert gate.wait(30)
        return scripted_models(0.7)

    with serving(tmp_path, gated, wait=False) as served:
        served.worker.progress = "loading"
        until(lambda: served.lines[-1] == "loading")
        served.daemon._on_drain = lambda: drained.wait(30)
        served.stop()
        until(lambda: served.lines[-1] == "stopping")
        served.worker.progress = "loading more"
        gate.set()
        until(lambda: served.worker.state is EngineState.STOPPED)
        drained.set()
        served.join()
        assert served.lines[-1] == "stopping"
        assert served.orderly


def test_daemon_ends_with_the_reason_if_its_model_cannot_be_loaded(tmp_path: Path) -> None:
    def broken() -> LoadedModels:
        raise ModelLoadError("model: /nowhere: no such folder")

    with serving(tmp_path, broken, wait=False) as served:
        served.join()
        assert served.orderly is None  # it raised
        assert served.worker.error == "model: /nowhere: no such folder"


def test_start_with_flag_off_says_that_nothing_is_drafted_now(tmp_path: Path) -> None:
    flag = {"state": "ENABLED", "variants": {"on": True, "off": False}, "defaultVariant": "off"}
    (tmp_path / "flags.json").write_text(json.dumps({"flags": {"speculative-decoding": flag}}))
    with serving(tmp_path, models) as served:
        (line,) = [line for line in served.lines if line.startswith("speculation: ")]
        assert line.startswith("speculation: off by the flag, else up to ")


def test_grpc_reflection_lists_all_the_services(served: Served) -> None:
    with served.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (reply,) = stub.ServerReflectionInfo(iter([request]))
        names = {service.name for service in reply.list_services_response.service}
    assert {"draftd.v1.InferenceService", "draftd.v1.ControlService", "grpc.health.v1.Health"} <= names


def test_grpc_reflection_can_be_turned_off(tmp_path: Path) -> None:
    with serving(tmp_path, models, server={"reflection": False}) as served, served.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_grpc_client_with_frequent_keepalive_pings_stays_connected(served: Served) -> None:
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with served.channel(options) as channel:
        states: list[grpc.ChannelConnectivity] = []
        grpc.channel_ready_future(channel).result(10)
        channel.subscribe(states.append)
        time.sleep(4.5)
        assert set(states) == {grpc.ChannelConnectivity.READY}


def test_second_daemon_on_a_taken_port_fails_naming_server_port(served: Served, tmp_path: Path) -> None:
    from draftd.errors import ConfigError

    with pytest.raises(ConfigError, match=r"server\.port"):
        Served(tmp_path, models, server={"port": served.port})


@pytest.mark.parametrize("models_of", [lambda: scripted_models(0.7, step_seconds=0.02)])
def test_drain_finishes_short_requests_and_ends_long_ones_with_unavailable(
    tmp_path: Path, models_of: Callable[[], LoadedModels]
) -> None:
    with serving(tmp_path, models_of, server={"drain_seconds": 1.5}) as served:
        answers: dict[str, Answer] = {}

        def ask(name: str, n: int) -> None:
            answers[name] = collect(served.client.generate(name, max_tokens=n))

        threads = [threading.Thread(target=ask, args=("short", 20)), threading.Thread(target=ask, args=("long", 4000))]
        for thread in threads:
            thread.start()
        until(lambda: served.worker.status().active == 2)
        served.stop()
        until(lambda: served.client.status().state == control_pb2.DAEMON_STATE_DRAINING)
        with pytest.raises(CallError, match="draining") as caught:
            collect(served.client.generate("late"))
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        served.join()
        for thread in threads:
            thread.join(10)
        short, long = answers["short"], answers["long"]
        assert short.finished is not None
        assert (short.finished.reason, short.error) == (pb.FINISH_REASON_LENGTH, None)
        assert long.finished is not None
        assert long.finished.reason == pb.FINISH_REASON_CANCELLED
        assert long.finished.usage.output_tokens == len(long.tokens) > 0
        assert long.error is not None
        assert long.error.code is grpc.StatusCode.UNAVAILABLE
        assert served.lines[-1] == "drained: 1 of 2 requests answered, 1 cut off"
        assert served.orderly
        assert served.tasks_left == []


def test_second_stop_ends_a_draining_daemon_and_its_requests_at_once(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.02)  # noqa: E731
    with serving(tmp_path, slow, server={"drain_seconds": 60.0}) as served:
        stream = served.client.generate("x", max_tokens=4000)
        next(stream)
        began = time.monotonic()
        served.stop()
        until(lambda: any("draining: 1 active request, at most 60 s" in line for line in served.lines))
        served.stop()
        with pytest.raises(CallError):
            list(stream)
        served.join(30)
        assert time.monotonic() - began < 30
        assert served.orderly is False
        assert served.tasks_left == []


def test_drain_ends_requests_on_time_while_a_forward_pass_takes_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, over, step = threading.Event(), threading.Event(), Scheduler.step

    def held(self: Scheduler) -> None:
        inside.set()
        over.wait(60)
        step(self)

    with serving(tmp_path, lambda: scripted_models(0.7), server={"drain_seconds": 0.2}) as served:
        monkeypatch.setattr(Scheduler, "step", held)
        answers, threads = dict[str, Answer](), list[threading.Thread]()

        def ask(name: str) -> None:
            answers[name] = collect(served.client.generate(name, max_tokens=4))

        for name in ("taken", "waiting"):
            threads.append(threading.Thread(target=ask, args=(name,)))
            threads[-1].start()
            until(inside.is_set)
        until(lambda: served.worker.status().queued == 2)
        served.stop()
        served.join(10)
        for thread in threads:
            thread.join(10)
        for answer in answers.values():
            assert answer.finished is not None
            assert answer.finished.reason == pb.FINISH_REASON_CANCELLED
            assert answer.error is not None
            assert "the daemon is stopping" in answer.error.details
        over.set()
        until(lambda: served.worker.state is EngineState.STOPPED)
        assert served.worker.status().finished == {FinishReason.CANCELLED: 2}
        assert served.orderly is False


def test_engine_crash_ends_requests_with_an_error_and_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7, step_seconds=0.01)) as served:
        stream = served.client.generate("x", max_tokens=3000)
        next(stream)

        def die(self: Scheduler) -> None:
            raise MemoryError("no more")

        monkeypatch.setattr(Scheduler, "step", die)
        *_, last = events = list(until_error(stream))
        assert last.finished.reason == pb.FINISH_REASON_ERROR
        assert len(events) >= 1
        served.join()
        assert served.orderly is False
        assert served.tasks_left == []


def until_error(stream: Iterator[pb.GenerateResponse]) -> Iterator[pb.GenerateResponse]:
    """The events before an INTERNAL status, which must come."""
    with pytest.raises(CallError, match="no more") as caught:
        yield from stream
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_drain_closes_fallback_controller_during_engine_close_and_bounds_telemetry_flush(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7)) as served:
        closing, seen, given = threading.Event(), list[bool](), list[float]()
        close, shutdown = served.worker.close, served.telemetry.shutdown

        def closed(seconds: float) -> bool:
            closing.set()
            return close(seconds)

        def flushed(seconds: float) -> bool:
            given.append(seconds)
            return shutdown(seconds)

        served.worker.close = closed  # type: ignore[method-assign]
        served.telemetry.shutdown = flushed  # type: ignore[method-assign]
        served.daemon._on_drain = lambda: seen.append(closing.wait(20))
        served.stop()
        served.join(40)
        assert seen == [True], "the engine does not wait for what else ends"
        assert 0 < given[0] <= served.settings.server.drain_seconds + 12
