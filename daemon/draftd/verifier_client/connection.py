"""One connection to a verifier: a channel, the stream on it, and the thread that reads it. The verifier's greeting is
compared with this daemon: the protocol and the tokenizer.

The connection uses gRPC's threads instead of its asyncio: there, all event loops of a process share one completion
queue. The link would wait for the server's loop, and events of a closed loop would be errors of the others.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc

from draftd.engine.remote.verifier_link import RemoteModel
from draftd.errors import DraftdError, in_one_line, in_words
from draftd.models.tokenizer import Tokenizer
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure, QualityClass
from draftd.v1 import verification_pb2 as pb
from draftd.v1 import verification_pb2_grpc
from draftd.verifier_client.codec import VERSION
from draftd.verifier_client.failures import LinkError, connect_error, failure_of

_FRAME_BYTES = 5  # gRPC's prefix of each message
_MOST_OUT = 4096  # messages that wait to be sent
_MOST_BYTES = 16 * 2**20  # of a message
_PAGE = 16_384  # tokens of a vocabulary in one answer
_JOIN_SECONDS = 2.0
_PINGS = 4


@dataclass(slots=True)
class Traffic:
    """Bytes of messages, each with gRPC's frame, before compression and TLS."""

    sent: int = 0
    received: int = 0


class VerifierConnection:
    """One connection to a verifier, for any thread. Only `greet` waits. `take` gets each message after the greeting; an
    exception in it ends the connection. `on_end` is called once, when the connection is over. Raises LinkError if a
    file named in the settings cannot be read."""

    def __init__(
        self,
        settings: RemoteSettings,
        traffic: Traffic,
        take: Callable[[VerifierConnection, pb.VerifyResponse], None],
        on_end: Callable[[], None],
    ) -> None:
        self._take, self._on_end, self._traffic, self._settings = take, on_end, traffic, settings
        try:
            self._channel = _channel(settings)
        except OSError as error:
            why = f"{error.filename} cannot be read: {in_words(error)}"
            raise LinkError(
                LinkFailure.OTHER, why, "look at remote.tls_ca, remote.tls_cert and remote.tls_key"
            ) from None
        self._stub = verification_pb2_grpc.VerificationServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = metadata_of(settings)
        self._out: queue.Queue[pb.VerifyRequest | None] = queue.Queue(_MOST_OUT)
        self._welcome: Future[pb.Welcome] = Future()
        self._call: Any = None
        self._closing = threading.Lock()
        self._end_reason: LinkError | None = None  # None while the connection is not over
        self._thread = threading.Thread(target=self._read, name="draftd-link-read", daemon=True)

    @property
    def over(self) -> bool:
        return self._end_reason is not None

    @property
    def why(self) -> LinkError:
        """Why the connection is over."""
        assert self._end_reason is not None
        return self._end_reason

    def greet(self, edge: str, tokenizer: Tokenizer | None, differences: dict[str, str]) -> RemoteModel:
        """Connects as `edge`; returns what the verifier serves. `tokenizer`: this daemon's; None: it is not compared
        with the verifier's. `differences`: the results of comparisons, by the other tokenizer's fingerprint; a new
        result is added. Raises LinkError if the verifier refuses, or does not answer in `remote.connect_seconds`."""
        self._call = self._stub.Verify(self._outgoing(), metadata=self._metadata)
        ours = "" if tokenizer is None else tokenizer.fingerprint
        self.send(pb.VerifyRequest(hello=pb.Hello(protocol=VERSION, edge=edge, tokenizer=ours)))
        self._thread.start()
        try:
            welcome = self._welcome.result(self._settings.connect_seconds)
        except TimeoutError:
            raise connect_error(LinkFailure.CONNECT_TIMEOUT, self._settings) from None
        if welcome.protocol != VERSION:
            said = f"it speaks version {welcome.protocol} of the protocol, and this daemon {VERSION}"
            raise connect_error(LinkFailure.OTHER_PROTOCOL, self._settings, said)
        difference = ""
        if tokenizer is not None and welcome.tokenizer != ours:
            if welcome.tokenizer not in differences:
                differences.clear()
                differences[welcome.tokenizer] = self._difference(tokenizer.vocabulary())
            difference = differences[welcome.tokenizer]
        return RemoteModel(
            model=welcome.model,
            fingerprint=welcome.model_fingerprint,
            context_length=welcome.context_length,
            vocab_size=welcome.vocab_size,
            max_draft_tokens=welcome.max_draft_tokens,
            shared_tokenizer=not difference,
            difference=difference,
            quality=_quality(self._settings.quality or welcome.quality),
            step_seconds=welcome.step_seconds,
            prefill_seconds=welcome.prefill_seconds,
            drafts=welcome.drafts,
        )

    def _difference(self, ours: Sequence[bytes]) -> str:
        """Describes the first id whose token differs in the two vocabularies; empty if no id does. An id beyond the end
        of the shorter vocabulary differs only if the longer one has a token for it. Raises LinkError."""
        first = 0
        while True:
            theirs = self._vocabulary(first)
            for token, their_token in enumerate(theirs or [b""] * (len(ours) - first), first):
                own_token = ours[token] if token < len(ours) else b""
                if own_token != their_token:
                    return f"id {token} is {_describe_token(own_token)} here and {_describe_token(their_token)} there"
            if not theirs:
                return ""
            first += len(theirs)

    def _vocabulary(self, first: int) -> Sequence[bytes]:
        """Returns a page of the verifier's tokens, from id `first`; empty beyond the last token. Raises LinkError."""
        request = pb.GetVocabularyRequest(first=first, count=_PAGE)
        try:
            seconds = self._settings.connect_seconds
            page = self._stub.GetVocabulary(request, metadata=self._metadata, timeout=seconds)
        except grpc.RpcError as error:
            raise failure_of(error, self._settings, greeted=True) from None
        self._traffic.sent += request.ByteSize() + _FRAME_BYTES
        self._traffic.received += page.ByteSize() + _FRAME_BYTES
        return page.tokens  # type: ignore[no-any-return]

    def send(self, request: pb.VerifyRequest) -> None:
        """Sends `request`, in order. Drops it if the connection is over. Ends the connection if too many requests
        wait."""
        if self.over:
            return
        try:
            self._out.put_nowait(request)
        except queue.Full:
            self.end(LinkError(LinkFailure.NO_ANSWER, f"it took none of {_MOST_OUT} messages"))

    def end(self, why: LinkError) -> None:
        """Ends the connection at once: no more messages are taken."""
        with self._closing:
            if self.over:
                return
            self._end_reason = why
        if not self._welcome.done():
            with contextlib.suppress(Exception):
                self._welcome.set_exception(why)
        self._on_end()

    def close(self) -> None:
        """Ends the connection, and frees its channel and its thread."""
        self.end(LinkError(LinkFailure.OTHER, "closed"))
        with contextlib.suppress(queue.Full):
            self._out.put_nowait(None)
        if self._call is not None:
            self._call.cancel()
        self._channel.close()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _outgoing(self) -> Iterator[pb.VerifyRequest]:
        while (request := self._out.get()) is not None:
            self._traffic.sent += request.ByteSize() + _FRAME_BYTES
            yield request

    def _read(self) -> None:
        why = LinkError(LinkFailure.CONNECTION_LOST, "the verifier ended the stream")
        try:
            for response in self._call:
                if self.over:
                    return
                self._traffic.received += response.ByteSize() + _FRAME_BYTES
                if self._welcome.done():
                    self._take(self, response)
                elif response.HasField("welcome"):
                    self._welcome.set_result(response.welcome)
                else:
                    raise LinkError(LinkFailure.BROKEN_RULE, "the first message of the verifier was not a greeting")
        except grpc.RpcError as error:
            if not self.over:
                why = failure_of(error, self._settings, greeted=self._welcome.done())
        except LinkError as error:
            why = error
        except Exception as error:
            message = error.message if isinstance(error, DraftdError) else in_one_line(error)
            why = LinkError(LinkFailure.BROKEN_RULE, message)
        finally:
            self.end(why)


