"""What another daemon is asked for, by the ladder's rules: drafts to verify, answers only, or nothing.

A second, short ladder beside that of the local drafts: `speculative` at the top, `streaming` (the remote answers, and
nothing is drafted for it), `local` (nothing is sent to it). It lowers the remote's part only, never how this machine
decodes. Requests that fail there ask for `local`; a long round trip, and drafts that do not pay, ask for `streaming`.
An outage is not its matter: the link closes and opens by itself, and a request that may goes on locally. It ends what
keeps failing although the link is up.

The way back is a probe of the link: it must be up, without an error, and its round trip must not be too long. Whether
drafting pays there again only traffic can show: where it does not, the relapse doubles the next wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftd.core import WorkloadClass
from draftd.engine.observer import EngineStatus
from draftd.engine.remote.verifier_link import LinkState
from draftd.fallback.drift import WINDOWS, Floor
from draftd.fallback.ladder import Cause, Ladder, LadderState, Permit, Signal
from draftd.fallback.signals import CounterGrowth, Spell
from draftd.settings import FallbackSettings
from draftd.strategies import RemoteLevel, RemoteMode

_WEIGHT = 20.0  # of a request: a floor counts tokens, of which a request has so many at least

ASKS_FOR = {
    Cause.REMOTE_ERRORS: RemoteLevel.LOCAL,
    Cause.REMOTE_ROUND_TRIP: RemoteLevel.STREAMING,
    Cause.REMOTE_BREAK_EVEN: RemoteLevel.STREAMING,
}
"""Which level each cause asks for; an alert names its own."""


REMOTE_LADDER = tuple(sorted(RemoteLevel, reverse=True))


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
class RemoteSignalState:
    """The evidence about the remote since the last step. Immutable: each event returns the next state."""

    settings: FallbackSettings
    speed: Floor  # over the remote's own streaming
    kept: Floor  # requests that did not fail, as a share
    since: float = float("-inf")
    errors: CounterGrowth = field(default_factory=CounterGrowth)
    slow: Spell = field(default_factory=Spell)
    link: LinkState = field(default_factory=LinkState)
    pace: Mapping[WorkloadClass, float] = field(default_factory=dict)  # seconds of a token that the remote streams

    @classmethod
    def new(cls, settings: FallbackSettings) -> RemoteSignalState:
        return cls(settings, Floor(settings.remote_speed_floor), Floor(1 - settings.remote_failures))

    def seen(self, link: LinkState, pace: Mapping[WorkloadClass, float], now: float) -> RemoteSignalState:
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

    def woken(self) -> RemoteSignalState:
        """As `Guard.woken`."""
        return replace(self, slow=Spell())

    def add_answer(self, at: float, answer: RemoteAnswer) -> RemoteSignalState:
        """One request ended. Of one that was drafted for, the tokens count over those that the remote alone would have
        streamed in its time, where that pace is known."""
        settings, ok = self.settings, 0 if answer.failed else _WEIGHT
        kept, speed = self.kept.advance(at, settings).add(ok, _WEIGHT), self.speed
        pace = self.pace.get(answer.workload) or self.pace.get(WorkloadClass.UNSPECIFIED)
        if pace and answer.tokens > 0 and answer.seconds > 0:
            speed = speed.advance(at, settings).add(answer.tokens, answer.seconds / pace)
        return replace(self, kept=kept, speed=speed)

    def on_step(self, now: float) -> RemoteSignalState:
        """Windows begin anew; the link stays as it is."""
        speed, kept = Floor(self.speed.least, began=now), Floor(self.kept.least, began=now)
        return replace(self, since=now, speed=speed, kept=kept, errors=CounterGrowth(self.errors.marks[-1:]))

    def signals(self, now: float) -> tuple[Signal, ...]:
        """Returns the signals, each with its evidence."""
        settings = self.settings
        window, longest = settings.window_seconds, 1000 * settings.remote_round_trip_seconds
        speed, kept = self.speed.advance(now, settings), self.kept.advance(now, settings)
        trip = f"round trip {1000 * (self.link.round_trip or 0):.0f} ms, more than {longest:g} ms,"
        evidence = {
            Cause.REMOTE_ERRORS: kept.evidence(f"{1 - kept.last:.0%} failed of", f"limit {1 - kept.least:.0%}", window),
            Cause.REMOTE_ROUND_TRIP: self.slow.evidence(trip, window),
            Cause.REMOTE_BREAK_EVEN: speed.evidence(
                f"{speed.last:.2f} of the speed of its own streaming in", f"minimum {speed.least:g}", window
            ),
        }
        return tuple(
            Signal(cause, ASKS_FOR[cause], text, hard=cause is Cause.REMOTE_ERRORS)
            for cause, text in evidence.items()
            if text and settings.guard
        )

    @property
    def speedup(self) -> float | None:
        """Of the last window with a verdict; None without one of late."""
        speed = self.speed
        return speed.last if speed.last_requests and speed.silent < WINDOWS else None

    def permit(self, position: int, now: float) -> Permit | None:
        """Returns the permit for a step up: the link decides, by its own probes."""
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
    rates = {kind: estimate.rates.get(RemoteMode.STREAM, 0.0) for kind, estimate in status.remote.estimates.items()}
    return {kind: 1 / rate for kind, rate in rates.items() if rate > 0}


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The state at the last look. The ladder's times are seconds since 1970; `signals` are what is asked for now."""

    ladder: LadderState
    signals: tuple[Signal, ...]
    wait: float
    speedup: float | None = None  # over the remote's own streaming, in the last window with enough requests

    @property
    def level(self) -> RemoteLevel:
        return REMOTE_LADDER[self.ladder.position]


