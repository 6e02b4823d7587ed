"""Decodes without pause for a long time: does memory grow without bound, does acceptance hold, does anything fail?

Each client sends its next request as soon as the last is answered. The result is derived from raw ticks and samples, in
total and by window, because an average would hide changes. A value that could not be read is None, never 0.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, fields, replace
from itertools import count, pairwise
from typing import Any

from draftd.client.client import ModelReply
from draftd.client.prompts import Prompt
from draftd.client.timing import quantile
from draftd.counts import total
from draftd_acceptance.cost import alpha_of
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.options import WINDOW_SECONDS, SoakOptions, SweepOptions
from draftd_acceptance.session import Advance, MeasurementStopped, Progress, Session, SessionStep, on_threads, sampling
from draftd_acceptance.statistics import Curve, MemoryGrowth, after_warm_up, growth
from draftd_acceptance.sweep.plan import chosen_prompts
from draftd_acceptance.ticks import MachineSample, Stage, Tick

FEWEST_DRAFTS = 50  # a window with fewer states no acceptance
FEWEST_READINGS = 60  # of memory after the warm-up; with fewer its growth is not extrapolated
LEAST_SECONDS = 60.0  # that those readings span, at least
DAYS = 7.0  # growth that exhausts memory within these is without bound
_DAY = 86_400.0
_EXAMPLES = 5
_PATIENCE_SECONDS = 60.0  # without an answer to any client, before the soak gives up
_LOOK_SECONDS = 0.5
_LONGEST_PAUSE = 5.0  # of a client whose requests fail


def soak_complete(folder: RunFolder) -> bool:
    """Whether the soak lasted its full duration; False if it was not begun."""
    plan = folder.plan(Stage.SOAK)
    return plan is not None and soaked_seconds(folder) >= SoakOptions.from_plan(plan).duration


def run_soak(session: Session, options: SoakOptions, model: ModelReply, progress: Progress) -> None:
    """Soaks for the missing time; time before an interruption counts.

    Raises RunError if the run began with another plan, OptionError, MeasurementStopped, NothingToMeasure.
    """
    options = options.settle(model, session.max_batch)
    prompts = chosen_prompts(SweepOptions(), model)  # of every group, those that its context holds
    session.folder.freeze_plan(Stage.SOAK, options.plan())
    before = soaked_seconds(session.folder)
    if before >= options.duration:
        return
    began = time.perf_counter()
    # The soak's clock starts with the first request, a moment later.
    traffic = _Traffic(session, options, prompts, began + options.duration - before + 0.1, chat=model.chat_template)
    with (
        sampling(session, Stage.SOAK, session.folder.keep_sample, options.sample_seconds),
        on_threads("draftd-soak", [traffic.stream] * (options.streams or 1)) as streams,
    ):
        try:
            while not all(future.done() for future in streams):
                done = min(options.duration, before + time.perf_counter() - began)
                said = "{requests} requests, {failed} failed".format_map(traffic.counts)
                progress(Advance(Stage.SOAK, done, options.duration, options.duration - done, said))
                wait(streams, _LOOK_SECONDS)
        finally:
            traffic.stop.set()
        for future in streams:
            future.result()


class _Traffic:
    """The requests of a soak, sent by several streams until the time `ends` (of `time.perf_counter`), or until `stop`
    is set."""

    def __init__(
        self, session: Session, options: SoakOptions, prompts: Sequence[Prompt], ends: float, *, chat: bool
    ) -> None:
        self._session, self._options, self._ends, self._chat = session, options, ends, chat
        self._questions, self._lock = _endless(prompts, options, session.number), threading.Lock()
        self._answered = time.perf_counter()  # the last success
        self.stop = threading.Event()
        self.counts = Counter(requests=0, failed=0)

    def stream(self) -> None:
        """Sends one request after another. Raises MeasurementStopped after a long time without an answer."""
        pause = 0.0
        try:
            while not self.stop.is_set() and time.perf_counter() < self._ends:
                with self._lock:
                    passed, prompt = next(self._questions)
                step = SessionStep(self._options.arm, (prompt,), passed)
                (tick,) = self._session.measure(step, self._options, chat=self._chat)
                self._session.folder.keep_tick(tick)
                self._note(tick)
                pause = min(_LONGEST_PAUSE, max(0.1, 2 * pause)) if tick.error else 0.0
                self.stop.wait(pause)
        finally:
            self.stop.set()  # if one stream fails, all end; their time ends together

    def _note(self, tick: Tick) -> None:
        with self._lock:
            self.counts.update(requests=1, failed=bool(tick.error))
            self._answered = self._answered if tick.error else time.perf_counter()
            silent = time.perf_counter() - self._answered
        if tick.error and silent > _PATIENCE_SECONDS:
            raise MeasurementStopped(
                f"nothing was answered for {silent:.0f} s, the last request failed with: {tick.error}"
            )


def _endless(prompts: Sequence[Prompt], options: SoakOptions, session: int) -> Iterator[tuple[int, Prompt]]:
    """Yields all prompts over and over, each pass in a new random order, with the pass's number from 1 and mixed
    lengths."""
    drawn = random.Random(f"{options.seed}/{session}")
    for passed in count(1):
        for prompt in drawn.sample(list(prompts), len(prompts)):
            yield passed, replace(prompt, max_tokens=drawn.choice(options.lengths))


@dataclass(frozen=True, slots=True)
class SoakBlock:
    """One session's part of a soak, from `began` to `ended` in seconds since the session's start. `before`: seconds
    soaked in earlier sessions. `ticks` and `samples` are in order of time."""

    session: int
    before: float
    began: float
    ended: float
    ticks: tuple[Tick, ...]
    samples: tuple[MachineSample, ...]

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class SoakWindow:
    """`start` is in seconds of soaking, without the time between sessions. A request's drafts count in the window where
    it ended, its tokens where they arrived. None: nothing to measure."""

    session: int
    start: float
    seconds: float
    requests: int
    errors: int
    drafts: int
    acceptance: float | None  # accepted / drafted
    alpha: float | None  # accepted / (accepted + rollbacks): the same at every block length
    tokens_per_second: float | None
    inter_token_p50: float | None
    inter_token_p95: float | None

    @property
    def enough(self) -> bool:
        """Whether it has enough drafts to state an acceptance."""
        return self.drafts >= FEWEST_DRAFTS


def windows(parts: Sequence[SoakBlock], seconds: float) -> tuple[SoakWindow, ...]:
    """Returns the windows in order. A session's last one is merged with the one before if it is shorter than half."""
    windows_made: list[SoakWindow] = []
    for part in parts:
        whole = max(1, int(part.seconds / seconds + 0.5))
        edges = [*(part.began + number * seconds for number in range(whole)), part.ended]
        windows_made += [_window(part, earlier, later, later == edges[-1]) for earlier, later in pairwise(edges)]
    return tuple(windows_made)