def _channel(settings: RemoteSettings) -> grpc.Channel:
    assert settings.target is not None
    options = [
        ("grpc.max_receive_message_length", _MOST_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),  # a new connection, unaffected by failures of an earlier one
    ]
    credentials = credentials_of(settings)
    if credentials is None:
        return grpc.insecure_channel(settings.target, options)
    return grpc.secure_channel(settings.target, credentials, options)


def metadata_of(settings: RemoteSettings) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of every call: the token that authenticates this daemon, if it has one."""
    token = settings.token
    return () if token is None else (("authorization", f"Bearer {token.get_secret_value()}"),)


def credentials_of(settings: RemoteSettings) -> grpc.ChannelCredentials | None:
    """Returns the TLS credentials; None for plain text. Raises OSError if a file cannot be read."""
    if not settings.encrypted:
        return None
    parts = (settings.tls_ca, settings.tls_key, settings.tls_cert)
    return grpc.ssl_channel_credentials(*(None if path is None else Path(path).read_bytes() for path in parts))


def _quality(label: str) -> QualityClass:
    """Returns the class named `label`; the lowest one if this version does not know it."""
    return QualityClass.of(label) if label.upper() in QualityClass.__members__ else QualityClass.DRAFT


def _describe_token(token: bytes) -> str:
    return repr(token.decode(errors="backslashreplace")) if token else "no token"


def check_verifier(settings: RemoteSettings, tokenizer: Tokenizer | None) -> tuple[RemoteModel, float]:
    """Returns what the verifier serves, and the seconds of the shortest of a few round trips. `tokenizer` None: it is
    not compared with the verifier's. Waits `remote.connect_seconds` for each answer. Raises LinkError."""
    pongs: queue.SimpleQueue[float | None] = queue.SimpleQueue()  # when a pong came; None: the connection is over

    def take(connection: VerifierConnection, response: pb.VerifyResponse) -> None:
        if response.HasField("pong"):
            pongs.put(time.monotonic())

    with contextlib.closing(VerifierConnection(settings, Traffic(), take, lambda: pongs.put(None))) as connection:
        model = connection.greet(uuid4().hex, tokenizer, {})
        return model, min(_round_trip(connection, pongs, settings) for _ in range(_PINGS))


def _round_trip(
    connection: VerifierConnection, pongs: queue.SimpleQueue[float | None], settings: RemoteSettings
) -> float:
    began = time.monotonic()
    connection.send(pb.VerifyRequest(ping=pb.Ping(nonce=1)))
    try:
        received_at = pongs.get(timeout=settings.connect_seconds)
    except queue.Empty:
        why = f"no answer to a ping within {settings.connect_seconds:g} s"
        raise LinkError(LinkFailure.NO_ANSWER, why, "look at the load and the log of the verifier") from None
    if received_at is None:
        raise connection.why
    return received_at - began
