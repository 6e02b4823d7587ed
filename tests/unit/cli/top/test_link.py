"""How often a daemon that is away is asked again."""

from __future__ import annotations

import pytest

from draftd.cli.top.link import pause


@pytest.mark.parametrize(
    ("failures", "interval", "seconds"),
    [
        (1, 1.0, 1.0),
        (2, 1.0, 2.0),
        (3, 1.0, 4.0),
        (5, 1.0, 10.0),
        (10_000, 1.0, 10.0),
        (1, 60.0, 60.0),
        (9, 60.0, 60.0),
    ],
)
def test_the_pause_doubles_up_to_ten_seconds_or_one_interval(failures: int, interval: float, seconds: float) -> None:
    assert pause(failures, interval) == seconds
