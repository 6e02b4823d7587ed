"""Rank 0's end of the connections to its followers: sends them records, hears how far they are, and notices when one
is lost. A RecordSender.

The engine thread sends; one thread of the channel hears, sends a sign of life each second, and is the watchdog. The
group is lost for good at the first that is wrong: `on_lost` is told why, once, and from then on `send` raises.
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

from draftd.engine.ranks.channel import Progress, RanksLost
from draftd.errors import in_one_line, in_words
from draftd.group import Loss, RankStatus
from draftd.ranks.frames import BadFrame, Frame, Kind, Report, encoded, told
from draftd.ranks.handshake import Peer, hang_up

_log = logging.getLogger(__name__)

BACKLOG = 1024  # records that a follower may be behind: rank 0 waits then
_PING_SECONDS = 1.0
_LOOKS = 8  # of the watchdog within its bound


@dataclass(eq=False)
class _Follower:
    peer: Peer
    report: Report = field(default_factory=Report)
    ready: bool = False
    heard: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)  # when it executed something, or had nothing to
    writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def records(self) -> int:
        return self.report.progress.records


class LeaderChannel:
    """Of one start of the group."""

    def __init__(
        self,
        peers: Sequence[Peer],
        *,
        host: str,
        timeout_seconds: float,
        start_seconds: float,
        on_lost: Callable[[RanksLost], None],
        limit_bytes: int = 0,
        backlog: int = BACKLOG,
    ) -> None:
        """`peers`: of the handshake, once all have joined. `host`: of rank 0. `on_lost` is called on a thread of the
        channel, or on the one that sends. `limit_bytes`: memory that rank 0 may hold."""
        self._followers = [_Follower(peer) for peer in peers]
        self._host, self._limit, self._backlog = host, limit_bytes, backlog
        self._timeout, self._on_lost = timeout_seconds, on_lost
        self._ping = min(_PING_SECONDS, timeout_seconds / 4)
        self._ready_by = time.monotonic() + start_seconds
        self._start_seconds = start_seconds
        self.records = self.record_bytes = 0  # sent, to each follower
        self._own, self._own_moved = Progress(0, 0, 0.0), time.monotonic()
        self._lost: RanksLost | None = None
        self._all_ready, self._closing = not peers, False
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        for one in self._followers:
            one.peer.sock.setblocking(False)
            self._selector.register(one.peer.sock, selectors.EVENT_READ, one)
        self._thread = threading.Thread(target=self._run, name="draftd-rank-channel", daemon=True)
        self._thread.start()

    def send(self, record: bytes) -> None:
        """To all followers; the first waits until all have read their weights. Bounded: raises RanksLost."""
        if self._lost is not None or not self._all_ready:
            self.wait_ready()
        self.records += 1
        self.record_bytes += len(record)
        frame = encoded(Kind.RECORD, self.records, record)
        for one in self._followers:
            if self.records - one.records > self._backlog:
                self._catch_up(one)
            with one.writing:
                self._write(one, frame)

    def executed(self, progress: Progress) -> None:
        if progress.records > self._own.records:
            self._own_moved = time.monotonic()
        self._own = progress

    def wait_ready(self) -> None:
        """Until all followers have read their weights. Raises RanksLost, also where `start_seconds` are over."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None or self._all_ready)
            if self._lost is not None:
                raise RanksLost(self._lost.loss, self._lost.message)

    def ranks(self) -> tuple[RankStatus, ...]:
        """All of them, rank 0 first. Any thread."""
        now = time.monotonic()
        own = Report(self._own, self._limit)
        each = [(0, self._host, own, 0.0)]
        each += [(one.peer.rank, one.peer.host, one.report, now - one.heard) for one in self._followers]
        return tuple(
            RankStatus(
                rank=rank,
                host=host,
                memory_bytes=report.progress.memory_bytes,
                limit_bytes=report.limit_bytes,
                records=report.progress.records,
                lag=max(0, self.records - report.progress.records),
                collective_seconds=report.progress.collective_seconds,
                seconds_silent=silent,
            )
            for rank, host, report, silent in each
        )

    def close(self, why: str | None = None) -> None:
        """Tells followers that the group ends: in order, or `why`. Not on a thread of the channel."""
        frame = encoded(Kind.END) if why is None else told(Kind.FAILED, {"text": why})
        self._closing = True
        self._thread.join()
        for one in self._followers:
            with contextlib.suppress(OSError):
                one.peer.sock.send(frame)
            hang_up(one.peer.sock)

    def _catch_up(self, one: _Follower) -> None:
        """Waits until it is no longer so far behind."""
        before, deadline = one.records, time.monotonic() + self._timeout
        with self._changed:
            while self._lost is None and self.records - one.records > self._backlog:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    break
            else:
                return
        if one.records > before:
            self._lose(Loss.BEHIND, f"{one.peer.name} stays more than {self._backlog} records behind rank 0")
        else:
            self._lose(Loss.STALLED, f"{one.peer.name} has not ended a step for {self._timeout:g} s")

    def _write(self, one: _Follower, frame: bytes) -> None:
        """The whole frame, within the bound. The caller has `writing`."""
        sock, left, deadline = one.peer.sock, memoryview(frame), time.monotonic() + self._timeout
        while left and self._lost is None:
            try:
                left = left[sock.send(left) :]
                continue
            except BlockingIOError:
                pass
            except OSError as error:
                self._lose(Loss.DIED, f"{one.peer.name} is gone: {in_words(error)}")
                break
            if time.monotonic() > deadline:
                self._lose(Loss.SILENT, f"{one.peer.name} has taken nothing for {self._timeout:g} s")
                break
            waiting = select.poll()
            waiting.register(sock, select.POLLOUT)
            waiting.poll(100)
        if self._lost is not None:
            raise RanksLost(self._lost.loss, self._lost.message)

    def _run(self) -> None:
        try:
            self._attend()
        except Exception as error:
            _log.exception("the watchdog of rank 0 failed")
            self._lose(Loss.FAILED, f"the watchdog of rank 0 failed: {in_one_line(error)}")

    def _attend(self) -> None:
        pinged = 0.0
        while self._lost is None and not self._closing:
            for key, _ in self._selector.select(min(self._ping, self._timeout / _LOOKS)):
                self._hear(key.data)
            now = time.monotonic()
            if now - pinged >= self._ping:
                pinged = now
                frame = encoded(Kind.PING, 0, Report(self._own, self._limit).encoded())
                for one in self._followers:
                    self._sign(one, frame)
            self._watch(time.monotonic())
        self._selector.close()

    def _sign(self, one: _Follower, frame: bytes) -> None:
        """Of life; not where records are being sent, which are one too, or where it takes nothing."""
        if not one.writing.acquire(blocking=False):
            return
        try:
            sent = one.peer.sock.send(frame)
            if sent < len(frame):
                self._write(one, frame[sent:])
        except BlockingIOError:
            pass
        except RanksLost:
            pass  # noted
        except OSError as error:
            self._lose(Loss.DIED, f"{one.peer.name} is gone: {in_words(error)}")
        finally:
            one.writing.release()

    def _hear(self, one: _Follower) -> None:
        try:
            data = one.peer.sock.recv(1 << 16)
            one.heard = time.monotonic()
            for frame in one.peer.reader.feed(data):
                self._heard(one, frame)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(Loss.DIED, f"{one.peer.name} is gone: {in_words(error)}")
        except BadFrame as error:
            self._lose(Loss.FAILED, f"{one.peer.name} sends what cannot be read: {error}")
        else:
            if not data:
                self._lose(Loss.DIED, f"{one.peer.name} is gone: its connection ended")

    def _heard(self, one: _Follower, frame: Frame) -> None:
        if frame.kind is Kind.FAILED:
            said = frame.fields()
            loss = Loss.STALLED if said.get("loss") == Loss.STALLED else Loss.FAILED
            self._lose(loss, f"{one.peer.name}: {said.get('text')}")
        elif frame.kind is Kind.READY:
            one.ready, one.moved = True, one.heard
            with self._changed:
                self._all_ready = all(each.ready for each in self._followers)
                self._changed.notify_all()
        elif frame.kind is Kind.PING:
            report = Report.of(frame.body)
            if report.progress.records > one.records:
                one.moved = one.heard
            one.report = report
            with self._changed:
                self._changed.notify_all()

    def _watch(self, now: float) -> None:
        """Raises the alarm at what is too old. Of several ranks that do not move, the one that is silent is the one
        that all others wait for."""
        silent = max(self._followers, key=lambda one: now - one.heard, default=None)
        if silent is not None and now - silent.heard > self._timeout:
            self._lose(Loss.SILENT, f"{silent.peer.name} has said nothing for {self._timeout:g} s")
            return
        if not self._all_ready:
            if now > self._ready_by:
                late = ", ".join(one.peer.name for one in self._followers if not one.ready)
                self._lose(Loss.STALLED, f"{late} has not read its weights within {self._start_seconds:g} s")
            return
        for one in self._followers:
            if one.records >= self.records:
                one.moved = now
        if self._own.records >= self.records:
            self._own_moved = now
        stalled = next((one.peer.name for one in self._followers if now - one.moved > self._timeout), None)
        if stalled is None and now - self._own_moved > self._timeout:
            stalled = f"rank 0 on {self._host}"
        if stalled is None:
            return
        if silent is not None and now - silent.heard > max(3 * self._ping, self._timeout / 2):
            self._lose(Loss.SILENT, f"{silent.peer.name} has said nothing for {now - silent.heard:.1f} s")
        else:
            self._lose(Loss.STALLED, f"{stalled} has not ended a step for {self._timeout:g} s")

    def _lose(self, loss: Loss, message: str) -> None:
        with self._changed:
            if self._lost is not None or self._closing:
                return
            self._lost = lost = RanksLost(loss, message)
            self._changed.notify_all()
        self._on_lost(lost)
