"""VerificationService: lets other daemons verify their drafts with this daemon's target."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from draftd.errors import DeadlineExceeded, DraftdError, InvalidRequest, NotEnabled, OtherProtocol
from draftd.fronts.grpc.interceptors import Context
from draftd.fronts.grpc.reply import fill
from draftd.service.peers import PeerConnection
from draftd.service.stream import stall_guard
from draftd.service.verification import VerificationService
from draftd.v1 import verification_pb2 as pb
from draftd.v1 import verification_pb2_grpc
from draftd.verifier_client.codec import VERSION, from_edge, to_edge

HELLO_SECONDS = 10.0
"""The time that an edge has to send its hello."""
MOST_TOKENS = 65_536
"""The most vocabulary tokens in one answer."""


class VerificationServicer(verification_pb2_grpc.VerificationServiceServicer):
    def __init__(self, service: VerificationService, write_stall_seconds: float | None) -> None:
        """`write_stall_seconds`: ends the connection of an edge that reads nothing for so long; None: never."""
        self._service, self._stall = service, write_stall_seconds

    def count_refusal(self, error: DraftdError, address: str) -> None:
        """Counts a connection that was refused, or ended for what it sent or did not read."""
        self._service.refusals.add(error, "a connection", address)

    async def Verify(self, requests: AsyncIterator[pb.VerifyRequest], context: Context) -> None:
        try:
            await self._verify(requests, context)
        except DraftdError as error:
            self.count_refusal(error, context.peer())
            raise

    async def _verify(self, requests: AsyncIterator[pb.VerifyRequest], context: Context) -> None:
        # An edge that leaves cancels this task. The cancellation must be raised from here, too (see InferenceServicer).
        self._check_enabled()
        hello = await _hello(requests)
        identity = await self._service.identity()
        welcome = pb.VerifyResponse(welcome=fill(pb.Welcome, identity, protocol=VERSION))
        connection = self._service.connect(hello.edge, context.peer())
        both: list[asyncio.Task[None]] = []
        try:
            # Here, and not in a task that may be cancelled: a first message that is cut short leaves gRPC in two minds
            # of whether its headers were sent, and no status would ever follow.
            await context.write(welcome)
            both = [
                asyncio.create_task(self._read(requests, connection, identity.context_length)),
                asyncio.create_task(self._write(connection, context)),
            ]
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._service.disconnect(connection)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in done:
            task.result()

    async def GetVocabulary(self, request: pb.GetVocabularyRequest, context: Context) -> pb.GetVocabularyResponse:
        try:
            self._check_enabled()
            fingerprint, tokens = await self._service.vocabulary()
            if request.count > MOST_TOKENS:
                raise InvalidRequest("count", request.count, f"at most {MOST_TOKENS}")
        except DraftdError as error:
            self.count_refusal(error, context.peer())
            raise
        page = tokens[request.first : request.first + request.count]
        return pb.GetVocabularyResponse(fingerprint=fingerprint, size=len(tokens), tokens=page)

    def _check_enabled(self) -> None:
        if not self._service.enabled:
            raise NotEnabled("this daemon does not verify for others: set verify.enabled")

    async def _read(self, requests: AsyncIterator[pb.VerifyRequest], connection: PeerConnection, context: int) -> None:
        """Handles the edge's messages one after another until the edge ends its stream."""
        async for request in requests:
            connection.count_bytes(received=request.ByteSize())
            kind = request.WhichOneof("message")
            if kind == "ping":
                connection.put(pb.VerifyResponse(pong=request.ping))
                await connection.throttle()
            elif kind in ("open", "step", "close"):
                await self._take(request, connection, context)
            else:
                raise InvalidRequest("message", kind or "nothing", "open, step, close or ping, after one hello")

    async def _take(self, request: pb.VerifyRequest, connection: PeerConnection, context: int) -> None:
        opened = request.open
        try:
            if len(opened.tokens) >= context:  # checked before the tokens are copied
                allowed = f"1 to {context - 1} tokens, one less than the model's context"
                raise InvalidRequest("open.tokens", f"{len(opened.tokens)} tokens", allowed)
            message = from_edge(request)
        except InvalidRequest as error:
            self._service.refuse(connection, opened.sequence, error)
            await connection.throttle()
            return
        assert message is not None
        await self._service.take(connection, message)

    async def _write(self, connection: PeerConnection, context: Context) -> None:
        async with stall_guard(self._stall) as write:
            while True:
                item = await connection.next()
                message = item if isinstance(item, pb.VerifyResponse) else to_edge(item)
                connection.count_bytes(sent=message.ByteSize())
                await write(context.write(message))


async def _hello(requests: AsyncIterator[pb.VerifyRequest]) -> pb.Hello:
    """Reads the edge's hello. Raises InvalidRequest if another message comes first, OtherProtocol for another version,
    and DeadlineExceeded if none comes."""
    first = None
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            with contextlib.suppress(StopAsyncIteration):
                first = await anext(requests)
    except TimeoutError:
        raise DeadlineExceeded(f"no hello came within {HELLO_SECONDS:g} s") from None
    if first is None or not first.HasField("hello"):
        kind = None if first is None else first.WhichOneof("message")
        raise InvalidRequest("message", kind or "nothing", "hello, which comes first")
    if first.hello.protocol != VERSION:
        raise OtherProtocol(
            f"hello.protocol: the edge speaks version {first.hello.protocol} of the protocol, and this daemon {VERSION}"
        )
    return first.hello
