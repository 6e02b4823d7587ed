"""Bad input and bad clients: each gets a clear status, and none disturbs a stream that is running."""

from __future__ import annotations

import math
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from draftd.client.client import CallError, DraftdClient
from draftd.core import FinishReason
from draftd.engine.pair import LoadedModels
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Answer, Served, collect, serving
from tests.scripted import ByteTokenizer, scripted_models
from tests.scripted_daemon import scripted_daemon
from tests.wait_until import until

CONTEXT = 3000
MESSAGE_LIMIT = 64 * 1024
# A client whose receive window does not grow: what it does not read stays with the server.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65535)]


def models() -> LoadedModels:
    return scripted_models(0.7, vocab_size=256, context_length=CONTEXT, step_seconds=0.004)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = {"max_message_bytes": MESSAGE_LIMIT}
    with serving(tmp_path_factory.mktemp("served"), models, server=limits) as served:
        yield served


@pytest.fixture(scope="module")
def alone(served: Served) -> Answer:
    """What the bystander is answered where nothing else runs."""
    return collect(served.client.generate("bystander", max_tokens=300))


@pytest.fixture
def bystander(served: Served, alone: Answer) -> Iterator[None]:
    """A stream that runs all the while, and must come out whole: the same text as when it is alone."""
    answers: list[Answer] = []
    stream = served.client.generate("bystander", max_tokens=300)
    first = next(stream)

    def read() -> Iterator[pb.GenerateResponse]:
        yield first
        yield from stream

    thread = threading.Thread(target=lambda: answers.append(collect(read())))
    thread.start()
    yield
    thread.join(30)
    (answer,) = answers
    assert answer.error is None
    assert answer.tokens == alone.tokens
    assert answer.text == alone.text
    assert served.client.serving()


def raw(channel: grpc.Channel) -> Callable[..., Any]:
    """Generate, with bytes for a request."""
    return channel.unary_stream(
        "/draftd.v1.InferenceService/Generate",
        request_serializer=lambda data: data,
        response_deserializer=pb.GenerateResponse.FromString,
    )


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"prompt": "hello"} | fields))


def sampled(**fields: Any) -> pb.GenerateRequest:
    return request(sampling=pb.SamplingParams(**fields))


def message(role: str, content: str = "x") -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatInput(messages=[pb.ChatMessage(role=role, content=content)]))


# One of each way to be refused: no field, a plain field, one of several, an enumeration, and what tokenising finds.
TABLE: list[tuple[str, pb.GenerateRequest, str, str]] = [
    ("nothing", pb.GenerateRequest(), "input", "one of prompt, chat, tokens"),
    ("temperature not a number", sampled(temperature=math.nan), "sampling.temperature", "got nan"),
    ("max_tokens zero", request(max_tokens=0), "max_tokens", "1 or more"),
    ("an unknown role", message("wizard"), "chat.messages[0].role", "system, developer, user, assistant, tool"),
    ("a token id out of range", pb.GenerateRequest(tokens=pb.TokenInput(ids=[1, 256])), "tokens.ids[1]", "0 to 255"),
    ("a long stop string", request(stop=["x" * 257]), "stop[0]", "256 bytes"),
    ("an unknown mode", request(mode=9), "mode", "DECODE_MODE_SPECULATIVE"),
    ("an unknown drafter", request(drafter="eagle"), "drafter", "prompt_lookup"),
    ("a prompt far beyond the context", request(prompt="x" * 60_000), "prompt", "got '60000 characters'"),
    ("a chat as long as the context", message("user", "x" * CONTEXT), "chat", f"1 to {CONTEXT - 1} tokens"),
]


@pytest.mark.parametrize(("bad", "field", "said"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_invalid_generate_request_is_refused_naming_its_field(
    served: Served, bad: pb.GenerateRequest, field: str, said: str
) -> None:
    before = len(served.telemetry.heard)
    with pytest.raises(CallError) as caught:
        list(served.client.generate_raw(bad, timeout=20))
    error = caught.value
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.reason == "INVALID_REQUEST"
    assert list(error.fields) == [field]
    assert said in error.details
    assert error.details.startswith(f"{field}: got ")
    assert error.retry_after is None
    (heard,) = served.telemetry.heard[before:]
    assert [refusal.grpc_status for refusal in heard.refusals] == ["INVALID_ARGUMENT"]


def test_concurrent_invalid_requests_leave_a_running_stream_undisturbed(served: Served, bystander: None) -> None:
    def ask(row: tuple[str, pb.GenerateRequest, str, str]) -> str:
        with pytest.raises(CallError) as caught:
            list(served.client.generate_raw(row[1], timeout=30))
        return caught.value.code.name

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, TABLE * 3)) == {"INVALID_ARGUMENT"}