def _window(part: SoakBlock, earlier: float, later: float, last: bool) -> SoakWindow:
    def within(at: float) -> bool:
        return earlier <= at < later or (last and at == later)

    ended = [tick for tick in part.ticks if within(tick.elapsed + tick.ended)]
    counts = total(tick.counts for tick in ended)
    came = sum(chunk.tokens for tick in part.ticks for chunk in tick.chunks if within(tick.elapsed + chunk.at))
    gaps = [
        (chunk.at - before.at) / chunk.tokens
        for tick in part.ticks
        for before, chunk in pairwise(tick.chunks)
        if within(tick.elapsed + chunk.at)
        for _ in range(chunk.tokens)
    ]
    return SoakWindow(
        session=part.session,
        start=part.before + earlier - part.began,
        seconds=later - earlier,
        requests=len(ended),
        errors=sum(bool(tick.error) for tick in ended),
        drafts=counts.drafts,
        acceptance=counts.acceptance,
        alpha=alpha_of(counts.accepted, counts.rollbacks),
        tokens_per_second=came / (later - earlier) if later > earlier else None,
        inter_token_p50=quantile(gaps, 0.5),
        inter_token_p95=quantile(gaps, 0.95),
    )


@dataclass(frozen=True, slots=True)
class SoakResult:
    """Bytes and seconds. `seconds` is the soak's length over all sessions, of `wanted_seconds`. `swap_in` and
    `throttles` count during the soak only. `days_to_exhaustion`: the last headroom divided by the lower end of growth's
    interval, for the faster of `resident` and `mlx`; inf if neither certainly grows, None if unknown.
    `too_few_samples` says how many readings of memory there are and how many growth takes; empty if they suffice, or if
    memory cannot be read."""

    seconds: float
    wanted_seconds: float | None
    sessions: int
    requests: int
    output_tokens: int
    errors: int
    error_examples: tuple[str, ...]
    peak_resident: int | None
    resident: MemoryGrowth | None
    mlx: MemoryGrowth | None  # MLX's active memory and its cache together
    too_few_samples: str
    days_to_exhaustion: float | None
    least_headroom: int | None
    floor: int | None
    swap_in: int | None
    longest_critical: float | None
    throttles: int | None
    windows: tuple[SoakWindow, ...]
    readings: Mapping[str, int]  # of the machine, by what could be read: a field of Sample

    @property
    def complete(self) -> bool:
        return self.wanted_seconds is not None and self.seconds >= self.wanted_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """The throughput of all streams together."""
        return self.output_tokens / self.seconds if self.seconds else None

    @property
    def grows_without_bound(self) -> bool:
        return self.days_to_exhaustion is not None and self.days_to_exhaustion < DAYS

    @property
    def judged_windows(self) -> tuple[SoakWindow, ...]:
        """The windows with enough drafts to state an acceptance."""
        return tuple(window for window in self.windows if window.enough)

    def sustained_acceptance(self) -> float | None:
        """Returns the lowest acceptance over pairs of consecutive judged windows, where the better window of a pair
        counts: a single bad window does not matter. None if there are fewer than two windows."""
        shares = [window.acceptance for window in self.judged_windows if window.acceptance is not None]
        return min(map(max, pairwise(shares)), default=None)

    @property
    def complaints(self) -> tuple[str, ...]:
        """The reasons for a failure, each a sentence; empty if it passed."""
        said: list[str] = []
        if self.grows_without_bound:
            said.append(f"memory grows without bound: {_growth_text(self)}")
        if self.errors:
            said.append(f"{self.errors} of {self.requests} requests failed: {self.error_examples[0]}")
        if not self.requests > self.errors:
            said.append("no request was answered")
        return tuple(said)


