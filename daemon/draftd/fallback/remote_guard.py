"""Limits what another daemon (the remote) is asked for, by the ladder's rules: verify drafts, stream answers, or
nothing.

A second, short ladder: `speculative` at the top, `streaming` (the remote answers without drafts), `local` (nothing is
sent to it). It limits the remote only, never how this machine decodes. Failing requests ask for `local`. Drafts that do
not pay ask for `streaming`, and so does a long round trip. Outages are handled elsewhere: the link closes and reopens
by itself, and requests go on locally if they may. This ladder ends what keeps failing although the link is up.

The way back is a probe of the link: it must be up, without errors, with a short enough round trip. Only traffic can
show whether drafting pays there again; if it does not, the relapse doubles the next wait.
"""

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

_WEIGHT = 20.0  # a request's weight: a floor counts tokens, and a request has at least this many

ASKS_FOR = {
    Cause.REMOTE_ERRORS: RemoteLevel.LOCAL,
    Cause.REMOTE_ROUND_TRIP: RemoteLevel.STREAMING,
    Cause.REMOTE_BREAK_EVEN: RemoteLevel.STREAMING,
}
"""Which level each cause asks for; an alert names its own."""


REMOTE_LADDER = tuple(sorted(RemoteLevel, reverse=True))


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """A client's finished request to the remote's target. `at`, `arrival`: monotonic times of its end and its arrival.
    `failed`: it went on locally, or ended because the remote was unavailable. `tokens`, `seconds`: tokens after the
    first chunk and the time that they took, if drafted here and completed there; otherwise both 0."""

    at: float
    arrival: float
    failed: bool = False
    tokens: int = 0
    seconds: float = 0.0
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class RemoteSignalState:
    """The evidence about the remote since the last step. Immutable: each event returns the next state. `speed` judges
    the speed with drafts divided by the remote's own streaming speed; `kept`, the share of requests that did not fail.
    `slow`: how long the round trip has been too long. `errors`: of the link."""

    settings: FallbackSettings
    speed: Floor
    kept: Floor
    since: float = float("-inf")
    errors: CounterGrowth = field(default_factory=CounterGrowth)
    slow: Spell = field(default_factory=Spell)
    link: LinkState = field(default_factory=LinkState)
    pace: Mapping[WorkloadClass, float] = field(default_factory=dict)  # seconds per token that the remote streams

    @classmethod
    def new(cls, settings: FallbackSettings) -> RemoteSignalState:
        return cls(settings, Floor(settings.remote_speed_floor), Floor(1 - settings.remote_failures))

    def seen(self, link: LinkState, pace: Mapping[WorkloadClass, float], now: float) -> RemoteSignalState:
        """Adds the link's state and the remote's own pace. The round trip counts while the link is up."""
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
        """See `SignalState.woken`."""
        return replace(self, slow=Spell())

    def add_answer(self, at: float, answer: RemoteAnswer) -> RemoteSignalState:
        """Adds one finished request. If drafted, its tokens are compared with the tokens that the remote alone would
        have streamed in the same time, if the remote's pace is known."""
        settings, ok = self.settings, 0 if answer.failed else _WEIGHT
        kept, speed = self.kept.advance(at, settings).add(ok, _WEIGHT), self.speed
        pace = self.pace.get(answer.workload) or self.pace.get(WorkloadClass.UNSPECIFIED)
        if pace and answer.tokens > 0 and answer.seconds > 0:
            speed = speed.advance(at, settings).add(answer.tokens, answer.seconds / pace)
        return replace(self, kept=kept, speed=speed)

    def on_step(self, now: float) -> RemoteSignalState:
        """Starts new windows, and keeps the link's state."""
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
        """Speed divided by that of streaming, in the last window with a verdict; None if that is not recent."""
        speed = self.speed
        return speed.last if speed.last_requests and speed.silent < WINDOWS else None

    def permit(self, position: int, now: float) -> Permit | None:
        """Returns the permit for a step up: the link must be up, with few errors and a short round trip, which it
        measures without requests. Else None."""
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
    """Returns seconds per token that the remote streams by itself, as the engine measured it."""
    rates = {kind: estimate.rates.get(RemoteMode.STREAM, 0.0) for kind, estimate in status.remote.estimates.items()}
    return {kind: 1 / rate for kind, rate in rates.items() if rate > 0}


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The state at the last look. The ladder's times are seconds since 1970; `signals`: the active ones."""

    ladder: LadderState
    signals: tuple[Signal, ...]
    wait: float
    speedup: float | None = None  # over the remote's own streaming, in the last window with enough requests

    @property
    def level(self) -> RemoteLevel:
        return REMOTE_LADDER[self.ladder.position]


class RemoteGuard:
    """Moves the remote's ladder by the state of the link and of requests. Any thread may read `level`; all else is the
    controller's, one call at a time, at the ladder's time."""

    def __init__(
        self,
        ladder: Ladder[RemoteLevel],
        link: Callable[[], LinkState],
        pace: Callable[[], Mapping[WorkloadClass, float]],
        settings: FallbackSettings,
    ) -> None:
        """`pace`: seconds per token that the remote streams by itself, by workload class; empty while unknown."""
        self.ladder, self._link, self._pace = ladder, link, pace
        self._guard = RemoteSignalState.new(settings)
        self._signals: tuple[Signal, ...] = ()

    @property
    def level(self) -> RemoteLevel:
        return self.ladder.level

    def restore(self, saved: LadderState | None) -> None:
        """Restores the state that an earlier process left."""
        if saved is None or not 0 <= saved.position < len(REMOTE_LADDER):
            return
        signal = saved.signal  # the file has a number, which the other ladder's levels use too
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
        """Reads the link's state, and takes at most one step on the ladder. `answers`: requests to the remote that
        finished since the last look. `requests`: the signals of active alerts about the remote. `of`: converts a
        monotonic time to the ladder's clock. `slept`: the machine has slept since the last look."""
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
        """Returns the state. `ahead`: how far the wall clock is ahead of the ladder's."""
        return RemoteState(self.ladder.state.shift_clock(ahead), self._signals, self.ladder.wait, self._guard.speedup)
