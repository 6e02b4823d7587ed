"""The fallback's controller: it looks at all there is, moves the ladder, and does what follows from it.

A thread of its own looks now and then. Alerts, operators and the service ask on theirs, each with a look that follows;
one at a time. The engine reports here. A step down is saved before it is made, a step up after it: a process that is
killed in between comes back as it was, or one step safer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftd.clocks import SteadyClock
from draftd.core import GRAMMAR, DrafterName, FallbackLevel, LadderLevel
from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError, InvalidRequest, NotServing, QueueFull
from draftd.fallback.baselines import frozen_baselines
from draftd.fallback.ladder import Cause, Hold, Ladder, Signal
from draftd.fallback.leases import Applied, Lease, Notice
from draftd.fallback.loaded_drafters import LoadedDrafters, missing_drafters
from draftd.fallback.probe_runner import ProbeRunner
from draftd.fallback.probe_schedule import ProbeSchedule
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.remote_guard import RemoteAnswer, RemoteGuard, RemoteState
from draftd.fallback.saved_state import SavedState
from draftd.fallback.signal_feed import DraftFailure, MachineFeed, RequestFeed
from draftd.fallback.signals import SignalState
from draftd.fallback.store import StateStore
from draftd.hardware.state import HardwareView
from draftd.journal import Journal, Subject
from draftd.rate_limited_log import OutageLog
from draftd.settings import FallbackSettings
from draftd.strategies import RemoteLevel
from draftd.threads import lasting

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0  # an answer takes so long at most: a look takes milliseconds, and saving may take a second
_RETRY_SECONDS = 1.0
_LONGEST_SLEEP = 1.0
_SLEPT_SECONDS = 1.0  # two clocks that are read one after the other differ by less
_SET_SECONDS = 1.0  # what a wall clock that is kept right may differ from the ladder's
_LOOK_BACK = 1024  # transitions, for the last one of the level
_OTHER_DRAFT = "it is another draft: what was learnt from the old one is forgotten"


@dataclass(frozen=True, slots=True)
class FallbackState:
    """Times are seconds since 1970, by the wall clock of now; `wait` is how long this level must have been in force
    before a step up. `state_file` None: nothing is kept over a restart; `unsaved`: why the file has not what is here.
    `missing`: drafters of the ladder that cannot be had here, and why. `drift`: by workload class, the CUSUM over its
    limit. `probe` and `canaries` are the last ones. `remote` None: this daemon has none. `since` 0: the ladder has not
    moved yet. `loading`: what is in memory, and what is missing, is not known."""

    ladder: tuple[LadderLevel, ...]
    position: int
    since: float
    signal: Signal | None  # of the last step
    hold: Hold | None
    signals: tuple[Signal, ...]  # now
    leases: tuple[Lease, ...]
    wait: float
    relapses: int
    loaded_drafters: frozenset[DrafterName]
    draft_weight_bytes: int
    state_file: Path | None
    unsaved: str = ""
    missing: Mapping[DrafterName, str] = field(default_factory=dict)
    drift: Mapping[str, float] = field(default_factory=dict)
    probe: ProbeReport | None = None
    canaries: CanaryReport | None = None
    remote: RemoteState | None = None
    loading: bool = False


class Controller:
    """Takes up the level of the last run as soon as it is made, and moves from `start` to `close`. Any thread.

    `drafters` is what `runner` borrows from, `requests` what the engine reports to; `store` is of these models alone.
    Raises ConfigError for a file of baselines that cannot be read.
    """

    def __init__(
        self,
        ladder: Ladder[LadderLevel],
        engine: EngineHandle,
        *,
        runner: ProbeRunner,
        drafters: LoadedDrafters,
        requests: RequestFeed,
        hardware: HardwareView,
        settings: FallbackSettings,
        lease_seconds: float,
        journal: Journal,
        store: StateStore,
        clock: SteadyClock | None = None,
        remote: RemoteGuard | None = None,
    ) -> None:
        self._ladder, self._engine, self._drafters, self._requests = ladder, engine, drafters, requests
        self._journal, self._lease_seconds = journal, lease_seconds
        self._clock = clock if clock is not None else SteadyClock()
        self._levels, now = ladder.levels, self._clock()
        self._saved_state = SavedState(store, self._levels, runner.baselines)
        saved = self._saved_state.restore(now)
        self._frozen = frozen_baselines(settings.baseline)
        baselines = {**saved.baselines, **self._frozen}
        self._guard = SignalState.new(settings, baselines, quality=saved.quality, position=saved.ladder.position)
        self._machine = MachineFeed(hardware, self._clock.awake)
        self._schedule = ProbeSchedule(runner, engine, self._levels, settings, ladder.settings, now)
        self._leases = saved.leases
        self._remote, self._answers = remote, list[RemoteAnswer]()  # of it, since the last look
        if remote is not None:
            remote.restore(saved.remote)
        self._signals: tuple[Signal, ...] = ()
        ladder.resume(saved.ladder)
        self._reconcile()
        drafters.hold(ladder.level)
        self._state = self._shown()
        self._sleep = min(_LONGEST_SLEEP, settings.window_seconds / 10, settings.cooldown_seconds / 4)
        self._lock = threading.Lock()  # guards all of it but the state that is shown
        self._reloads: list[tuple[Future[int], bool, Future[int]]] = []  # is being read, forget, and who waits for it
        self._closing = threading.Event()
        self._outage = OutageLog(log)
        self._thread = lasting("draftd-fallback", self._run, self._closing)

    def start(self) -> None:
        """Begins to move."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Moves no more, and saves what is. False where the thread did not end in time: it is left behind."""
        self._closing.set()
        self._requests.woken.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def state(self) -> FallbackState:
        """Returns the state as of the last look."""
        return self._state

    # What is asked for from outside. Raises QueueFull where it cannot be done soon, NotServing once it is closed.

    def notices(self, notices: Sequence[Notice]) -> list[Applied]:
        """What became of each; it is obeyed then, and on the disk unless the state says why not."""
        results: list[Applied] = []
        with self._locked_look() as now:
            for notice in notices:
                self._leases, applied = self._leases.apply(notice, now, self._lease_seconds)
                results.append(applied)
        return results

    def apply_poll(self, firing: Sequence[Notice]) -> None:
        """Applies the alerts that the polled source lists as firing."""
        with self._locked_look() as now:
            self._leases = self._leases.reconcile(firing, now, self._lease_seconds)

    def hold(self, level: FallbackLevel | RemoteLevel, expires_in: float | None) -> None:
        """Down it is obeyed when this returns; up as soon as the weights are there. `expires_in` is in seconds; None is
        until it is released. Raises InvalidRequest for a level of the remote where there is none."""
        with self._locked_look() as now:
            until = None if expires_in is None else now + expires_in
            if not isinstance(level, RemoteLevel):
                self._ladder.hold(level, until)
            elif self._remote is not None:
                self._remote.ladder.hold(level, until)
            else:
                raise InvalidRequest("level", level.label, "a level of the ladder: this daemon has no remote")

    def release(self) -> bool:
        """Ends the holds of the ladder and of the remote. Whether there was one."""
        with self._locked_look() as now:
            remote = self._remote is not None and self._remote.ladder.release(now)
            return self._ladder.release(now) or remote

    def probe(self) -> Future[ProbeReport]:
        """Tries the level above. Raises NotNow where there is none, or while something is tried out."""
        with self._locked_look():
            running = self._schedule.probe_now(self._ladder.state)
        running.add_done_callback(self._wake)
        return running

    def canaries(self) -> Future[CanaryReport]:
        """Runs the canaries. Raises NotNow while something is tried out."""
        with self._locked_look():
            running = self._schedule.canaries_now()
        running.add_done_callback(self._wake)
        return running

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        """Reads the draft's weights anew, and never waits; ends with their bytes, once requests of the old ones count
        no more. The baselines that were learnt of them stay, which the new ones must meet, unless `forget` says that
        this is another draft."""
        read, done = self._engine.reload_draft(), Future[int]()
        self._reloads.append((read, forget, done))
        read.add_done_callback(self._wake)  # on the engine's thread, which must not wait for a look
        return done

    @contextmanager
    def _locked_look(self) -> Iterator[float]:
        """What is asked is done within, at the ladder's time that it gives; a look at its end obeys it and saves it."""
        if not self._lock.acquire(timeout=_ANSWER_SECONDS):
            raise QueueFull("the fallback is busy", retry_after=_RETRY_SECONDS)
        try:
            if self._closing.is_set():
                raise NotServing("the daemon is stopping")
            now = self._clock()
            yield now
            if (failed := self._look_once(now)) is not None:
                raise failed
        finally:
            self._lock.release()

    def _wake(self, _: Future[Any]) -> None:
        self._requests.woken.set()

    # All below holds the lock. Times are the ladder's clock; `now` never goes back. Nothing waits for the engine.

    def _run(self) -> None:
        while not self._closing.is_set():
            self._requests.woken.wait(self._sleep)
            self._requests.woken.clear()
            self.tick()
        self.tick()  # saves what was asked meanwhile

    def tick(self) -> None:
        """One look, and what follows."""
        with self._lock:
            self._look_once(self._clock())

    def _look_once(self, now: float) -> QueueFull | None:
        """One look, and what follows; the error where that fails: nothing of it is in force yet, nor saved."""
        reloads = [reload for reload in self._reloads if reload[0].done()]
        failed: QueueFull | None = None
        try:
            for read, forget, _ in reloads:
                if read.exception() is None:
                    self._reset_signals(forget, now)
            self._look(now)
            self._state = self._shown()
            self._outage.clear("checks of the fallback succeed again")
        except Exception as error:
            text = "a check of the fallback failed; it continues, and further failures are not logged"
            self._outage.report(text, type(error).__name__, level=logging.ERROR, error=error)
            failed = QueueFull("a check of the fallback failed; the log says why", retry_after=_RETRY_SECONDS)
        for reload in reloads:
            self._reloads.remove(reload)
            read, _, done = reload
            with suppress(InvalidStateError):  # its caller has given up
                if (why := failed or read.exception()) is not None:
                    done.set_exception(why)
                else:
                    done.set_result(read.result())
        return failed

    def _reset_signals(self, forget: bool, now: float) -> None:
        self._guard = self._guard.on_step(now, self._ladder.state.position)
        if forget:
            self._guard = self._guard.forget(self._frozen)
            self._schedule.forget(now)
            self._ladder.note("reload", _OTHER_DRAFT)
            log.info("the draft was read again: %s", _OTHER_DRAFT)
        self._schedule.on_reload(now)

    def _look(self, now: float) -> None:
        """Takes in all there is, and takes one step at most."""
        self._drafters.refresh()
        if slept := self._clock.slept() >= _SLEPT_SECONDS:
            self._guard = self._guard.woken()
        self._observe(now)
        if (report := self._schedule.collect(now)) is not None:
            self._guard = self._guard.canaries(report)
        self._leases = self._leases.expire(now)
        self._signals = (*self._borne_out(self._guard.signals(now), now), *self._leases.signals())
        self._move(now)
        if self._remote is not None:
            self._remote.look(self._answers, self._leases.remote_signals(), now, self._clock.of, slept=slept)
            self._answers.clear()
        self._schedule.consider(self._ladder.state, self._signals, now)
        self._save(now)

    def _observe(self, now: float) -> None:
        """Takes in requests, failures and the machine. Only requests of the level in force count, that began since it
        is so."""
        guard, level = self._guard, self._ladder.level
        for event in self._requests.take():
            at = min(self._clock.of(event.at), now)
            if isinstance(event, RemoteAnswer):
                self._answers.append(event)
            elif isinstance(event, DraftFailure):
                guard = guard.add_failure(event.cause, at)
            elif (
                event.level is level.kind
                and event.max_draft_tokens <= level.max_draft_tokens
                and self._clock.of(event.arrival) >= guard.since
            ):
                guard = guard.add_request(at, event.drafter, event.workload, event.counts)
        if (reading := self._machine.reading()) is not None:
            guard = guard.machine(reading, now)
        self._guard = guard.advance(now)

    def _borne_out(self, signals: Sequence[Signal], now: float) -> Sequence[Signal]:
        """Drift asks for nothing until a probe of the level in force was made. Where frozen prompts are accepted as
        ever, the traffic has changed: its baseline is learnt anew."""
        drift = next((signal for signal in signals if signal.cause is Cause.ACCEPTANCE_DRIFT), None)
        kind = None if drift is None else self._guard.worst_drift(now)
        if drift is None or kind is None:
            self._schedule.traffic_changed(None, now)
            return signals
        changed = self._schedule.traffic_changed(replace(self._ladder.level, drafter=kind[0]), now)
        if changed:
            self._guard = self._guard.relearn(kind)
            why = "frozen prompts are accepted as before: the traffic has changed, its baseline is learnt again"
            self._ladder.note("traffic_changed", f"{drift.evidence}; {why}")
        return signals if changed is False else [other for other in signals if other is not drift]

    def _move(self, now: float) -> None:
        ladder = self._ladder
        before = ladder.state.position
        after = ladder.next_state(self._signals, self._schedule.permit(ladder.state, now), now)
        position, level, down = after.position, self._levels[after.position], after.position > before
        if position < before and not self._drafters.ready(level, now, ladder.settings.cooldown):
            return  # the ladder is as it was: the next move is the same, unless a signal speaks against it
        signal = ladder.take(after)
        if signal is None:
            self._drafters.hold(level)
            return
        self._guard = self._guard.on_step(now, position)
        self._schedule.on_step(now)
        if down:
            self._save(now)
        ladder.move(position, signal)
        if down and signal.hard:
            self._lower(position, signal)
        self._drafters.hold(level, revoke=down and signal.hard)
        if not down:
            self._save(now)

    def _lower(self, position: int, signal: Signal) -> None:
        """Running requests are bound by it too."""
        level = self._levels[position]
        try:
            if level.kind >= FallbackLevel.SHORT_BLOCK:
                allowed = frozenset(self._engine.info.drafters)
            else:  # its own drafter and those lighter than it
                allowed = frozenset(lower.drafter for lower in self._levels[position:] if lower.drafter is not None)
                allowed |= {GRAMMAR} if allowed else set()  # which costs nothing
            self._engine.lower(level.max_draft_tokens, allowed, f"ladder: {signal.cause}")
        except Exception as error:
            log.warning("running requests keep their plans: %s", error)

    def _save(self, now: float) -> None:
        guard = self._guard
        self._saved_state.keep(
            now,
            self._ladder.state,
            leases=self._leases,
            baselines=guard.learnt(),
            quality=guard.quality,
            remote=None if self._remote is None else self._remote.ladder.state,
        )

    def _reconcile(self) -> None:
        """A process that was killed between a step and its saving left a journal that ends elsewhere: it is told which
        level is in force now."""
        last = next(
            (
                transition
                for transition in reversed(self._journal.latest(_LOOK_BACK))
                if transition.subject is Subject.LEVEL
            ),
            None,
        )
        label, signal = self._ladder.level.label, self._ladder.state.signal
        if last is not None and last.current != label:
            cause, evidence = (signal.cause, signal.evidence) if signal is not None else ("restart", "")
            self._journal.record(Subject.LEVEL, last.current, label, cause, evidence)

    @property
    def _loading(self) -> bool:
        try:
            _ = self._engine.info
        except DraftdError:
            return True
        return False

    def _shown(self) -> FallbackState:
        engine, ahead = self._engine.status(), self._clock.ahead
        if abs(ahead) < _SET_SECONDS:
            ahead = 0.0
        ladder = self._ladder.state.shift_clock(ahead)
        leases = [replace(lease, until=lease.until + ahead) for lease in self._leases.held.values()]
        return FallbackState(
            ladder=self._levels,
            position=self._ladder.position,
            since=ladder.since,
            signal=ladder.signal,
            hold=ladder.hold,
            signals=self._signals,
            leases=tuple(leases),
            wait=self._ladder.wait,
            relapses=ladder.relapses,
            loaded_drafters=engine.loaded,
            draft_weight_bytes=engine.draft_weight_bytes,
            state_file=self._saved_state.path,
            unsaved=self._saved_state.unsaved,
            missing=missing_drafters(self._levels, self._engine),
            drift=self._guard.drift(),
            probe=self._schedule.probed,
            canaries=self._schedule.tested,
            loading=self._loading,
            remote=None if self._remote is None else self._remote.state(ahead),
        )
