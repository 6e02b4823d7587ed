"""Runs the fault suite: steps of random faults from a seed, under traffic and alerts. Reports violations, and how soon
the daemon recovered."""

from __future__ import annotations

import random
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from draftd.core import FallbackLevel
from tests.faults.faults import FAULTS, Fault
from tests.faults.model import Broken, Invariant, percentile
from tests.faults.world import World

_TOGETHER = (1, 1, 2, 2, 3)  # faults in a step
_RECONCILE_EVERY = 6  # steps
_MOST_FIRING = 3
_TAIL = 8  # steps that a report shows
_LOWER = (FallbackLevel.SHORT_BLOCK, FallbackLevel.LIGHT_DRAFT, FallbackLevel.AUTOREGRESSIVE)


@dataclass(frozen=True)
class Step:
    """Faults and actions that happen together. `pause` is how long they last. `alert` is (level, hard) of an alert that
    fires then; `resolved` is the index, among the firing ones, of an alert that ends."""

    number: int
    faults: tuple[Fault, ...]
    dice: tuple[int, ...]  # the seed of each fault
    pause: float
    alert: tuple[FallbackLevel, bool] | None
    resolved: int | None
    reconciles: bool

    def __str__(self) -> str:
        said = [one.name for one in self.faults]
        if self.alert is not None:
            said.append(f"alert: {self.alert[0].label}{', hard' if self.alert[1] else ''}")
        if self.resolved is not None:
            said.append("an alert is over")
        return f"step {self.number}, {self.pause:.2f} s: {'; '.join(said)}"


class Schedule:
    """Yields steps without end, the same ones for the same seed and faults. Each fault occurs `share` times before any
    occurs again."""

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self._dice, self._faults = random.Random(seed), faults
        self._deck: list[Fault] = []
        self._number = self._firing = 0

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        dice = self._dice
        self._number += 1
        drawn = self._drawn(dice.choice(_TOGETHER))
        alert, resolved = None, None
        if self._firing < _MOST_FIRING and dice.random() < 0.4:
            alert = dice.choice(_LOWER), dice.random() < 0.7
            self._firing += 1
        elif self._firing and dice.random() < 0.6:
            resolved = dice.randrange(self._firing)
            self._firing -= 1
        seeds = tuple(dice.randrange(2**32) for _ in drawn)
        reconciles = self._number % _RECONCILE_EVERY == 0
        return Step(self._number, drawn, seeds, dice.uniform(0.1, 0.7), alert, resolved, reconciles)

    def _drawn(self, number: int) -> tuple[Fault, ...]:
        """Draws faults of different groups, with those that must be last at the end."""
        found: list[Fault] = []
        for _ in range(number if self._faults else 0):
            if not self._deck:
                self._deck = [one for one in self._faults for _ in range(one.share)]
                self._dice.shuffle(self._deck)
            groups = {group for one in found for group in one.groups}
            fits = next((one for one in self._deck if not groups & one.groups), None)
            if fits is not None:
                self._deck.remove(fits)
                found.append(fits)
        return tuple(sorted(found, key=lambda one: one.last))


@dataclass
class Result:
    """Result of one execution of the suite."""

    seed: int
    steps: int = 0
    seconds: float = 0.0
    injected: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    starts: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    lags: dict[str, list[float]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)  # the last steps
    lines: list[str] = field(default_factory=list)  # what the daemon said last
    small_disk: bool = False

    def report(self, command: str) -> str:
        """Returns a report for people. `command` repeats the execution."""
        said = [f"seed {self.seed}: {self.steps} steps in {self.seconds:.0f} s, {self.starts} starts of the daemon"]
        said.append(f"{sum(self.injected.values())} faults, {self.kills} kills:")
        width = max((len(name) for name in self.injected), default=0)
        said += [f"  {name:{width}}  {number:4}" for name, number in sorted(self.injected.items())]
        if not self.small_disk:
            said.append("  (no file system could be mounted: a full disk was what writes were told)")
        ended = ", ".join(f"{code} {number}" for code, number in self.requests.most_common())
        said.append(f"{self.requests.total()} requests of the clients: {ended}")
        for what, seconds in self.lags.items():
            shares = ", ".join(f"p{share * 100:g} {percentile(seconds, share):.3f} s" for share in (0.5, 0.9, 0.99))
            said.append(f"{what}: {shares}, most {max(seconds, default=0.0):.3f} s of {len(seconds)}")
        if not self.broken:
            return "\n".join([*said, "no invariant was broken"])
        said += ["", f"BROKEN: {', '.join(sorted({one.invariant for one in self.broken}))}"]
        said += [f"  {one.at:8.2f} s  {one.invariant}: {one.text}" for one in self.broken[:20]]
        said += ["", "the last steps:", *(f"  {line}" for line in self.tail)]
        said += ["", "what the daemon said last:", *(f"  {line}" for line in self.lines[-15:])]
        return "\n".join([*said, "", f"again: {command}"])


def replayed(seed: int, steps: int, broken: str = "", only: Sequence[str] = ()) -> str:
    """Returns the command that repeats the execution."""
    arguments = f"--seed {seed} --steps {steps}"
    arguments += f" --break {broken}" if broken else ""
    arguments += "".join(f" --only {shlex.quote(name)}" for name in only)
    return f'make faults ARGS="{arguments}"'


def run(
    folder: Path,
    seed: int,
    *,
    enough: Callable[[Result], bool],
    faults: Sequence[Fault] = FAULTS,
    broken: str = "",
    clients: int = 3,
    told: Callable[[str], None] = lambda line: None,
) -> Result:
    """Executes steps until `enough` says so, or an invariant is violated; at the end all is compared a last time."""
    result, began = Result(seed), time.monotonic()
    world = World(folder, seed, clients=clients, broken=broken)
    try:
        result.small_disk = world.daemon.disk.small
        world.open()
        world.reconcile()
        firing, fingerprints = list[str](), 0
        for step in Schedule(seed, faults):
            if world.model.broken or enough(result):
                break
            told(f"{time.monotonic() - began:7.1f} s  {step}")
            result.tail = [*result.tail, str(step)][-_TAIL:]
            with ExitStack() as healed:
                for fault, dice in zip(step.faults, step.dice, strict=True):
                    healed.enter_context(fault.put_in(world, random.Random(dice)))
                    result.injected[fault.name] += 1
                if step.alert is not None:
                    fingerprints += 1
                    firing.append(f"{fingerprints:04}")
                    world.alerts.fire(firing[-1], *step.alert)
                if step.resolved is not None:
                    world.alerts.resolve(firing.pop(step.resolved))
                time.sleep(step.pause)
            world.recovered()
            if step.reconciles and not world.model.broken:
                world.reconcile()
            result.steps, result.seconds, result.kills = step.number, time.monotonic() - began, world.kills
        if not world.model.broken:
            world.reconcile()
    except Exception as error:
        world.model.breaks(Invariant.ALIVE, f"the run itself failed: {error!r}")
        if not isinstance(error, AssertionError):  # what a daemon said that did not start
            raise
    finally:
        result.seconds, result.starts = time.monotonic() - began, world.starts
        result.requests, result.lags = world.model.ended, world.model.lags
        result.broken, result.lines = world.model.broken, list(world.daemon.lines)
        world.close()
    return result
