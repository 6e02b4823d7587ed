"""The RPC span over a real asyncio server: names, status of every ending, the caller's trace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context

from draftd.telemetry.recording import Stopwatch
from draftd.telemetry.rpc import RpcCall
from draftd.telemetry.setup import Telemetry
from tests.otlp import OtlpReceiver, SpanRecord
from tests.unit.telemetry.scene import ADDRESS, SPECULATIVE_STEP, Scene

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
CALLER = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)


def same(message: bytes) -> bytes:
    return message


async def two(request: bytes, context: Any) -> None:
    await context.write(b"1")
    await context.write(b"2")


async def full(request: bytes, context: Any) -> None:
    await context.write(b"1")
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")


async def broken(request: bytes, context: Any) -> None:
    await context.write(b"1")
    raise LookupError("on purpose")


async def patient(request: bytes, context: Any) -> None:
    for _ in range(1000):
        await context.write(b"1")
        await asyncio.sleep(0.02)


async def torrent(request: bytes, context: Any) -> None:
    while True:
        await context.write(bytes(100_000))


async def one(request: bytes, context: Any) -> bytes:
    return b"1"


async def lost(request: bytes, context: Any) -> bytes:
    context.set_code(grpc.StatusCode.NOT_FOUND)
    return b""


async def unary_broken(request: bytes, context: Any) -> bytes:
    raise LookupError("on purpose")


async def asleep(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(30)
    return b""


async def total(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return str(sum([len(request) async for request in requests])).encode()


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


HANDLERS: dict[str, Any] = {
    **{h.__name__: grpc.unary_stream_rpc_method_handler(h, same, same) for h in (two, full, broken, patient, torrent)},
    **{h.__name__: grpc.unary_unary_rpc_method_handler(h, same, same) for h in (one, lost, unary_broken, asleep)},
    "total": grpc.stream_unary_rpc_method_handler(total, same, same),
    "echo": grpc.stream_stream_rpc_method_handler(echo, same, same),
}


@asynccontextmanager
async def serving(telemetry: Telemetry, **more: Any) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[telemetry.rpc_interceptor])
    handlers = grpc.method_handlers_generic_handler("test.Service", HANDLERS | more)
    health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": HANDLERS["one"]})
    server.add_generic_rpc_handlers((handlers, health))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    logging.getLogger("grpc").setLevel(logging.CRITICAL)  # it prints what handlers raise
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()  # a short deadline is for the call, not for the connection
            yield channel
    finally:
        await server.stop(0.5)


async def drain(channel: grpc.aio.Channel, method: str, **call: Any) -> grpc.StatusCode:
    stream = channel.unary_stream(f"/test.Service/{method}", same, same)(b"", **call)
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    code: grpc.StatusCode = await stream.code()
    return code


async def ask(channel: grpc.aio.Channel, method: str, **call: Any) -> grpc.StatusCode:
    try:
        await channel.unary_unary(f"/test.Service/{method}", same, same)(b"", **call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def leave(channel: grpc.aio.Channel, method: str) -> None:
    stream = channel.unary_stream(f"/test.Service/{method}", same, same)(b"")
    await stream.read()
    await asyncio.sleep(0.05)
    stream.cancel()
    await asyncio.sleep(0.1)


async def flushed(scene: Scene) -> None:
    await asyncio.to_thread(scene.telemetry.shutdown, 30.0)


async def ended(receiver: OtlpReceiver, name: str, calls: int = 1) -> None:
    """Waits for the spans of calls whose end the client does not see."""
    await asyncio.to_thread(receiver.wait_for, lambda: len(receiver.spans(name)) >= calls, 30.0)


def only(receiver: OtlpReceiver, name: str) -> SpanRecord:
    (span,) = receiver.spans(name)
    return span


ENDINGS = [
    ("two", drain, "OK", "UNSET", None),
    ("full", drain, "RESOURCE_EXHAUSTED", "UNSET", None),
    ("broken", drain, "UNKNOWN", "ERROR", "LookupError"),
    ("one", ask, "OK", "UNSET", None),
    ("lost", ask, "NOT_FOUND", "UNSET", None),
    ("unary_broken", ask, "UNKNOWN", "ERROR", "LookupError"),
]


async def test_rpc_span_and_metric_record_the_status_the_client_saw(scene: Scene, receiver: OtlpReceiver) -> None:
    async with serving(scene.telemetry) as channel:
        for method, call, code, _, _ in ENDINGS:
            assert (await call(channel, method)).name == code
    await flushed(scene)
    durations = {point.attributes["rpc.method"]: point for point in receiver.points("rpc.server.call.duration")}
    for method, _, code, status, error_type in ENDINGS:
        name = f"test.Service/{method}"
        span, duration = only(receiver, name), durations[name]
        assert (span.kind, span.status) == ("SERVER", status)
        wanted = {"rpc.system.name": "grpc", "rpc.method": name, "rpc.response.status_code": code}
        where = {"server.address": ADDRESS[0], "server.port": ADDRESS[1]}
        assert span.attributes == wanted | where | ({"error.type": error_type} if error_type else {})
        assert duration.attributes == {key: value for key, value in span.attributes.items() if key not in where}
        assert (duration.count, duration.unit) == (1, "s")
        assert duration.value == pytest.approx((span.end - span.start) / 1e9)


async def test_rpc_span_of_a_client_that_leaves_is_cancelled_without_error(
    scene: Scene, receiver: OtlpReceiver
) -> None:
    async with serving(scene.telemetry) as channel:
        for method in ("patient", "torrent"):
            await leave(channel, method)
            await ended(receiver, f"test.Service/{method}")
    await flushed(scene)
    for method in ("patient", "torrent"):
        span = only(receiver, f"test.Service/{method}")
        assert span.attributes["rpc.response.status_code"] == "CANCELLED"
        assert span.status == "UNSET"
        assert "error.type" not in span.attributes


@pytest.mark.parametrize(("left", "code"), [(None, "CANCELLED"), (0.4, "CANCELLED"), (0.03, "DEADLINE_EXCEEDED")])
async def test_rpc_cancelled_at_its_deadline_counts_as_deadline_exceeded(
    left: float | None, code: str, scene: Scene, receiver: OtlpReceiver
) -> None:
    """The client's clock began before the daemon's; the inference span judges by the same slack."""

    class Gone:
        def done(self) -> bool:
            return False

        def time_remaining(self) -> float | None:
            return left

    call = RpcCall("test.Service/patient", Context(), Stopwatch(), scene.telemetry.rpc_interceptor._on)
    call.done(Gone())
    await flushed(scene)
    assert only(receiver, "test.Service/patient").attributes["rpc.response.status_code"] == code


async def test_rpc_span_past_its_deadline_is_an_error(scene: Scene, receiver: OtlpReceiver) -> None:
    def over(name: str) -> bool:
        return any(span.attributes["rpc.response.status_code"] == "DEADLINE_EXCEEDED" for span in receiver.spans(name))

    async with serving(scene.telemetry) as channel:
        for method, call in (("patient", drain), ("asleep", ask)):
            calls = 0
            # A client whose clock is a little ahead cancels first: the next call has another chance.
            while not over(f"test.Service/{method}") and calls < 20:
                assert await call(channel, method, timeout=0.3) is grpc.StatusCode.DEADLINE_EXCEEDED
                calls += 1
                await ended(receiver, f"test.Service/{method}", calls)
    await flushed(scene)
    for method in ("patient", "asleep"):
        late = receiver.spans(f"test.Service/{method}")[-1]
        assert late.attributes["rpc.response.status_code"] == late.attributes["error.type"] == "DEADLINE_EXCEEDED"
        assert late.status == "ERROR"


async def test_rpc_span_covers_calls_with_streamed_requests(scene: Scene, receiver: OtlpReceiver) -> None:
    async def several() -> AsyncIterator[bytes]:
        yield b"12"
        yield b"345"

    async with serving(scene.telemetry) as channel:
        assert await channel.stream_unary("/test.Service/total", same, same)(several()) == b"5"
        echoed = channel.stream_stream("/test.Service/echo", same, same)(several())
        assert [message async for message in echoed] == [b"12", b"345"]
    await flushed(scene)
    for method in ("total", "echo"):
        assert only(receiver, f"test.Service/{method}").attributes["rpc.response.status_code"] == "OK"


async def test_unknown_rpc_method_is_recorded_as_other(scene: Scene, receiver: OtlpReceiver) -> None:
    async with serving(scene.telemetry) as channel:
        assert await ask(channel, "made_up") is grpc.StatusCode.UNIMPLEMENTED
    await flushed(scene)
    span = only(receiver, "grpc")
    assert span.attributes["rpc.method"] == "_OTHER"
    assert span.attributes["rpc.response.status_code"] == "UNIMPLEMENTED"
    assert span.status == "ERROR"


async def test_grpc_health_checks_leave_no_span_or_metric(scene: Scene, receiver: OtlpReceiver) -> None:
    async with serving(scene.telemetry) as channel:
        await channel.unary_unary("/grpc.health.v1.Health/Check", same, same)(b"")
    await flushed(scene)
    assert receiver.spans() == []
    assert receiver.points("rpc.server.call.duration") == []


async def test_callers_trace_context_reaches_the_rpc_and_request_spans(scene: Scene, receiver: OtlpReceiver) -> None:
    async def generate(request: bytes, context: Any) -> None:
        await context.write(b"1")
        scene.serve()
        await context.write(b"2")

    handler = grpc.unary_stream_rpc_method_handler(generate, same, same)
    async with serving(scene.telemetry, generate=handler) as channel:
        assert await drain(channel, "generate", metadata=CALLER) is grpc.StatusCode.OK
    await flushed(scene)
    rpc, request = only(receiver, "test.Service/generate"), only(receiver, "chat nano")
    assert (rpc.trace_id, rpc.parent_id) == (TRACE, PARENT)
    assert (request.trace_id, request.parent_id) == (TRACE, rpc.span_id)
    assert rpc.start <= request.start
    assert {span.trace_id for span in receiver.spans()} == {TRACE}


async def test_concurrent_rpcs_keep_separate_traces(scene: Scene, receiver: OtlpReceiver) -> None:
    async def generate(request: bytes, context: Any) -> None:
        await context.write(b"1")
        await asyncio.sleep(0.02)
        scene.serve(request_id=request.decode())
        await context.write(b"2")

    async def call(channel: grpc.aio.Channel, number: int) -> None:
        metadata = (("traceparent", f"00-{number:032x}-{number:016x}-01"),)
        stream = channel.unary_stream("/test.Service/generate", same, same)(str(number).encode(), metadata=metadata)
        assert len([message async for message in stream]) == 2

    handler = grpc.unary_stream_rpc_method_handler(generate, same, same)
    async with serving(scene.telemetry, generate=handler) as channel:
        await asyncio.gather(*(call(channel, number) for number in range(1, 21)))
    await flushed(scene)
    requests = receiver.spans("chat nano")
    assert len(requests) == 20
    assert all(int(span.trace_id, 16) == int(span.attributes["gen_ai.response.id"]) for span in requests)


async def test_unsampled_rpc_is_counted_without_a_span(scene: Scene, receiver: OtlpReceiver) -> None:
    unsampled = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
    async with serving(scene.telemetry) as channel:
        await drain(channel, "two", metadata=unsampled)
    await flushed(scene)
    assert receiver.spans() == []
    assert receiver.count("rpc.server.call.duration") == 1


async def test_malformed_traceparent_starts_a_new_trace(scene: Scene, receiver: OtlpReceiver) -> None:
    async with serving(scene.telemetry) as channel:
        for header in ("", "nonsense", "00-0-0-00", f"ff-{TRACE}-{PARENT}-01"):
            assert await drain(channel, "two", metadata=(("traceparent", header),)) is grpc.StatusCode.OK
    await flushed(scene)
    spans = receiver.spans("test.Service/two")
    assert [span.parent_id for span in spans] == [""] * 4
    assert len({span.trace_id for span in spans} - {TRACE}) == 4


async def test_rpc_handler_is_closed_when_its_client_leaves(scene: Scene) -> None:
    closed = asyncio.Event()

    async def torrential(request: bytes, context: Any) -> None:
        try:
            while True:
                await context.write(bytes(100_000))
        finally:
            closed.set()

    handler = grpc.unary_stream_rpc_method_handler(torrential, same, same)
    async with serving(scene.telemetry, torrential=handler) as channel:
        await leave(channel, "torrential")
        await asyncio.wait_for(closed.wait(), 60.0)


async def test_rpcs_pass_unchanged_without_an_otlp_endpoint(open_scene: Callable[..., Scene]) -> None:
    scene = open_scene({})
    async with serving(scene.telemetry) as channel:
        assert await drain(channel, "two", metadata=CALLER) is grpc.StatusCode.OK
        assert await drain(channel, "full") is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await ask(channel, "one") is grpc.StatusCode.OK


async def test_request_recorded_on_another_thread_joins_the_rpc_trace(scene: Scene, receiver: OtlpReceiver) -> None:
    async def generate(request: bytes, context: Any) -> bytes:
        await asyncio.to_thread(scene.serve)
        return b""

    handler = grpc.unary_unary_rpc_method_handler(generate, same, same)
    async with serving(scene.telemetry, generate=handler) as channel:
        assert await ask(channel, "generate", metadata=CALLER) is grpc.StatusCode.OK
    await flushed(scene)
    assert only(receiver, "chat nano").trace_id == TRACE
    assert receiver.total("draftd.spec_decode.draft_tokens") == 3 * SPECULATIVE_STEP.drafted
