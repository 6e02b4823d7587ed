"""The clock that counts sleep, and the rate limit per second."""

from __future__ import annotations

import sys
import time

import pytest

from draftd.clocks import sleepless_seconds
from draftd.token_bucket import TokenBucket


def test_suspend_aware_clock_advances_at_least_as_far_as_monotonic_clock() -> None:
    before, awake = sleepless_seconds(), time.monotonic()
    time.sleep(0.01)
    passed = sleepless_seconds() - before
    assert passed >= 0.01
    assert passed >= time.monotonic() - awake - 0.005


@pytest.mark.parametrize(
    ("platform", "clock"), [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC_RAW"), ("aix", None)]
)
def test_suspend_aware_clock_uses_platform_clock_that_counts_sleep(
    platform: str, clock: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "CLOCK_MONOTONIC_RAW", "CLOCK_MONOTONIC_RAW", raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda asked: {clock: 1.5}[asked])
    monkeypatch.setattr(time, "monotonic", lambda: 2.5)
    assert sleepless_seconds() == (2.5 if clock is None else 1.5)


def test_suspend_aware_clock_falls_back_to_monotonic_clock_when_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refused)
    monkeypatch.setattr(time, "monotonic", lambda: 2.5)
    assert sleepless_seconds() == 2.5


def test_token_bucket_allows_burst_of_one_second_and_refills_over_time() -> None:
    now = [1000.0]
    rate = TokenBucket(4.0, 4.0, clock=lambda: now[0])
    assert [rate.take() for _ in range(5)] == [0, 0, 0, 0, 0.25]
    now[0] += 0.25
    assert (rate.wait(), rate.take(), rate.take()) == (0, 0, 0.25)
    now[0] += 3600
    assert [rate.take() > 0 for _ in range(5)] == [False] * 4 + [True]


def test_token_bucket_with_rate_below_one_per_second_allows_one_per_interval() -> None:
    now = [1000.0]
    rate = TokenBucket(0.1, 1.0, clock=lambda: now[0])
    assert rate.take() == 0
    assert rate.take() == pytest.approx(10.0)
    now[0] += 10.0
    assert rate.take() == 0
