"""What flapping is: down, up and down again within two dwells. Tests and the simulation count it: it must not be."""

from __future__ import annotations

from collections.abc import Iterable

from draftd.policy.ladder import Step


def flaps(steps: Iterable[Step], dwell: float) -> list[tuple[Step, Step, Step]]:
    """Each step up with the last step down before it and the next one after it, where those two lie less than two
    dwells apart. `steps` are in order of time."""
    found: list[tuple[Step, Step, Step]] = []
    down: Step | None = None
    up: Step | None = None
    for step in steps:
        if step.current < step.previous:
            up = step if up is None else up  # a climb of several rungs counts once, from its first step
            continue
        if down is not None and up is not None and step.at - down.at < 2 * dwell:
            found.append((down, up, step))
        down, up = step, None
    return found
