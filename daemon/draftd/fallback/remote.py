"""What another daemon is asked for, by the ladder's rules: drafts to verify, answers only, or nothing.

A second, short ladder beside that of the local drafts: `speculative` at the top, `streaming` (the remote answers, and
nothing is drafted for it), `local` (nothing is sent to it). It lowers the remote's part only, never how this machine
decodes. Requests that fail there ask for `local`; a long round trip, and drafts that do not pay, ask for `streaming`.
An outage is not its matter: the link closes and opens by itself, and a request that may goes on locally. It ends what
keeps failing although the link is up.

The way back is a probe of the link: it must be up, without an error, and its round trip must not be too long. Whether
drafting pays there again only traffic can show: where it does not, the relapse doubles the next wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftd.core import WorkloadClass
from draftd.engine.observer import EngineStatus
from draftd.engine.remote.verifier_link import LinkState
from draftd.fallback.drift import WINDOWS, Floor
from draftd.fallback.journal import Journal, Subject
from draftd.fallback.ladder import Cause, Hold, LadderSettings, LadderState, Permit, Signal, highest, move
from draftd.fallback.seams import FallbackTelemetry
from draftd.fallback.signals import Growth, Spell
from draftd.settings import FallbackSettings
from draftd.strategies import RemoteLevel, RemoteMode

log = logging.getLogger(__name__)

_WEIGHT = 20.0  # of a request: a floor counts tokens, of which a request has so many at least

ASKS_FOR = {
    Cause.REMOTE_ERRORS: RemoteLevel.LOCAL,
    Cause.REMOTE_ROUND_TRIP: RemoteLevel.STREAMING,
    Cause.REMOTE_BREAK_EVEN: RemoteLevel.STREAMING,
}
"""Which level each cause asks for; an alert names its own."""


@dataclass(frozen=True, slots=True)
class RemoteStage:
    """One level of the remote's ladder."""

    kind: RemoteLevel

    @property
    def label(self) -> str:
        return self.kind.label


