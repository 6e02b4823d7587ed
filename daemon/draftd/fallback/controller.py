"""The fallback's thread, and the way to it: alerts, operators and the service ask here, the engine tells here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from draftd.core import FallbackLevel
from draftd.engine.observer import EngineObserver
from draftd.errors import NotServing, QueueFull
from draftd.fallback.clock import SteadyClock
from draftd.fallback.journal import Journal
from draftd.fallback.judging import frozen, limits, thresholds
from draftd.fallback.ladder_loop import Steering
from draftd.fallback.leases import Applied, Notice
from draftd.fallback.probe_schedule import Examination, Examines
from draftd.fallback.reports import CanaryReport, ProbeReport
from draftd.fallback.seams import ControlTelemetry, EngineControl
from draftd.fallback.signal_feed import Intake, MachineFeed, Senses
from draftd.fallback.signals import Guard
from draftd.fallback.snapshot import FallbackState, Readings
from draftd.fallback.store import Saving, StateStore
from draftd.fallback.weights import Residency
from draftd.hardware.state import HardwareView
from draftd.planning.planner import Planner
from draftd.settings import FallbackSettings

T_INBOX = TypeVar("T_INBOX")


_ANSWER_SECONDS = 5.0  # whoever asks waits so long at most: a look takes milliseconds, and saving may take a second


_RETRY_SECONDS = 1.0


class Asked:
    """One thing to do at a time that it is given. `run` does it, `finish` tells who asked."""

    def __init__(self, what: Callable[[float], Any], future: Future[Any]) -> None:
        self._what, self._future = what, future
        self._found: Any = None
        self._error: Exception | None = None

    def run(self, now: float) -> None:
        try:
            self._found = self._what(now)
        except Exception as error:
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            fail(self._future, self._error)
        else:
            settle(self._future, self._found)


class Inbox:
    """Any thread asks, one takes. `wake` is called when there is something to take."""

    def __init__(self, capacity: int, wake: Callable[[], None]) -> None:
        self._capacity, self._wake = capacity, wake
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, what: Callable[[float], T_INBOX]) -> Future[T_INBOX]:
        """Ends with what `what` returns or raises. Raises NotServing once it is closed, QueueFull when it is full."""
        future: Future[T_INBOX] = Future()
        with self._lock:
            if self._closed:
                raise NotServing("the daemon is stopping")
            if len(self._waiting) >= self._capacity:
                raise QueueFull(f"{self._capacity} wait for the fallback already", retry_after=_RETRY_SECONDS)
            self._waiting.append(Asked(what, future))
        self._wake()
        return future

    def answer(self, what: Callable[[float], T_INBOX]) -> T_INBOX:
        """`ask`, and waits for it. Raises QueueFull too where that takes too long; it is done all the same then."""
        try:
            return self.ask(what).result(_ANSWER_SECONDS)
        except TimeoutError:
            raise QueueFull("the fallback is busy", retry_after=_RETRY_SECONDS) from None

    def take(self) -> list[Asked]:
        """All that waits."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken

    def close(self) -> None:
        """Takes no more; what waits is to be taken still."""
        with self._lock:
            self._closed = True
        self._wake()


def settle(future: Future[T_INBOX], found: T_INBOX) -> None:
    """Ends it, unless whoever asked has given up."""
    try:
        future.set_result(found)
    except InvalidStateError:
        return


def fail(future: Future[Any], error: BaseException) -> None:
    """Ends it with an error, unless whoever asked has given up."""
    try:
        future.set_exception(error)
    except InvalidStateError:
        return


log = logging.getLogger(__name__)


T = TypeVar("T")


_INBOX = 64  # who may wait for the next look


_LONGEST_SLEEP = 1.0


