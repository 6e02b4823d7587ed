"""The daemon's side of one process with an engine: requests and commands go in, tokens and outcomes come out.

Two threads: the owner's sends what has gathered (`serve`), and one reads from the process. Each wait is limited: a
process that neither writes nor reads in time is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from typing import Any

from draftd.core import DecodeRequest, FinishReason, Origin
from draftd.engine.inbox import Arrival, Command, Inbox, KeepDrafts, LogitGap, LowerRequests, PinPrefix, ReloadDrafts
from draftd.engine.limits import Limits
from draftd.engine.observer import EngineObserver, Totals
from draftd.errors import NotServing, in_one_line
from draftd.group import Loss
from draftd.outcome import Outcome, RequestStats, TokenSink
from draftd.process import ipc

_log = logging.getLogger(__name__)

_LOADING_SECONDS = 60.0  # the time limit while it loads: none of its threads runs while MLX joins a group
_MEMORY_SECONDS = 0.5  # between two messages about the machine's memory
_LAST_SECONDS = 5.0  # to end normally, once no more requests may run
_EXIT_SECONDS = 1.0  # for a process that has closed its pipe to exit
_METHODS: dict[type[Command], str] = {
    KeepDrafts: "keep",
    ReloadDrafts: "reload_draft",
    LogitGap: "logit_gap",
    LowerRequests: "lower",
    PinPrefix: "pin_prefix",
}


@dataclass(slots=True)
class _RunningRequest:
    """A request that the process has. `number`: of its submission. `stats`: of the tokens received, in case no outcome
    comes. `failed`: its receiver's error."""

    request: DecodeRequest
    sink: TokenSink
    number: int
    stats: RequestStats
    failed: str = ""

    @classmethod
    def start(cls, arrival: Arrival, number: int = 0) -> _RunningRequest:
        request, sink = arrival
        stats = RequestStats(prompt_tokens=len(request.prompt), arrival=request.arrival)
        return cls(request, sink, number, stats)

    def outcome(self, outcome: Outcome) -> Outcome:
        return replace(outcome, reason=FinishReason.ERROR, error=self.failed) if self.failed else outcome


@dataclass(slots=True)
class _Calls:
    """The numbers of submissions and calls, and the calls' pending results."""

    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    futures: dict[int, Future[Any]] = field(default_factory=dict)


