"""The fallback's controller: reads all inputs, moves the ladder, and applies the consequences.

Its thread takes a look periodically; alerts, operators and the service make requests on their own threads, each
followed by a look, one at a time. A step down is saved before it is made, a step up after it: a process killed in
between restarts at the same level or one step safer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from draftd.clocks import SteadyClock
from draftd.core import GRAMMAR, FallbackLevel, LadderLevel
from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError, InvalidRequest, NotServing, QueueFull
from draftd.fallback.baselines import frozen_baselines
from draftd.fallback.ladder import Cause, Ladder, Signal
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.loaded_drafters import LoadedDrafters, missing_drafters, needed_drafters
from draftd.fallback.probe_runner import ProbeRunner
from draftd.fallback.probe_schedule import ProbeSchedule
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.remote_guard import RemoteAnswer, RemoteGuard
from draftd.fallback.saved_state import SavedState
from draftd.fallback.signal_feed import DraftFailure, MachineFeed, RequestFeed
from draftd.fallback.signals import SignalState
from draftd.fallback.state import FallbackState
from draftd.fallback.store import StateStore
from draftd.hardware.state import HardwareView
from draftd.journal import Journal, Subject
from draftd.rate_limited_log import OutageLog
from draftd.settings import FallbackSettings
from draftd.strategies import RemoteLevel
from draftd.threads import restarting_thread

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0  # the longest wait for a look: it takes milliseconds, and saving up to a second
_RETRY_SECONDS = 1.0
_LONGEST_SLEEP = 1.0
_SLEPT_SECONDS = 1.0  # two clocks read one after the other differ by less
_SET_SECONDS = 1.0  # the most that a synchronised wall clock differs from the ladder's
_LOOK_BACK = 1024  # transitions searched for the last one of the level
_OTHER_DRAFT = "it is another draft: what was learnt from the old one is forgotten"


class Controller:
    """The fallback's controller. Restores the last process's level when made; moves the ladder between `start` and
    `close`. Any thread.

    `drafters`: loads drafters, also for `runner`; `requests`: the engine's reports; `store`: the state saved for the
    served models. Raises ConfigError for an unreadable file of baselines."""

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
        self._remote, self._answers = remote, list[RemoteAnswer]()  # the remote's answers since the last look
        if remote is not None:
            remote.restore(saved.remote)
        self._signals: tuple[Signal, ...] = ()
        ladder.resume(saved.ladder)
        self._reconcile()
        drafters.hold(ladder.level)
        self._state = self._shown()
        self._sleep = min(_LONGEST_SLEEP, settings.window_seconds / 10, settings.cooldown_seconds / 4)
        self._lock = threading.Lock()  # guards everything except the shown state
        self._reloads: list[
            tuple[Future[int], bool, Future[int]]
        ] = []  # pending reloads: the engine's future, forget, and the caller's future
        self._closing = threading.Event()
        self._outage = OutageLog(log)
        self._thread = restarting_thread("draftd-fallback", self._run, self._closing)

    def start(self) -> None:
        """Starts the thread that moves the ladder."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Stops the thread, and saves the state. Returns False if the thread did not end in time; it is then left
        behind."""
        self._closing.set()
        self._requests.woken.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def state(self) -> FallbackState:
        """Returns the state as of the last look."""
        return self._state

    # Requests from outside. All raise QueueFull if they cannot be done soon, and NotServing once closed.

    def notices(self, notices: Sequence[Notice]) -> list[Applied]:
        """Applies alerts, and returns the outcome of each. They are in force on return, and on disk unless the state
        says why not."""
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
        """Holds a level for `expires_in` seconds, or until it is released if None. A lower level is in force on return,
        a higher one as soon as its weights are loaded. Raises InvalidRequest for a level of the remote if there is
        none."""
        with self._locked_look() as now:
            until = None if expires_in is None else now + expires_in
            if not isinstance(level, RemoteLevel):
                self._ladder.hold(level, until)
            elif self._remote is not None:
                self._remote.ladder.hold(level, until)
            else:
                raise InvalidRequest(
                    "level", level.label, "a level of this daemon's ladder (it has no remote, so no remote level)"
                )

    def release(self) -> bool:
        """Ends the holds of the ladder and of the remote. Returns whether there was one."""
        with self._locked_look() as now:
            remote = self._remote is not None and self._remote.ladder.release(now)
            return self._ladder.release(now) or remote

    def probe(self) -> Future[ProbeReport]:
        """Probes the level above. Raises NotNow if there is none, or while a probe or canary run is active."""
        with self._locked_look():
            running = self._schedule.probe_now(self._ladder.state)
        running.add_done_callback(self._wake)
        return running

    def canaries(self) -> Future[CanaryReport]:
        """Runs the canaries. Raises NotNow while a probe or canary run is active."""
        with self._locked_look():
            running = self._schedule.canaries_now()
        running.add_done_callback(self._wake)
        return running

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        """Reloads the draft's weights without waiting. The future gives their bytes, after statistics were reset:
        requests that drafted with the old weights no longer count.

        The new weights must meet the old ones' learnt baselines, unless `forget` says that this is another draft."""
        read, done = self._engine.reload_draft(), Future[int]()
        self._reloads.append((read, forget, done))
        read.add_done_callback(self._wake)  # on the engine's thread, which must not wait
        return done

    @contextmanager
    def _locked_look(self) -> Iterator[float]:
        """Holds the lock, and yields the ladder's present time. On exit takes a look (reads all inputs, moves the
        ladder by at most one step), which applies and saves the caller's change."""
        if not self._lock.acquire(timeout=_ANSWER_SECONDS):
            raise QueueFull("the fallback controller is busy", retry_after=_RETRY_SECONDS)
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

    # All methods below hold the lock. Times are the ladder's clock; `now` never goes back. None waits for the engine.

    def _run(self) -> None:
        while not self._closing.is_set():
            self._requests.woken.wait(self._sleep)
            self._requests.woken.clear()
            self.tick()
        self.tick()  # saves requests made meanwhile

    def tick(self) -> None:
        """Takes one look."""
        with self._lock:
            self._look_once(self._clock())

    def _look_once(self, now: float) -> QueueFull | None:
        """Takes one look, and completes finished reloads. Returns the error if the look failed; then nothing of it is
        in force or saved."""
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
            with suppress(InvalidStateError):  # its caller has cancelled it
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
            log.info("the draft model's weights were loaded again: %s", _OTHER_DRAFT)
        self._schedule.on_reload(now)

    def _look(self, now: float) -> None:
        """Reads all inputs, and takes at most one step."""
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
        """Reads requests, failures and the machine's state. Only requests that began at the present level count."""
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
        """Returns the signals without drift that no probe has confirmed. A probe of frozen prompts decides: if their
        acceptance has fallen too, the drift counts; if not, the traffic has changed, and the traffic's baseline is
        learnt again."""
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
            return  # try again at the next look
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
        """Bounds the drafts of running requests by a level; `signal` is the reason that they report."""
        level = self._levels[position]
        try:
            if level.kind >= FallbackLevel.SHORT_BLOCK:
                allowed = frozenset(self._engine.info.drafters)
            else:  # the level's drafter and lighter ones
                allowed = frozenset().union(*map(needed_drafters, self._levels[position:]))
                allowed |= {GRAMMAR} if allowed else set()  # forced tokens cost nothing
            self._engine.lower(level.max_draft_tokens, allowed, f"ladder: {signal.cause}")
        except Exception as error:
            log.warning("running requests could not be moved to the lower level: %s", error)

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
        """Records the level in force if the journal ends at another one, because the process was killed between a step
        and its saving."""
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
        leases = [replace(lease, until=lease.until + ahead) for lease in self._leases.active.values()]
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