# Bytes, and what is said of them.
NO_REQUESTS = [
    (b"\x0a\x05caf\xe9!", "prompt: got b'caf\\xe9!'; allowed: valid UTF-8"),
    (b"\x12\x08\x0a\x06\x0a\x01u\x12\x01\xff", "chat.messages[0].content: got b'\\xff'; allowed: valid UTF-8"),
    (b"\x0a\x01x\x5a\x02\xc3\x28", "caller: got b'\\xc3('; allowed: valid UTF-8"),
    (b"\x0a\xff", "message: got '2 bytes'; allowed: a well-formed draftd.v1.GenerateRequest"),
    (b"\xff" * 64, "message: got '64 bytes'; allowed: a well-formed draftd.v1.GenerateRequest"),
]


def test_bytes_that_are_no_grpc_request_get_an_explaining_status(served: Served, bystander: None) -> None:
    for data, said in NO_REQUESTS:
        with served.channel() as channel, pytest.raises(grpc.RpcError) as caught:
            list(raw(channel)(data, timeout=20))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details().startswith(said)


def test_oversized_grpc_message_is_refused_with_its_size_and_the_limit(served: Served, bystander: None) -> None:
    for size in (MESSAGE_LIMIT + 1, 16 * MESSAGE_LIMIT):  # refused by the daemon, and by gRPC itself
        with pytest.raises(CallError) as caught:
            list(served.client.generate("x" * size, timeout=20))
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        said = re.fullmatch(r"message: got '?(\d+) bytes'?; allowed: at most (\d+) bytes \(.*\)", caught.value.details)
        assert said is not None, caught.value.details
        assert int(said[1]) >= size
        assert int(said[2]) == MESSAGE_LIMIT


def test_unknown_grpc_method_is_unimplemented_and_unknown_variant_is_invalid(served: Served) -> None:
    with served.channel() as channel:
        method = channel.unary_unary("/draftd.v1.InferenceService/Nothing")  # type: ignore[call-arg]
        with pytest.raises(grpc.RpcError) as caught:
            method(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    for variant in ("", "maybe"):
        with pytest.raises(CallError, match="allowed: on, off") as refused:
            served.client.set_flag(variant)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


class Wordy(ByteTokenizer):
    """A page of text a token: what is not read fills every buffer on its way soon."""

    def detokenizer(self, *, continues: bool = False) -> Wordy:
        return self

    def add(self, token: int) -> str:
        return "x" * 4096

    def finish(self) -> str:
        return ""


def wordy() -> LoadedModels:
    return replace(scripted_models(0.9, context_length=4096, step_seconds=0.002), tokenizer=Wordy(256))


@pytest.mark.slow
def test_grpc_client_that_never_reads_is_cancelled_with_aborted(tmp_path: Path) -> None:
    with serving(tmp_path, wordy, server={"write_stall_seconds": 0.5}) as served:
        with served.channel(SMALL_WINDOW) as channel:
            call = raw(channel)(request(max_tokens=3_000).SerializeToString())
            until(lambda: served.daemon.service.open_requests == 1)
            other = collect(served.client.generate("bystander", max_tokens=50))  # others go on
            assert len(other.tokens) == 50
            until(lambda: served.daemon.service.open_requests == 0, 30)
            assert served.worker.status().active == 0
            assert served.worker.status().kv_cache_bytes == 0
            assert [o.reason for o in served.telemetry.heard[0].outcomes] == [FinishReason.CANCELLED]
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() is grpc.StatusCode.ABORTED
            assert "the client read nothing for 0.5 s" in caught.value.details()
        # The same, by one that goes without ever having read.
        with served.channel(SMALL_WINDOW) as channel:
            unread = raw(channel)(request(max_tokens=3_000).SerializeToString())
            until(lambda: served.daemon.service.open_requests == 1)
            until(lambda: served.daemon.service.open_requests == 0, 30)
        assert unread.code() is grpc.StatusCode.CANCELLED  # by closing the channel
        assert collect(served.client.generate("x", max_tokens=5)).error is None
    assert served.orderly
    assert served.tasks_left == []


def test_closed_client_connection_cancels_its_sequence(served: Served, bystander: None) -> None:
    for _ in range(5):
        with served.channel() as channel:
            call = raw(channel)(request(max_tokens=CONTEXT).SerializeToString())
            next(call)
            next(call)
        # The channel is closed with the call still open: the connection is gone.
        began = time.monotonic()
        until(lambda: served.telemetry.heard[-1].outcomes != [])
        assert served.telemetry.heard[-1].outcomes[0].reason is FinishReason.CANCELLED
        assert time.monotonic() - began < 10


def test_grpc_call_cancelled_before_service_leaves_no_sequence(served: Served) -> None:
    stub_requests = 30
    with served.channel() as channel:
        calls = [raw(channel)(request(prompt="x" * 2000).SerializeToString()) for _ in range(stub_requests)]
        for call in calls:
            call.cancel()
    served.settle()
    assert served.worker.status().active == served.worker.status().queued == 0


def test_internal_error_is_logged_and_sent_without_its_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, models) as served:

        def broken(*asked: object, **more: object) -> object:
            raise RuntimeError("secret detail")

        served.planner.plan = broken  # type: ignore[assignment,method-assign]
        with pytest.raises(CallError) as caught:
            collect(served.client.generate("x"))
        assert caught.value.code is grpc.StatusCode.INTERNAL
        assert caught.value.details == "internal error: RuntimeError"
        assert "secret detail" in caplog.text
        assert served.daemon.service.open_requests == 0


