"""From the steps of daemons to the tokens after which their depth has settled."""

from __future__ import annotations

import time

import pytest

from benchmarks.settle import MOST, Busy, Reference, Step, Window, mean_depth, settled_after

PASS = 96  # tokens: the first half is copied, and drafts 4 a step; the second is new, and drafts nothing


def texts(passes: int, *, until: int = 0) -> list[Step]:
    """The steps of a daemon that drafts nothing before the token `until`."""
    steps, end = list[Step](), 0
    while end < passes * PASS:
        copied = end % PASS < PASS // 2
        drafts = copied and end >= until
        end += 4 if drafts else 1
        steps.append(Step(end, 1, 4 if drafts else 0))
    return steps


def test_mean_depth_is_drafted_tokens_divided_by_steps() -> None:
    steps = [Step(1, 1, 0), Step(5, 1, 4), Step(9, 2, 2), Step(10, 1, 0)]
    assert mean_depth(steps, 1, 9) == 2.0
    assert mean_depth(steps, 20, 30) == 0.0


@pytest.mark.parametrize(("depth", "settled"), [(1.59, False), (1.61, True), (3.0, True), (4.79, True), (4.81, False)])
def test_depth_window_is_settled_within_one_fifth_of_reference_depth(depth: float, settled: bool) -> None:
    assert Window(32, depth, 2.0, 4.0).settled is settled


def test_depth_windows_exclude_text_where_reference_drafts_nothing() -> None:
    windows = Reference(texts(3), PASS).windows(texts(3))
    assert all(not 80 < (one.end - 1) % PASS + 1 <= PASS for one in windows)
    assert windows
    assert all(one.settled for one in windows)


def test_settling_benchmark_finds_late_depth_settling_by_reference_at_same_text_position() -> None:
    late = Reference(texts(3), PASS).windows(texts(6, until=2 * PASS))
    settled = settled_after(late, 0)
    assert settled is not None
    assert 2 * PASS < settled <= 2 * PASS + 48


def test_settling_point_of_depth_that_never_settles_is_none() -> None:
    never = Reference(texts(3), PASS).windows(texts(20, until=20 * PASS))
    assert never
    assert settled_after(never, 0) is None
    assert settled_after([Window(MOST + 33, 4.0, 4.0, 4.0)], 32) is None


def test_settling_benchmark_ignores_tokens_before_busy_processes_end() -> None:
    busy = Busy(ended=150.0)
    steps = [Step(one.end, one.steps, one.drafted, at=float(i)) for i, one in enumerate(texts(30, until=0))]
    found, begin = Reference(texts(3), PASS).follow(iter(steps), busy)
    assert begin == steps[150].end
    assert all(one.end >= begin + 32 for one in found)


def test_settling_benchmark_gives_up_after_maximum_number_of_tokens() -> None:
    found, begin = Reference(texts(3), PASS).follow(iter(texts(40, until=40 * PASS)))
    assert settled_after(found, begin) is None
    assert max(one.end for one in found) + PASS >= MOST


def test_busy_processes_of_settling_benchmark_end_after_set_time() -> None:
    busy = Busy()
    with busy.running(1):
        busy.end_in(0.01)
        deadline = time.monotonic() + 30
        while not busy.ended and time.monotonic() < deadline:
            time.sleep(0.01)
        assert busy.ended
