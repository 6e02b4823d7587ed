"""What a verifier refuses a peer, what it holds for one that is gone or silent, and what one that means ill can do."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftd.core import SamplingParams
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    OpenSequence,
    Proposal,
    SequenceClosed,
    SequenceOpened,
    Verdict,
)
from draftd.fronts.grpc import verification
from draftd.service.peers import MOST_UNREAD, Refusals
from draftd.v1 import verification_pb2 as pb
from draftd.verifier_client.codec import VERSION
from tests.in_process_daemon import Served, collect, serving
from tests.scripted import scripted_models
from tests.wait_until import until
from tests.wire_edge import Edge, at, connected, heard, opened

TOKEN = "0123456789abcdef"


def models() -> object:
    return scripted_models(0.7, context_length=1024, step_seconds=0.001)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    verify = {"enabled": True, "peers": 3, "sequences_per_peer": 4, "tokens_per_peer": 2000}
    folder, engine = tmp_path_factory.mktemp("verify"), {"max_batch": 4}
    with serving(folder, models, token=TOKEN, verify=verify, engine=engine) as served:  # type: ignore[arg-type]
        yield served


TEXT = [1, 2, 3]
GOOD = opened(1, TEXT, 3, 20)


def sampled(**options: object) -> OpenSequence:
    return opened(1, TEXT, 3, 20, sampling=SamplingParams(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "fingerprint", "said"),
    [
        (opened(1, [1, 256], 2, 20), "", "open.tokens[1]: got 256; allowed: token ids from 0 to 255"),
        (opened(1, TEXT, 3, 1022), "", "open.max_tokens: got 1022; allowed: 1 to 1021"),
        (opened(1, TEXT, 1, 2), "", "open.max_tokens: got 2; allowed: 3 to 1023: the answer has 2"),
        (opened(1, [1] * 1024, 1024, 1), "", "open.tokens: got '1024 tokens'; allowed: 1 to 1023 tokens"),
        (opened(1, TEXT, 4, 20), "", "open.prompt_tokens: got 4; allowed: 1 to 3"),
        (sampled(temperature=0.8), "", "open.sampling.seed: not set; allowed: a seed"),
        (sampled(temperature=101.0, seed=1), "", "open.sampling.temperature: got 101.0"),
        (sampled(logit_bias=((300, 1.0),)), "", "open.sampling.logit_bias: got 300"),
        (opened(1, TEXT, 3, 20, ends=[400]), "", "open.end_tokens[0]: got 400"),
        (replace(GOOD, options=replace(GOOD.options, logprobs=21)), "", "open.logprobs: got 21"),
        (replace(GOOD, options=replace(GOOD.options, grammar="{}")), "", "open.grammar: got '{}'"),
        (GOOD, "f" * 64, "the fingerprint of scripted: another model began the text"),
    ],
)
def test_verifier_refuses_an_invalid_open_sequence_naming_its_field(
    served: Served, message: OpenSequence, fingerprint: str, said: str
) -> None:
    async def ask() -> SequenceClosed:
        async with connected(served.target, TOKEN) as edge:
            await edge.send(message, fingerprint)
            closed = await heard(edge, 1)
            assert isinstance(closed, SequenceClosed)
            await edge.send(GOOD, edge.welcome.model_fingerprint)  # which the same number is good for
            assert isinstance(await heard(edge, 1), SequenceOpened)
            return closed

    assert said in at(served, ask()).error


async def refused(served: Served, *messages: pb.VerifyRequest, token: str | None = TOKEN) -> tuple[str, str]:
    """What a stream of these ends with."""
    edge = Edge(served.target, token)
    call = edge.stub.Verify(metadata=edge.metadata)
    with contextlib.suppress(grpc.aio.AioRpcError):  # it may be refused before all is said
        for message in messages:
            await call.write(message)
    while await _read(call):
        pass
    code, details = await call.code(), await call.details()
    await edge.channel.close()  # type: ignore[call-arg]
    return code.name, details or ""


async def _read(call: Any) -> bool:
    with contextlib.suppress(grpc.aio.AioRpcError):
        return await call.read() is not grpc.aio.EOF  # type: ignore[attr-defined]
    return False


def hello(**fields: object) -> pb.VerifyRequest:
    return pb.VerifyRequest(hello=pb.Hello(**{"protocol": VERSION, "edge": uuid.uuid4().hex, **fields}))


@pytest.mark.parametrize(
    ("messages", "code", "said"),
    [
        ([hello(protocol=1)], "FAILED_PRECONDITION", "the edge speaks version 1 of the protocol, and this daemon 2"),
        ([hello(edge="me")], "INVALID_ARGUMENT", "hello.edge: got 'me'; allowed: 32 hexadecimal digits"),
        (
            [pb.VerifyRequest(ping=pb.Ping(nonce=1))],
            "INVALID_ARGUMENT",
            "got 'ping'; allowed: hello, which comes first",
        ),
        ([hello(), hello()], "INVALID_ARGUMENT", "message: got 'hello'"),
        ([hello(), pb.VerifyRequest()], "INVALID_ARGUMENT", "message: got 'nothing'"),
    ],
)
def test_verifier_ends_an_invalid_message_order_with_a_status(
    served: Served, messages: list[pb.VerifyRequest], code: str, said: str
) -> None:
    found, details = at(served, refused(served, *messages))
    assert (found, said in details) == (code, True), details


def test_verifier_refuses_an_edge_without_the_token(served: Served) -> None:
    assert at(served, refused(served, token=None))[0] == "UNAUTHENTICATED"  # whatever it would have said


def test_daemon_with_verification_off_refuses_edges_naming_the_setting(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:  # type: ignore[arg-type]
        code, details = at(served, refused(served, hello(), token=None))
        assert (code, "set verify.enabled" in details) == ("FAILED_PRECONDITION", True)
        assert served.daemon.verification.status().refusals["not_enabled"] == 1
        refusals = served.client.status().verification.refusals
        assert dict(refusals) == {"not_enabled": 1}, "it is shown though there are no edges"


def test_verifier_sends_its_vocabulary_in_parts(served: Served) -> None:
    async def ask() -> pb.GetVocabularyResponse:
        async with connected(served.target, TOKEN) as edge:
            asked = pb.GetVocabularyRequest(first=250, count=10)
            told: pb.GetVocabularyResponse = await edge.stub.GetVocabulary(asked, metadata=edge.metadata)
            assert told.fingerprint == edge.welcome.tokenizer
            return told

    told = at(served, ask())
    assert (told.size, list(told.tokens)) == (256, [bytes([one]) for one in range(250, 256)])


def test_verifier_limits_sequences_and_tokens_per_edge_and_the_number_of_edges(served: Served) -> None:
    async def ask() -> None:
        async with connected(served.target, TOKEN) as one, connected(served.target, TOKEN) as two:
            for number in range(1, 6):
                await one.send(opened(number, TEXT, 3, 20))
            closed = await heard(one, 5)
            assert isinstance(closed, SequenceClosed)
            assert "a peer may have 4 (verify.sequences_per_peer)" in closed.error
            assert closed.retry_after
            await two.send(opened(1, TEXT, 3, 1000))
            await two.send(opened(2, TEXT, 3, 1000))
            closed = await heard(two, 2)
            assert isinstance(closed, SequenceClosed)
            assert "a peer may have: 2000 (verify.tokens_per_peer)" in closed.error
            async with connected(served.target, TOKEN):
                code, details = await refused(served, hello())
            assert (code, "verify.peers" in details) == ("RESOURCE_EXHAUSTED", True)
            counts = [one.refused for one in served.daemon.verification.status().peers.values()]
            assert (sum(counts), max(counts)) == (2, 1)

    at(served, ask())


WRONG = "a wrong token, and a long one"


@contextlib.contextmanager
def refusal(served: Served, reason: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Within it one connection or sequence is refused, for this reason: counted, and a line says so."""
    service = served.daemon.verification
    service.refusals = Refusals()  # no line was written of late
    before = service.status().refusals
    caplog.clear()
    yield
    until(lambda: service.status().refusals != before)
    assert {name: count for name, count in service.status().refusals.items() if count} == {reason: 1}
    assert service.status().total.refused == 1
    lines = [one for one in caplog.messages if "of the edge at ipv4:127.0.0.1:" in one and " was refused: " in one]
    assert len(lines) == 1, caplog.messages
    assert WRONG not in caplog.text


