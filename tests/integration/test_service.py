"""The service over a real gRPC connection and the real engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftd.core import DrafterKind, FinishReason, ModePreference, SamplingParams, WorkloadClass
from draftd.engine.model import LoadedModels
from draftd.engine.scheduler import Scheduler
from draftd.engine.scripted import scripted_models
from draftd.errors import ModelLoadError
from draftd.hardware.sample import HardwareSample
from draftd.hardware.state import FixedView, HardwareState
from draftd.server.client import CallError
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb
from tests.serving import Answer, Served, collect, serving
from tests.waiting import until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def models() -> LoadedModels:
    return scripted_models(0.7, context_length=4096)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), models) as served:
        yield served


def check_counts(answer: Answer) -> None:
    """What the chunks say and what `finished` says are the same numbers."""
    assert answer.finished is not None
    counts = answer.finished.counts
    drafted = [flag for chunk in answer.chunks for flag in chunk.from_draft]
    assert len(drafted) == len(answer.tokens) == answer.finished.usage.output_tokens
    assert sum(drafted) == counts.accepted_tokens
    assert counts.drafted_tokens == counts.accepted_tokens + counts.rolled_back_tokens
    assert counts.accepted_tokens == sum(counts.accepted_per_position)
    for chunk in answer.chunks:
        assert len(chunk.text_lengths) == len(chunk.token_ids)
        assert sum(chunk.text_lengths) <= len(chunk.text)


def test_both_ways_give_the_same_text_and_say_how(served: Served) -> None:
    spec = collect(served.client.generate("hello", max_tokens=60, mode=ModePreference.SPECULATIVE))
    auto = collect(served.client.generate("hello", max_tokens=60, mode=ModePreference.AUTOREGRESSIVE))
    assert spec.tokens == auto.tokens
    assert spec.text == auto.text
    for answer in (spec, auto):
        check_counts(answer)
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_LENGTH
        assert answer.started.prompt_tokens == answer.finished.usage.input_tokens == 5
    assert spec.started.plan.mode == pb.DECODE_MODE_SPECULATIVE
    assert spec.started.plan.max_draft_tokens == 4
    assert spec.started.plan.drafter == pb.DRAFTER_KIND_DRAFT_MODEL
    assert spec.finished is not None
    assert spec.finished.counts.accepted_tokens > 0
    assert auto.started.plan.reason == "request: autoregressive"
    assert auto.finished is not None
    assert auto.finished.counts.drafted_tokens == 0


def test_chat_tokens_and_text_are_three_ways_in(served: Served) -> None:
    rendered = served.worker.tokenizer.render_chat([{"role": "user", "content": "hi"}])
    chat = collect(served.client.generate(messages=[("user", "hi")], max_tokens=8))
    ids = collect(served.client.generate(tokens=rendered, max_tokens=8))
    assert chat.tokens == ids.tokens
    assert chat.started.prompt_tokens == len(rendered)


def test_timings_are_there_and_in_order(served: Served) -> None:
    answer = collect(served.client.generate("hello", max_tokens=40))
    assert answer.finished is not None
    t = answer.finished.timings
    first, total = t.time_to_first_token.ToNanoseconds(), t.total.ToNanoseconds()
    assert 0 < t.queue.ToNanoseconds() + t.prefill.ToNanoseconds() <= first <= total
    assert t.decode_tokens_per_second > 0
    p50, p95, p99 = (d.ToNanoseconds() for d in (t.inter_token_p50, t.inter_token_p95, t.inter_token_p99))
    assert 0 < p50 <= p95 <= p99


def test_a_stop_string_ends_the_text_before_it_and_is_named(served: Served) -> None:
    whole = collect(served.client.generate("stop here", max_tokens=60))
    stop = next(whole.text[i : i + 3] for i in range(20, 57) if "\ufffd" not in whole.text[i : i + 3])
    for mode in (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE):
        answer = collect(served.client.generate("stop here", max_tokens=60, stop=[stop, "never"], mode=mode))
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_STOP
        assert answer.finished.stop == stop
        assert answer.text == whole.text[: whole.text.index(stop)]
        assert answer.tokens == whole.tokens[: len(answer.tokens)]
        check_counts(answer)


def test_end_of_text_is_a_token_without_text(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7, eos_after=20)) as served:
        answer = collect(served.client.generate("abc"))
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_STOP
        assert answer.finished.stop == ""
        assert answer.tokens[-1] == 255
        check_counts(answer)


def test_prompt_and_answer_beyond_the_context_end_with_length(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7, context_length=64)) as served:
        answer = collect(served.client.generate("x" * 40, max_tokens=64))
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_LENGTH
        assert answer.finished.usage.output_tokens == 24


def test_the_seed_repeats_a_sampled_text(served: Served) -> None:
    sampling = SamplingParams(temperature=20.0, seed=7)
    first, second = (collect(served.client.generate("x", max_tokens=30, sampling=sampling)) for _ in range(2))
    other = collect(served.client.generate("x", max_tokens=30, sampling=SamplingParams(temperature=20.0, seed=8)))
    assert first.tokens == second.tokens != other.tokens


def test_a_cap_above_the_daemons_is_clamped_and_the_reason_says_so(served: Served) -> None:
    started = collect(served.client.generate("x", max_tokens=4, max_draft_tokens=15)).started
    assert started.plan.max_draft_tokens == 4
    assert "max_draft_tokens 15 lowered to the daemon's 4" in started.plan.reason
    started = collect(served.client.generate("x", max_tokens=4, max_draft_tokens=0)).started
    assert started.plan.mode == pb.DECODE_MODE_AUTOREGRESSIVE
    started = collect(served.client.generate("x", max_tokens=4, drafter=DrafterKind.PROMPT_LOOKUP)).started
    assert started.plan.drafter == pb.DRAFTER_KIND_PROMPT_LOOKUP


def test_get_model_says_what_is_loaded(served: Served) -> None:
    model = served.client.model()
    assert (model.model, model.draft_model, model.context_length) == ("scripted", "scripted-draft", 4096)
    assert model.speculation_available
    assert list(model.drafters) == [pb.DRAFTER_KIND_DRAFT_MODEL, pb.DRAFTER_KIND_PROMPT_LOOKUP]
    assert (model.max_draft_tokens, model.default_max_tokens) == (4, 256)
    assert model.chat_template


def test_status_counts_what_was_answered_and_what_was_refused(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        answers = [collect(served.client.generate("x", max_tokens=n)) for n in (3, 10, 30)]
        with pytest.raises(CallError):
            collect(served.client.generate(""))
        status = served.client.status()
        assert status.state == control_pb2.DAEMON_STATE_SERVING
        assert status.output_tokens == sum(len(a.tokens) for a in answers) == 43
        assert dict(status.finished_requests) == {"length": 3}
        assert status.refused_requests == 1
        finished = [a.finished for a in answers if a.finished is not None]
        assert status.counts.drafted_tokens == sum(f.counts.drafted_tokens for f in finished)
        assert (status.flag_variant, status.level, status.telemetry_exporting) == ("on", "full", False)
        assert (status.active_requests, status.queued_requests, status.queue_capacity) == (0, 0, 64)


def test_status_tells_what_is_allowed_since_when_and_why(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        before = served.client.status()
        assert (before.level, before.level_cause, before.max_draft_tokens) == ("full", "", 4)
        assert (list(before.transitions), before.flag.provider, before.flag.error) == ([], "flagd (file)", "")
        served.client.set_flag("off")
        served.planner.move(2, "acceptance fell", "0.31")
        after = served.client.status()
        assert (after.flag_variant, after.level, after.level_cause) == ("off", "short_block", "acceptance fell")
        assert after.max_draft_tokens == 2
        assert [(t.subject, t.previous, t.current, t.cause) for t in after.transitions] == [
            ("flag", "on", "off", "set over gRPC"),
            ("level", "full", "short_block 2", "acceptance fell"),
        ]
        assert before.started == after.started
        times = [t.at.ToNanoseconds() for t in after.transitions]
        assert after.started.ToNanoseconds() < times[0] < times[1] <= time.time_ns()
        (tmp_path / "flags.json").write_text("broken")
        until(lambda: "JSON" in served.client.status().flag.error)


def test_status_tells_of_the_machine_once_it_was_read(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        assert not served.client.status().HasField("hardware")
    view = FixedView(HardwareState(HardwareSample(memory_total=24), time.monotonic(), limit=24))
    with serving(tmp_path, models, hardware=view) as served:
        hardware = served.client.status().hardware
        assert hardware.memory_limit_bytes == 24
        assert not hardware.HasField("memory_available_bytes")


def test_the_flag_flips_between_two_requests_while_a_third_keeps_its_plan(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.01)  # noqa: E731
    with serving(tmp_path, slow) as served:
        running = served.client.generate("long", max_tokens=300)
        assert next(running).started.plan.mode == pb.DECODE_MODE_SPECULATIVE
        for variant, mode in (("off", pb.DECODE_MODE_AUTOREGRESSIVE), ("on", pb.DECODE_MODE_SPECULATIVE)):
            reply = served.client.set_flag(variant)
            assert reply.flag.default_variant == variant
            assert reply.previous_variant != variant
            started = collect(served.client.generate("x", max_tokens=2)).started
            assert (started.plan.mode, started.plan.variant) == (mode, variant)
            if variant == "off":
                with pytest.raises(CallError, match="variant off") as caught:
                    collect(served.client.generate("x", mode=ModePreference.SPECULATIVE))
                assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
                assert caught.value.reason == "SPECULATION_UNAVAILABLE"
        *_, last = running
        assert last.finished.mode == pb.DECODE_MODE_SPECULATIVE
        assert last.finished.counts.drafts > 0
        assert last.finished.degraded == ""


def test_the_flag_is_evaluated_for_workload_and_caller(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        path = served.settings.flag.file
        rule = '{"if":[{"==":[{"var":"workload"},"prose"]},"off",null]}'
        text = path.read_text().replace('"defaultVariant"', f'"targeting": {rule},\n "defaultVariant"')
        path.write_text(text)
        until(lambda: served.client.get_flag(workload=WorkloadClass.PROSE).evaluation.variant == "off")
        assert served.client.get_flag(workload=WorkloadClass.CODE).evaluation.variant == "on"
        prose = collect(served.client.generate("x", max_tokens=2, workload=WorkloadClass.PROSE)).started
        assert prose.plan.reason == "flag: TARGETING_MATCH, variant off"
        code = collect(served.client.generate("x", max_tokens=2, workload=WorkloadClass.CODE)).started
        assert code.plan.mode == pb.DECODE_MODE_SPECULATIVE


def test_a_model_that_cannot_speculate_says_why_and_refuses_the_demand(tmp_path: Path) -> None:
    def bare() -> LoadedModels:
        from dataclasses import replace

        loaded = scripted_models(0.7, with_draft=False)
        return replace(loaded, info=replace(loaded.info, drafters=(), speculation_reason="its cache cannot be trimmed"))

    with serving(tmp_path, bare) as served:
        started = collect(served.client.generate("x", max_tokens=3)).started
        assert started.plan.reason == "model: its cache cannot be trimmed"
        assert served.client.model().speculation_reason == "its cache cannot be trimmed"
        with pytest.raises(CallError, match="its cache cannot be trimmed") as caught:
            collect(served.client.generate("x", mode=ModePreference.SPECULATIVE))
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_a_deadline_ends_the_request_in_the_queue_and_in_the_batch(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.02)  # noqa: E731
    with serving(tmp_path, slow, engine={"max_batch": 1}) as served:
        running = served.client.generate("x", max_tokens=4000, timeout=1.0)
        next(running)
        with pytest.raises(CallError) as queued:
            list(served.client.generate("y", max_tokens=10, timeout=0.3))
        with pytest.raises(CallError) as ran:
            list(running)
        assert queued.value.code is ran.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        served.settle()
        reasons = [heard.outcomes[0].reason for heard in served.telemetry.heard]
        assert reasons == [FinishReason.DEADLINE] * 2


def test_a_full_queue_refuses_with_a_time_to_come_back_and_recovers(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.01)  # noqa: E731
    with serving(tmp_path, slow, engine={"max_batch": 1, "queue_capacity": 2}) as served:
        streams = [served.client.generate("x", max_tokens=60) for _ in range(3)]
        next(streams[0])
        until(lambda: served.worker.status().active == 1)
        answers: list[Answer] = []
        threads = [threading.Thread(target=lambda s=s: answers.append(collect(s))) for s in streams[1:]]
        for thread in threads:
            thread.start()
        until(lambda: served.worker.status().queued == 2)
        with pytest.raises(CallError) as caught:
            collect(served.client.generate("x", max_tokens=60))
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_after is not None
        assert 0.1 <= caught.value.retry_after <= 30
        assert "2 requests are waiting; at most 2 may" in caught.value.details
        list(streams[0])
        for thread in threads:
            thread.join(30)
        assert [len(a.tokens) for a in answers] == [60, 60]
        assert served.client.status().refused_requests == 1


def test_health_follows_the_model_from_loading_to_drain(tmp_path: Path) -> None:
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
        assert served.client.status().state == control_pb2.DAEMON_STATE_LOADING
        check = health_pb2.HealthCheckRequest(service="draftd.v1.ControlService")
        assert health.Check(check).status == SERVING
        gate.set()
        until(lambda: seen == [NOT_SERVING, SERVING])
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        served.stop()
        until(lambda: seen == [NOT_SERVING, SERVING, NOT_SERVING])
        served.join()
        watcher.join(10)
        assert served.orderly
        assert served.tasks_left == []


def test_a_model_that_cannot_be_loaded_ends_the_daemon_with_the_reason(tmp_path: Path) -> None:
    def broken() -> LoadedModels:
        raise ModelLoadError("model: /nowhere: no such folder")

    with serving(tmp_path, broken, wait=False) as served:
        served.join()
        assert served.orderly is None  # it raised
        assert served.worker.error == "model: /nowhere: no such folder"


def test_reflection_lists_the_services(served: Served) -> None:
    with served.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (reply,) = stub.ServerReflectionInfo(iter([request]))
        names = {service.name for service in reply.list_services_response.service}
    assert {"draftd.v1.InferenceService", "draftd.v1.ControlService", "grpc.health.v1.Health"} <= names


def test_reflection_can_be_turned_off(tmp_path: Path) -> None:
    with serving(tmp_path, models, server={"reflection": False}) as served, served.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_client_that_pings_often_is_not_hung_up_on(served: Served) -> None:
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


def test_a_second_daemon_on_the_port_is_refused_by_name(served: Served, tmp_path: Path) -> None:
    from draftd.errors import ConfigError

    with pytest.raises(ConfigError, match=r"server\.port"):
        Served(tmp_path, models, server={"port": served.port})


def test_telemetry_hears_of_each_request_once_with_what_the_client_was_told(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        answer = collect(
            served.client.generate(
                messages=[("user", "hi")], max_tokens=9, stop=["zz"], workload=WorkloadClass.CHAT, caller="someone"
            )
        )
        (heard,) = served.telemetry.heard  # told before the client heard of the end
        assert [o.reason for o in heard.outcomes] == [FinishReason.LENGTH]
        start = heard.start
        assert (start.operation, start.model, start.max_tokens) == ("chat", "scripted", 9)
        assert (start.stop, start.workload, start.messages) == (("zz",), WorkloadClass.CHAT, (("user", "hi"),))
        assert start.request_id == answer.started.request_id
        assert start.prompt_tokens == answer.started.prompt_tokens
        assert heard.text == answer.text
        with pytest.raises(CallError):
            collect(served.client.generate("x", max_tokens=0))
        assert [type(e).__name__ for e in served.telemetry.heard[1].refusals] == ["InvalidRequest"]


@pytest.mark.parametrize("models_of", [lambda: scripted_models(0.7, step_seconds=0.02)])
def test_a_drain_finishes_what_it_can_and_ends_the_rest_with_a_status(
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
        assert served.orderly
        assert served.tasks_left == []


def test_told_twice_it_stops_at_once_and_clients_hear_a_status(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.02)  # noqa: E731
    with serving(tmp_path, slow, server={"drain_seconds": 60.0}) as served:
        stream = served.client.generate("x", max_tokens=4000)
        next(stream)
        began = time.monotonic()
        served.stop()
        until(lambda: any("draining: 1 requests" in line for line in served.lines))
        served.stop()
        with pytest.raises(CallError):
            list(stream)
        served.join(10)
        assert time.monotonic() - began < 5
        assert served.orderly is False
        assert served.tasks_left == []


def test_an_engine_that_dies_ends_its_requests_with_an_error_and_the_daemon_with_them(
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


def test_requests_in_hand_are_bounded_even_where_the_engine_is_done_with_them(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.01)  # noqa: E731
    with serving(tmp_path, slow) as served:
        served.daemon._calls.limit = 2
        streams = [served.client.generate("x", max_tokens=200) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(CallError, match="2 requests are in hand") as caught:
            collect(served.client.generate("x"))
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_after == 1.0
        for stream in streams:
            list(stream)
        assert collect(served.client.generate("x", max_tokens=3)).error is None
