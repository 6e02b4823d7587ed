"""A watcher can never hurt a request."""

from __future__ import annotations

import logging

import pytest

from draftd.core import RoundResult
from draftd.engine.observer import FanOut, NullObserver
from tests.rig import autoregressive, request


class Raises(NullObserver):
    def on_round(self, request, result, gap):
        raise RuntimeError("on purpose")


class Hears(NullObserver):
    def __init__(self):
        self.rounds = 0

    def on_round(self, request, result, gap):
        self.rounds += 1


def test_an_observer_that_raises_silences_no_other_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    hears = Hears()
    observers = FanOut(Raises(), hears)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            observers.on_round(request([1], autoregressive()), RoundResult(0, 0, 1, False, 0, 0.0, 0.0), None)
    assert hears.rounds == 3
    assert observers.errors == 3
    assert len(caplog.records) == 1
    assert "on purpose" in caplog.text
