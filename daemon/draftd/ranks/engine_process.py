"""An engine in a process of its own: rank 0 of a group, which begins anew where the group is lost.

A group that lost a rank cannot be left within a process, so nothing of it is in this one: no MLX group, no model.
Fronts, health and telemetry go on while it begins anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Protocol

from draftd.core import DecodeRequest, DrafterName, TokenSink
from draftd.engine.cache.pins import Pin
from draftd.engine.checks import check_request, verifier_of
from draftd.engine.handle import EngineHandle, EngineState
from draftd.engine.inbox import Arrival, Inbox
from draftd.engine.limits import Limits
from draftd.engine.memory import MlxMemory
from draftd.engine.observer import EngineObserver, EngineStatus, FanOut, Totals
from draftd.engine.pair import load_tokenizer
from draftd.errors import DraftdError, NotNow, NotServing, in_one_line
from draftd.group import GroupState, GroupStatus, Loss
from draftd.model_info import ModelInfo
from draftd.models.folder import PairFiles
from draftd.models.grammar import Grammars
from draftd.models.tokenizer import Tokenizer
from draftd.ranks.child import ChildListener, EngineChild
from draftd.ranks.models import Models, Share
from draftd.ranks.pipe import Begin, Machine, Snapshot
from draftd.settings.distributed import DistributedSettings
from draftd.strategies import Strategy

if TYPE_CHECKING:
    from draftd.engine.admission import Admission
    from draftd.engine.depth.saved import Learnt

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_WELL_SECONDS = 60.0  # a group that served for so long was lost for another reason than the one before
_BEATS = 8  # signs of life within the bound
_SLOWEST_BEAT_SECONDS = 0.25
_JOIN_SECONDS = 15.0
_NEVER_FULL = 1 << 20  # the queue of the process: that of this one has the limit
_ENDED = "the daemon is draining and takes no more commands"
_ASKED = ("memory_share", "headroom", "available")  # of Limits: of the machine, by this process


class Ranks(Protocol):
    """The other ranks of a group: how they are started and ended. One thread."""

    def start(self) -> Share | None:
        """Starts those that do not run; what rank 0's process must know, None where it is alone. Raises DraftdError or
        OSError where it cannot."""

    def gone(self) -> str:
        """Which of them has ended, and why; empty where none has."""

    def stop(self) -> None:
        """Ends them all; none is left on this machine."""

    def close(self) -> None:
        """No group begins any more."""


class EngineProcess(EngineHandle):
    """Runs the engine in a child process, and a new one where the group was lost."""

    def __init__(
        self,
        models: Models,
        ranks: Ranks,
        settings: DistributedSettings,
        *,
        group: str,
        observers: Sequence[EngineObserver] = (),
        limits: Limits | None = None,
        recall: Callable[[], Learnt | None] = lambda: None,
    ) -> None:
        """`group`: its id. What is learnt is taken over from one start of the group to the next; `recall` is for the
        first."""
        super().__init__()
        self._models, self._ranks, self._settings, self._id = models, ranks, settings, group
        self._totals = Totals()
        self._observer = FanOut(self._totals, *observers)
        self._limits = limits or Limits()
        self._recall = recall
        self._learnt: Learnt | None = None
        self._thread = threading.Thread(target=self._run, name="draftd-ranks", daemon=True)
        self._closing = threading.Event()
        self._child: EngineChild | None = None
        self._inbox = Inbox(1, 1)  # which takes nothing; then the child's
        self._tokenizer: Tokenizer | None = None
        self._grammars: Grammars | None = None
        self._admission: Admission | None = None
        self._info: ModelInfo | None = None
        self._kept: frozenset[DrafterName] | None = None  # as it was asked for last
        self._share: Share | None = None
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

    # what is known of it

    @property
    def info(self) -> ModelInfo:
        self._serving()
        assert self._info is not None
        return self._info

    @property
    def files(self) -> PairFiles:
        return self._serving()[1].files

    @property
    def unloaded(self) -> bool:
        snapshot = self._snapshot
        return snapshot is not None and snapshot.status.unloaded

    @property
    def draft_bytes(self) -> Mapping[DrafterName, int]:
        snapshot = self._snapshot
        return {} if snapshot is None else snapshot.draft_bytes

    @property
    def tokenizer(self) -> Tokenizer:
        """Also while the group begins anew: requests that have ended are still read."""
        if self._tokenizer is None:
            raise self._not_serving()
        return self._tokenizer

    @property
    def grammars(self) -> Grammars | None:
        if self._tokenizer is None:
            raise self._not_serving()
        return self._grammars

    @property
    def memory(self) -> MlxMemory | None:
        snapshot = self._snapshot
        return None if snapshot is None else snapshot.memory

    def learnt(self) -> Learnt | None:
        return self._learnt

    def wake(self) -> None:
        """There are no peers' sequences here."""

    def status(self) -> EngineStatus:
        status, child, snapshot = self._totals.status(), self._child, self._snapshot
        if snapshot is not None:
            there, counted = snapshot.status, status.prefix
            status = replace(
                there,
                counts=status.counts,
                finished=status.finished,
                drafter_errors=status.drafter_errors,
                verifier_errors=status.verifier_errors,
                prefix=replace(
                    there.prefix,
                    lookups=counted.lookups,
                    hits=counted.hits,
                    read_tokens=counted.read_tokens,
                    unfit=counted.unfit,
                    longest_unfit_tokens=counted.longest_unfit_tokens,
                ),
            )
        active, queued = (0, 0) if child is None else child.inbox.counts
        return replace(
            status,
            active=active,
            queued=queued,
            queue_capacity=self._limits.queue_capacity,
            observer_errors=self._observer.errors,
            group=self._group(snapshot),
        )

    def _group(self, snapshot: Snapshot | None) -> GroupStatus:
        at = self._restart_at
        state = {
            EngineState.READY: GroupState.SERVING,
            EngineState.LOADING: GroupState.STARTING if at is None else GroupState.RESTARTING,
        }.get(self.state, GroupState.FAILED)
        return GroupStatus(
            id=self._id,
            state=state,
            backend=self._settings.backend if self._share is None else self._share.plan.backend,
            parallel="" if snapshot is None else snapshot.parallel,
            ranks=() if snapshot is None else snapshot.ranks,
            losses=dict(self._losses),
            reason=self._reason,
            restart_seconds=None if at is None else max(0.0, at - time.monotonic()),
            starts=self._starts,
            records=0 if snapshot is None else snapshot.records,
            record_bytes=0 if snapshot is None else snapshot.record_bytes,
        )

    @property
    def _snapshot(self) -> Snapshot | None:
        child = self._child
        return None if child is None else child.snapshot

    def _serving(self) -> tuple[EngineChild, Snapshot]:
        child = self._child
        if self.state is EngineState.LOADING or child is None or child.snapshot is None:
            raise self._not_serving()
        return child, child.snapshot

    def _not_serving(self) -> NotServing:
        if self.error:
            return NotServing(self.error)
        pause = 0.0 if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())
        told = "the model is still loading" + (f" ({self.progress})" if self.progress else "")
        if self._reason:
            told = f"the ranks of the model were lost, and begin anew: {self._reason}"
        return NotServing(told, retry_after=min(max(1.0, pause + (self.load_seconds or 0.0)), _LONGEST_PAUSE_SECONDS))

    # what is asked of it

    def submit_choices(self, choices: Sequence[tuple[DecodeRequest, TokenSink]]) -> None:
        (child, snapshot), first = self._serving(), choices[0][0]
        assert all(request.prompt is first.prompt for request, _ in choices)
        if first.plan.strategy is not Strategy.LOCAL:
            verifier_of(None)
        check_request(first, self.info)
        assert self._admission is not None
        self._admission.check(first, snapshot.status.kv_cache_bytes + snapshot.status.prefix.bytes)
        try:
            child.inbox.submit(*(Arrival(request, sink) for request, sink in choices))
        except NotServing:
            if self._closing.is_set():
                raise
            raise self._not_serving() from None  # the group was lost just now

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        done = super().keep(drafters)
        self._kept = drafters
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

    # the thread that begins groups

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closing.is_set():
            began, served = time.monotonic(), self._starts
            lost = self._live(began)
            if lost is None or self._closing.is_set():
                break
            loss, self._reason = lost
            self._losses[loss] = self._losses.get(loss, 0) + 1
            if not self._settings.restart or not self._starts:
                self.error = self._reason
                break
            if self._starts > served and time.monotonic() - self._served_from >= _WELL_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            self._restart_at = time.monotonic() + pause
            self.progress = f"the group begins anew in {pause:g} s"
            self.state = EngineState.LOADING
            _log.error("the group was lost (%s): %s", loss, self._reason)
            self._end()
            self._closing.wait(pause)
            self._restart_at = None
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._end()
        self._ranks.close()
        self.state = EngineState.FAILED if self.error else EngineState.STOPPED

    def _live(self, began: float) -> tuple[Loss, str] | None:
        """One start of the group, to its end: why it was lost, or None where it was told to end."""
        try:
            self._share = share = self._ranks.start()
            self._learnt = self._learnt or self._recall()
            child = EngineChild(self._limits, self._child_listener(), self._settings.timeout_seconds)
            child.start(self._begin(share))
            self._child, self._inbox = child, child.inbox
            if self._tokenizer is None:
                self._tokenizer = load_tokenizer(self._models.model)
            child.serve(lambda: self._open(child, began), self._closing.is_set, self._ranks.gone)
        except DraftdError as error:
            return Loss.FAILED, error.message
        except Exception as error:
            _log.exception("the group's process cannot be kept")
            return Loss.FAILED, in_one_line(error)
        return child.loss

    def _begin(self, share: Share | None) -> Begin:
        limits = {one.name: getattr(self._limits, one.name) for one in fields(Limits) if one.name not in _ASKED}
        return Begin(
            self._models,
            share,
            limits | {"queue_capacity": _NEVER_FULL, "prefix_folder": None},
            Machine.of(self._limits),
            self._learnt,
            logging.getLogger("draftd").getEffectiveLevel(),
            min(_SLOWEST_BEAT_SECONDS, self._settings.timeout_seconds / _BEATS),
        )

    def _child_listener(self) -> ChildListener:
        def loading(line: str) -> None:
            self.progress = line

        def learnt(found: Learnt) -> None:
            self._learnt = found

        def told(now: Snapshot) -> None:
            self.step_seconds, self.prefill_seconds = now.step_seconds, now.prefill_seconds
            self.progress = now.progress

        return ChildListener(self._observer, loading, learnt, told, lambda: self._totals.seconds_per_request)

    def _open(self, child: EngineChild, began: float) -> None:
        """It takes requests from here on."""
        from draftd.engine.admission import Admission, Layout  # brings MLX in: after the BLAS that the tokenizer chose

        assert child.ready is not None
        assert self._tokenizer is not None
        info, status = child.ready.info, child.ready.snapshot.status
        layout = Layout(info.position_bytes, info.context_length, info.sequence_bytes)
        self._admission = Admission(layout, status.kv_cache_limit_bytes, self._limits)
        if self._info is None:
            if self._tokenizer.eos_ids != frozenset(info.end_tokens):
                self._tokenizer = load_tokenizer(self._models.model, info.end_tokens)
            self._grammars = self._tokenizer.grammars(info.vocab_size)
        self._info = info
        if self._kept is not None:
            child.keep(self._kept)
        self._served_from, self._starts = time.monotonic(), self._starts + 1
        self.progress, self.load_seconds = "ready", self._served_from - began
        self.state = EngineState.READY

    def _end(self) -> None:
        """What is in hand ends with why, and nothing of the group is left."""
        child, self._child = self._child, None
        if child is not None:
            child.end(NotServing(_ENDED) if self._closing.is_set() else self._not_serving())
        self._ranks.stop()


def _no_pins() -> NotNow:
    return NotNow("no prefix can be pinned: a target over several ranks keeps none on disk (distributed.ranks)")
