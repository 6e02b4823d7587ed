"""When a process of a group counts as lost: times in, a loss out."""

from __future__ import annotations

import math

import pytest

from draftd.group import Loss
from draftd.ranks.watchdog import Vitals, Watchdog

NEVER = math.inf
# At second 100: (heard, moved) of rank 1, rank 2 and rank 0, and the loss. The limit is 20 s, suspicion begins at 10 s.
CASES = [
    ((99, 99), (99, 81), (NEVER, 80), None),
    ((79, 99), (99, 99), (NEVER, 99), (Loss.SILENT, "rank 1 has said nothing for 20 s")),
    ((79, 99), (78, 99), (NEVER, 99), (Loss.SILENT, "rank 2 has said nothing for 20 s")),
    ((99, 99), (99, 79), (NEVER, 99), (Loss.STALLED, "rank 2 has not ended a step for 20 s")),
    ((99, 79), (99, 78), (NEVER, 79), (Loss.STALLED, "rank 1 has not ended a step for 20 s")),
    ((99, 99), (99, 99), (NEVER, 79), (Loss.STALLED, "rank 0 has not ended a step for 20 s")),
    ((99, 79), (89, 99), (NEVER, 99), (Loss.SILENT, "rank 2 has said nothing for 11.0 s")),
    ((99, 79), (91, 99), (NEVER, 99), (Loss.STALLED, "rank 1 has not ended a step for 20 s")),
    ((99, NEVER), (99, NEVER), (NEVER, NEVER), None),
]


@pytest.mark.parametrize(("rank_1", "rank_2", "rank_0", "expected"), CASES)
def test_rank_watchdog_blames_the_silent_or_stalled_rank(
    rank_1: tuple[float, float],
    rank_2: tuple[float, float],
    rank_0: tuple[float, float],
    expected: tuple[Loss, str] | None,
) -> None:
    times = {"rank 1": rank_1, "rank 2": rank_2, "rank 0": rank_0}
    processes = [Vitals(name, float(heard), float(moved)) for name, (heard, moved) in times.items()]
    assert Watchdog(20.0, 10.0).find_loss(processes, 100.0) == expected
