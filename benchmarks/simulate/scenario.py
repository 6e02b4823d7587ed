"""The scenarios: their traffic, faults and times, and what happens to notifications and clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulate.fault import Cause, Fault, erratic, every
from draftd.core import FallbackLevel, WorkloadClass

HOUR = 3600.0

Mix = Mapping[WorkloadClass, float]
Faults = Callable[[np.random.Generator, float], list[Fault]]

EVERYDAY: Mix = {WorkloadClass.CODE: 0.4, WorkloadClass.CHAT: 0.4, WorkloadClass.PROSE: 0.2}
CODING: Mix = {WorkloadClass.CODE: 0.9, WorkloadClass.CHAT: 0.1}
WRITING: Mix = {WorkloadClass.CHAT: 0.2, WorkloadClass.PROSE: 0.8}


@dataclass(frozen=True, slots=True)
class Post:
    """Delivery of alert notifications: the shares that are `lost` and `doubled`, the mean `delay` in seconds, and the
    seconds between two polls, 0 without polling."""

    lost: float = 0.0
    doubled: float = 0.0
    delay: float = 2.0
    poll: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. `faults` computes the faults of so many simulated seconds. Each of `mixes` applies for `mix_seconds`.
    The daemon decides every `tick` seconds and at each request's end. For `settles` seconds after a fault a step down
    is still due to it. `recovers` is the maximum of seconds to recover, None if the next fault may begin before."""

    name: str
    title: str
    faults: Faults = lambda rng, span: []
    per_second: float = 1.0
    mixes: tuple[Mix, ...] = (EVERYDAY,)
    mix_seconds: float = 2 * HOUR
    post: Post = field(default_factory=Post)
    restart_at_steps: bool = False
    later: float = 1.0  # factor on acceptance in the second half, without a fault of the draft
    jump_every: float = 0.0  # seconds between restarts with another wall clock
    settles: float = 900.0
    recovers: float | None = 10 * HOUR
    tick: float = 30.0
    answered: bool = True  # each fault must cause a step down


def scenarios() -> tuple[Scenario, ...]:
    sudden: Faults = lambda rng, span: every(span, 2 * HOUR, HOUR, Cause.DRAFT, factor=5 / 7)  # noqa: E731
    alert: Faults = lambda rng, span: every(  # noqa: E731
        span, 2.5 * HOUR, 0.75 * HOUR, Cause.ALERT, level=FallbackLevel.LIGHT_DRAFT
    )
    astray = Post(lost=0.3, doubled=0.3, delay=60.0)
    return (
        Scenario("steady", "nothing is wrong"),
        Scenario("sudden_drift", "acceptance falls by two sevenths", sudden),
        Scenario(
            "slow_drift", "the same fall, over two hours",
            lambda rng, span: every(span, 2 * HOUR, 3 * HOUR, Cause.DRAFT, factor=5 / 7, ramp=2 * HOUR),
        ),
        Scenario(
            "broken_draft", "a useless draft, then repaired",
            lambda rng, span: every(span, 3 * HOUR, 1.5 * HOUR, Cause.DRAFT, factor=0.05),
        ),
        Scenario("mix_shift", "from code to prose and back, nothing wrong", mixes=(EVERYDAY, CODING, WRITING)),
        Scenario("harder_texts", "half-way, texts of every kind become harder to draft, nothing wrong", later=0.8),
        Scenario(
            "sparse", "a request every five minutes, drift",
            lambda rng, span: every(span, 96 * HOUR, 48 * HOUR, Cause.DRAFT, first=300 * 300, factor=5 / 7),
            per_second=1 / 300, mix_seconds=480 * HOUR, settles=8 * HOUR, tick=120.0,
        ),
        Scenario(
            "alert_storm", "forty alerts come and go for half an hour",
            lambda rng, span: every(span, 2.5 * HOUR, 0.5 * HOUR, Cause.STORM),
        ),
        Scenario("webhooks_astray", "30 % lost, 30 % sent twice, up to minutes late", alert, post=astray, settles=2700),
        Scenario(
            "astray_polled", "the same, and the daemon polls for alerts", alert,
            post=Post(astray.lost, astray.doubled, astray.delay, poll=30.0),
        ),
        Scenario("clock_jumps", "restarts with a clock hours off, drift", sudden, jump_every=0.6 * HOUR),
        Scenario("restarts", "killed at every step, drift", sudden, restart_at_steps=True),
        Scenario(
            "flapping_draft", "a draft that is bad for minutes, good for minutes",
            lambda rng, span: erratic(rng, span, 480.0, Cause.DRAFT, factor=0.3),
            recovers=None, answered=False,
        ),
        Scenario(
            "flapping_alert", "a critical alert that fires for a minute, again and again",
            lambda rng, span: every(span, 330.0, 60.0, Cause.ALERT, hard=True),
            recovers=None, answered=False,
        ),
        Scenario(
            "flapping_memory", "critical memory pressure that comes and goes",
            lambda rng, span: erratic(rng, span, 480.0, Cause.MEMORY),
            recovers=None, answered=False,
        ),
    )  # fmt: skip
