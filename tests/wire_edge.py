"""A small edge for tests: speaks the verification protocol with the generated stubs, and proposes what a script
says."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import grpc

from draftd.core import FinishReason, SamplingParams
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    FromVerifier,
    OpenSequence,
    Proposal,
    SequenceClosed,
    SequenceOpened,
    ToVerifier,
    Verdict,
)
from draftd.engine.targets.base import SequenceOptions
from draftd.v1 import verification_pb2 as pb
from draftd.v1 import verification_pb2_grpc as rpc
from draftd.verifier_client.codec import VERSION, from_verifier, to_verifier
from tests.in_process_daemon import Served
from tests.scripted_edge import left_of

Propose = Callable[[Sequence[int], int], list[int]]
"""So many tokens that are to follow these."""


_PATIENCE_SECONDS = 30.0

T = TypeVar("T")


def at(served: Served, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the daemon's own event loop: gRPC does not work well with a second one in a process."""
    return asyncio.run_coroutine_threadsafe(work, served.loop).result(60)


class Edge:
    """One edge, whose connection may be lost and restored."""

    def __init__(self, target: str, token: str | None = None, *, edge: str | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        self.stub = rpc.VerificationServiceStub(self.channel)
        self.edge = edge or uuid.uuid4().hex
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.heard: dict[int, asyncio.Queue[FromVerifier | int]] = {}
        self.welcome = pb.Welcome()
        self.connections = 0
        self.error: grpc.aio.AioRpcError | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting, self._writing = asyncio.Lock(), asyncio.Lock()  # gRPC takes one message at a time

    async def connect(self, *, protocol: int = VERSION) -> pb.Welcome:
        """Connects. Raises AioRpcError if it is refused."""
        call = self.stub.Verify(metadata=self.metadata)
        with contextlib.suppress(asyncio.InvalidStateError):  # it was refused
            await call.write(pb.VerifyRequest(hello=pb.Hello(protocol=protocol, edge=self.edge)))
        first = await call.read()
        assert first is not grpc.aio.EOF  # type: ignore[attr-defined]
        self.call, self.welcome, self.connections = call, first.welcome, self.connections + 1
        self._reading = asyncio.create_task(self._read(call, self.connections))
        return self.welcome

    async def again(self) -> None:
        """Connects again if the last connection was lost."""
        async with self._connecting:
            if self.call.done():
                await self.connect()

    def queue(self, sequence: int) -> asyncio.Queue[FromVerifier | int]:
        """Returns the queue of a sequence's messages, and of the numbers of lost connections."""
        return self.heard.setdefault(sequence, asyncio.Queue())

    async def send(self, message: ToVerifier, fingerprint: str = "") -> int:
        """Sends a message. Returns the number of the connection that it went to; if that is lost, the message is
        too."""
        if fingerprint and isinstance(message, OpenSequence):
            message = replace(message, fingerprint=fingerprint)
        return await self.write(to_verifier(message))

    async def write(self, message: pb.VerifyRequest) -> int:
        async with self._writing:
            call, connection = self.call, self.connections
            try:
                await call.write(message)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            except asyncio.CancelledError:
                if not call.cancelled():  # else another sequence lost the connection during this write
                    raise
        return connection

    async def lose(self, connection: int | None = None) -> None:
        """Breaks the connection, unless its number is another one than `connection`."""
        if connection in (None, self.connections):
            self.call.cancel()
            if self._reading is not None:
                await self._reading

    async def finish(self) -> None:
        """Stops sending, and waits for the remaining messages."""
        await self.call.done_writing()
        if self._reading is not None:
            await self._reading
        await self.channel.close()  # type: ignore[call-arg]

    async def close(self) -> None:
        with contextlib.suppress(AttributeError):
            await self.lose()
        await self.channel.close()  # type: ignore[call-arg]

    async def _read(self, call: grpc.aio.StreamStreamCall, connection: int) -> None:  # type: ignore[type-arg]
        try:
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                if (told := from_verifier(message)) is not None:
                    self.queue(told.sequence).put_nowait(told)
        except grpc.aio.AioRpcError as error:
            self.error = error
        except asyncio.CancelledError:
            pass
        for queue in self.heard.values():
            queue.put_nowait(connection)


@contextlib.asynccontextmanager
async def connected(target: str, token: str | None = None) -> AsyncIterator[Edge]:
    edge = Edge(target, token)
    try:
        await edge.connect()
        yield edge
    finally:
        await edge.close()


async def heard(edge: Edge, sequence: int) -> FromVerifier:
    """Returns the sequence's next message."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        told = await edge.queue(sequence).get()
    assert not isinstance(told, int), edge.error
    return told


@dataclass
class Decoded:
    """The result for one text. `applied` counts the tokens of applied verdicts, also those beyond the text's end."""

    tokens: list[int] = field(default_factory=list)
    applied: int = 0
    drafted: int = 0
    accepted: int = 0
    reopened: int = 0
    cached: list[int] = field(default_factory=list)  # at each opening
    closed: SequenceClosed | None = None


def opened(
    sequence: int,
    text: Sequence[int],
    prompt: int,
    max_tokens: int,
    *,
    sampling: SamplingParams | None = None,
    ends: Sequence[int] = (),
) -> OpenSequence:
    options = SequenceOptions(prompt, len(text), sampling or SamplingParams(), ends=tuple(ends))
    return OpenSequence(sequence, tuple(text), options, max_tokens)


async def decode(
    edge: Edge,
    sequence: int,
    prompt: Sequence[int],
    propose: Propose,
    *,
    max_tokens: int,
    depth: int,
    run: int = 0,
    sampling: SamplingParams | None = None,
    ends: Sequence[int] = (),
    dice: random.Random | None = None,
    loses: float = 0.0,
) -> Decoded:
    """Decodes a text with an edge that proposes `depth` tokens, and as many ahead, guessing what follows. Each step
    grants `run`. With `dice` the connection is lost after a share `loses` of the verdicts."""
    text, made, dice = list(prompt), Decoded(), dice or random.Random(0)
    edge.queue(sequence)  # or it does not hear of a loss
    while made.closed is None:
        connection = await edge.send(opened(sequence, text, len(prompt), max_tokens, sampling=sampling, ends=ends))
        if not await _decode(edge, connection, sequence, text, propose, made, depth, run, dice, loses):
            await edge.again()
            made.reopened += 1
    made.tokens = text[len(prompt) :]
    cut = next((i for i, token in enumerate(made.tokens, 1) if token in ends), max_tokens)
    made.tokens = made.tokens[:cut]
    return made


async def _decode(
    edge: Edge,
    connection: int,
    sequence: int,
    text: list[int],
    propose: Propose,
    made: Decoded,
    depth: int,
    run: int,
    dice: random.Random,
    loses: float,
) -> bool:
    """Decodes on one connection. Returns False if it was lost."""
    guess: list[int] = []
    finished: FinishReason | None = None
    while True:
        if finished is None and len(guess) <= depth:
            known = [*text, *guess]
            ahead = propose(known, depth + bool(guess)) if depth else []  # the first of them guesses the bonus
            await edge.send(Proposal(sequence, len(known), known[-1], tuple(ahead), run))
            guess += ahead
        async with asyncio.timeout(_PATIENCE_SECONDS):
            told = await edge.queue(sequence).get()
        if isinstance(told, int):
            if told >= connection:
                return False
        elif isinstance(told, SequenceOpened):
            made.cached.append(told.cached)
        elif isinstance(told, SequenceClosed):
            made.closed = told
            await edge.send(CloseSequence(sequence, len(text)))
            return True
        elif isinstance(told, Verdict):
            assert told.length == len(text), "verdicts follow one another"
            made.applied += len(told.tokens)
            made.drafted += told.drafted
            made.accepted += told.accepted
            text += told.tokens
            guess, finished = left_of(guess, told.tokens), told.finished
            if loses and dice.random() < loses:
                await asyncio.sleep(0.02 * dice.random())  # for verdicts that are on their way
                await edge.lose(connection)
