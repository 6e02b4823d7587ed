"""Rank 0's end of the connections to its followers: sends them records, reads their reports, and notices a lost one. A
RecordSender.

The engine thread sends. The channel's thread reads, sends a sign of life each second, and checks the watchdog. The
first fault ends the group for good: `on_lost` is called once, and from then on `send` raises.
"""

from __future__ import annotations

import contextlib
import logging
import select
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from draftd.engine.ranks.channel import Progress, RanksLost
from draftd.errors import in_one_line, in_words
from draftd.group import Loss, RankStatus
from draftd.ranks.form import Follower
from draftd.ranks.frames import BadFrame, Frame, FrameKind, frame, json_frame, progress_of
from draftd.ranks.handshake import hang_up
from draftd.ranks.watchdog import OwnRank, Vitals, Watchdog

_log = logging.getLogger(__name__)

BACKLOG = 1024  # records by which a follower may lag before rank 0 waits
_PING_SECONDS = 1.0
_LOOKS = 8  # checks of the watchdog within its time limit


@dataclass(eq=False)
class _Receiver:
    """A follower and its reports. `writing`: locked while a frame is sent to it."""

    follower: Follower
    vitals: Vitals
    progress: Progress = field(default_factory=Progress)
    ready: bool = False
    writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return self.follower.name

    @property
    def records(self) -> int:
        return self.progress.records


class _Start(NamedTuple):
    """The time that followers have to read their weights, and its end."""

    seconds: float
    ready_by: float


def _ping_seconds(timeout_seconds: float) -> float:
    return min(_PING_SECONDS, timeout_seconds / 4)