def soak_result(folder: RunFolder) -> SoakResult | None:
    """Returns the result; None if nothing was soaked. Raises RunError for unreadable lines."""
    ticks, samples = folder.ticks(Stage.SOAK), folder.samples(Stage.SOAK)
    if not ticks:
        return None
    plan: dict[str, Any] = folder.plan(Stage.SOAK) or {}
    parts = soak_parts(ticks, samples)
    failed = [tick for tick in ticks if tick.error]
    common = Counter(tick.error for tick in failed).most_common(_EXAMPLES)
    curves = [_curves(parts, what) for what in ("resident", "mlx")]
    resident, mlx = (None if _too_few(found) else growth(found) for found in curves)
    return SoakResult(
        seconds=sum(part.seconds for part in parts),
        wanted_seconds=plan.get("duration"),
        sessions=len(parts),
        requests=len(ticks),
        output_tokens=sum(tick.output_tokens for tick in ticks),
        errors=len(failed),
        error_examples=tuple(f"{error} ({count} times)" if count > 1 else error for error, count in common),
        peak_resident=max(_known_values(samples, "resident"), default=None),
        resident=resident,
        mlx=mlx,
        too_few_samples="" if resident or mlx else max(map(_too_few, curves)),
        days_to_exhaustion=_days([one for one in (resident, mlx) if one is not None], parts),
        least_headroom=min(_known_values(samples, "headroom"), default=None),
        floor=max(_known_values(samples, "floor"), default=None),
        swap_in=_counter_rise(parts, "swap_in"),
        longest_critical=_longest_critical(parts),
        throttles=_counter_rise(parts, "throttles"),
        windows=windows(parts, plan.get("window_seconds", WINDOW_SECONDS)),
        readings={one.name: len(_known_values(samples, one.name)) for one in fields(MachineSample)},
    )