@pytest.mark.parametrize(
    ("reason", "messages", "token"),
    [
        ("unauthenticated", [hello()], None),
        ("unauthenticated", [hello()], WRONG),
        ("other_protocol", [hello(protocol=1)], TOKEN),
        ("invalid_request", [hello(edge="me")], TOKEN),
        ("invalid_request", [hello(), pb.VerifyRequest()], TOKEN),
        ("deadline_exceeded", [], TOKEN),
    ],
)
def test_verifier_counts_and_logs_refused_connections_by_reason(
    served: Served,
    reason: str,
    messages: list[pb.VerifyRequest],
    token: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "HELLO_SECONDS", 0.05 if not messages else 10.0)
    with refusal(served, reason, caplog):
        at(served, refused(served, *messages, token=token))


@pytest.mark.parametrize(
    ("reason", "messages", "fingerprint"),
    [
        ("invalid_request", [opened(1, TEXT, 4, 20)], ""),
        ("other_weights", [GOOD], "f" * 64),
        ("too_many_sequences", [opened(number, TEXT, 3, 20) for number in range(1, 6)], ""),
        ("too_many_tokens", [opened(number, TEXT, 3, 1000) for number in range(1, 3)], ""),
        ("invalid_request", [GOOD, Proposal(1, 3, 3, (999,))], ""),
    ],
)
def test_verifier_counts_and_logs_refused_sequences_by_reason(
    served: Served,
    reason: str,
    messages: list[OpenSequence | Proposal],
    fingerprint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> None:
        async with connected(served.target, TOKEN) as edge:
            for message in messages:
                await edge.send(message, fingerprint)
            assert isinstance(message, OpenSequence | Proposal)
            while not isinstance(await heard(edge, message.sequence), SequenceClosed):
                pass

    with refusal(served, reason, caplog):
        at(served, ask())
    assert "sequence " in caplog.text


def test_verifier_counts_and_logs_excess_and_stalled_edges(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def ask(*, stalls: bool) -> None:
        async with (
            connected(served.target, TOKEN) as one,
            connected(served.target, TOKEN),
            connected(served.target, TOKEN),
        ):
            if not stalls:
                await refused(served, hello())
                return
            (peer,) = [peer for peer in served.daemon.verification._peers if peer.edge == one.edge]
            assert peer.connection is not None
            for _ in range(MOST_UNREAD + 1):  # before its writer takes any
                peer.connection.put(pb.VerifyResponse())
            assert one._reading is not None
            await one._reading
            assert one.error is not None
            assert one.error.code() is grpc.StatusCode.ABORTED

    with refusal(served, "too_many_peers", caplog):
        at(served, ask(stalls=False))
    with refusal(served, "client_stalled", caplog):
        at(served, ask(stalls=True))


def test_verifier_logs_repeated_refusals_of_a_host_once(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    service = served.daemon.verification

    async def ask() -> None:
        for _ in range(5):
            await refused(served, hello(), token=None)
        edge = uuid.uuid4().hex
        first, second = Edge(served.target, TOKEN, edge=edge), Edge(served.target, TOKEN, edge=edge)
        await first.connect()
        await second.connect()
        await first.close()
        await second.close()

    service.refusals = Refusals()
    at(served, ask())
    assert service.status().total.refused == service.status().refusals["unauthenticated"] == 5
    assert sum(" was refused: " in one for one in caplog.messages) == 1


def test_verifier_discards_tokens_a_lost_edge_did_not_receive(served: Served) -> None:
    """It comes back, says how far it heard the text, and goes on from there."""
    service = served.daemon.verification

    async def ask() -> tuple[int, int]:
        edge, text, before = Edge(served.target, TOKEN), list(TEXT), service.status().total
        await edge.connect()
        await edge.send(opened(7, text, 3, 100))
        await edge.send(Proposal(7, 3, 3, run=30))
        await _until(lambda: service.status().total.tokens - before.tokens > 10)
        await edge.lose()
        while not isinstance(told := edge.queue(7).get_nowait(), int):
            if isinstance(told, Verdict) and len(text) < 8:
                text += told.tokens
        await _until(lambda: not service.status().peers)
        await asyncio.sleep(0.05)
        stopped = service.status().total.tokens
        await asyncio.sleep(0.05)
        assert service.status().total.tokens == stopped, "nothing is decided for an edge that is gone"
        await edge.connect()
        await edge.send(Proposal(7, 3, 3, run=30))  # of the connection that was lost
        await edge.send(opened(7, text, 3, 100))
        assert isinstance(await heard(edge, 7), SequenceOpened)
        first = await heard(edge, 7)
        assert isinstance(first, Verdict)
        assert first.length == len(text)
        text += first.tokens
        await edge.send(CloseSequence(7, len(text)))
        while not isinstance(await heard(edge, 7), SequenceClosed):
            pass
        after = service.status().total
        await edge.close()
        return after.tokens - before.tokens - (after.discarded - before.discarded), len(text) - 3

    kept, applied = at(served, ask())
    assert kept == applied


def test_verifier_closes_sequences_of_silent_and_lost_edges_after_idle_time(tmp_path: Path) -> None:
    with serving(tmp_path, models, verify={"enabled": True, "idle_seconds": 1}) as served:  # type: ignore[arg-type]

        async def ask() -> None:
            async with connected(served.target) as silent, connected(served.target) as gone:
                await gone.send(opened(1, TEXT, 3, 20))
                await heard(gone, 1)
                await gone.lose()
                await silent.send(opened(1, TEXT, 3, 20))
                while not isinstance(closed := await heard(silent, 1), SequenceClosed):
                    pass
                assert "at most 1 s may pass (verify.idle_seconds)" in closed.error
                await _until(lambda: served.daemon.verification.status().open_sequences == 0)

        at(served, ask())
        until(lambda: served.worker.status().active == 0)


def test_draining_verifier_closes_edge_sequences_with_a_retry_delay(tmp_path: Path) -> None:
    with serving(tmp_path, models, verify={"enabled": True}) as served:  # type: ignore[arg-type]

        async def ask() -> SequenceClosed:
            edge = Edge(served.target)
            await edge.connect()
            await edge.send(opened(1, TEXT, 3, 20))
            await heard(edge, 1)
            served.daemon.stop()
            while not isinstance(told := await heard(edge, 1), SequenceClosed):
                pass
            await edge.close()
            return told

        closed = at(served, ask())
        assert closed.error == "the verifier is draining"
        assert closed.retry_after
        served.join()
        assert served.orderly
        assert served.tasks_left == []


def test_edge_sequences_do_not_starve_local_requests_on_the_verifier(served: Served) -> None:
    async def ask() -> list[int]:
        async with connected(served.target, TOKEN) as edge:
            for number in range(1, 5):
                await edge.send(opened(number, TEXT, 3, 480))
                await edge.send(Proposal(number, 3, 3, run=480))
            for number in range(1, 5):
                await heard(edge, number)
            answers = await asyncio.gather(*(asyncio.to_thread(ask_own, served, 5 + i) for i in range(8)))
            ended = [told for queue in edge.heard.values() for told in queue._queue if isinstance(told, SequenceClosed)]  # type: ignore[attr-defined]
            assert not ended, "they were answered beside it, and not after it"
            return answers

    assert at(served, ask()) == [16] * 8


def ask_own(served: Served, token: int) -> int:
    answer = collect(served.client.generate(tokens=[1, token], max_tokens=16))
    return len(answer.tokens)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what it asks tells of no event
            await asyncio.sleep(0.01)
