"""A model of what must hold, whatever is done to the daemon. It records what clients, operators and senders of alerts
were told, and compares that with what the daemon says.

Each `Invariant` is a promise. Violations are added to `Model.broken`; nothing here raises, so that the test continues
and finds others. Times are monotonic. Any thread may call it.
"""

from __future__ import annotations

import enum
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.protobuf import duration_pb2

from draftd.core import FallbackLevel
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb

_WELL = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_UNSURE = ("cancelled", "deadline")  # ended before the engine had them, perhaps: those are counted elsewhere too
_REMEMBERED_SECONDS = 300.0  # what is over: a request that began then may not have ended yet
_LATE_SECONDS = 10.0  # that health may be told late to be good: it is looked after now and then
_SLACK_SECONDS = 0.5  # between two clocks that are read one after the other
_GRACE_SECONDS = 1.0  # for a status to reach its client after what caused it is over


class Invariant(enum.StrEnum):
    REQUESTS = "requests"  # every request ends exactly once, with a status that has a cause
    TEXT = "text"  # a greedy or seeded text is what it always is
    COUNTERS = "counters"  # clients, engine and metrics show the same numbers
    LEVEL = "level"  # no level is higher than what was acknowledged last, unless the daemon said so
    HEALTH = "health"  # health says whether requests are served; no answer is a no
    RESOURCES = "resources"  # memory, threads and descriptors return
    ALERTS = "alerts"  # a legitimate alert is obeyed
    EVENTS = "events"  # what was recorded while it could be written is there after a restart
    DURATIONS = "durations"  # none is negative, or longer than the daemon has run, whatever clocks are set to
    TELEMETRY = "telemetry"  # no span is missing that the daemon does not count as lost
    CREDENTIALS = "credentials"  # new connections meet what was loaded last, and what runs goes on
    LOG = "log"  # its last line on a state is true
    ALIVE = "alive"  # the daemon ends when it is told to, or its engine died; and it can be started again


@dataclass(frozen=True)
class Broken:
    """A violation of an invariant. `at` is seconds since the test began."""

    at: float
    invariant: Invariant
    text: str


@dataclass
class Demand:
    """A level that an alert or a hold asks for. It is in force from `asked` on, and certainly from `sure`, its
    acknowledgement. Its end was asked for at `ending` and acknowledged at `over`. `saved`: the daemon has not said that
    a restart would lose it."""

    level: FallbackLevel
    asked: float
    sure: float = math.inf
    ending: float = math.inf
    over: float = math.inf
    saved: bool = False

    def throughout(self, began: float, ended: float) -> bool:
        return self.sure <= began and ended <= self.ending

    def possible(self, began: float, ended: float) -> bool:
        return self.asked <= ended and began <= self.over


