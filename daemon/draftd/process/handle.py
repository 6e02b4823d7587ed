"""An engine in its own process, which is started again after it was lost, or the group in which it is rank 0.

A process cannot leave a group that lost a rank, so this one has neither MLX's group nor the model. Fronts, health and
telemetry continue while the engine restarts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Protocol

from draftd.core import DecodeRequest, DrafterName
from draftd.engine.cache.pins import Pin
from draftd.engine.handle import EngineHandle, EngineState, check_request, verifier_of
from draftd.engine.inbox import Arrival, Inbox
from draftd.engine.limits import Limits
from draftd.engine.memory import MlxMemory
from draftd.engine.observer import EngineObserver, EngineStatus, FanOut, Totals
from draftd.engine.pair import ModelPaths, load_tokenizer
from draftd.errors import DraftdError, NotNow, NotServing, in_one_line
from draftd.group import GroupState, GroupStatus, Loss
from draftd.model_info import ModelInfo
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import PairFiles
from draftd.models.grammar import Grammars
from draftd.models.tokenizer import Tokenizer
from draftd.outcome import TokenSink
from draftd.process import ipc
from draftd.process.child import EngineChild
from draftd.ranks.plan import GroupShare
from draftd.settings.distributed import DistributedSettings
from draftd.strategies import Strategy

if TYPE_CHECKING:
    from draftd.engine.admission import Admission
    from draftd.engine.depth.saved import LearntCosts

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_STABLE_SECONDS = 60.0  # after this long, a loss does not count as a repetition
_BEATS = 8  # snapshots within the timeout
_SLOWEST_BEAT_SECONDS = 0.25
_JOIN_SECONDS = 15.0
_NEVER_FULL = 1 << 20  # the child's queue capacity: the queue of this process has the limit
_DRAINING = "the daemon is draining and takes no more commands"


class OtherRanks(Protocol):
    """Starts and ends the other ranks of a group. One thread."""

    def start(self) -> GroupShare | None:
        """Starts the ranks that are not running. Returns what rank 0's process needs to know; None if rank 0 is alone.
        Raises DraftdError or OSError."""

    def describe_exit(self) -> str:
        """Describes which rank has exited and why; empty if all run."""

    def stop(self) -> None:
        """Ends all other ranks on this machine."""

    def close(self) -> None:
        """Prevents any later start of a group."""


class EngineProcess(EngineHandle):
    """Runs the engine in a child process, and in a new one after a loss."""

    def __init__(
        self,
        paths: ModelPaths,
        ranks: OtherRanks,
        settings: DistributedSettings,
        *,
        group: str,
        observers: Sequence[EngineObserver] = (),
        limits: Limits | None = None,
        recall: Callable[[], LearntCosts | None] = lambda: None,
        fingerprints: Fingerprints | None = None,
    ) -> None:
        """`group`: its id. `recall` returns the costs learnt before; later starts get the latest ones from this
        object."""
        super().__init__(fingerprints)
        self._paths, self._ranks, self._settings, self._id = paths, ranks, settings, group
        self._totals = Totals()
        self._observer = FanOut(self._totals, *observers)
        self._limits = limits or Limits()
        self._recall = recall
        self._learnt: LearntCosts | None = None
        self._thread = threading.Thread(target=self._run, name="draftd-ranks", daemon=True)
        self._closing = threading.Event()
        self._child: EngineChild | None = None
        self._inbox = Inbox(1, 1)  # closed; later the child's
        self._tokenizer: Tokenizer | None = None
        self._grammars: Grammars | None = None
        self._admission: Admission | None = None
        self._info: ModelInfo | None = None
        self._drafters: frozenset[DrafterName] | None = None  # the drafters of the last `keep`
        self._share: GroupShare | None = None
        self._losses: dict[Loss, int] = {}
        self._reason = ""
        self._starts, self._served_from = 0, 0.0
        self._restart_at: float | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self, drain_seconds: float = 0.0) -> bool:
        self._closing.set()
        if (child := self._child) is not None:
            child.inbox.close(time.monotonic() + drain_seconds)
        if self._thread.is_alive():
            self._thread.join(drain_seconds + _JOIN_SECONDS)
        return not self._thread.is_alive()

    # the engine's state

    @property
    def info(self) -> ModelInfo:
        self._serving()
        assert self._info is not None
        return self._info

    @property
    def files(self) -> PairFiles:
        return self._serving().snapshot.files

    @property
    def unloaded(self) -> bool:
        return self._snapshot.status.unloaded

    @property
    def draft_bytes(self) -> Mapping[DrafterName, int]:
        return self._snapshot.draft_bytes

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, available while the engine restarts too: texts of ended requests are still decoded."""
        if self._tokenizer is None:
            raise self._not_serving()
        return self._tokenizer

    @property
    def grammars(self) -> Grammars | None:
        _ = self.tokenizer
        return self._grammars

    @property
    def memory(self) -> MlxMemory | None:
        return self._snapshot.memory

    def learnt(self) -> LearntCosts | None:
        return self._learnt

    def wake(self) -> None:
        """Does nothing: an engine in its own process verifies for no other daemon, so no step of a peer can arrive."""

    def status(self) -> EngineStatus:
        total, child, snapshot = self._totals.status(), self._child, self._snapshot
        prefix = replace(
            snapshot.status.prefix,
            lookups=total.prefix.lookups,
            hits=total.prefix.hits,
            read_tokens=total.prefix.read_tokens,
            unfit=total.prefix.unfit,
            longest_unfit_tokens=total.prefix.longest_unfit_tokens,
        )
        active, queued = (0, 0) if child is None else child.inbox.counts
        return replace(
            snapshot.status,
            counts=total.counts,
            finished=total.finished,
            drafter_errors=total.drafter_errors,
            verifier_errors=total.verifier_errors,
            prefix=prefix,
            active=active,
            queued=queued,
            queue_capacity=self._limits.queue_capacity,
            observer_errors=self._observer.errors,
            group=self._group_status(snapshot),
        )

    def _group_status(self, snapshot: ipc.EngineSnapshot) -> GroupStatus:
        at = self._restart_at
        state = {
            EngineState.READY: GroupState.SERVING,
            EngineState.LOADING: GroupState.STARTING if at is None else GroupState.RESTARTING,
        }.get(self.state, GroupState.FAILED)
        return GroupStatus(
            id=self._id,
            state=state,
            backend=self._settings.backend if self._share is None else self._share.plan.backend,
            parallel=snapshot.parallel,
            ranks=snapshot.ranks,
            losses=dict(self._losses),
            reason=self._reason,
            restart_seconds=None if at is None else max(0.0, at - time.monotonic()),
            starts=self._starts,
            records=snapshot.records,
            record_bytes=snapshot.record_bytes,
        )

    @property
    def _snapshot(self) -> ipc.EngineSnapshot:
        child = self._child
        return ipc.EngineSnapshot() if child is None else child.snapshot

    def _serving(self) -> EngineChild:
        child = self._child
        if self.state is EngineState.LOADING or child is None or child.snapshot.info is None:
            raise self._not_serving()
        return child

    def _not_serving(self) -> NotServing:
        if self.error:
            return NotServing(self.error)
        pause = 0.0 if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())
        why = "the model is still loading" + (f" ({self.progress})" if self.progress else "")
        if self._reason:
            why = f"the ranks of the model were lost and start again: {self._reason}"
        return NotServing(why, retry_after=min(max(1.0, pause + (self.load_seconds or 0.0)), _LONGEST_PAUSE_SECONDS))

    # requests and commands

    def submit_choices(self, choices: Sequence[tuple[DecodeRequest, TokenSink]]) -> None:
        child, first = self._serving(), choices[0][0]
        assert all(request.prompt is first.prompt for request, _ in choices)
        if first.plan.strategy is not Strategy.LOCAL:
            verifier_of(None)
        check_request(first, self.info)
        assert self._admission is not None
        status = child.snapshot.status
        self._admission.check(first, status.kv_cache_bytes + status.prefix.bytes)
        try:
            child.inbox.submit(*(Arrival(request, sink) for request, sink in choices))
        except NotServing:
            if self._closing.is_set():
                raise
            raise self._not_serving() from None  # the engine was just lost

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        done = super().keep(drafters)
        self._drafters = drafters
        return done

    def pin_prefix(self, name: str, tokens: tuple[int, ...]) -> Future[Pin]:
        self._serving()
        raise _no_pins()

    def pins(self) -> list[tuple[Pin, int, bool]]:
        self._serving()
        return []

    def drop_prefix(self, name: str) -> Future[None]:
        self._serving()
        raise _no_pins()

    # the thread that starts the engine

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closing.is_set():
            began, starts = time.monotonic(), self._starts
            lost = self._run_child(began)
            if lost is None or self._closing.is_set():
                break
            loss, self._reason = lost
            self._losses[loss] = self._losses.get(loss, 0) + 1
            if not self._settings.restart or not self._starts:
                self.error = self._reason
                break
            if self._starts > starts and time.monotonic() - self._served_from >= _STABLE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            self._restart_at = time.monotonic() + pause
            self.progress = f"the group starts again in {pause:g} s"
            self.state = EngineState.LOADING
            _log.error("the group was lost (%s): %s", loss, self._reason)
            self._end_child()
            self._closing.wait(pause)
            self._restart_at = None
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._end_child()
        self._ranks.close()
        self.state = EngineState.FAILED if self.error else EngineState.STOPPED

    def _run_child(self, began: float) -> tuple[Loss, str] | None:
        """Runs one process to its end. Returns why it was lost; None if the end was intended."""
        try:
            self._share = share = self._ranks.start()
            self._learnt = self._learnt or self._recall()
            child = EngineChild(self._limits, self._observer, self._totals, self._note, self._settings.timeout_seconds)
            child.start(self._first_message(share))
            self._child, self._inbox = child, child.inbox
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self._paths.model)
            child.serve(lambda: self._open(child, began), self._closing.is_set, self._ranks.describe_exit)
        except DraftdError as error:
            return Loss.FAILED, error.message
        except Exception as error:
            _log.exception("the engine's process cannot be run")
            return Loss.FAILED, in_one_line(error)
        return child.loss

    def _first_message(self, share: GroupShare | None) -> ipc.Begin:
        names = [field.name for field in fields(Limits) if field.name not in ipc.MachineMemory._fields]
        limits = {name: getattr(self._limits, name) for name in names}
        return ipc.Begin(
            self._paths,
            share,
            limits | {"queue_capacity": _NEVER_FULL, "prefix_folder": None},
            ipc.MachineMemory.read(self._limits),
            self._learnt,
            logging.getLogger("draftd").getEffectiveLevel(),
            min(_SLOWEST_BEAT_SECONDS, self._settings.timeout_seconds / _BEATS),
        )

    def _note(self, message: ipc.EngineSnapshot | ipc.EngineEnded) -> None:
        self._learnt = message.learnt or self._learnt
        if isinstance(message, ipc.EngineSnapshot):
            self.step_seconds, self.prefill_seconds = message.step_seconds, message.prefill_seconds
            self.progress = message.progress

    def _open(self, child: EngineChild, began: float) -> None:
        """Opens the engine for requests."""
        from draftd.engine.admission import Admission, Layout  # imports MLX: after the tokenizer has chosen the BLAS

        info, status = child.snapshot.info, child.snapshot.status
        assert info is not None
        assert self._tokenizer is not None
        layout = Layout(info.position_bytes, info.context_length, info.sequence_bytes)
        self._admission = Admission(layout, status.kv_cache_limit_bytes, self._limits)
        if self._info is None:
            if self._tokenizer.eos_ids != frozenset(info.end_tokens):
                self._tokenizer = load_tokenizer(self._paths.model, info.end_tokens)
            self._grammars = self._tokenizer.grammars(info.vocab_size)
        self._info = info
        if self._drafters is not None:
            child.keep(self._drafters)
        self._served_from, self._starts = time.monotonic(), self._starts + 1
        self.progress, self.load_seconds = "ready", self._served_from - began
        self.state = EngineState.READY

    def _end_child(self) -> None:
        """Ends the process, its requests and the other ranks."""
        child, self._child = self._child, None
        if child is not None:
            child.end(NotServing(_DRAINING) if self._closing.is_set() else self._not_serving())
        self._ranks.stop()


def _no_pins() -> NotNow:
    return NotNow("no prefix can be pinned: a target over several ranks keeps none on disk (distributed.ranks)")