class LeaderChannel:
    """The connections of one start of the group."""

    def __init__(
        self,
        followers: Sequence[Follower],
        *,
        host: str,
        timeout_seconds: float,
        start_seconds: float,
        on_lost: Callable[[RanksLost], None],
        limit_bytes: int = 0,
        backlog: int = BACKLOG,
    ) -> None:
        """`followers`: from the handshake, once all have joined. `host`: rank 0's. `on_lost` is called on the channel's
        thread or the sending one. `limit_bytes`: memory that rank 0 may use."""
        now = time.monotonic()
        self._receivers = [_Receiver(follower, Vitals(follower.name, heard=now)) for follower in followers]
        self._own = OwnRank(Vitals(f"rank 0 on {host}"), limit_bytes)
        self._host, self._backlog, self._on_lost = host, backlog, on_lost
        self._watchdog = Watchdog(timeout_seconds, max(3 * _ping_seconds(timeout_seconds), timeout_seconds / 2))
        self._start = _Start(start_seconds, now + start_seconds)
        self.records = self.record_bytes = 0  # records and bytes sent to each follower
        self._lost: RanksLost | None = None
        self._all_ready, self._closing = not followers, False
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        for receiver in self._receivers:
            receiver.follower.sock.setblocking(False)
            self._selector.register(receiver.follower.sock, selectors.EVENT_READ, receiver)
        self._thread = threading.Thread(target=self._run, name="draftd-rank-channel", daemon=True)
        self._thread.start()

    def send(self, record: bytes) -> None:
        """Sends a record to all followers. The first call waits until all have read their weights, for at most
        `start_seconds`. Raises RanksLost after a time limit."""
        if not self._all_ready:
            with self._changed:
                self._changed.wait_for(lambda: self._is_lost or self._all_ready)
        self._check()
        self.records += 1
        self.record_bytes += len(record)
        data = frame(FrameKind.RECORD, self.records, record)
        for receiver in self._receivers:
            if self.records - receiver.records > self._backlog:
                self._catch_up(receiver)
            with receiver.writing:
                self._write(receiver, data)

    def report_progress(self, progress: Progress) -> None:
        self._own.advance(progress)

    def ranks(self) -> tuple[RankStatus, ...]:
        """Returns the state of all ranks, rank 0 first. Any thread."""
        now = time.monotonic()
        each = [(0, self._host, self._own.progress._replace(limit_bytes=self._own.limit_bytes), 0.0)]
        for receiver in self._receivers:
            follower, silent = receiver.follower, now - receiver.vitals.heard
            each.append((follower.rank, follower.host, receiver.progress, silent))
        return tuple(
            RankStatus(
                rank=rank,
                host=host,
                lag=max(0, self.records - progress.records),
                seconds_silent=silent,
                **progress._asdict(),
            )
            for rank, host, progress, silent in each
        )

    def close(self, why: str | None = None) -> None:
        """Tells followers that the group ends, normally or because of `why`. Not on the channel's thread."""
        data = frame(FrameKind.END) if why is None else json_frame(FrameKind.FAILED, {"text": why})
        self._closing = True
        self._thread.join()
        for receiver in self._receivers:
            with contextlib.suppress(OSError):
                receiver.follower.sock.send(data)
            hang_up(receiver.follower.sock)

    # on the engine thread

    def _catch_up(self, receiver: _Receiver) -> None:
        """Waits until the follower is at most `backlog` records behind rank 0; after the time limit, the group is
        lost."""
        before = receiver.records
        with self._changed:
            caught_up = self._changed.wait_for(
                lambda: self._is_lost or self.records - receiver.records <= self._backlog, self._watchdog.seconds
            )
        if caught_up:
            return
        if receiver.records > before:
            self._lose(Loss.BEHIND, f"{receiver.name} stays more than {self._backlog} records behind rank 0")
        else:
            self._lose(Loss.STALLED, f"{receiver.name} has not ended a step for {self._watchdog.seconds:g} s")

    def _write(self, receiver: _Receiver, data: bytes) -> None:
        """Writes the whole frame within the time limit. The caller holds `writing`."""
        sock, rest, deadline = receiver.follower.sock, memoryview(data), time.monotonic() + self._watchdog.seconds
        while rest and not self._is_lost:
            try:
                rest = rest[sock.send(rest) :]
                continue
            except BlockingIOError:
                pass
            except OSError as error:
                self._lose(Loss.DIED, f"{receiver.name} is gone: {in_words(error)}")
                break
            if time.monotonic() > deadline:
                self._lose(Loss.SILENT, f"{receiver.name} has taken nothing for {self._watchdog.seconds:g} s")
                break
            waiting = select.poll()
            waiting.register(sock, select.POLLOUT)
            waiting.poll(100)
        self._check()

    @property
    def _is_lost(self) -> bool:
        return self._lost is not None

    def _check(self) -> None:
        if (lost := self._lost) is not None:
            raise RanksLost(lost.loss, lost.message)

    # on the channel's thread

    def _run(self) -> None:
        try:
            self._attend()
        except Exception as error:
            _log.exception("the watchdog of rank 0 failed")
            self._lose(Loss.FAILED, f"the watchdog of rank 0 failed: {in_one_line(error)}")

    def _attend(self) -> None:
        pinged, ping_seconds = 0.0, _ping_seconds(self._watchdog.seconds)
        while not (self._is_lost or self._closing):
            for key, _ in self._selector.select(min(ping_seconds, self._watchdog.seconds / _LOOKS)):
                self._read(key.data)
            now = time.monotonic()
            if now - pinged >= ping_seconds:
                pinged = now
                for receiver in self._receivers:
                    self._send_ping(receiver)
            self._watch(time.monotonic())
        self._selector.close()

    def _send_ping(self, receiver: _Receiver) -> None:
        """Sends a sign of life, unless records are being sent, which count as one, or the socket is full."""
        if not receiver.writing.acquire(blocking=False):
            return
        data = self._own.ping()
        try:
            sent = receiver.follower.sock.send(data)
            if sent < len(data):
                self._write(receiver, data[sent:])
        except BlockingIOError:
            pass
        except RanksLost:
            pass  # already noted
        except OSError as error:
            self._lose(Loss.DIED, f"{receiver.name} is gone: {in_words(error)}")
        finally:
            receiver.writing.release()

    def _read(self, receiver: _Receiver) -> None:
        try:
            data = receiver.follower.sock.recv(1 << 16)
            receiver.vitals.heard = time.monotonic()
            for received in receiver.follower.line.reader.feed(data):
                self._take(receiver, received)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(Loss.DIED, f"{receiver.name} is gone: {in_words(error)}")
        except BadFrame as error:
            self._lose(Loss.FAILED, f"{receiver.name} sends what cannot be read: {error}")
        else:
            if not data:
                self._lose(Loss.DIED, f"{receiver.name} is gone: its connection ended")

    def _take(self, receiver: _Receiver, received: Frame) -> None:
        if received.kind is FrameKind.FAILED:
            fields = received.fields()
            loss = Loss.STALLED if fields.get("loss") == Loss.STALLED else Loss.FAILED
            self._lose(loss, f"{receiver.name}: {fields.get('text')}")
        elif received.kind is FrameKind.READY:
            receiver.ready = True
            with self._changed:
                self._all_ready = all(each.ready for each in self._receivers)
                self._changed.notify_all()
        elif received.kind is FrameKind.PING:
            progress = progress_of(received)
            if progress.records > receiver.records:
                receiver.vitals.moved = receiver.vitals.heard
            receiver.progress = progress
            with self._changed:
                self._changed.notify_all()

    def _watch(self, now: float) -> None:
        """Notes a loss. Steps are watched once all have read their weights, while there are records to execute."""
        ranks = [(each.vitals, each.records) for each in self._receivers]
        ranks.append((self._own.vitals, self._own.progress.records))
        for vitals, records in ranks:
            if self._all_ready and (records >= self.records or vitals.moved > now):
                vitals.moved = now
        loss = self._watchdog.find_loss([vitals for vitals, _ in ranks], now)
        if loss is None and not self._all_ready and now > self._start.ready_by:
            late = ", ".join(each.name for each in self._receivers if not each.ready)
            loss = Loss.STALLED, f"{late} has not read its weights within {self._start.seconds:g} s"
        if loss is not None:
            self._lose(*loss)

    # on either thread

    def _lose(self, loss: Loss, message: str) -> None:
        with self._changed:
            if self._is_lost or self._closing:
                return
            self._lost = lost = RanksLost(loss, message)
            self._changed.notify_all()
        self._on_lost(lost)
