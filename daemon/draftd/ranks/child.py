"""One life of the engine's process, as the daemon has it: requests and commands in, what comes of them out.

Two threads: the owner's, which hands on what has gathered (`serve`), and one that hears the process. Neither waits for
longer than the bound: what says or takes nothing for so long is killed.
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
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from draftd.core import DecodeRequest, FinishReason, Origin, Outcome, RequestStats, TokenSink
from draftd.engine.inbox import Arrival, Inbox, Keep, LogitGap, Lower
from draftd.engine.inbox import Command as EngineCommand
from draftd.engine.limits import Limits
from draftd.engine.observer import EngineObserver
from draftd.errors import NotServing, in_one_line
from draftd.group import Loss
from draftd.ranks.pipe import (
    Begin,
    Close,
    Command,
    Done,
    End,
    Finished,
    Learned,
    Loading,
    Logged,
    Lost,
    Machine,
    Observed,
    Pipe,
    Ready,
    Snapshot,
    Stopped,
    Submit,
    Tokens,
)

_log = logging.getLogger(__name__)

_LOADING_SECONDS = 60.0  # for which a process that loads may say nothing: where MLX joins a group, no thread runs
_TELL_SECONDS = 0.5  # between two messages to the process of how the machine is
_LAST_SECONDS = 5.0  # to end in order, once no more requests may run
_ENDING_SECONDS = 1.0  # for a process to end that has closed its pipe


@dataclass(slots=True)
class _InHand:
    """A request that the process has. `request`: as it is decoded now; `number`: of its submission. `stats`: what was
    heard of it, for when no more will be."""

    request: DecodeRequest
    sink: TokenSink
    number: int
    stats: RequestStats
    failed: str = ""  # of its receiver


@dataclass(frozen=True, slots=True)
class ChildListener:
    """What hears of it, on one thread at a time. `observer` must raise nothing."""

    observer: EngineObserver
    loading: Callable[[str], None]
    learnt: Callable[[Any], None]
    snapshot: Callable[[Snapshot], None]
    seconds_per_request: Callable[[], float]


class EngineChild:
    """One process, from `start` until `end`, which must be called. It is heard on one thread at a time."""

    def __init__(self, limits: Limits, listener: ChildListener, timeout_seconds: float) -> None:
        self._limits, self._listener, self._timeout = limits, listener, timeout_seconds
        self.inbox = Inbox(limits.queue_capacity, limits.max_batch)
        self.ready: Ready | None = None
        self.snapshot: Snapshot | None = None  # the latest
        self.loss: tuple[Loss, str] | None = None  # why it is over, unless it was told to end
        self.over = False
        self._lock = threading.Lock()
        self._in_hand: dict[str, _InHand] = {}
        self._commands: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes]
        self._pipe: Pipe
        self._reader = threading.Thread(target=self._hear, name="draftd-hear", daemon=True)

    def start(self, begin: Begin) -> None:
        ours, theirs = socket.socketpair()
        self._pipe = Pipe(ours)
        self._be_patient(max(self._timeout, _LOADING_SECONDS))
        number = theirs.fileno()
        command = [sys.executable, "-P", "-m", "draftd.ranks.leader", str(number)]
        passed = [number] if begin.share is None else [number, begin.share.listener]
        try:
            # A session of its own: Ctrl-C is for the daemon, which lets running requests end first.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, start_new_session=True)
        finally:
            theirs.close()
        self._reader.start()
        self._tell([begin])

    def serve(self, open_: Callable[[], None], closing: Callable[[], bool], gone: Callable[[], str]) -> None:
        """Hands on what gathers, until the process is over. `open_` is called once it is ready, before it takes
        requests. `closing`: whether a load is not to be waited for; `gone`: which other rank will not come."""
        opened, told_at, drain_until, last = False, -math.inf, math.inf, math.inf
        while not self.over and time.monotonic() < last:
            if not opened and closing():
                return
            if not opened and (why := gone()):
                self._lost(Loss.FAILED, why)
            if not opened and self.ready is not None:
                opened = True
                self._be_patient(self._timeout)
                self.inbox.open()
                open_()
            taken = self.inbox.take(_TELL_SECONDS)
            messages: list[Any] = []
            if taken is not None:
                messages += self._messages(taken.gathered)
                if taken.endings:
                    messages.append(End(taken.endings))
                if taken.closing and taken.drain_until != drain_until:
                    drain_until = taken.drain_until
                    last = max(drain_until, time.monotonic()) + _LAST_SECONDS
                    messages.append(Close(drain_until))
            if (now := time.monotonic()) - told_at >= _TELL_SECONDS:
                told_at = now
                messages.append(Machine.of(self._limits))
            if messages:
                self._tell(messages)

    def keep(self, drafters: frozenset[str]) -> None:
        """As it was before; nothing waits for it."""
        self._tell([Command(next(self._numbers), "keep", (drafters,))])

    def end(self, error: NotServing) -> None:
        """Kills the process, if it still runs, and reaps it. What is in hand ends as unavailable."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._pipe.close()
        now, gone = time.monotonic(), self.inbox.shut(error)
        left = [_InHand(one.request, one.sink, 0, _heard_of(one.request)) for one in gone]
        for one in [*self._in_hand.values(), *left]:
            one.stats.finished = now
            retry = error.retry_after
            outcome = Outcome(FinishReason.ERROR, one.stats, error=error.message, unavailable=retry, refused=error)
            self._finish(one, outcome)
        for done in self._commands.values():
            done.set_exception(error)
        self._in_hand, self._commands = {}, {}

    # the owner's thread

    def _messages(self, gathered: Sequence[Arrival | EngineCommand]) -> list[Any]:
        """Choices of one request are one message: they have one prompt, the same object."""
        messages, choices = list[Any](), list[Arrival]()
        for one in gathered:
            same = choices and isinstance(one, Arrival) and one.request.prompt is choices[0].request.prompt
            if choices and not same:
                messages.append(self._submit(choices))
                choices = []
            if isinstance(one, Arrival):
                choices.append(one)
            else:
                messages.append(self._command(one))
        if choices:
            messages.append(self._submit(choices))
        return messages

    def _submit(self, arrivals: Sequence[Arrival]) -> Submit:
        number = next(self._numbers)
        with self._lock:
            for request, sink in arrivals:
                self._in_hand[request.id] = _InHand(request, sink, number, _heard_of(request))
        return Submit(number, [one.request for one in arrivals])

    def _command(self, command: EngineCommand) -> Command:
        number, arguments = next(self._numbers), tuple[Any, ...]()
        match command:
            case Lower():
                return Command(number, "lower", (command.max_draft_tokens, command.drafters, command.reason))
            case Keep():
                method, arguments = "keep", (command.drafters,)
            case LogitGap():
                method, arguments = "logit_gap", (command.tokens, command.chosen, command.other)
            case _:
                method = "reload_draft"
        self._commands[number] = command.done
        return Command(number, method, arguments)

    def _tell(self, messages: Sequence[Any]) -> None:
        try:
            self._pipe.send(messages)
        except TimeoutError:
            self._lost(Loss.SILENT, f"rank 0 took nothing for {self._patience:g} s")
        except OSError:
            self._reader.join(self._timeout)  # it finds out why
            self._lost(Loss.DIED, "rank 0 takes nothing any more")

    # the thread that hears

    def _hear(self) -> None:
        try:
            while not self.over:
                messages = self._pipe.receive()
                for message in messages:
                    self._heard(message)
                if any(isinstance(one, Snapshot | Finished) for one in messages):
                    self._report()
        except TimeoutError:
            self._lost(Loss.SILENT, f"rank 0 said nothing for {self._patience:g} s")
        except OSError:
            self._lost(Loss.DIED, f"rank 0 ended: {_how(self._process)}")
        except Exception as error:
            _log.exception("what rank 0 says is not understood")
            self._lost(Loss.FAILED, f"what rank 0 says is not understood: {in_one_line(error)}")

    def _heard(self, message: Any) -> None:
        match message:
            case Tokens():
                self._tokens(message)
            case Observed():
                self._observed(message)
            case Finished():
                with self._lock:
                    one = self._in_hand.pop(message.id, None)
                if one is not None:
                    self._finish(one, _told(one, message.outcome), observed=True)
            case Snapshot():
                self.snapshot = message
                self._listener.snapshot(message)
            case Learned():
                self._listener.learnt(message.learnt)
            case Loading():
                self._listener.loading(message.line)
            case Ready():
                self._listener.snapshot(message.snapshot)
                self.snapshot, self.ready = message.snapshot, message
                self.inbox.wake()
            case Done():
                self.snapshot = message.snapshot or self.snapshot
                done = self._commands.pop(message.number, None)
                if done is not None and message.error is not None:
                    done.set_exception(message.error)
                elif done is not None:
                    done.set_result(message.value)
            case Logged():
                logging.getLogger(message.name).log(message.level, "%s", message.text)
            case Lost():
                self._lost(message.loss, message.reason)
            case Stopped():
                self.over = True
                self.inbox.wake()

    def _tokens(self, message: Tokens) -> None:
        one = self._in_hand.get(message.id)
        if one is None or one.failed:
            return
        stats, now, tokens = one.stats, time.monotonic(), len(message.emission.tokens)
        if tokens:
            if stats.first_token is None or stats.last_token is None:
                stats.first_token, stats.first_chunk_tokens = now, tokens
            else:
                stats.gaps.append(now - stats.last_token)
            stats.last_token = now
        try:
            one.sink.on_tokens(message.emission)
        except Exception as error:
            one.failed = f"the receiver failed: {error}"
            self.inbox.end(message.id, FinishReason.ERROR)

    def _observed(self, message: Observed) -> None:
        one = self._in_hand.get(message.id)
        if one is None:
            return
        if message.method == "on_step":
            one.stats.counts.add(message.arguments[0])
        elif message.method == "on_finish":
            self._listener.observer.on_finish(one.request, _told(one, message.arguments[0]))
            return
        getattr(self._listener.observer, message.method)(one.request, *message.arguments)

    def _finish(self, one: _InHand, outcome: Outcome, *, observed: bool = False) -> None:
        if not observed:
            self._listener.observer.on_finish(one.request, outcome)
        try:
            one.sink.on_finish(outcome)
        except Exception as error:
            _log.warning("the receiver of request %s failed at its end", one.request.id, exc_info=error)

    def _report(self) -> None:
        """How many wait, and whose they are: the queue's limits are kept here."""
        with self._lock:
            every = list(self._in_hand.values())
        clients, now = [one for one in every if one.request.origin is Origin.CLIENT], self.snapshot
        waiting = [
            one.request
            for one in clients
            if one.stats.first_token is None
            and (now is None or one.number > now.number or one.request.id in now.waiting)
        ]
        own, seconds = len(every) - len(clients), self._listener.seconds_per_request()
        self.inbox.report(len(clients) - len(waiting), waiting, own, seconds)

    # either

    def _be_patient(self, seconds: float) -> None:
        """So long may it say or take nothing from here on."""
        self._patience = seconds
        self._pipe.patient(seconds, seconds)

    def _lost(self, loss: Loss, reason: str) -> None:
        """The first that is found counts."""
        with self._lock:
            if not self.over:
                self.loss = loss, reason
            self.over = True
        self._process.kill()  # what hears and what tells wait for it no longer
        self.inbox.wake()


def _heard_of(request: DecodeRequest) -> RequestStats:
    return RequestStats(prompt_tokens=len(request.prompt), arrival=request.arrival)


def _told(one: _InHand, outcome: Outcome) -> Outcome:
    return replace(outcome, reason=FinishReason.ERROR, error=one.failed) if one.failed else outcome


def _how(process: subprocess.Popen[bytes]) -> str:
    """What became of a process that has closed its pipe."""
    try:
        code = process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return "its connection is closed"
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
