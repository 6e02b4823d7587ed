"""What a restart finds again: all of it, or something safer, and an error that says what is wrong."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, WorkloadClass
from draftd.fallback import baselines
from draftd.fallback.drift import Baseline
from draftd.fallback.ladder import Hold, Ladder, rungs
from draftd.fallback.leases import Lease, Leases, Notice
from draftd.fallback.state import Saved, document, parse, safer

DRAFT, LIGHT, LOOKUP = DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
LADDER = rungs(6, (4, 3, 2), DRAFT, (LIGHT, LOOKUP))
LAST_SHORT, BOTTOM = 3, len(LADDER) - 1
NOW = 1_700_000_000.0


def state(rung: int = 2, hold: Hold | None = None) -> Saved:
    notice = Notice("DraftdSwapRising", "a1", True, NOW - 50, FallbackLevel.LIGHT_DRAFT, hard=True)
    return Saved(
        NOW,
        Ladder(rung, NOW - 100, "alert: it fires", 3, NOW - 200, hold, NOW - 300),
        Leases({"a1": Lease(notice, NOW + 900, polled=True)}, {"b2": NOW - 70}),
        {(DRAFT, WorkloadClass.CODE): Baseline(0.8, 0.2), (LOOKUP, WorkloadClass.CHAT): Baseline(0.2, 0.1)},
        "17 of 20 canaries passed",
    )


def written(saved: Saved) -> dict[str, Any]:
    found = json.loads(json.dumps(document(saved, LADDER)))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("hold", [None, Hold(4), Hold(0, NOW + 60)])
@pytest.mark.parametrize("rung", range(len(LADDER)))
def test_what_was_saved_is_what_is_read(rung: int, hold: Hold | None) -> None:
    assert parse(written(state(rung, hold)), LADDER) == state(rung, hold)


def test_time_that_passed_has_passed() -> None:
    assert state().resumed(NOW + 5000) == state()


def test_a_clock_that_went_back_counts_as_no_time_having_passed() -> None:
    resumed = state(hold=Hold(0, NOW + 60)).resumed(NOW - 10_000)
    assert resumed.at == NOW - 10_000
    assert resumed.ladder == Ladder(
        2, NOW - 10_100, "alert: it fires", 3, NOW - 10_200, Hold(0, NOW - 9_940), NOW - 10_300
    )
    assert resumed.leases.held["a1"].until == NOW - 9_100
    assert resumed.leases.held["a1"].notice.starts_at == NOW - 50, "the sender's clock is another one"


@pytest.mark.parametrize(
    ("rung", "ladder", "found"),
    [
        (0, rungs(8, (4,), DRAFT, ()), 0),
        (0, rungs(4, (2,), LOOKUP, ()), 0),
        (1, rungs(6, (5, 3), DRAFT, ()), 2),  # 4 was allowed, 5 is more, 3 is not
        (3, rungs(6, (4, 3), DRAFT, (LOOKUP,)), 3),  # no block so short: the first lighter drafter
        (4, rungs(6, (4,), DRAFT, (LOOKUP,)), 2),
        (5, rungs(6, (4,), DRAFT, (LIGHT,)), 3),  # a heavier drafter is not a lower rung
        (6, rungs(6, (4,), DRAFT, ()), 2),
        (6, rungs(0, (), DRAFT, ()), 0),
    ],
)
def test_a_rung_of_another_ladder_is_the_nearest_that_allows_no_more(
    rung: int, ladder: tuple[Any, ...], found: int
) -> None:
    assert parse(written(state(rung)), ladder).ladder.rung == found


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 2, "version: got 2; allowed: 1"),
        (("at",), None, "at: got None; allowed: a number"),
        (("ladder", "since"), float("nan"), "ladder.since: got nan; allowed: a number"),
        (("ladder", "relapses"), -1, "ladder.relapses: got -1; allowed: a whole number from 0 to 1000000"),
        (("ladder", "relapses"), True, "ladder.relapses: got True"),
        (("ladder", "cause"), 7, "ladder.cause: got 7; allowed: text"),
        (("ladder", "rung", "level"), "best", "ladder.rung.level: got 'best'; allowed: full, short_block, light_draft"),
        (("ladder", "rung", "drafter"), 7, "ladder.rung.drafter: got 7; allowed: text"),
        (("ladder", "hold"), [], "ladder.hold: got []; allowed: an object"),
        (("leases", "a1", "until"), 10**400, "leases.a1.until: got 1000"),
        (("leases", "a1", "hard"), "no", "leases.a1.hard: got 'no'; allowed: true or false"),
        (("leases", "a1", "starts_at"), 1e300, "leases.a1.starts_at: got 1e+300; allowed: a number from 0 to"),
        (("baselines", "draft_model/code", "mean"), 1.5, "baselines.draft_model/code.mean: got 1.5; allowed: a number"),
        (("baselines", "draft_model/opera"), {}, "name in baselines: got 'opera'; allowed: unspecified, code"),
        (("quality",), None, "quality: got None; allowed: text"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(path: tuple[str, ...], value: object, said: str) -> None:
    broken: Any = written(state())
    at = broken
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with pytest.raises(ValueError, match="^" + re.escape(said)):
        parse(broken, LADDER)


@pytest.mark.parametrize("broken", [None, [], 7, "x", {}, {"ladder": 1}, {"ladder": {"rung": {"level": "full"}}}])
def test_a_broken_document_leads_to_the_last_short_block(broken: object) -> None:
    with pytest.raises(ValueError, match="allowed"):
        parse(broken, LADDER)
    found = safer(broken, LADDER, NOW)
    assert found == Saved(NOW, Ladder(LAST_SHORT, NOW, "its saved state could not be read"))


def test_a_broken_document_whose_rung_can_be_read_leads_there() -> None:
    assert safer({**written(state(5)), "quality": 7}, LADDER, NOW).ladder.rung == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.data(), JSON)
def test_whatever_stands_in_its_place_is_read_or_refused_and_never_leads_higher(data: st.DataObject, junk: Any) -> None:
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
        found = parse(broken, LADDER)
    except ValueError:
        found = safer(broken, LADDER, NOW)
        assert found.ladder.rung >= min(saved.ladder.rung, LAST_SHORT)
    assert 0 <= found.ladder.rung <= BOTTOM
    if "rung" not in parts:
        assert found.ladder.rung >= min(saved.ladder.rung, LAST_SHORT)


def test_baselines_are_kept_in_a_file_of_their_own_too() -> None:
    known = state().baselines
    assert baselines.parse(json.loads(json.dumps(baselines.document(known)))) == known
    with pytest.raises(ValueError, match="version: got None; allowed: 1"):
        baselines.parse({})