class Controller:
    """Stands where the last run stood as soon as it is made, and moves from `start` to `close`. Any thread.

    `residency` is the one that `examiner` borrows from, `intake` the one that the engine tells. `pair` names the
    models: what was learnt of others is forgotten. Raises ConfigError for a file of baselines that cannot be read.
    """

    def __init__(
        self,
        planner: Planner,
        engine: EngineControl,
        *,
        examiner: Examines,
        residency: Residency,
        intake: Intake,
        hardware: HardwareView,
        settings: FallbackSettings,
        lease_seconds: float,
        journal: Journal,
        telemetry: ControlTelemetry,
        store: StateStore,
        pair: str = "",
        clock: SteadyClock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._intake = engine, intake
        self._clock = clock if clock is not None else SteadyClock()
        ladder, now = planner.ladder, self._clock()
        saving = Saving(store, ladder, telemetry, pair=pair, lessons=examiner.lessons)
        saved = saving.restore(now)
        standard = frozen(settings.baseline)
        guard = Guard.new({**saved.baselines, **standard}, quality=saved.quality, rung=saved.ladder.rung)
        senses = Senses(
            intake,
            MachineFeed(hardware, monotonic),
            guard,
            ladder,
            thresholds(settings),
            self._clock,
            judge=settings.guard,
            frozen=standard,
        )
        bounds = limits(settings)
        self._steering = Steering(
            planner,
            engine,
            residency,
            senses,
            Examination(examiner, engine, ladder, settings, bounds, now),
            saving,
            telemetry,
            journal,
            bounds,
            lease_seconds,
            saved,
        )
        self._state, self._readings = self._steering.state(), self._steering.readings()
        self._sleep = min(_LONGEST_SLEEP, settings.window_seconds / 10, settings.dwell_seconds / 4)
        self._inbox = Inbox(_INBOX, intake.woken.set)
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="draftd-control", daemon=True)

    @property
    def observer(self) -> EngineObserver:
        """What the engine is to tell."""
        return self._intake

    def start(self) -> None:
        """Begins to move."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Moves no more, and saves what is. False where the thread did not end in time: it is left behind."""
        self._inbox.close()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def state(self) -> FallbackState:
        """As of the last look."""
        return self._state

    def readings(self) -> Readings:
        """As of the last look."""
        return self._readings

    def notices(self, notices: Sequence[Notice]) -> list[Applied]:
        """What became of each; it is on the disk then, and obeyed. Raises QueueFull where that cannot be done soon,
        NotServing when the controller ends."""
        told = tuple(notices)
        return self._inbox.answer(lambda now: self._steering.notices(told, now))

    def polled(self, firing: Sequence[Notice]) -> None:
        """What the source of alerts lists as firing; nobody waits for what follows. Raises QueueFull or NotServing."""
        listed = tuple(firing)
        self._inbox.ask(lambda now: self._steering.polled(listed, now))

    def hold(self, level: FallbackLevel, expires_in: float | None) -> None:
        """Down it is obeyed when this returns; up as soon as the weights are there. `expires_in` is in seconds; None is
        until it is released. Raises QueueFull or NotServing."""
        self._inbox.answer(lambda now: self._steering.hold(level, expires_in, now))

    def release(self) -> bool:
        """Whether there was a hold. Raises QueueFull or NotServing."""
        return self._inbox.answer(self._steering.release)

    def probe(self) -> Future[ProbeReport]:
        """Tries the rung above. Ends in NotNow where there is none, or while something is tried out."""
        return self._following(self._steering.probe)

    def canaries(self) -> Future[CanaryReport]:
        """Runs the canaries. Ends in NotNow while something is tried out."""
        return self._following(self._steering.canaries)

    def reload_draft(self, *, forget: bool = False) -> Future[int]:
        """Reads the draft's weights anew; ends with their bytes, once requests of the old ones count no more. The norms
        that were learnt of them stay, which the new ones must meet, unless `forget` says that this is another draft."""
        done: Future[int] = Future()

        def taken_in(told: Future[None], size: int) -> None:
            error = told.exception()
            if error is None:
                settle(done, size)
            else:
                fail(done, error)

        def loaded(reload: Future[int]) -> None:
            try:
                size = reload.result()
                asked = self._inbox.ask(lambda now: self._steering.reloaded(now, forget=forget))
                asked.add_done_callback(lambda told: taken_in(told, size))
            except BaseException as error:
                fail(done, error)

        try:
            self._engine.reload_draft().add_done_callback(loaded)
        except Exception as error:
            fail(done, error)
        return done

    def tick(self) -> None:
        """One look, and what follows. The thread's own; without a thread, a test's."""
        asked, now = self._inbox.take(), self._clock()
        for one in asked:
            one.run(now)
        try:
            self._steering.tick(now)
            self._failing = False
        except Exception:
            if not self._failing:
                log.exception("the fallback could not look; it goes on, and further failures are not logged")
            self._failing = True
        self._state, self._readings = self._steering.state(), self._steering.readings()
        for one in asked:
            one.finish()

    def _run(self) -> None:
        while not self._inbox.closed:
            self._intake.woken.wait(self._sleep)
            self._intake.woken.clear()
            self.tick()
        self.tick()  # answers those who asked meanwhile, and saves

    def _following(self, what: Callable[[float], Future[T]]) -> Future[T]:
        """Ends as the future does that `what` begins."""
        done: Future[T] = Future()

        def begun(asked: Future[Future[T]]) -> None:
            try:
                asked.result().add_done_callback(ended)
            except BaseException as error:
                fail(done, error)

        def ended(found: Future[T]) -> None:
            try:
                settle(done, found.result())
            except BaseException as error:
                fail(done, error)
            self._intake.woken.set()

        try:
            self._inbox.ask(what).add_done_callback(begun)
        except Exception as error:
            fail(done, error)
        return done
