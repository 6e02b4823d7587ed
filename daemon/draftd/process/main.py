"""The engine's process: `python -P -m draftd.process.main DESCRIPTOR`.

It has everything of MLX in such a daemon: target, drafts, scheduler, and the group of ranks. A process cannot leave a
group that was lost, so this one then exits. The daemon controls it over the socket pair, and it ends with the
daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from typing import TYPE_CHECKING, Any, NoReturn

from draftd.core import DecodeRequest, DrafterName, FinishReason
from draftd.counts import StepCounts
from draftd.engine.handle import EngineState
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels, ModelPaths
from draftd.engine.ranks.channel import RanksLost
from draftd.errors import DraftdError, EngineFailure, in_one_line
from draftd.group import Loss
from draftd.hardware.system import device
from draftd.models.blas import load_blas
from draftd.models.grammar import CompiledGrammar
from draftd.outcome import Emission, Outcome, RequestStats
from draftd.process import ipc
from draftd.ranks.form import GroupFormation
from draftd.ranks.leader_channel import LeaderChannel
from draftd.ranks.plan import GroupShare
from draftd.ranks.proof import OwnProof

if TYPE_CHECKING:
    from draftd.engine.depth.saved import LearntCosts
    from draftd.engine.ranks.group import RankGroup

_MOST_UNSENT = 1 << 16  # messages; with more, the engine waits for the daemon
_LOADING_POLL_SECONDS = 0.05
_LAST_SECONDS = 2.0  # for the last message to be read


def main() -> None:
    # The daemon handles these signals, and tells this process what to do.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    EngineServer(end).run()


def begin_group(
    share: GroupShare, paths: ModelPaths, announce: Callable[[str], None], on_lost: Callable[[RanksLost], None]
) -> tuple[RankGroup, LeaderChannel]:
    """Waits for the followers and joins them, on the thread that will use MLX. `on_lost`: LeaderChannel's.

    Raises ModelLoadError, GroupRefused with the reason, and RanksLost. If MLX does not join the ranks in time, SIGALRM
    ends the process."""
    plan, settings = share.plan, share.settings
    timeout = settings.timeout_seconds
    with contextlib.closing(OwnProof(paths.model, paths.adapter, os.environ, progress=announce)) as own:
        listener = socket.socket(fileno=share.listener)
        formation = GroupFormation(
            listener, plan, own, key=share.key, group=share.group, timeout_seconds=timeout, announce=announce
        )
        followers = asyncio.run(formation.form())
    announce(f"joining {plan.size} ranks by {plan.backend}")
    with formation.environment.enter(0):
        load_blas()
        from draftd.engine.ranks.group import join_group

        group = join_group(plan.backend)
    channel = LeaderChannel(
        followers,
        host=socket.gethostname(),
        timeout_seconds=timeout,
        start_seconds=settings.start_seconds,
        on_lost=on_lost,
        limit_bytes=device().memory_bytes,
    )
    return group, channel


class Outgoing:
    """Sends messages to the daemon on its own thread: `put` waits only if the daemon does not read at all."""

    def __init__(self, pipe: ipc.MessagePipe) -> None:
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

    def put_last(self, message: Any, seconds: float = _LAST_SECONDS) -> None:
        """Waits until this and all earlier messages are sent, for at most `seconds`: the daemon may not read."""
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
                _exit(1)  # the daemon is gone
            except Exception:
                traceback.print_exc()
                _exit(1)


class RequestSink:
    """Sends one request's tokens and outcome to the daemon. Keeps its compiled grammar while the request runs."""

    def __init__(self, name: str, put: Callable[[Any], None], grammar: CompiledGrammar | None) -> None:
        self._name, self._put, self._grammar = name, put, grammar

    def on_tokens(self, emission: Emission) -> None:
        self._put(ipc.Tokens(self._name, emission))

    def on_finish(self, outcome: Outcome) -> None:
        self._put(ipc.RequestFinished(self._name, outcome))


class CallObserver(EngineObserver):
    """Sends each call to the daemon, whose observers identify requests by id, and learn of a request's end from its
    sink."""

    def __init__(self, put: Callable[[Any], None]) -> None:
        self._put = put

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        self._put(ipc.ObserverCall(request.id, "on_step", (result, gap)))

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        self._put(ipc.ObserverCall(request.id, "on_drafter_error", (drafter, message)))

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        self._put(ipc.ObserverCall(request.id, "on_verifier_error", (message,)))


class LogForwarder(logging.Handler):
    """Sends log lines to the daemon, which writes them in its format."""

    def __init__(self, put: Callable[[Any], None]) -> None:
        super().__init__()
        self._put = put
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._put(ipc.LogLine(record.name, record.levelno, self.format(record)))


