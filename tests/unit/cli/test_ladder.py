"""The ladder in words: what would move it next, and when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from draftd.cli import ladder
from draftd.core import DRAFT_MODEL, FallbackLevel
from draftd.fallback.ladder import Demand, Hold, Signal
from draftd.fronts.grpc import fallback
from draftd.v1 import control_pb2 as pb
from tests.fallback import NOW, standing

AT = datetime.fromtimestamp(NOW, UTC)


def state(**fields: Any) -> pb.FallbackState:
    return fallback.state(standing(**{"since": NOW - 100, "wait": 300.0, **fields}))


def demand(level: FallbackLevel, *, hard: bool = False, signal: Signal = Signal.ACCEPTANCE_FLOOR) -> Demand:
    return Demand(signal, level, "31 %", hard=hard)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"rung": 2}, "up in 3 min, once a probe of a level above is good"),
        ({"rung": 2, "wait": 130.0}, "up in 30 s, once a probe of a level above is good"),
        ({"rung": 1, "wait": 60.0}, "up once a probe of a level above is good"),
        ({"rung": 4}, "up in 3 min, once a probe of a level above is good"),
        ({"demands": (demand(FallbackLevel.SHORT_BLOCK),)},
         "on its way down to short_block 2: asked by acceptance_floor"),
        (
            {"rung": 1, "demands": (demand(FallbackLevel.SHORT_BLOCK), demand(FallbackLevel.AUTOREGRESSIVE,
             hard=True, signal=Signal.MEMORY))},
            "on its way down to autoregressive: asked by memory",
        ),
        ({"rung": 2, "demands": (demand(FallbackLevel.SHORT_BLOCK),)}, "not up while asked by acceptance_floor"),
        (
            {"rung": 4, "demands": (demand(FallbackLevel.SHORT_BLOCK),)},
            "up in 3 min, once a probe of a level above is good",
        ),
        ({"rung": 2, "hold": Hold(2)}, "stays: it is held"),
        ({"rung": 2, "hold": Hold(0)}, "on its way to full: it is held there"),
        (
            {"rung": 2, "absent": {DRAFT_MODEL: "no draft model is loaded"}},
            "up in 3 min: nothing is drafted there, so there is nothing to probe",
        ),
        (
            {"rung": 2, "wait": 60.0, "absent": {DRAFT_MODEL: "no draft model is loaded"}},
            "up now: nothing is drafted there, so there is nothing to probe",
        ),
        (
            {"rung": 4, "absent": {DRAFT_MODEL: "no draft model is loaded"}},
            "up in 3 min, once a probe of a level above is good",
        ),
        ({"rung": 1, "since": NOW + 5}, "up in 5 min, once a probe of a level above is good"),
    ],
)  # fmt: skip
def test_what_comes_next_is_said(fields: dict[str, Any], said: str) -> None:
    assert ladder.outlook(state(**fields), AT) == said


def test_a_hold_says_until_when_and_how_long_that_is() -> None:
    assert ladder.held(state(), AT) == ""
    assert ladder.held(state(hold=Hold(0)), AT) == "until it is released"
    assert (
        ladder.held(state(hold=Hold(0, NOW + 1800)), AT) == f"until {AT + timedelta(minutes=30):%H:%M:%S} (30 min left)"
    )
    far = AT + timedelta(days=3)
    assert ladder.held(state(hold=Hold(0, far.timestamp())), AT) == f"until {far:%Y-%m-%d %H:%M:%S} (3 d left)"
    assert ladder.held(state(hold=Hold(0, NOW - 5)), AT).endswith("(0 s left)")


def test_a_place_is_told_from_the_top() -> None:
    assert ladder.place(state()) == "the top"
    assert ladder.place(state(rung=4)) == "4 of 4 down"
    assert ladder.current(state(rung=3)) == "light_draft prompt_lookup"


def test_a_state_of_a_daemon_without_a_ladder_has_no_name() -> None:
    assert ladder.current(pb.FallbackState()) == ""
