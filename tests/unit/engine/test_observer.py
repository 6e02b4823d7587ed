"""A watcher can never hurt a request."""

from __future__ import annotations

import logging

import pytest

from draftd.counts import StepCounts
from draftd.engine.observer import EngineObserver, FanOut
from tests.rig import autoregressive, request


class Raises(EngineObserver):
    def on_step(self, request, result, gap):
        raise RuntimeError("on purpose")


class Hears(EngineObserver):
    def __init__(self):
        self.steps = 0

    def on_step(self, request, result, gap):
        self.steps += 1


def test_raising_engine_observer_is_logged_once_and_does_not_block_another_observer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hears = Hears()
    observers = FanOut(Raises(), hears)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            observers.on_step(request([1], autoregressive()), StepCounts(0, 0, 1, 0, 0.0, 0.0), None)
    assert hears.steps == 3
    assert observers.errors == 3
    assert len(caplog.records) == 1
    assert "on purpose" in caplog.text