class EngineServer:
    """Runs one engine for the daemon, and ends with it."""

    def __init__(self, end: socket.socket) -> None:
        self._pipe = ipc.MessagePipe(end, lambda: self._worker.tokenizer)
        self._out = Outgoing(self._pipe)
        self._number = 0  # number of the last submission that the engine has
        self._memory: ipc.MachineMemory
        self._worker: EngineWorker
        self._channel: LeaderChannel | None = None
        self._parallel = ""

    def run(self) -> NoReturn:
        try:
            (begin,) = self._pipe.receive()
        except OSError:
            _exit(1)
        assert isinstance(begin, ipc.Begin)
        logging.basicConfig(handlers=[LogForwarder(self._out.put)], level=logging.WARNING, force=True)
        logging.getLogger("draftd").setLevel(begin.log_level)
        self._memory = begin.memory
        self._worker = EngineWorker(
            begin.paths if begin.share is None else partial(self._load, begin.paths, begin.share),
            observers=(CallObserver(self._out.put),),
            limits=Limits(
                **begin.limits,
                memory_share=lambda: self._memory.memory_share,
                headroom=lambda: self._memory.headroom,
                available=lambda: self._memory.available,
            ),
            recall=lambda: begin.learnt,
        )
        self._worker.start()
        threading.Thread(target=self._beat, args=(begin.beat_seconds,), name="draftd-beat", daemon=True).start()
        try:
            while True:
                for message in self._pipe.receive():
                    self._take(message)
        except OSError:
            _exit(1)  # the daemon is gone
        except BaseException:
            traceback.print_exc()
            _exit(1)

    def _load(self, paths: ModelPaths, share: GroupShare, progress: Callable[[str], None]) -> LoadedModels:
        """Joins the other ranks and loads this one's part. On the engine's thread."""
        group, self._channel = begin_group(share, paths, progress, self.lose)
        loaded = paths(progress, group=group, sender=self._channel)
        assert loaded.ranks is not None
        loaded.ranks.on_lost = self.lose
        self._parallel = loaded.ranks.part.parallel
        return loaded

    def _take(self, message: Any) -> None:
        match message:
            case ipc.Submit():
                self._submit(message)
            case ipc.EndRequests():
                for name, reason in message.reasons.items():
                    self._worker.cancel(name, reason)
            case ipc.MethodCall():
                self._call(message)
            case ipc.MachineMemory():
                self._memory = message
            case ipc.Drain():
                threading.Thread(target=self._drain, args=(message.until,), daemon=True).start()

    def _submit(self, message: ipc.Submit) -> None:
        choices = message.choices
        try:
            compiled = None
            if grammar := choices[0].grammar:
                # Compiled here already, so that the engine's thread need not.
                assert self._worker.grammars is not None
                compiled, _ = self._worker.grammars.compile(grammar)
            arrivals = [(choice, RequestSink(choice.id, self._out.put, compiled)) for choice in choices]
            self._worker.submit_choices(arrivals)
        except Exception as error:
            refused = error if isinstance(error, DraftdError) else EngineFailure(in_one_line(error))
            for choice in choices:
                now, tokens = time.monotonic(), len(choice.prompt)
                stats = RequestStats(prompt_tokens=tokens, arrival=choice.arrival, finished=now)
                outcome = Outcome(FinishReason.ERROR, stats, error=refused.message, refused=refused)
                self._out.put(ipc.RequestFinished(choice.id, outcome))
        self._number = message.number

    def _call(self, call: ipc.MethodCall) -> None:
        try:
            result = getattr(self._worker, call.method)(*call.arguments)
        except DraftdError as error:
            self._out.put(ipc.MethodResult(call.number, None, error, None))
            return
        if isinstance(result, Future):
            result.add_done_callback(lambda done: self._answer(call.number, done))

    def _answer(self, number: int, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, DraftdError):
            error = EngineFailure(in_one_line(error))
        # With a snapshot, because the caller reads the loaded drafts next.
        self._out.put(ipc.MethodResult(number, None if error is not None else done.result(), error, self._snapshot()))

    def _snapshot(self, learnt: LearntCosts | None = None) -> ipc.EngineSnapshot:
        worker, number, channel = self._worker, self._number, self._channel
        if worker.state is EngineState.LOADING or worker.error:
            return ipc.EngineSnapshot(progress=worker.progress)
        return ipc.EngineSnapshot(
            info=worker.info,
            learnt=learnt,
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
        """Sends snapshots until the engine ends."""
        try:
            worker, learnt = self._worker, None
            while (state := worker.state) in (EngineState.LOADING, EngineState.READY):
                before, learnt = learnt, worker.learnt()
                self._out.put(self._snapshot(None if learnt is before else learnt))
                time.sleep(_LOADING_POLL_SECONDS if state is EngineState.LOADING else seconds)
            if worker.state is EngineState.FAILED:
                if self._channel is not None:
                    self._channel.close(worker.error)
                self.lose(RanksLost(Loss.FAILED, worker.error))
        except BaseException:
            traceback.print_exc()
            _exit(1)

    def _drain(self, until: float) -> None:
        worker = self._worker
        if worker.close(max(0.0, until - time.monotonic())):
            if worker.state is not EngineState.STOPPED:
                return  # `_beat` says why
            if self._channel is not None:
                self._channel.close()
        # Otherwise its thread is inside a forward, and has reported the end of all requests.
        self._out.put_last(ipc.EngineEnded(learnt=worker.learnt()))
        _exit(0)

    def lose(self, error: RanksLost) -> NoReturn:
        """Reports the loss, and exits at once: other threads may be blocked forever."""
        self._out.put_last(ipc.EngineEnded(error.loss, error.message))
        _exit(1)


def _exit(code: int) -> NoReturn:
    """Exits without cleanup: other threads may be blocked forever."""
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
