"""How long a sweep still takes, by what like requests took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import mean, median

from draftd.acceptance.sweep.schedule import Step


class Remaining:
    """A step is judged by those of its arm and group, else by those of its arm, else by all."""

    def __init__(self, pause_seconds: float = 0.0) -> None:
        """`pause_seconds` come after each step."""
        self._pause = pause_seconds
        self._like: dict[tuple[str, str], list[float]] = defaultdict(list)

    def took(self, step: Step, seconds: float) -> None:
        """Without the pause after it."""
        self._like[step.arm.id, step.group].append(seconds)

    def of(self, steps: Iterable[Step]) -> float | None:
        """Seconds; None while nothing is known."""
        if not self._like:
            return None
        of_arm: dict[str, list[float]] = defaultdict(list)
        for (arm, _), found in self._like.items():
            of_arm[arm] += found
        likely = {key: _likely(found) for key, found in self._like.items()}
        likely_of_arm = {arm: _likely(found) for arm, found in of_arm.items()}
        likely_of_any = mean(likely_of_arm.values())
        still = Counter((step.arm.id, step.group) for step in steps)
        return sum(
            count * (self._pause + likely.get(key, likely_of_arm.get(key[0], likely_of_any)))
            for key, count in still.items()
        )


def _likely(seconds: list[float]) -> float:
    """The mean, since what is wanted is a sum; one answer that hung counts as four usual ones at most."""
    most = 4 * median(seconds)
    return mean(min(one, most) for one in seconds)
