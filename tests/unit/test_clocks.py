"""The clock that counts sleep, and the rate limit per second."""

from __future__ import annotations

import sys
import time

import pytest

from draftd.clocks import sleepless_seconds
from draftd.token_bucket import TokenBucket


def test_elapsed_never_goes_back_and_counts_what_awake_time_counts() -> None:
    before, awake = sleepless_seconds(), time.monotonic()
    time.sleep(0.01)
    passed = sleepless_seconds() - before
    assert passed >= 0.01
    assert passed >= time.monotonic() - awake - 0.005


@pytest.mark.parametrize(
    ("platform", "clock"), [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC_RAW"), ("aix", None)]
)
def test_each_platform_has_the_clock_that_counts_sleep(
    platform: str, clock: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "CLOCK_MONOTONIC_RAW", "CLOCK_MONOTONIC_RAW", raising=False)
    monkeypatch.setattr(time, "clock_gettime", lambda asked: {clock: 1.5}[asked])
    monkeypatch.setattr(time, "monotonic", lambda: 2.5)
    assert sleepless_seconds() == (2.5 if clock is None else 1.5)


def test_a_kernel_without_that_clock_has_the_monotonic_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refused)
    monkeypatch.setattr(time, "monotonic", lambda: 2.5)
    assert sleepless_seconds() == 2.5


def test_a_rate_lets_a_second_through_at_once_and_fills_with_time() -> None:
    now = [1000.0]
    rate = TokenBucket(4.0, 4.0, clock=lambda: now[0])
    assert [rate.take() for _ in range(5)] == [0, 0, 0, 0, 0.25]
    now[0] += 0.25
    assert (rate.wait(), rate.take(), rate.take()) == (0, 0, 0.25)
    now[0] += 3600
    assert [rate.take() > 0 for _ in range(5)] == [False] * 4 + [True]


def test_a_rate_below_one_a_second_lets_one_through_now_and_then() -> None:
    now = [1000.0]
    rate = TokenBucket(0.1, 1.0, clock=lambda: now[0])
    assert rate.take() == 0
    assert rate.take() == pytest.approx(10.0)
    now[0] += 10.0
    assert rate.take() == 0