REMOTE_LADDER = tuple(map(RemoteStage, sorted(RemoteLevel, reverse=True)))


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """A client's request of the remote's target. Times are monotonic. `failed`: it went on locally, or ended since the
    remote could not be had. Of one that was drafted here, and stayed there: `tokens` after the first chunk took
    `seconds`; else none."""

    at: float
    arrival: float
    failed: bool = False
    tokens: int = 0
    seconds: float = 0.0
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class RemoteGuard:
    """What is known of the remote since the last step. Never changed: each event gives the next one."""

    settings: FallbackSettings
    speed: Floor  # over the remote's own streaming
    kept: Floor  # requests that did not fail, as a share
    since: float = float("-inf")
    errors: Growth = field(default_factory=Growth)
    slow: Spell = field(default_factory=Spell)
    link: LinkState = field(default_factory=LinkState)
    pace: Mapping[WorkloadClass, float] = field(default_factory=dict)  # seconds of a token that the remote streams

    @classmethod
    def new(cls, settings: FallbackSettings) -> RemoteGuard:
        return cls(settings, Floor(settings.remote_speed_floor), Floor(1 - settings.remote_failures))

    def seen(self, link: LinkState, pace: Mapping[WorkloadClass, float], now: float) -> RemoteGuard:
        """The link as it is, and the remote's own pace. A round trip counts while the link is up."""
        settings, measured = self.settings, link.round_trip if link.up else None
        long = None if measured is None else measured > settings.remote_round_trip_seconds
        return replace(
            self,
            link=link,
            pace=pace,
            errors=self.errors.observe(now, link.errors, settings.window_seconds),
            slow=self.slow.observe(now, long),
            speed=self.speed.advance(now, settings),
            kept=self.kept.advance(now, settings),
        )

    def woken(self) -> RemoteGuard:
        """As `Guard.woken`."""
        return replace(self, slow=Spell())

    def finished(self, at: float, answer: RemoteAnswer) -> RemoteGuard:
        """One request ended. Of one that was drafted for, the tokens count over those that the remote alone would have
        streamed in its time, where that pace is known."""
        settings, ok = self.settings, 0 if answer.failed else _WEIGHT
        kept, speed = self.kept.advance(at, settings).add(ok, _WEIGHT), self.speed
        pace = self.pace.get(answer.workload) or self.pace.get(WorkloadClass.UNSPECIFIED)
        if pace and answer.tokens > 0 and answer.seconds > 0:
            speed = speed.advance(at, settings).add(answer.tokens, answer.seconds / pace)
        return replace(self, kept=kept, speed=speed)

    def stepped(self, now: float) -> RemoteGuard:
        """Windows begin anew; the link stays as it is."""
        speed, kept = Floor(self.speed.least, began=now), Floor(self.kept.least, began=now)
        return replace(self, since=now, speed=speed, kept=kept, errors=Growth(self.errors.marks[-1:]))

    def signals(self, now: float) -> tuple[Signal, ...]:
        """What all of it asks for, each with its evidence."""
        settings = self.settings
        window, longest = settings.window_seconds, 1000 * settings.remote_round_trip_seconds
        speed, kept = self.speed.advance(now, settings), self.kept.advance(now, settings)
        trip = f"round trip {1000 * (self.link.round_trip or 0):.0f} ms, more than {longest:g} ms,"
        evidence = {
            Cause.REMOTE_ERRORS: _low(kept, f"{1 - kept.last:.0%} failed of", f"limit {1 - kept.least:.0%}", window),
            Cause.REMOTE_ROUND_TRIP: self.slow.evidence(trip, window),
            Cause.REMOTE_BREAK_EVEN: _low(
                speed, f"{speed.last:.2f} of the speed of its own streaming in", f"minimum {speed.least:g}", window
            ),
        }
        return tuple(
            Signal(cause, ASKS_FOR[cause], found, hard=cause is Cause.REMOTE_ERRORS)
            for cause, found in evidence.items()
            if found and settings.guard
        )

    @property
    def speedup(self) -> float | None:
        """Of the last window with a verdict; None without one of late."""
        speed = self.speed
        return speed.last if speed.last_requests and speed.silent < WINDOWS else None

    def permit(self, position: int, now: float) -> Permit | None:
        """What allows a step up from there: the link, as its own probes find it."""
        link, window = self.link, self.settings.window_seconds
        if position == 0 or not link.up or self.errors.within(now, window) >= self.settings.errors:
            return None
        trip = link.round_trip
        if trip is not None and trip > self.settings.remote_round_trip_seconds:
            return None
        measured = "" if trip is None else f", round trip {1000 * trip:.1f} ms"
        errors = self.errors.within(now, window)
        return Permit(position - 1, f"the link is up, {errors} errors within {window:g} s{measured}")


def streaming_pace(status: EngineStatus) -> dict[WorkloadClass, float]:
    """Seconds of a token that the remote streams by itself, as the engine measured it."""
    rates = {kind: found.rates.get(RemoteMode.STREAM, 0.0) for kind, found in status.remote.estimates.items()}
    return {kind: 1 / rate for kind, rate in rates.items() if rate > 0}


def _low(ratio: Floor, shown: str, least: str, window: float) -> str:
    if not ratio.low:
        return ""
    return f"{shown} {ratio.last_requests} requests, {least}, in {ratio.below} windows of {window:g} s in a row"


@dataclass(frozen=True, slots=True)
class RemoteState:
    """As of the last look. Times are seconds since 1970."""

    position: int
    since: float
    signal: Signal | None  # of the last step
    hold: Hold | None
    signals: tuple[Signal, ...]
    wait: float
    relapses: int
    speedup: float | None = None  # over the remote's own streaming, in the last window with enough requests

    @property
    def level(self) -> RemoteLevel:
        return REMOTE_LADDER[self.position].kind


