"""A restart restores the saved state or something safer, and an error names the fault."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, WorkloadClass
from draftd.fallback.baselines import ProbeBaselines
from draftd.fallback.drift import Baseline
from draftd.fallback.ladder import Cause, Hold, LadderState, Signal, ladder_levels
from draftd.fallback.leases import Lease, Leases, Notice
from draftd.fallback.saved_state import SavedLevels, SavedState, parse, safer
from draftd.fallback.store import StateStore

DRAFT, LIGHT, LOOKUP = DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
LADDER = ladder_levels(6, (4, 3, 2), DRAFT, (LIGHT, LOOKUP))
BOTTOM = len(LADDER) - 1
NOW = 1_700_000_000.0


FIRES = Signal(Cause.ALERT, FallbackLevel.LIGHT_DRAFT, "it fires", hard=True)


def state(position: int = 2, hold: Hold | None = None) -> SavedLevels:
    notice = Notice("DraftdSwapRising", "a1", True, NOW - 50, FallbackLevel.LIGHT_DRAFT, hard=True)
    return SavedLevels.of(
        NOW,
        LADDER,
        LadderState(position, NOW - 100, FIRES, 3, NOW - 200, hold, NOW - 300),
        leases=Leases({"a1": Lease(notice, NOW + 900, polled=True)}, {"b2": NOW - 70}),
        baselines={(DRAFT, WorkloadClass.CODE): Baseline(0.8, 0.2), (LOOKUP, WorkloadClass.CHAT): Baseline(0.2, 0.1)},
        quality="17 of 20 canaries passed",
    )


def written(saved: SavedLevels) -> dict[str, Any]:
    document = json.loads(saved.model_dump_json())
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("hold", [None, Hold(4), Hold(0, NOW + 60)])
@pytest.mark.parametrize("position", range(len(LADDER)))
def test_fallback_state_is_read_back_as_it_was_written(position: int, hold: Hold | None) -> None:
    assert parse(state(position, hold).model_dump_json(), LADDER) == state(position, hold)


def test_fallback_state_resumed_after_downtime_keeps_its_timestamps() -> None:
    assert state().resume_at(NOW + 5000) == state()


def test_fallback_state_resumed_after_clock_set_back_shifts_its_timestamps() -> None:
    resumed = state(hold=Hold(0, NOW + 60)).resume_at(NOW - 10_000)
    assert resumed.at == NOW - 10_000
    assert resumed.ladder == LadderState(2, NOW - 10_100, FIRES, 3, NOW - 10_200, Hold(0, NOW - 9_940), NOW - 10_300)
    assert resumed.leases.active["a1"].until == NOW - 9_100
    assert resumed.leases.active["a1"].notice.starts_at == NOW - 50, "the sender's clock is another one"


def test_operator_hold_runs_down_across_restarts_after_the_clock_was_set_back(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "ladder.json")
    store.save(state(hold=Hold(0, NOW + 60)).model_dump_json())
    remaining = []
    for now in (NOW - 9000, NOW - 8980, NOW - 8960):
        saved = SavedState(store, LADDER, ProbeBaselines(prompts=""))
        restored = saved.restore(now)
        assert restored.ladder.hold is not None
        assert restored.ladder.hold.until is not None
        remaining.append(restored.ladder.hold.until - now)
        saved.keep(now, restored.ladder, leases=restored.leases, baselines=restored.baselines, quality=restored.quality)
    assert remaining == [60, 40, 20]


@pytest.mark.parametrize(
    ("position", "ladder", "found"),
    [
        (0, ladder_levels(8, (4,), DRAFT, ()), 0),
        (0, ladder_levels(4, (2,), LOOKUP, ()), 0),
        (1, ladder_levels(6, (5, 3), DRAFT, ()), 2),  # 4 was allowed, 5 is more, 3 is not
        (3, ladder_levels(6, (4, 3), DRAFT, (LOOKUP,)), 3),  # no block so short: the first lighter drafter
        (4, ladder_levels(6, (4,), DRAFT, (LOOKUP,)), 2),
        (5, ladder_levels(6, (4,), DRAFT, (LIGHT,)), 3),  # a heavier drafter is not a lower level
        (6, ladder_levels(6, (4,), DRAFT, ()), 2),
        (6, ladder_levels(0, (), DRAFT, ()), 0),
    ],
)
def test_saved_fallback_level_of_another_ladder_maps_to_the_nearest_lower_level(
    position: int, ladder: tuple[Any, ...], found: int
) -> None:
    assert parse(state(position).model_dump_json(), ladder).ladder.position == found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 1, "version: got 1; allowed: 2"),
        (("at",), None, "at: not set; allowed: a valid number"),
        (("ladder", "since"), float("nan"), "ladder.since: got nan; allowed: a finite number"),
        (("ladder", "relapses"), -1, "ladder.relapses: got -1; allowed: greater than or equal to 0"),
        (("ladder", "relapses"), True, "ladder.relapses: got True; allowed: a valid integer"),
        (("ladder", "signal", "cause"), "x", "ladder.signal.cause: got 'x'; allowed: 'acceptance_floor', "),
        (("level", "kind"), 7, "level.kind: got 7; allowed: 0, 1, 2 or 3"),
        (("level", "drafter"), 7, "level.drafter: got 7; allowed: a valid string"),
        (("ladder", "hold"), [], "ladder.hold: got []; allowed: an object"),
        (("leases", "held", "a1", "until"), 10**400, "leases.held.a1.until: got 1000"),
        (
            ("leases", "held", "a1", "notice", "hard"),
            "no",
            "leases.held.a1.notice.hard: got 'no'; allowed: a valid boolean",
        ),
        (("leases", "ended", "b2"), 1e300, "leases.ended.b2: got 1e+300; allowed: less than or equal to 253402300799"),
        (("leases", "held", "a1", "notice", "starts_at"), -1.0, "leases.held.a1.notice.starts_at: got -1.0; allowed: "),
        (
            ("baselines", "draft_model/code", "mean"),
            1.5,
            "baselines.draft_model/code.mean: got 1.5; allowed: less than",
        ),
        (("baselines", "draft/poem"), {}, "baselines.draft/poem.[key]: got 'draft/poem'; allowed: DRAFTER/WORKLOAD"),
        (("quality",), None, "quality: not set; allowed: a valid string"),
    ],
)
def test_faulty_field_of_saved_fallback_state_is_named_with_its_allowed_values(
    path: tuple[str, ...], value: object, said: str
) -> None:
    broken: Any = written(state())
    at = broken
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with pytest.raises(ValueError, match="^" + re.escape(said)):
        parse(json.dumps(broken), LADDER)


@pytest.mark.parametrize("broken", [None, [], 7, "x", {}, {"ladder": 1}, {"level": {"kind": 3}}])
def test_broken_fallback_state_resumes_at_the_autoregressive_level(broken: object) -> None:
    text = json.dumps(broken)
    with pytest.raises(ValueError, match="allowed|missing"):
        parse(text, LADDER)
    signal = Signal(Cause.UNREADABLE_STATE, FallbackLevel.AUTOREGRESSIVE, "the saved state could not be read")
    assert safer(text, LADDER, NOW) == SavedLevels.of(NOW, LADDER, LadderState(BOTTOM, NOW, signal))
    assert safer(None, LADDER, NOW) == safer("{", LADDER, NOW) == safer(text, LADDER, NOW)


def test_broken_fallback_state_with_a_readable_level_resumes_at_that_level() -> None:
    assert safer(json.dumps({**written(state(5)), "quality": 7}), LADDER, NOW).ladder.position == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.data(), JSON)
def test_fallback_state_with_a_damaged_value_never_resumes_at_a_higher_level(data: st.DataObject, junk: Any) -> None:
    """One value of the document, anywhere in it, replaced by anything."""
    saved = state(data.draw(st.integers(1, BOTTOM)))
    broken: Any = copy.deepcopy(written(saved))
    at, parts = broken, []
    while isinstance(at, dict) and at:
        parts.append(data.draw(st.sampled_from(sorted(at))))
        if not isinstance(at[parts[-1]], dict) or data.draw(st.booleans()):
            at[parts[-1]] = junk
            break
        at = at[parts[-1]]
    try:
        restored = parse(json.dumps(broken), LADDER)
    except ValueError:
        restored = safer(json.dumps(broken), LADDER, NOW)
        assert restored.ladder.position >= saved.ladder.position
    assert 0 <= restored.ladder.position <= BOTTOM
    if "level" not in parts:
        assert restored.ladder.position >= saved.ladder.position