class Levels:
    """Levels that were asked for, and the highest level that may be in force. A hold outranks alerts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alerts: list[Demand] = []
        self._holds: list[Demand] = []

    def alert(self, level: FallbackLevel, now: float) -> Demand:
        return self._asked(self._alerts, level, now)

    def hold(self, level: FallbackLevel, now: float) -> Demand:
        """Records a hold. It may end another one."""
        self.release(now)
        return self._asked(self._holds, level, now)

    def acknowledged(self, demand: Demand, now: float, *, saved: bool) -> None:
        with self._lock:
            demand.sure, demand.saved = now, saved
            if demand in self._holds:
                for one in self._holds:
                    one.over = min(one.over, now) if one is not demand else one.over

    def release(self, now: float) -> None:
        """Records that any hold may end from now on."""
        with self._lock:
            for one in self._holds:
                one.ending = min(one.ending, now)

    def released(self, now: float) -> None:
        """Records that no hold is in force any more."""
        with self._lock:
            for one in self._holds:
                one.over = min(one.over, now)

    def ending(self, demand: Demand, now: float) -> None:
        with self._lock:
            demand.ending = min(demand.ending, now)

    def over(self, demand: Demand, now: float) -> None:
        with self._lock:
            demand.over = min(demand.over, now)

    def saved(self, asked: float) -> None:
        """Records the daemon's answer, to a question asked then, that all its demands are on disk."""
        with self._lock:
            for one in (*self._alerts, *self._holds):
                one.saved = one.saved or one.sure < asked

    def restarted(self, killed: float, *, forgets: bool) -> None:
        """Records that the daemon died at `killed`. Demands that it called unsaved may be lost; with `forgets`, its
        state was damaged and all may be lost, which the cause of its level says."""
        with self._lock:
            for one in (*self._alerts, *self._holds):
                if one.sure <= killed and (forgets or not one.saved):
                    one.ending = min(one.ending, killed)
            long_ago = killed - _REMEMBERED_SECONDS
            self._alerts = [one for one in self._alerts if one.over > long_ago]
            self._holds = [one for one in self._holds if one.over > long_ago]

    def leases_over(self, now: float) -> None:
        """Records that by the daemon's clock the leases ended before it started."""
        with self._lock:
            for one in self._alerts:
                if one.sure <= now:
                    one.ending = min(one.ending, now)

    def __str__(self) -> str:
        with self._lock:
            return f"the last alerts {self._alerts[-3:]}, holds {self._holds[-3:]}"

    def held(self, now: float) -> bool:
        """Returns True if a hold may be in force: then alerts need not be obeyed."""
        with self._lock:
            return any(one.possible(now, now) for one in self._holds)

    def highest(self, began: float, ended: float) -> FallbackLevel:
        """Returns the highest level that may be in force at some time between the two."""
        with self._lock:
            holds = [one for one in self._holds if one.possible(began, ended)]
            found = [one.level for one in holds]
            if not any(one.throughout(began, ended) for one in holds):
                asked = [one.level for one in self._alerts if one.throughout(began, ended)]
                found.append(min(asked, default=FallbackLevel.FULL))
        return max(found)

    def _asked(self, kept: list[Demand], level: FallbackLevel, now: float) -> Demand:
        demand = Demand(level, now)
        with self._lock:
            kept.append(demand)
        return demand


@dataclass(frozen=True)
class Reference:
    """The answer that a prompt must always get."""

    tokens: tuple[int, ...] = ()
    text: str = ""


@dataclass
class Request:
    """One request as its client saw it. `code` is the name of its status, empty if the client left. `refusal` is the
    daemon's own reason for it, and `disorder` an unexpected message."""

    life: int
    reference: Reference
    began: float
    ended: float = 0.0
    started: float | None = None
    id: str = ""
    level: FallbackLevel | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: pb.Finished | None = None
    code: str = ""
    refusal: str = ""
    details: str = ""
    own: frozenset[str] = frozenset()  # statuses that the client brought about itself
    disorder: str = ""


@dataclass
class Life:
    """One process of the daemon. `ending` is when it was told to stop, was killed, or its engine was made to fail."""

    ending: float = math.inf
    serving_since: float = math.inf  # an answer to a health check
    served_since: float = math.inf  # a request that was started
    refused: int = 0
    known: dict[str, Request] = field(default_factory=dict)  # since the last reconciliation, by id


class Events:
    """Transitions that the daemon listed. Those recorded while its disk was well must stay. One thread may use it."""

    def __init__(self) -> None:
        self._sure: dict[int, str] = {}
        self._last = 0

    def listed(self, found: Sequence[control_pb2.Transition], *, written: bool) -> str:
        """Compares all listed transitions. `written` says that new ones could be written. Returns the missing ones, or
        an empty text."""
        now = {one.number: f"{one.subject} {one.previous} {one.current} {one.cause}" for one in found}
        oldest = min(now, default=0)
        lost = [
            f"{number} ({told})" for number, told in self._sure.items() if number >= oldest and now.get(number) != told
        ]
        self._sure = {number: told for number, told in self._sure.items() if number >= oldest}
        if written:
            self._sure |= {number: told for number, told in now.items() if number > self._last}
        self._last = max(now, default=0)
        return "; ".join(lost)

    def forget(self) -> None:
        """Forgets all, because their file was damaged."""
        self._sure, self._last = {}, 0