class RemoteSwitch:
    """Which level is in force, and its moves, each of which is recorded. Any thread may ask for `level`; the rest is
    the controller's, one call at a time, at the ladder's time."""

    def __init__(
        self,
        link: Callable[[], LinkState],
        pace: Callable[[], Mapping[WorkloadClass, float]],
        settings: FallbackSettings,
        journal: Journal,
        telemetry: FallbackTelemetry,
    ) -> None:
        """`pace`: seconds of a token that the remote streams by itself, by class of text, none while that is not
        known."""
        self._link, self._pace, self._journal, self._telemetry = link, pace, journal, telemetry
        self._limits = LadderSettings.of(settings)
        self._guard = RemoteGuard.new(settings)
        self._signals: tuple[Signal, ...] = ()
        self.ladder = LadderState()

    @property
    def level(self) -> RemoteLevel:
        return REMOTE_LADDER[self.ladder.position].kind

    def restore(self, saved: LadderState | None) -> None:
        """As an earlier run left it."""
        if saved is None or not 0 <= saved.position < len(REMOTE_LADDER):
            return
        signal = saved.signal  # a number in a file, of which levels of the other ladder have the same
        self.ladder = replace(saved, signal=signal and replace(signal, asks_for=RemoteLevel(int(signal.asks_for))))

    def woken(self) -> None:
        """The machine has slept."""
        self._guard = self._guard.woken()

    def look(
        self, answers: Iterable[RemoteAnswer], asked: Sequence[Signal], now: float, of: Callable[[float], float]
    ) -> None:
        """Takes in the link and what has ended, and takes one step at most. `asked`: by alerts. `of`: what the ladder's
        clock showed at a monotonic time."""
        guard = self._guard.seen(self._link(), self._pace(), now)
        for answer in answers:
            if of(answer.arrival) >= guard.since:
                guard = guard.finished(min(of(answer.at), now), answer)
        self._guard, self._signals = guard, (*guard.signals(now), *asked)
        before = self.ladder
        permit = guard.permit(before.position, now)
        after = move(before, REMOTE_LADDER, self._signals, permit, self._limits, now)
        self.ladder = after
        if before.hold is not None and after.hold is None:
            why = "by an operator" if before.hold.released else "the hold's time is over"
            self._note(before.position, Cause.RELEASED, why)
        signal = after.signal
        if after.position == before.position or signal is None:
            return
        self._guard = guard.stepped(now)
        was, now_is = REMOTE_LADDER[before.position].kind, self.level
        self._journal.record(Subject.REMOTE, was.label, now_is.label, signal.cause, signal.evidence)
        self._telemetry.remote_transition(was, now_is, signal.cause)
        log.info("remote %s, was %s: %s", now_is.label, was.label, signal.text)

    def hold(self, level: RemoteLevel, until: float | None) -> None:
        """Obeyed by the next look."""
        held = self.ladder.hold
        before = self.ladder.position if held is None else held.before
        hold = Hold(highest(REMOTE_LADDER, level), until, before)
        self.ladder = replace(self.ladder, hold=hold)
        if hold.position == self.ladder.position:
            self._note(hold.position, Cause.HOLD, hold.evidence)

    def release(self, now: float) -> bool:
        """Whether there was a hold; ended by the next look."""
        hold = self.ladder.hold
        if hold is None or hold.released:
            return False
        self.ladder = replace(self.ladder, hold=replace(hold, until=now, released=True))
        return True

    def state(self) -> RemoteState:
        ladder = self.ladder
        wait = ladder.wait(self._limits)
        return RemoteState(
            ladder.position,
            ladder.since,
            ladder.signal,
            ladder.hold,
            self._signals,
            wait,
            ladder.relapses,
            self._guard.speedup,
        )

    def _note(self, position: int, cause: str, evidence: str) -> None:
        """Records what concerns the level and does not change it."""
        label = REMOTE_LADDER[position].label
        self._journal.record(Subject.REMOTE, label, label, cause, evidence)
