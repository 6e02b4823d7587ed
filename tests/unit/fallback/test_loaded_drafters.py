"""The drafters whose weights stay loaded: the level's, those of the next level up, and borrowed ones."""

from __future__ import annotations

import logging
import threading

import pytest

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, LadderLevel
from draftd.errors import ModelLoadError, NotServing
from draftd.fallback.loaded_drafters import LoadedDrafters, needed_drafters
from tests.unit.fallback.controlled import BOTTOM, LADDER, LIGHT, SHORTER, TOP, FakeEngine
from tests.wait_until import until

DRAFT, LIGHTER, LOOKUP = DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP


def asked(engine: FakeEngine) -> list[str]:
    return [done.removeprefix("keep ") for done in engine.trace.done]


def test_a_level_needs_its_drafter_and_the_draft_model_down_to_short_block() -> None:
    assert needed_drafters(LADDER[TOP]) == needed_drafters(LADDER[SHORTER]) == {DRAFT}
    assert needed_drafters(LADDER[LIGHT]) == {LOOKUP}
    assert needed_drafters(LADDER[BOTTOM]) == frozenset()
    assert needed_drafters(LadderLevel(FallbackLevel.FULL, 4, LOOKUP)) == {LOOKUP, DRAFT}
    assert needed_drafters(LadderLevel(FallbackLevel.LIGHT_DRAFT, 2, LIGHTER)) == {LIGHTER}


def test_the_engine_is_asked_once_for_what_stays_the_same() -> None:
    engine = FakeEngine()
    drafters = LoadedDrafters(engine)
    for position in (TOP, SHORTER, SHORTER, BOTTOM):
        drafters.hold(LADDER[position])
        drafters.refresh()
    assert asked(engine) == ["draft_model", ""]
    assert engine.held == frozenset()


def test_prepared_drafter_is_held_beside_the_current_one() -> None:
    engine = FakeEngine()
    drafters = LoadedDrafters(engine)
    drafters.hold(LADDER[LIGHT])
    assert drafters.ready(LADDER[SHORTER], 0.0, 60.0)
    assert engine.held == {DRAFT, LOOKUP}
    drafters.hold(LADDER[SHORTER])
    assert engine.held == {DRAFT}


def test_borrowed_drafter_stays_until_its_last_borrower_returns_it() -> None:
    engine = FakeEngine()
    drafters = LoadedDrafters(engine)
    drafters.hold(LADDER[BOTTOM])
    with drafters.borrow(DRAFT):
        assert engine.held == {DRAFT}
        with drafters.borrow(DRAFT), drafters.borrow(None):
            drafters.hold(LADDER[LIGHT])
        assert engine.held == {DRAFT, LOOKUP}
    assert engine.held == {LOOKUP}


def test_revoked_drafter_is_unloaded_although_borrowed() -> None:
    engine = FakeEngine()
    drafters = LoadedDrafters(engine)
    drafters.hold(LADDER[BOTTOM])
    with drafters.borrow(DRAFT):
        drafters.hold(LADDER[BOTTOM], revoke=True)
        assert engine.held == frozenset()
        drafters.ready(LADDER[LIGHT], 0.0, 60.0)
        assert engine.held == {LOOKUP}
        with drafters.borrow(DRAFT):
            assert engine.held == {DRAFT, LOOKUP}
        assert engine.held == {LOOKUP}
    with drafters.borrow(DRAFT):
        assert engine.held == {DRAFT, LOOKUP}


def test_borrower_waits_until_the_weights_are_loaded() -> None:
    engine = FakeEngine()
    engine.slow = True
    drafters = LoadedDrafters(engine)
    inside = threading.Event()

    def borrow() -> None:
        with drafters.borrow(DRAFT):
            inside.set()

    thread = threading.Thread(target=borrow)
    thread.start()
    until(lambda: bool(asked(engine)))
    assert not inside.wait(0.1)
    engine.load()
    thread.join(10)
    assert inside.is_set()
    assert asked(engine) == ["draft_model", ""]


def test_weights_that_cannot_be_had_are_said_so_and_not_borrowed() -> None:
    engine = FakeEngine()
    engine.failure = ModelLoadError("the folder is empty")
    drafters = LoadedDrafters(engine, load_seconds=0.1)
    drafters.hold(LADDER[BOTTOM])
    with pytest.raises(ModelLoadError, match="empty"), drafters.borrow(DRAFT):
        raise AssertionError("lent")
    assert asked(engine)[-1] == ""
    engine.failure, engine.slow = None, True
    with pytest.raises(TimeoutError), drafters.borrow(DRAFT):
        raise AssertionError("lent")
    engine.not_serving = NotServing("stopping")
    with pytest.raises(NotServing), drafters.borrow(LOOKUP):
        raise AssertionError("lent")


def test_a_levels_own_weights_that_cannot_be_had_are_tried_again_after_a_while_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, now = FakeEngine(), 0.0
    engine.failure = ModelLoadError("the folder is empty")
    drafters = LoadedDrafters(engine, clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        drafters.hold(LADDER[TOP])
        for _ in range(10):
            drafters.refresh()
    assert asked(engine) == ["draft_model"]
    assert len(caplog.records) == 1
    engine.failure, now = None, 31.0
    drafters.refresh()
    assert engine.held == {DRAFT}


def test_an_engine_that_loads_is_asked_again_when_it_serves() -> None:
    engine = FakeEngine()
    engine.not_serving = NotServing("loading")
    drafters = LoadedDrafters(engine)
    drafters.hold(LADDER[BOTTOM])
    drafters.refresh()
    assert asked(engine) == []
    engine.not_serving = None
    drafters.refresh()
    assert asked(engine) == [""]