class Model:
    """All invariants, and the violations that were found."""

    def __init__(self) -> None:
        self.levels, self.events = Levels(), Events()
        self.broken: list[Broken] = []
        self.ended: Counter[str] = Counter()  # requests, by their status
        self.lags: dict[str, list[float]] = {"health": [], "alert": [], "recovery": []}
        self._lock = threading.RLock()
        self._began = time.monotonic()
        self._lives: dict[int, Life] = {}
        self._excused: list[tuple[frozenset[str], float, float]] = []
        self._open: dict[int, tuple[frozenset[str], float]] = {}

    def breaks(self, invariant: Invariant, text: str) -> None:
        with self._lock:
            self.broken.append(Broken(time.monotonic() - self._began, invariant, text))

    def expects(self, holds: object, invariant: Invariant, text: str) -> None:
        if not holds:
            self.breaks(invariant, text)

    def lag(self, what: str, seconds: float) -> None:
        with self._lock:
            self.lags[what].append(max(0.0, seconds))

    # what may be the end of a request

    @contextmanager
    def excused(self, statuses: Collection[str]) -> Iterator[None]:
        """Allows these statuses for requests that run while the block does, or end shortly before."""
        key, began = object(), time.monotonic()
        with self._lock:
            self._open[id(key)] = frozenset(statuses), began
        try:
            yield
        finally:
            with self._lock:
                del self._open[id(key)]
                self._excused.append((frozenset(statuses), began, time.monotonic() + _GRACE_SECONDS))

    def _allowed(self, request: Request) -> bool:
        if request.code in ("", "OK") or request.code in request.own:
            return True
        with self._lock:
            windows = [*self._excused, *((codes, began, math.inf) for codes, began in self._open.values())]
        return any(
            request.code in codes and request.began <= until and request.ended >= began
            for codes, began, until in windows
        )

    # the daemon's lives

    def life(self, number: int) -> Life:
        with self._lock:
            return self._lives.setdefault(number, Life())

    def ends(self, number: int) -> None:
        """Records that this life is about to end."""
        with self._lock:
            life = self.life(number)
            life.ending = min(life.ending, time.monotonic())

    def health(self, number: int, asked: float, answered: float, serving: bool | None) -> None:
        """Records a health check's answer, None without one."""
        with self._lock:
            life = self.life(number)
            if serving:
                if math.isinf(life.serving_since) and life.served_since < answered:
                    self.lag("health", answered - life.served_since)
                life.serving_since = min(life.serving_since, answered)
            elif serving is False and life.served_since + _LATE_SECONDS <= asked and answered < life.ending:
                self.breaks(Invariant.HEALTH, f"life {number}: NOT_SERVING, though requests are served")

    # requests

    def ended_request(self, request: Request) -> None:
        """Judges a request that has ended for its client."""
        finished, whole = request.finished, request.code == "OK"
        with self._lock:
            self.ended[request.code or "left"] += 1
            life = self.life(request.life)
            if request.started is not None:
                life.served_since = min(life.served_since, request.started)
                life.known[request.id] = request
            elif request.refusal:
                life.refused += 1
                late = request.refusal == "NOT_SERVING" and life.serving_since <= request.began
                if late and request.ended < life.ending:
                    self.breaks(Invariant.HEALTH, f"SERVING, and a request was refused: {request.details}")
        name = f"request {request.id or 'that was not started'} of life {request.life}"
        self.expects(not request.disorder, Invariant.REQUESTS, f"{name}: {request.disorder}")
        why = f"{name} ended with {request.code}: {request.details}"
        self.expects(self._allowed(request), Invariant.REQUESTS, why)
        if whole:
            ended = finished is not None and finished.reason in _WELL
            self.expects(ended, Invariant.REQUESTS, f"{name}: OK, and not finished: {finished}")
        self._judge_text(request, name, whole)
        self._judge_timings(request, name)
        if finished is not None:
            told = finished.usage.output_tokens
            same = told == len(request.tokens)
            self.expects(same, Invariant.COUNTERS, f"{name}: {told} tokens told, {len(request.tokens)} sent")
        if request.level is not None and request.started is not None:
            self.level_seen(request.level, request.began, request.started, name)

    def _judge_text(self, request: Request, name: str, whole: bool) -> None:
        wanted, got = request.reference, tuple(request.tokens)
        same = got == wanted.tokens if whole else got == wanted.tokens[: len(got)]
        self.expects(same, Invariant.TEXT, f"{name}: {got} instead of {wanted.tokens}")
        text = request.text == wanted.text if whole else wanted.text.startswith(request.text)
        self.expects(text, Invariant.TEXT, f"{name}: {request.text!r} instead of {wanted.text!r}")

    def _judge_timings(self, request: Request, name: str) -> None:
        if request.finished is None:
            return
        most = request.ended - request.began
        for field_, value in request.finished.timings.ListFields():
            if isinstance(value, duration_pb2.Duration):
                self.lasted(value.ToNanoseconds() / 1e9, most, f"{name}: {field_.name}")

    def lasted(self, seconds: float, most: float, what: str) -> None:
        """Checks a duration that the daemon reported against `most`, the time that passed while it was awake."""
        well = 0.0 <= seconds <= most + _SLACK_SECONDS
        self.expects(well, Invariant.DURATIONS, f"{what}: {seconds:.3f} s, of {most:.3f} s at most")

    def level_seen(self, level: FallbackLevel, began: float, ended: float, who: str) -> None:
        """Checks a level that was in force at some time between the two."""
        most = self.levels.highest(began, ended)
        if level > most:
            told = f"{who}: {level.label} between {began:.3f} and {ended:.3f}, at most {most.label} was acknowledged"
            self.breaks(Invariant.LEVEL, f"{told}: {self.levels}")

    # counters, when nothing is in hand

    def whole(self, number: int) -> set[str]:
        """Returns the ids of requests that were answered completely since the last reconciliation."""
        with self._lock:
            return {name for name, request in self.life(number).known.items() if request.code == "OK"}

    def reconcile(
        self, number: int, entries: Mapping[str, tuple[int, Sequence[str]]], status: control_pb2.GetStatusResponse
    ) -> None:
        """Compares clients' requests with `entries`, the engine's since the last time: tokens and end reasons by id."""
        with self._lock:
            life = self.life(number)
            known, life.known = life.known, {}
            refused = life.refused
        for name, (_, ends) in entries.items():
            self.expects(len(ends) == 1, Invariant.REQUESTS, f"request {name} ended {len(ends)} times: {ends}")
        for name, request in known.items():
            told = entries.get(name)
            if told is None:
                self.breaks(Invariant.COUNTERS, f"request {name} was started and the engine has not had it")
            elif request.code == "OK":
                right = told[0] == len(request.tokens)
                self.expects(right, Invariant.COUNTERS, f"request {name}: {told[0]} and {len(request.tokens)} tokens")
        self.expects(
            status.refused_requests >= refused,
            Invariant.COUNTERS,
            f"{refused} requests were refused, {status.refused_requests} are counted",
        )
        self._judge_counts(status)

    def totals(self, tokens: int, ends: Mapping[str, int], status: control_pb2.GetStatusResponse) -> None:
        """Compares what left the engine since it started with its own counts."""
        same = tokens == status.output_tokens
        self.expects(same, Invariant.COUNTERS, f"{tokens} tokens were emitted, {status.output_tokens} are counted")
        told = dict(status.finished_requests)
        for reason in {*told, *ends}:
            right = told.get(reason, 0) >= ends.get(reason, 0)
            if reason not in _UNSURE:
                right = told.get(reason, 0) == ends.get(reason, 0)
            self.expects(right, Invariant.COUNTERS, f"{ends} ended, {told} are counted")

    def _judge_counts(self, status: control_pb2.GetStatusResponse) -> None:
        counts = status.counts
        drafted = counts.drafted_tokens == counts.accepted_tokens + counts.rolled_back_tokens
        self.expects(drafted, Invariant.COUNTERS, f"drafted is not accepted and rolled back: {counts}")
        beyond = counts.accepted_tokens + counts.steps - status.output_tokens
        most = sum(status.finished_requests.values())  # each text ends once
        self.expects(0 <= beyond <= most, Invariant.COUNTERS, f"{beyond} tokens beyond the ends of texts: {counts}")


# The lines of the log on a state, and what each says of it: a group of it, or that it is well.
_STATES = {
    "level": re.compile(r"draftd: level (?P<bad>\w+)"),
    "unsaved": re.compile(r"draftd: (warning: )?\S+ladder-\S+ (?P<bad>cannot be saved|does not)?"),
    "collector": re.compile(r"draftd: warning: telemetry (?P<bad>does not reach)?"),
}


def false_lines(lines: Sequence[str], now: Mapping[str, str]) -> str:
    """Returns the lines whose state differs from `now`, of the last line on each state; empty if there are none. A
    missing line is not false."""
    found = []
    for name, truth in now.items():
        said = next((match for line in reversed(lines) if (match := _STATES[name].search(line))), None)
        if said is not None and (said["bad"] != truth if name == "level" else bool(said["bad"]) != bool(truth)):
            found.append(f"{name} is {truth or 'well'}, and the log says last: {said.string}")
    return "; ".join(found)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns a percentile by nearest rank; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
