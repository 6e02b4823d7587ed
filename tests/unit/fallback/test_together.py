"""Guard, leases, probes, ladder and what is saved, together, through whatever comes: nothing flaps, nothing latches.

Time is the ladder's clock. One that is set forward while the daemon is down cannot be told from a daemon that was down
for longer, so both are the same event here; one that is set back counts as no time having passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.simulate.daemon import LADDER, Daemon, Finished, ProbeResult, Settings
from benchmarks.simulate.outcome import flaps
from draftd.core import PROMPT_LOOKUP, FallbackLevel, LadderLevel, WorkloadClass
from draftd.counts import DraftCounts
from draftd.fallback.drift import Baseline, CusumSettings
from draftd.fallback.ladder import Cause, LadderSettings
from draftd.fallback.leases import Notice
from draftd.fallback.probes import ProbedPrompt
from draftd.fallback.signals import MachineReading

LIMITS = LadderSettings(cooldown=300.0, longest_wait=2400.0)
SETTINGS = Settings(cusum=CusumSettings(learn=5), ladder=LIMITS, lease_seconds=900.0)


class Course:
    """One daemon through a course of events. The draft is as good as the last event says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.offset = 0.0
        self.acceptance = 0.8
        self.daemon = Daemon(SETTINGS, self.probe)

    def probe(self, level: LadderLevel, now: float) -> ProbeResult:
        accepted = round(100 * self.acceptance)
        pays = 0.0 if level.drafter == PROMPT_LOOKUP else 0.5
        counts = DraftCounts(drafts=40, accepted=accepted, rollbacks=100 - accepted, break_even_tokens=40 * pays)
        return ProbeResult([ProbedPrompt("p", counts)] * 4, Baseline(0.8, 0.2))

    def requests(self, count: int, seconds: float = 3.0) -> None:
        for _ in range(count):
            self.now += seconds
            level = LADDER[self.daemon.position]
            if level.drafter is not None:
                accepted = round(40 * self.acceptance)
                at, kind = self.now + self.daemon.offset, WorkloadClass.CODE
                counts = DraftCounts(drafts=20, accepted=accepted, rollbacks=40 - accepted, break_even_tokens=10.0)
                self.daemon.finished(Finished(at, level.drafter, kind, counts, self.daemon.position))
            self.daemon.tick(self.now)

    def wait(self, seconds: float) -> None:
        """Lets time pass, with ticks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 60.0)
            self.daemon.tick(self.now)

    def restart(self, down: float, back: float, lost: str | None = None) -> None:
        self.now += down
        self.offset -= back
        self.daemon.restart(self.now, self.offset, lost)


@dataclass(frozen=True)
class Event:
    what: str
    seconds: float
    number: int
    level: FallbackLevel
    yes: bool


WHAT = [
    "requests",
    "good",
    "bad",
    "wait",
    "fires",
    "ends",
    "poll",
    "critical",
    "verifier",
    "drafter",
    "restart",
    "kill",
]
EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from(WHAT),
        st.floats(0, 700),
        st.integers(0, 40),
        st.sampled_from(FallbackLevel),
        st.booleans(),
    ),
    max_size=40,
)


def play(course: Course, event: Event) -> None:
    daemon = course.daemon
    notice = Notice("A", f"a{event.number % 3}", event.what == "fires", course.now // 100, event.level, event.yes)
    match event.what:
        case "requests":
            course.requests(event.number)
        case "good" | "bad":
            course.acceptance = 0.8 if event.what == "good" else 0.1 + event.number / 100
            course.requests(10)
        case "wait":
            course.wait(event.seconds)
        case "fires" | "ends":
            daemon.notice(notice, course.now)
        case "poll":
            daemon.polled([Notice("A", "a0", True, course.now, event.level, event.yes)] * event.yes, course.now)
        case "critical":
            for _ in range(3):
                daemon.machine(MachineReading(event.yes, event.number % 2 == 0, event.number * 2**24), course.now)
                course.wait(6.0)
        case "verifier" | "drafter":
            for _ in range(3):
                daemon.failed(Cause.VERIFIER_ERRORS if event.what == "verifier" else Cause.DRAFTER_ERRORS, course.now)
        case "restart":
            daemon.save(course.now)
            course.restart(event.seconds, 50 * event.seconds * event.yes)
        case "kill":
            course.restart(1.0, 0.0)
    daemon.tick(course.now)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS)
def test_fallback_level_does_not_flap_under_random_events(events: list[Event]) -> None:
    course = Course()
    for event in events:
        play(course, event)
    assert flaps(course.daemon.steps, LIMITS.cooldown) == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS)
def test_fallback_level_returns_to_top_in_bounded_time_after_random_events_end(events: list[Event]) -> None:
    """The draft is good, the machine at ease, alerts are over: it comes back in a time that has a bound."""
    course = Course()
    for event in events:
        play(course, event)
    course.acceptance = 0.8
    course.daemon.machine(MachineReading(False, False, 0), course.now)
    course.daemon.polled([], course.now)
    for _ in range(len(LADDER)):
        course.requests(20)
        course.wait(LIMITS.longest_wait + 2 * LIMITS.cooldown)
    assert course.daemon.position == 0


def test_fallback_killed_between_level_change_and_save_restarts_at_same_or_lower_level() -> None:
    """A step down is saved before it is applied, a step up after: a kill can fall between."""
    course = Course()
    course.requests(30)
    before = course.daemon.on_disk
    course.acceptance = 0.3
    while course.daemon.position == 0:
        course.requests(1)
    down, state = course.daemon.on_disk, course.daemon.state
    course.restart(1.0, 0.0, down)
    assert course.daemon.state == state, "its cause and its clock too"
    course.acceptance = 0.8
    while course.daemon.position == 1:
        course.requests(10)
    assert course.daemon.position == 0
    course.restart(1.0, 0.0, down)
    assert course.daemon.position == 1, "applied, and not yet saved"
    assert before != down
