"""The process that rank 0's engine lives in: `python -P -m draftd.ranks.leader DESCRIPTOR`.

All of MLX that a daemon with several ranks has is here: target, drafts, scheduler, and the group. A group that was lost
cannot be left within a process; this one can end. It does what the daemon says over the pipe, tells it all that comes
of that, and ends with it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NoReturn

from draftd.core import DecodeRequest, DrafterName, Emission, FinishReason, Outcome, RequestStats
from draftd.counts import StepCounts
from draftd.engine.handle import EngineState
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels
from draftd.engine.ranks.channel import RanksLost
from draftd.errors import DraftdError, EngineFailure, in_one_line
from draftd.group import Loss
from draftd.models.grammar import Compiled
from draftd.models.tokenizer import Tokenizer
from draftd.ranks.beginning import begin_group
from draftd.ranks.leader_channel import LeaderChannel
from draftd.ranks.models import Models, Share
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

_MOST_UNSENT = 1 << 16  # messages; where there are more, the engine waits for the daemon
_LOADING_POLL_SECONDS = 0.05
_LAST_SECONDS = 2.0  # for the last message to be taken


def main() -> None:
    # These are the daemon's to obey: it tells this process what to do.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    Leader(end).run()


class Outgoing:
    """What is to be told to the daemon, by a thread of its own: nothing that tells waits for the pipe, unless the
    daemon does not read at all."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._unsent: deque[Any] = deque()
        self._changed = threading.Condition()
        self._sending = False
        threading.Thread(target=self._run, name="draftd-tell", daemon=True).start()

    def put(self, message: Any) -> None:
        with self._changed:
            while len(self._unsent) >= _MOST_UNSENT:
                self._changed.wait()
            self._unsent.append(message)
            self._changed.notify_all()

    def last(self, message: Any, seconds: float) -> None:
        """Waits until all is sent, this too, at most for so long; not for a daemon that does not read."""
        with self._changed:
            self._unsent.append(message)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._unsent and not self._sending, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._unsent)
                messages = list(self._unsent)
                self._unsent.clear()
                self._sending = True
            try:
                self._pipe.send(messages)
            except OSError:
                _leave(1)  # the daemon is gone
            except Exception:
                traceback.print_exc()
                _leave(1)


class _Sink:
    """Where one request's tokens go. `grammar`: compiled, and held for as long as the request has it."""

    def __init__(self, name: str, tell: Callable[[Any], None], grammar: Compiled | None) -> None:
        self._name, self._tell, self._grammar = name, tell, grammar

    def on_tokens(self, emission: Emission) -> None:
        self._tell(Tokens(self._name, emission))

    def on_finish(self, outcome: Outcome) -> None:
        self._tell(Finished(self._name, outcome))


class _Observer(EngineObserver):
    """Tells the daemon, whose observers know the requests by their ids."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        self._tell(Observed(request.id, "on_step", (result, gap)))

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        self._tell(Observed(request.id, "on_drafter_error", (drafter, message)))

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._tell(Observed(request.id, "on_verifier_error", (message,)))

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self._tell(Observed(request.id, "on_finish", (outcome,)))


class _Records(logging.Handler):
    """The daemon's log has them, in its format."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self._tell = tell
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(Logged(record.name, record.levelno, self.format(record)))


