"""A follower's end of the connection to rank 0: records to execute in, progress reports out. A RecordReceiver.

Its thread reads, sends a report each second, and checks the watchdog. When the group is lost, `on_lost` is called once:
it ends the process, because a thread blocked in a collective cannot be woken.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from draftd.engine.ranks.channel import Progress, RanksLost
from draftd.errors import in_one_line, in_words
from draftd.group import Loss
from draftd.ranks.frames import BadFrame, Frame, FrameKind, frame, json_frame
from draftd.ranks.join import JoinedGroup
from draftd.ranks.leader_channel import BACKLOG
from draftd.ranks.watchdog import OwnRank, Vitals, Watchdog

_log = logging.getLogger(__name__)

_PING_SECONDS = 1.0
_REPORT_RECORDS = BACKLOG // 4  # records since the last report; reported early, so rank 0 need not wait
_MOST_WAITING = 4 * BACKLOG
_LOOKS = 8  # checks of the watchdog within its time limit


class FollowerChannel:
    """The connection of one start of the group, from the time it was joined."""

    def __init__(self, joined: JoinedGroup, *, on_lost: Callable[[RanksLost], None], limit_bytes: int = 0) -> None:
        """`limit_bytes`: memory that this rank may hold."""
        self._sock, self._reader = joined.sock, joined.reader
        self._on_lost, self._watchdog = on_lost, Watchdog(joined.timeout_seconds)
        self._leader, self._own = Vitals("rank 0", heard=time.monotonic()), OwnRank(Vitals("this rank"), limit_bytes)
        self._waiting, self._more = deque[bytes](), threading.Condition()
        self._received = 0
        self._ready = self._ended = self._closed = False
        self._lost: RanksLost | None = None
        self._writing = threading.Lock()
        self._sock.settimeout(self._watchdog.seconds)
        self._thread = threading.Thread(target=self._run, name="draftd-rank-channel", daemon=True)
        self._thread.start()

    def receive(self) -> bytes | None:
        """Waits for the next record. Raises RanksLost if `on_lost` lets the process live."""
        self.ready(0.0)
        with self._more:
            self._more.wait_for(self._may_return)
            if self._lost is not None:
                raise self._lost
            return self._waiting.popleft() if self._waiting else None

    def ready(self, seconds: float) -> bool:
        """Whether a record arrives in time. The first call of this or of `receive` reports that the weights are
        read."""
        if not self._ready:
            self._own.vitals.moved, self._ready = time.monotonic(), True
            self._send(frame(FrameKind.READY))
        with self._more:
            return self._more.wait_for(self._may_return, seconds)

    def _may_return(self) -> bool:
        return bool(self._waiting) or self._ended or self._lost is not None

    def report_progress(self, progress: Progress) -> None:
        self._own.advance(progress)
        if progress.records - self._own.reported >= _REPORT_RECORDS:
            self._send(self._own.ping())  # rank 0 may wait for it

    def send_failure(self, text: str, loss: Loss = Loss.FAILED) -> None:
        """Tells rank 0 why this rank ends."""
        self._send(json_frame(FrameKind.FAILED, {"text": text, "loss": loss}), last=True)

    def close(self) -> None:
        """Reports the progress and closes the connection."""
        self._closed = True
        self._send(self._own.ping(), last=True)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        wait, reported_at = min(_PING_SECONDS, self._watchdog.seconds / _LOOKS), 0.0
        try:
            while not (self._closed or self._ended) and self._lost is None:
                if select.select([self._sock], [], [], wait)[0]:
                    self._read()
                if (now := time.monotonic()) - reported_at >= wait and not (self._closed or self._ended):
                    reported_at = now
                    self._send(self._own.ping())
                    self._watch(now)
        except Exception as error:
            _log.exception("the watchdog of this rank failed")
            self._lose(Loss.FAILED, f"the watchdog of this rank failed: {in_one_line(error)}")

    def _read(self) -> None:
        try:
            if not (data := self._sock.recv(1 << 16)):
                raise ConnectionResetError("its connection ended")
            self._leader.heard = time.monotonic()
            for received in self._reader.feed(data):
                self._take(received)
        except BadFrame as error:
            self._lose(Loss.FAILED, f"rank 0 sends what cannot be read: {error}")
        except OSError as error:
            self._lose(Loss.DIED, f"rank 0 is gone: {in_words(error)}")

    def _take(self, received: Frame) -> None:
        if received.kind is FrameKind.RECORD:
            if received.step != self._received + 1:
                raise BadFrame(f"record {received.step} follows record {self._received}: one is missing or repeated")
            with self._more:
                if self._received == self._own.progress.records:
                    self._own.vitals.moved = time.monotonic()
                self._received += 1
                self._waiting.append(received.body)
                self._more.notify()
            if len(self._waiting) > _MOST_WAITING:
                raise BadFrame(f"rank 0 is more than {_MOST_WAITING} records ahead of this rank")
        elif received.kind is FrameKind.END:
            with self._more:
                self._ended = True
                self._more.notify()
        elif received.kind in (FrameKind.FAILED, FrameKind.REFUSED):
            self._lose(Loss.FAILED, f"rank 0: {received.fields().get('text')}")

    def _watch(self, now: float) -> None:
        if self._ready and self._own.progress.records >= self._received:
            self._own.vitals.moved = now
        if (lost := self._watchdog.find_loss([self._leader, self._own.vitals], now)) is not None:
            if lost[0] is Loss.STALLED:
                self.send_failure(lost[1], Loss.STALLED)
            self._lose(*lost)

    def _send(self, data: bytes, *, last: bool = False) -> None:
        """Sends a frame. `last`: a failure does not matter any more."""
        try:
            with self._writing:
                self._sock.sendall(data)
        except OSError as error:
            if not (last or self._closed or self._ended):
                self._lose(Loss.DIED, f"rank 0 is gone: {in_words(error)}")

    def _lose(self, loss: Loss, message: str) -> None:
        with self._more:
            if self._lost is not None or self._closed:
                return
            self._lost = lost = RanksLost(loss, message)
            self._more.notify()
        self._on_lost(lost)