STORM = 200
WARM_UP = 150
# The daemon's RSS may grow by this much over the streams after a warm-up: 10 KiB each, of both kinds. A stream that
# leaks its handler, its call or its caches costs four times that, twice that where one kind of the two leaks.
STORM_BOUND_BYTES = 10 * 1024 * STORM


@pytest.mark.slow
def test_cancelled_streams_do_not_grow_daemon_memory(tmp_path: Path) -> None:
    """Every other one is cancelled, the rest vanish with their connection."""
    choose = random.Random(1)
    data = request(prompt="storm", max_tokens=2000).SerializeToString()
    with scripted_daemon(tmp_path, step_seconds=0.001, context_length=CONTEXT) as daemon:
        target = daemon.address
        shared = grpc.insecure_channel(target)

        def one(number: int) -> None:
            vanishes = number % 2
            own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, closed with the call still open
            channel = grpc.insecure_channel(target, own) if vanishes else shared
            call = raw(channel)(data)
            for _ in range(choose.randrange(4)):
                next(call)
            if vanishes:
                channel.close()
            else:
                call.cancel()

        def storm(n: int) -> None:
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(one, range(n)))
            until(lambda: client.status().active_requests == client.status().queued_requests == 0, 60)

        process = psutil.Process(daemon.child.pid)
        with DraftdClient(target) as client:
            storm(WARM_UP)
            before, cancelled = process.memory_info().rss, client.status().finished_requests["cancelled"]
            storm(STORM)
            grown = process.memory_info().rss - before
            status = client.status()
            cancelled = status.finished_requests["cancelled"] - cancelled
            print(f"\n{cancelled} of {STORM} cancelled in the engine; RSS grew by {grown / 1024:.0f} KiB")
            assert grown < STORM_BOUND_BYTES, f"grew by {grown / 1024 / STORM:.1f} KiB a stream"
            assert cancelled > STORM / 2  # the rest were gone before they reached it
            assert set(status.finished_requests) == {"cancelled"}
            assert status.kv_cache_bytes == 0
            assert collect(client.generate("after", max_tokens=20)).error is None
        shared.close()
        daemon.child.terminate()
        assert daemon.wait(20) == 0
        assert [line for line in daemon.lines if "Traceback" in line or "never" in line] == []


def test_killed_client_process_cancels_its_sequence(served: Served) -> None:
    script = (
        "import os, signal, sys\n"
        "from draftd.client.client import DraftdClient\n"
        "stream = DraftdClient(sys.argv[1]).generate('x', max_tokens=2900)\n"
        "next(stream), next(stream)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    before = len(served.telemetry.heard)
    killed = subprocess.run([sys.executable, "-c", script, served.target], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    served.settle(5)
    (heard,) = served.telemetry.heard[before:]
    assert [outcome.reason for outcome in heard.outcomes] == [FinishReason.CANCELLED]