class RemoteGuard:
    """Moves the remote's ladder by what is seen of the link and of requests. Any thread may ask for `level`; the rest
    is the controller's, one call at a time, at the ladder's time."""

    def __init__(
        self,
        ladder: Ladder[RemoteLevel],
        link: Callable[[], LinkState],
        pace: Callable[[], Mapping[WorkloadClass, float]],
        settings: FallbackSettings,
    ) -> None:
        """`pace`: seconds of a token that the remote streams by itself, by class of text, none while that is not
        known."""
        self.ladder, self._link, self._pace = ladder, link, pace
        self._guard = RemoteSignalState.new(settings)
        self._signals: tuple[Signal, ...] = ()

    @property
    def level(self) -> RemoteLevel:
        return self.ladder.level

    def restore(self, saved: LadderState | None) -> None:
        """Restores the state that an earlier run left."""
        if saved is None or not 0 <= saved.position < len(REMOTE_LADDER):
            return
        signal = saved.signal  # a number in a file, of which levels of the other ladder have the same
        signal = signal and replace(signal, asks_for=RemoteLevel(int(signal.asks_for)))
        self.ladder.resume(replace(saved, signal=signal))

    def look(
        self,
        answers: Iterable[RemoteAnswer],
        requests: Sequence[Signal],
        now: float,
        of: Callable[[float], float],
        *,
        slept: bool = False,
    ) -> None:
        """Takes in the link and what has ended, and takes one step at most. `requests`: by alerts. `of`: what the
        ladder's clock showed at a monotonic time. `slept`: the machine has, since the last look."""
        before = self._guard.woken() if slept else self._guard
        guard = before.seen(self._link(), self._pace(), now)
        for answer in answers:
            if of(answer.arrival) >= guard.since:
                guard = guard.add_answer(min(of(answer.at), now), answer)
        self._guard, self._signals = guard, (*guard.signals(now), *requests)
        ladder = self.ladder
        after = ladder.next_state(self._signals, guard.permit(ladder.position, now), now)
        if (signal := ladder.take(after)) is not None:
            self._guard = guard.on_step(now)
            ladder.move(after.position, signal)

    def state(self, ahead: float) -> RemoteState:
        """`ahead`: how far the clock that its times are told by is ahead of the ladder's."""
        return RemoteState(self.ladder.state.shift_clock(ahead), self._signals, self.ladder.wait, self._guard.speedup)
