"""A representative part of the fault suite: `make faults` runs all of it, for as long as one likes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.faults import named
from tests.faults.run import replayed, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

SEED = 20_260_107
FAULTS = (
    "kill",
    "kill, level damaged",
    "engine raises",
    "suspend",
    "machine sleeps",
    "certificate renewed",
    "token replaced",
    "disk full",
    "quota",
    "clock jumps",
    "no descriptors",
    "memory is short",
    "drafter raises",
    "forward raises",
    "planning raises",
    "look of draftd-fallback raises",
    "draftd-webhook raises",
    "collector dead",
    "collector sleeps",
    "collector lies",
    "Grafana is ill",
    "cancelled streams",
    "too many requests",
    "clients vanish",
    "flood of the webhook",
    "flag flips",
    "draft read anew",
    "hold at full",
)


def test_daemon_breaks_no_invariant_under_injected_faults(tmp_path: Path) -> None:
    faults = [replace(named(name), share=1) for name in FAULTS]
    result = run(tmp_path, SEED, faults=faults, enough=lambda result: result.injected.total() >= len(faults))
    again = replayed(SEED, result.steps, only=FAULTS)
    assert not result.broken, result.report(again)
    assert set(result.injected) == set(FAULTS)
    assert result.kills >= 2
    assert result.requests["OK"] > 20
