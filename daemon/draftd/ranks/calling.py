"""A follower's side of how a group begins (handshake.py): it calls rank 0, says what it is, and learns how to join."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.engine.ranks.channel import RanksLost
from draftd.errors import ConfigError, DraftdError, in_words
from draftd.group import Loss
from draftd.ranks.frames import BadFrame, Frame, FrameReader, Kind, Report, frame, json_frame
from draftd.ranks.handshake import Hello, Refused, hash_progress, prepare
from draftd.ranks.joining import Joining
from draftd.ranks.proof import OwnProof
from draftd.ranks.ring_addresses import AddressError, RingAddresses, check_reached

_CONNECT_SECONDS = 3.0  # for one try
_PAUSE_SECONDS = 0.25, 5.0  # between tries, the first and the longest
_BEAT_SECONDS, _TOLD_SECONDS, _SILENT_SECONDS = 1.0, 5.0, 30.0


@dataclass(frozen=True, slots=True)
class Joined:
    """The connection to rank 0 of a group that is about to begin, and what rank 0 said of it."""

    sock: socket.socket
    reader: FrameReader
    group: str
    joining: Joining
    timeout_seconds: float
    start_seconds: float


class Caller:
    """On one thread."""

    def __init__(
        self,
        address: str,
        rank: int,
        ranks: int,
        own: OwnProof,
        *,
        nodes: Sequence[Sequence[str]] = (),
        patience: float | None = None,
        announce: Callable[[str], None],
    ) -> None:
        """`address`: rank 0's HOST:PORT. `ranks`: 0 where only rank 0 knows. `nodes`: of the ring, where a launcher has
        said them. `patience`: seconds for which rank 0 may be out of reach; None without limit. Raises ConfigError."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise ConfigError("--address", address, "rank 0's HOST:PORT")
        self._address, self._to = address, (host.strip("[]"), int(port))
        self._rank, self._own, self._nodes = rank, own, [list(one) for one in nodes]
        self._hello = Hello(rank=rank, ranks=ranks, host=socket.gethostname(), proof=own.proof)
        self._patience, self._announce = patience, announce

    def run(self) -> Joined:
        """Raises Refused where there is no group, RanksLost where rank 0 has gone after it answered, DraftdError where
        it is out of reach."""
        while True:
            sock = self._connected()
            try:
                return self._joined(sock)
            except _NotYet:
                sock.close()
                time.sleep(_PAUSE_SECONDS[0])
            except BaseException:
                sock.close()
                raise

    def _connected(self) -> socket.socket:
        began, pause, waits = time.monotonic(), _PAUSE_SECONDS[0], False
        while True:
            try:
                sock = socket.create_connection(self._to, _CONNECT_SECONDS)
                prepare(sock)
                return sock
            except socket.gaierror as error:
                raise ConfigError("--address", self._address, f"rank 0's HOST:PORT ({in_words(error)})") from None
            except OSError as error:
                what = f"rank 0 cannot be reached at {self._address}: {in_words(error)}"
                if self._patience is not None and time.monotonic() - began + pause > self._patience:
                    raise DraftdError(f"{what}; is that its address, and is it let through?") from None
                if not waits:
                    self._announce(f"{what}; it is tried again until it is there")
                waits = True
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS[1])

    def _joined(self, sock: socket.socket) -> Joined:
        line = _Line(sock)
        line.send(json_frame(Kind.HELLO, self._hello.model_dump()))
        while (received := line.next()) is None or received.kind is Kind.PING:
            pass  # rank 0 waits for other ranks, or for its own restart: its machine is known to be there
        fields = _said(received, Kind.WELCOME)
        line.welcomed = True
        joining = Joining(**fields["joining"])
        nodes, group = self._nodes or joining.nodes, str(fields["group"])
        with contextlib.ExitStack() as stack:
            try:
                if nodes:
                    stack.enter_context(contextlib.closing(RingAddresses(nodes[self._rank], group)))
                line.send(json_frame(Kind.PROOF, self._proof(line) if fields["hashes"] else {}))
                line.expect(Kind.MEET)
                if nodes:
                    right = (self._rank + 1) % len(nodes)
                    try:
                        check_reached(nodes[right], group)
                    except AddressError as error:
                        raise AddressError(f"it does not reach rank {right}: {error}") from None
            except (AddressError, DraftdError) as error:
                if not isinstance(error, Refused | RanksLost):
                    line.send(json_frame(Kind.FAILED, {"text": str(error)}))
                if isinstance(error, AddressError):
                    raise Refused(str(error)) from None
                raise
            line.send(frame(Kind.MEET))
            line.expect(Kind.GO)
        sock.settimeout(None)
        bounds = float(fields["timeout_seconds"]), float(fields["start_seconds"])
        return Joined(sock, line.reader, group, joining, *bounds)

    def _proof(self, line: _Line) -> dict[str, Any]:
        """Hashes; tells how far that is."""
        hashes, told_at = self._own.hashes(), time.monotonic()
        while not hashes.done():
            progress = {"hashed": self._own.hashed_bytes, "bytes": self._own.bytes}
            line.send(json_frame(Kind.HASHING, progress))
            if (now := time.monotonic()) - told_at > _TOLD_SECONDS:
                self._announce(hash_progress(progress))
                told_at = now
            with contextlib.suppress(TimeoutError):
                hashes.exception(_BEAT_SECONDS)
        return dict(hashes.result())


class _NotYet(Exception):
    """Rank 0 has hung up before it answered: its process has ended and another one will take its place."""


class _Line:
    """Frames of rank 0, one after the other."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.reader, self._frames = sock, FrameReader(), list[Frame]()
        self.welcomed, self._heard = False, time.monotonic()
        sock.settimeout(_BEAT_SECONDS)

    def send(self, received: bytes) -> None:
        try:
            self._sock.sendall(received)
        except OSError as error:
            raise self._gone(in_words(error)) from None

    def next(self) -> Frame | None:
        """None where nothing came for a second."""
        while not self._frames:
            try:
                if not (data := self._sock.recv(1 << 16)):
                    raise self._gone("it hung up")
                self._frames += self.reader.feed(data)
            except TimeoutError:
                if self.welcomed and time.monotonic() - self._heard > _SILENT_SECONDS:
                    raise RanksLost(Loss.SILENT, f"rank 0 has said nothing for {_SILENT_SECONDS:g} s") from None
                return None
            except OSError as error:
                raise self._gone(in_words(error)) from None
            except BadFrame as error:
                raise Refused(f"what answers at rank 0's address is none, or of another version: {error}") from None
        self._heard = time.monotonic()
        return self._frames.pop(0)

    def expect(self, kind: Kind) -> None:
        """Waits for it; says once a second that this rank is there."""
        while (received := self.next()) is None or received.kind is Kind.PING:
            self.send(Report().ping())
        _said(received, kind)

    def _gone(self, how: str) -> Exception:
        return RanksLost(Loss.DIED, f"rank 0 has ended: {how}") if self.welcomed else _NotYet(how)


def _said(received: Frame, kind: Kind) -> dict[str, Any]:
    """Of a frame of that kind. Raises Refused where rank 0 says that there is no group, RanksLost where it has
    failed."""
    if received.kind in (Kind.REFUSED, Kind.FAILED):
        text = str(received.fields().get("text"))
        raise Refused(text) if received.kind is Kind.REFUSED else RanksLost(Loss.FAILED, text)
    if received.kind is not kind:
        raise Refused(f"rank 0 says {received.kind.name} and not {kind.name}: it is of another version")
    return received.fields() if received.body else {}