def soaked_seconds(folder: RunFolder) -> float:
    """Returns the seconds soaked in all sessions. Raises RunError for unreadable lines."""
    return sum(part.seconds for part in soak_parts(folder.ticks(Stage.SOAK), ()))


def soak_parts(ticks: Sequence[Tick], samples: Sequence[MachineSample]) -> list[SoakBlock]:
    """Returns each session's part, in order of time: the span in which requests were running."""
    blocks: list[SoakBlock] = []
    before = 0.0
    for session in sorted({tick.place.session for tick in ticks}):
        session_ticks = sorted((t for t in ticks if t.place.session == session), key=lambda tick: tick.elapsed)
        began, ended = session_ticks[0].elapsed, max(tick.elapsed + tick.ended for tick in session_ticks)
        beside = sorted((s for s in samples if s.session == session), key=lambda sample: sample.elapsed)
        blocks.append(SoakBlock(session, before, began, ended, tuple(session_ticks), tuple(beside)))
        before += ended - began
    return blocks


def _curves(parts: Sequence[SoakBlock], what: str) -> list[Curve]:
    return [
        [(one.elapsed, value) for one in part.samples if (value := getattr(one, what)) is not None] for part in parts
    ]


def _too_few(curves: Sequence[Curve]) -> str:
    """Returns how many readings there are and how many growth takes; empty if they suffice, or if there are none."""
    readings, seconds = after_warm_up(curves)
    if not readings or (readings >= FEWEST_READINGS and seconds >= LEAST_SECONDS):
        return ""
    return f"{readings} in {int(seconds)} s after the warm-up, at least {FEWEST_READINGS} in {LEAST_SECONDS:.0f} s"


def _days(growths: Sequence[MemoryGrowth], parts: Sequence[SoakBlock]) -> float | None:
    """Returns the days until memory is exhausted, by the fastest growth. What remains is the headroom over the floor,
    or all available memory if the floor is unknown."""
    last = [one for part in parts for one in part.samples if one.headroom is not None or one.available is not None]
    if not growths or not last:
        return None
    left = last[-1].headroom if last[-1].headroom is not None else last[-1].available
    assert left is not None
    return min(max(left, 0) / one.certain / _DAY if one.certain else math.inf for one in growths)


def _counter_rise(parts: Sequence[SoakBlock], what: str) -> int | None:
    """Returns the rise of a daemon's counter during the soak. A fall means that a new daemon began to count."""
    read = [_known_values(part.samples, what) for part in parts]
    if not any(read):
        return None
    return sum(later - earlier if later >= earlier else later for one in read for earlier, later in pairwise(one))


def _longest_critical(parts: Sequence[SoakBlock]) -> float | None:
    """Returns the longest spell of critical memory pressure in seconds, by the daemon's counter."""
    read = [[readings for readings in part.samples if readings.pressure is not None] for part in parts]
    if not any(read):
        return None
    longest = 0.0
    for readings in read:
        spell = 0.0
        for earlier, later in pairwise(readings):
            spent = max(later.critical_seconds - earlier.critical_seconds, 0.0)
            # The daemon reads less often than it is asked: a spell goes on while its counter stands still.
            throughout = earlier.pressure == later.pressure == "critical"
            spell = spell + spent if spent or throughout else 0.0
            longest = max(longest, spell)
    return longest


def _known_values(samples: Iterable[MachineSample], what: str) -> list[int]:
    return [value for one in samples if (value := getattr(one, what)) is not None]


def _growth_text(result: SoakResult) -> str:
    kinds = (("the daemon's resident set", result.resident), ("MLX's memory", result.mlx))
    name, worst = max(
        ((name, one) for name, one in kinds if one is not None and one.certain), key=lambda pair: pair[1].certain
    )
    low, high = (rate * 3600 / 2**20 for rate in (worst.slope.low, worst.slope.high))
    left = (result.days_to_exhaustion or 0.0) * _DAY
    span = f"{left / _DAY:.1f} days" if left >= _DAY else f"{left / 3600:.1f} hours"
    return f"{name} by {low:.0f} to {high:.0f} MiB an hour, so that it lasts {span} at most"
