"""The machine as a cause: critical memory pressure and heat that last, and memory that is read back from swap."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Machine:
    """One reading. None could not be read. `swap_ins` are bytes since the daemon started."""

    critical: bool | None
    heavy: bool | None
    swap_ins: int | None


@dataclass(frozen=True, slots=True)
class Spell:
    """For how long something has been so. A reading of None neither begins nor ends it, nor makes it longer."""

    since: float | None = None
    last: float = 0.0

    def observe(self, now: float, so: bool | None) -> Spell:
        if so is None:
            return self
        if not so:
            return Spell()
        return Spell(now if self.since is None else min(self.since, now), now)

    @property
    def seconds(self) -> float:
        """Between the first and the last reading of it."""
        return 0.0 if self.since is None else self.last - self.since

    def lasts(self, seconds: float) -> bool:
        return self.since is not None and self.seconds >= seconds


@dataclass(frozen=True, slots=True)
class Growth:
    """How much a counter grew within a window. Bounded: it keeps a mark an eighth of a window at most."""

    marks: tuple[tuple[float, int], ...] = ()  # (time, counter), oldest first; the last one is the newest reading

    def observe(self, now: float, count: int | None, window: float) -> Growth:
        """A counter that went back, or a clock that did, begins anew."""
        if count is None:
            return self
        if self.marks and (count < self.marks[-1][1] or now < self.marks[-1][0]):
            return Growth(((now, count),))
        kept = self.marks
        if len(kept) >= 2 and now - kept[-2][0] < window / 8:
            kept = kept[:-1]
        kept = (*kept, (now, count))
        while len(kept) > 2 and kept[1][0] <= now - window:  # one mark at the window's beginning or before it stays
            kept = kept[1:]
        return Growth(kept)

    def within(self, now: float, window: float) -> int:
        """The growth since the window began; of what was last seen before it, nothing."""
        inside = [i for i, (at, _) in enumerate(self.marks) if at > now - window]
        if not inside:
            return 0
        first = max(0, inside[0] - 1)
        return self.marks[-1][1] - self.marks[first][1]

    def anew(self) -> Growth:
        return Growth(self.marks[-1:])


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """What the readings so far amount to."""

    critical: Spell = Spell()
    heavy: Spell = Spell()
    swap: Growth = Growth()

    def observe(self, reading: Machine, now: float, window: float) -> MachineWatch:
        return MachineWatch(
            self.critical.observe(now, reading.critical),
            self.heavy.observe(now, reading.heavy),
            self.swap.observe(now, reading.swap_ins, window),
        )

    def stepped(self) -> MachineWatch:
        """What was swapped before a step is no word on what came after. Pressure and heat go on as they are."""
        return replace(self, swap=self.swap.anew())
