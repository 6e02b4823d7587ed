"""The fallback's thread, and the way to it: alerts, operators and the service ask here, the engine reports here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from draftd.core import FallbackLevel
from draftd.engine.observer import EngineObserver
from draftd.errors import NotServing, QueueFull
from draftd.fallback.baselines import frozen_baselines
from draftd.fallback.journal import Journal
from draftd.fallback.ladder import LadderSettings, LevelInForce
from draftd.fallback.ladder_controller import FallbackState, LadderController
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.loaded_drafters import LoadedDrafters
from draftd.fallback.logs import OutageLog
from draftd.fallback.probe_schedule import ProbeRuns, ProbeSchedule
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.fallback.saved_state import SavedState
from draftd.fallback.seams import EngineControl, FallbackTelemetry
from draftd.fallback.signal_feed import MachineFeed, RequestFeed, SignalFeed, SteadyClock
from draftd.fallback.signals import Guard, GuardSettings
from draftd.fallback.store import StateStore
from draftd.hardware.state import HardwareView
from draftd.settings import FallbackSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_SECONDS = 5.0  # an answer takes so long at most: a look takes milliseconds, and saving may take a second
_RETRY_SECONDS = 1.0
_CAPACITY = 64  # requests that may wait for the next look
_LONGEST_SLEEP = 1.0


class Controller:
    """Takes up the level of the last run as soon as it is made, and moves from `start` to `close`. Any thread.

    `drafters` is what `runner` borrows from, `requests` what the engine reports to. `pair` names the models: what was
    learnt of others is forgotten. Raises ConfigError for a file of baselines that cannot be read.
    """

    def __init__(
        self,
        in_force: LevelInForce,
        engine: EngineControl,
        *,
        runner: ProbeRuns,
        drafters: LoadedDrafters,
        requests: RequestFeed,
        hardware: HardwareView,
        settings: FallbackSettings,
        lease_seconds: float,
        journal: Journal,
        telemetry: FallbackTelemetry,
        store: StateStore,
        pair: str = "",
        clock: SteadyClock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._requests = engine, requests
        self._clock = clock if clock is not None else SteadyClock()
        ladder, now = in_force.ladder, self._clock()
        saved_state = SavedState(store, ladder, telemetry, runner.baselines, pair)
        saved = saved_state.restore(now)
        frozen = frozen_baselines(settings.baseline)
        known = {**saved.baselines, **frozen}
        guard = Guard.new(GuardSettings.of(settings), known, quality=saved.quality, position=saved.ladder.position)
        machine = MachineFeed(hardware, monotonic)
        feed = SignalFeed(requests, machine, guard, ladder, self._clock, judge=settings.guard, frozen=frozen)
        limits = LadderSettings.of(settings)
        self._ladder = LadderController(
            in_force,
            engine,
            drafters,
            feed,
            ProbeSchedule(runner, engine, ladder, settings, limits, now),
            saved_state,
            telemetry,
            journal,
            limits,
            lease_seconds,
            saved,
        )
        self._state = self._ladder.state()
        self._sleep = min(_LONGEST_SLEEP, settings.window_seconds / 10, settings.cooldown_seconds / 4)
        self._lock = threading.Lock()  # guards what waits
        self._waiting: list[tuple[Callable[[float], Any], Future[Any]]] = []
        self._closed = False
        self._outage = OutageLog(log)
        self._thread = threading.Thread(target=self._run, name="draftd-fallback", daemon=True)

    @property
    def observer(self) -> EngineObserver:
        """What the engine is to report to."""
        return self._requests

    def start(self) -> None:
        """Begins to move."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Moves no more, and saves what is. False where the thread did not end in time: it is left behind."""
        with self._lock:
            self._closed = True
        self._requests.woken.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def state(self) -> FallbackState:
        """As of the last look."""
        return self._state

    def notices(self, notices: Sequence[Notice]) -> list[Applied]:
        """What became of each; it is on the disk then, and obeyed. Raises QueueFull where that cannot be done soon,
        NotServing when the controller ends."""
        taken = tuple(notices)
        return self._answer(lambda now: self._ladder.notices(taken, now))

    def polled(self, firing: Sequence[Notice]) -> None:
        """What the source of alerts lists as firing; this does not wait for what follows. Raises QueueFull or
        NotServing."""
        listed = tuple(firing)
        self._ask(lambda now: self._ladder.polled(listed, now))

    def hold(self, level: FallbackLevel, expires_in: float | None) -> None:
        """Down it is obeyed when this returns; up as soon as the weights are there. `expires_in` is in seconds; None is
        until it is released. Raises QueueFull or NotServing."""
        self._answer(lambda now: self._ladder.hold(level, expires_in, now))

    def release(self) -> bool:
        """Whether there was a hold. Raises QueueFull or NotServing."""
        return self._answer(self._ladder.release)

    def probe(self) -> Future[ProbeReport]:
        """Tries the level above. Ends in NotNow where there is none, or while something is tried out. Raises QueueFull
        or NotServing."""
        return self._begin(self._ladder.probe)

    def canaries(self) -> Future[CanaryReport]:
        """Runs the canaries. Ends in NotNow while something is tried out. Raises QueueFull or NotServing."""
        return self._begin(self._ladder.canaries)

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        """Reads the draft's weights anew; ends with their bytes, once requests of the old ones count no more. The
        baselines that were learnt of them stay, which the new ones must meet, unless `forget` says that this is another
        draft. Raises QueueFull or NotServing."""

        def reloaded(now: float, size: int) -> int:
            self._ladder.reloaded(now, forget=forget)
            return size

        done: Future[int] = Future()
        _end_as(done, self._engine.reload_draft(), lambda size: self._ask(lambda now: reloaded(now, size)))
        return done

    def tick(self) -> None:
        """One look, and what follows. The thread's own; without a thread, a test's."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        now = self._clock()
        answers: list[Future[Any]] = [Future() for _ in waiting]
        for answer, (what, _) in zip(answers, waiting, strict=True):
            _end(answer, partial(what, now))
        try:
            self._ladder.tick(now)
            self._outage.ended()
        except Exception as error:
            text = "the fallback could not look; it goes on, and further failures are not logged"
            self._outage.began(text, level=logging.ERROR, error=error)
        self._state = self._ladder.state()
        for answer, (_, future) in zip(answers, waiting, strict=True):
            _end_as(future, answer)

    def _run(self) -> None:
        while not self._closed:
            self._requests.woken.wait(self._sleep)
            self._requests.woken.clear()
            self.tick()
        self.tick()  # answers what was asked meanwhile, and saves

    def _ask(self, what: Callable[[float], Any]) -> Future[Any]:
        """Ends with what `what` returns or raises, after the look that follows; where that is a future, as that one
        does. Raises NotServing once it is closed, QueueFull when too much waits."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise NotServing("the daemon is stopping")
            if len(self._waiting) >= _CAPACITY:
                raise QueueFull(f"{_CAPACITY} wait for the fallback already", retry_after=_RETRY_SECONDS)
            self._waiting.append((what, future))
        self._requests.woken.set()
        return future

    def _answer(self, what: Callable[[float], T]) -> T:
        """`_ask`, and waits for it. Raises QueueFull too where that takes too long; it is done all the same then."""
        try:
            answer: T = self._ask(what).result(_ANSWER_SECONDS)
            return answer
        except TimeoutError:
            raise QueueFull("the fallback is busy", retry_after=_RETRY_SECONDS) from None

    def _begin(self, what: Callable[[float], Future[T]]) -> Future[T]:
        """`_ask`; what it shows is looked at when it ends."""
        done = self._ask(what)
        done.add_done_callback(lambda _: self._requests.woken.set())
        return done


def _end(done: Future[T], made: Callable[[], T | Future[T]]) -> None:
    """Ends it with what `made` returns or raises, unless the caller has given up."""
    with suppress(InvalidStateError):
        try:
            found = made()
        except BaseException as error:
            done.set_exception(error)
            return
        if isinstance(found, Future):
            _end_as(done, found)
        else:
            done.set_result(found)


def _end_as(done: Future[T], first: Future[Any], then: Callable[[Any], Any] = lambda found: found) -> None:
    """Ends as the first one does, or with what `then` makes of its result."""
    first.add_done_callback(lambda ended: _end(done, lambda: then(ended.result())))