class Leader:
    """One life of the engine."""

    def __init__(self, end: socket.socket) -> None:
        self._pipe = Pipe(end, self._tokenizer)
        self._out = Outgoing(self._pipe)
        self._number = 0  # of the last submission that the engine has
        self._machine: Machine
        self._worker: EngineWorker
        self._channel: LeaderChannel | None = None
        self._parallel = ""

    def run(self) -> NoReturn:
        try:
            (begin,) = self._pipe.receive()
        except OSError:
            _leave(1)
        assert isinstance(begin, Begin)
        logging.basicConfig(handlers=[_Records(self._out.put)], level=logging.WARNING, force=True)
        logging.getLogger("draftd").setLevel(begin.log_level)
        self._machine = begin.machine
        self._worker = EngineWorker(
            begin.models if begin.share is None else partial(self._load, begin.models, begin.share),
            observers=(_Observer(self._out.put),),
            limits=Limits(
                **begin.limits,
                memory_share=lambda: self._machine.memory_share,
                headroom=lambda: self._machine.headroom,
                available=lambda: self._machine.available,
            ),
            recall=lambda: begin.learnt,
        )
        self._worker.start()
        threading.Thread(target=self._beat, args=(begin.beat_seconds,), name="draftd-beat", daemon=True).start()
        try:
            while True:
                for message in self._pipe.receive():
                    self._obey(message)
        except OSError:
            _leave(1)  # the daemon is gone
        except BaseException:
            traceback.print_exc()
            _leave(1)

    def _load(self, models: Models, share: Share, progress: Callable[[str], None]) -> LoadedModels:
        """On the engine's thread: gathers the other ranks, joins them, and loads this one's part."""
        settings = share.settings
        group, self._channel = begin_group(
            socket.socket(fileno=share.listener),
            share.plan,
            models.model,
            models.adapter,
            group=share.group,
            timeout_seconds=settings.timeout_seconds,
            start_seconds=settings.start_seconds,
            announce=progress,
            on_lost=self.lost,
        )
        loaded = models(progress, group=group, sender=self._channel)
        assert loaded.ranks is not None
        loaded.ranks.on_lost = self.lost
        self._parallel = loaded.ranks.part.parallel
        return loaded

    def _tokenizer(self) -> Tokenizer:
        return self._worker.tokenizer

    def _obey(self, message: Any) -> None:
        match message:
            case Submit():
                self._submit(message)
            case End():
                for name, reason in message.reasons.items():
                    self._worker.cancel(name, reason)
            case Command():
                self._command(message)
            case Machine():
                self._machine = message
            case Close():
                threading.Thread(target=self._close, args=(message.drain_until,), daemon=True).start()

    def _submit(self, message: Submit) -> None:
        choices = message.choices
        try:
            held = None
            if grammar := choices[0].grammar:
                # Compiled in this process too, and before the engine's thread would have to.
                assert self._worker.grammars is not None
                held, _ = self._worker.grammars.compile(grammar)
            self._worker.submit_choices([(one, _Sink(one.id, self._out.put, held)) for one in choices])
        except Exception as error:
            refused = error if isinstance(error, DraftdError) else EngineFailure(in_one_line(error))
            for one in choices:
                now = time.monotonic()
                stats = RequestStats(prompt_tokens=len(one.prompt), arrival=one.arrival, finished=now)
                outcome = Outcome(FinishReason.ERROR, stats, error=refused.message, refused=refused)
                self._out.put(Observed(one.id, "on_finish", (outcome,)))
                self._out.put(Finished(one.id, outcome))
        self._number = message.number

    def _command(self, command: Command) -> None:
        try:
            found = getattr(self._worker, command.method)(*command.arguments)
        except DraftdError as error:
            self._out.put(Done(command.number, None, error, None))
            return
        if isinstance(found, Future):
            found.add_done_callback(lambda done: self._done(command.number, done))

    def _done(self, number: int, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, DraftdError):
            error = EngineFailure(in_one_line(error))
        # With what is held now: whoever waited for it looks next.
        self._out.put(Done(number, None if error is not None else done.result(), error, self._snapshot()))

    def _snapshot(self) -> Snapshot:
        worker, number, channel = self._worker, self._number, self._channel
        return Snapshot(
            status=worker.status(),
            waiting=worker.waiting,
            number=number,
            progress=worker.progress,
            step_seconds=worker.step_seconds,
            prefill_seconds=worker.prefill_seconds,
            draft_bytes=worker.draft_bytes,
            files=worker.files,
            memory=worker.memory,
            parallel=self._parallel,
            ranks=() if channel is None else channel.ranks(),
            records=0 if channel is None else channel.records,
            record_bytes=0 if channel is None else channel.record_bytes,
        )

    def _beat(self, seconds: float) -> None:
        """Tells of the load, then how things stand, until the engine ends."""
        try:
            said, worker = "", self._worker
            heard = time.monotonic()
            while worker.state is EngineState.LOADING:
                if said != worker.progress or time.monotonic() - heard >= seconds:
                    said, heard = worker.progress, time.monotonic()
                    self._out.put(Loading(said))
                time.sleep(_LOADING_POLL_SECONDS)
            learnt = None
            if worker.state is not EngineState.FAILED:
                self._out.put(Ready(worker.info, self._snapshot()))
            while worker.state is EngineState.READY:
                if (now := worker.learnt()) is not None and now is not learnt:
                    self._out.put(Learned(now))
                    learnt = now
                self._out.put(self._snapshot())
                time.sleep(seconds)
            if worker.state is EngineState.FAILED:
                if self._channel is not None:
                    self._channel.close(worker.error)
                self.lost(RanksLost(Loss.FAILED, worker.error))
        except BaseException:
            traceback.print_exc()
            _leave(1)

    def _close(self, drain_until: float) -> None:
        worker = self._worker
        ended = worker.close(max(0.0, drain_until - time.monotonic()))
        if not ended:  # its thread is inside a forward, and all requests were told of their end
            self._out.last(Stopped(), _LAST_SECONDS)
            _leave(0)
        if worker.state is EngineState.STOPPED:
            if (learnt := worker.learnt()) is not None:
                self._out.put(Learned(learnt))
            if self._channel is not None:
                self._channel.close()
            self._out.last(Stopped(), _LAST_SECONDS)
            _leave(0)

    def lost(self, error: RanksLost) -> NoReturn:
        """Says why, and ends: what this process waits for may never come."""
        self._out.last(Lost(error.loss, error.message), _LAST_SECONDS)
        _leave(1)


def _leave(code: int) -> NoReturn:
    """What else runs here waits for what may never come."""
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