class EngineChild:
    """One process, from `start` until `end`, which must be called."""

    def __init__(
        self,
        limits: Limits,
        observer: EngineObserver,
        totals: Totals,
        note: Callable[[ipc.EngineSnapshot | ipc.EngineEnded], None],
        timeout_seconds: float,
    ) -> None:
        """`observer` must not raise. `note` receives the engine's reports about itself. Both are called on one thread
        at a time."""
        self._limits, self._observer, self._totals, self._note = limits, observer, totals, note
        self._timeout = timeout_seconds
        self.inbox = Inbox(limits.queue_capacity, limits.max_batch)
        self.snapshot = ipc.EngineSnapshot()  # the latest
        self.loss: tuple[Loss, str] | None = None  # why it ended, unless that was intended
        self._ended = False
        self._lock = threading.Lock()
        self._requests: dict[str, _RunningRequest] = {}
        self._calls = _Calls()
        self._process: subprocess.Popen[bytes]
        self._pipe: ipc.MessagePipe
        self._reader = threading.Thread(target=self._read, name="draftd-hear", daemon=True)

    def start(self, begin: ipc.Begin) -> None:
        ours, theirs = socket.socketpair()
        self._pipe = ipc.MessagePipe(ours)
        self._pipe.limit_waits(max(self._timeout, _LOADING_SECONDS))
        number = theirs.fileno()
        command = [sys.executable, "-P", "-m", "draftd.process.main", str(number)]
        passed = [number] if begin.share is None else [number, begin.share.listener]
        try:
            # Its own session: Ctrl-C must only reach the daemon, which lets running requests end first.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, start_new_session=True)
        finally:
            theirs.close()
        self._reader.start()
        self._send([begin])

    def serve(self, open_: Callable[[], None], closing: Callable[[], bool], other_exit: Callable[[], str]) -> None:
        """Sends the inbox's contents to the process until that ends. `open_` is called once the process is ready,
        before it takes requests. During loading, `closing` ends the wait, and `other_exit` describes another rank's
        exit."""
        opened, memory_at, drain_until, last = False, -math.inf, math.inf, math.inf
        while not self._ended and time.monotonic() < last:
            if not opened and closing():
                return
            if not opened and (why := other_exit()):
                self._lose(Loss.FAILED, why)
            if not opened and self.snapshot.info is not None:
                opened = True
                self._pipe.limit_waits(self._timeout)
                self.inbox.open()
                open_()
            messages: list[Any] = []
            if (taken := self.inbox.take(_MEMORY_SECONDS)) is not None:
                messages += self._messages(taken.gathered)
                if taken.endings:
                    messages.append(ipc.EndRequests(taken.endings))
                if taken.closing and taken.drain_until != drain_until:
                    drain_until = taken.drain_until
                    last = max(drain_until, time.monotonic()) + _LAST_SECONDS
                    messages.append(ipc.Drain(drain_until))
            if (now := time.monotonic()) - memory_at >= _MEMORY_SECONDS:
                memory_at = now
                messages.append(ipc.MachineMemory.read(self._limits))
            if messages:
                self._send(messages)

    def keep(self, drafters: frozenset[str]) -> None:
        """Loads `drafters`, which the last engine process was asked to keep loaded, without waiting."""
        self._send([ipc.MethodCall(next(self._calls.numbers), "keep", (drafters,))])

    def end(self, error: NotServing) -> None:
        """Kills the process if it still runs, and reaps it. Its requests end as unavailable."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._pipe.close()
        now, retry = time.monotonic(), error.retry_after
        untaken = [_RunningRequest.start(arrival) for arrival in self.inbox.shut(error)]
        for running in (*self._requests.values(), *untaken):
            running.stats.finished = now
            outcome = Outcome(FinishReason.ERROR, running.stats, error=error.message, unavailable=retry, refused=error)
            self._finish(running, outcome)
        for done in self._calls.futures.values():
            done.set_exception(error)
        self._requests, self._calls = {}, _Calls()

    # on the owner's thread

    def _messages(self, gathered: Sequence[Arrival | Command]) -> Iterator[ipc.Submit | ipc.MethodCall]:
        """Yields messages; choices of one request make one message, because they share the prompt."""
        for _, group in groupby(gathered, lambda each: id(each.request.prompt if isinstance(each, Arrival) else each)):
            number, same = next(self._calls.numbers), list(group)
            choices = [each for each in same if isinstance(each, Arrival)]
            if not choices:
                yield from (self._call(number, each) for each in same if not isinstance(each, Arrival))
                continue
            with self._lock:
                self._requests |= {choice.request.id: _RunningRequest.start(choice, number) for choice in choices}
            yield ipc.Submit(number, [choice.request for choice in choices])

    def _call(self, number: int, command: Command) -> ipc.MethodCall:
        if not isinstance(command, LowerRequests):
            self._calls.futures[number] = command.done
        names = [field.name for field in fields(command) if field.name != "done"]
        return ipc.MethodCall(number, _METHODS[type(command)], tuple(getattr(command, name) for name in names))

    def _send(self, messages: Sequence[Any]) -> None:
        try:
            self._pipe.send(messages)
        except TimeoutError:
            self._lose(Loss.SILENT, f"rank 0 read nothing for {self._pipe.wait_seconds:g} s")
        except OSError:
            self._reader.join(self._timeout)  # the reader notes why
            self._lose(Loss.DIED, "rank 0 no longer reads")

    # on the reading thread

    def _read(self) -> None:
        try:
            while not self._ended:
                messages = self._pipe.receive()
                for message in messages:
                    self._take(message)
                if any(isinstance(message, ipc.EngineSnapshot | ipc.RequestFinished) for message in messages):
                    self._report()
        except TimeoutError:
            self._lose(Loss.SILENT, f"rank 0 said nothing for {self._pipe.wait_seconds:g} s")
        except OSError:
            self._lose(Loss.DIED, f"rank 0 ended: {_describe_exit(self._process)}")
        except Exception as error:
            _log.exception("rank 0 sent a message that cannot be read")
            self._lose(Loss.FAILED, f"rank 0 sent a message that cannot be read: {in_one_line(error)}")

    def _take(self, message: Any) -> None:
        match message:
            case ipc.Tokens():
                self._pass_tokens(message)
            case ipc.ObserverCall():
                self._call_observer(message)
            case ipc.RequestFinished():
                with self._lock:
                    running = self._requests.pop(message.id, None)
                if running is not None:
                    self._finish(running, running.outcome(message.outcome))
            case ipc.EngineSnapshot():
                loading, self.snapshot = self.snapshot.info is None, message
                self._note(message)
                if loading and message.info is not None:
                    self.inbox.wake()
            case ipc.MethodResult():
                self.snapshot = message.snapshot or self.snapshot
                done = self._calls.futures.pop(message.number, None)
                if done is not None and message.error is not None:
                    done.set_exception(message.error)
                elif done is not None:
                    done.set_result(message.value)
            case ipc.LogLine():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case ipc.EngineEnded() if message.loss is not None:
                self._lose(message.loss, message.reason)
            case ipc.EngineEnded():
                self._note(message)
                self._ended = True
                self.inbox.wake()

    def _pass_tokens(self, message: ipc.Tokens) -> None:
        running = self._requests.get(message.id)
        if running is None or running.failed:
            return
        stats, now, tokens = running.stats, time.monotonic(), len(message.emission.tokens)
        if tokens:
            if stats.first_token is None or stats.last_token is None:
                stats.first_token, stats.first_chunk_tokens = now, tokens
            else:
                stats.gaps.append(now - stats.last_token)
            stats.last_token = now
        try:
            running.sink.on_tokens(message.emission)
        except Exception as error:
            running.failed = f"the receiver failed: {error}"
            self.inbox.end(message.id, FinishReason.ERROR)

    def _call_observer(self, call: ipc.ObserverCall) -> None:
        running = self._requests.get(call.id)
        if running is None:
            return
        if call.method == "on_step":
            running.stats.counts.add(call.arguments[0])
        getattr(self._observer, call.method)(running.request, *call.arguments)

    def _finish(self, running: _RunningRequest, outcome: Outcome) -> None:
        self._observer.on_finish(running.request, outcome)
        try:
            running.sink.on_finish(outcome)
        except Exception as error:
            _log.warning(
                "the receiver of request %s failed when told that the request ended", running.request.id, exc_info=error
            )

    def _report(self) -> None:
        """Tells the inbox, which limits the queue, how many requests wait, and whose."""
        with self._lock:
            every = list(self._requests.values())
        clients = [running for running in every if running.request.origin is Origin.CLIENT]
        waiting = [running.request for running in clients if self._waits(running)]
        own, seconds = len(every) - len(clients), self._totals.seconds_per_request
        self.inbox.report(len(clients) - len(waiting), waiting, own, seconds)

    def _waits(self, running: _RunningRequest) -> bool:
        now = self.snapshot
        unreported = running.number > now.number or running.request.id in now.waiting
        return running.stats.first_token is None and unreported

    # on either thread

    def _lose(self, loss: Loss, reason: str) -> None:
        """Notes the loss unless there was one before, and kills the process, so that nothing waits for it."""
        with self._lock:
            if not self._ended:
                self.loss = loss, reason
            self._ended = True
        self._process.kill()
        self.inbox.wake()


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    """Describes how a process that has closed its pipe ended."""
    try:
        code = process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "its connection is closed"
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
