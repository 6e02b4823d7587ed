"""The drafters whose weights stay loaded: the level's, those of the next level up, and borrowed ones."""

from __future__ import annotations

import logging
import threading

import pytest

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, FallbackLevel, LadderLevel
from draftd.errors import ModelLoadError, NotServing
from draftd.fallback.loaded_drafters import LoadedDrafters, needed_drafters
from tests.unit.fallback.controlled import BOTTOM, LADDER, LIGHT, SHORTER, TOP, FakeEngine
from tests.wait_until import until

DRAFT, HEAD, LIGHTER, LOOKUP = DRAFT_MODEL, DRAFT_HEAD, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP


def asked(engine: FakeEngine) -> list[str]:
    return [done.removeprefix("keep ") for done in engine.trace.done]


def test_full_ladder_level_needs_draft_model_and_head_beside_its_drafter_but_light_draft_does_not() -> None:
    assert needed_drafters(LADDER[TOP]) == needed_drafters(LADDER[SHORTER]) == {DRAFT, HEAD}
    assert needed_drafters(LADDER[LIGHT]) == {LOOKUP}
    assert needed_drafters(LADDER[BOTTOM]) == frozenset()
    assert needed_drafters(LadderLevel(FallbackLevel.FULL, 4, LOOKUP)) == {LOOKUP, DRAFT, HEAD}
    assert needed_drafters(LadderLevel(FallbackLevel.LIGHT_DRAFT, 2, LIGHTER)) == {LIGHTER}
    assert needed_drafters(LadderLevel(FallbackLevel.LIGHT_DRAFT, 2, DRAFT)) == {DRAFT, HEAD}


def test_drafter_weights_are_requested_from_the_engine_only_on_change() -> None:
    engine = FakeEngine()
    drafters = LoadedDrafters(engine)
    for position in (TOP, SHORTER, SHORTER, BOTTOM):
        drafters.hold(LADDER[position])
        drafters.refresh()
    assert asked(engine) == ["draft_model", ""]
    assert engine.held == frozenset()


def test_drafter_prepared_for_a_step_up_is_loaded_beside_the_current_drafter() -> None:
    engine = FakeEngine()
    drafters = LoadedDrafters(engine)
    drafters.hold(LADDER[LIGHT])
    assert drafters.ready(LADDER[SHORTER], 0.0, 60.0)
    assert engine.held == {DRAFT, LOOKUP}
    drafters.hold(LADDER[SHORTER])
    assert engine.held == {DRAFT}


def test_borrowed_drafter_stays_loaded_until_its_last_borrower_returns_it() -> None:
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


def test_drafter_borrower_waits_until_weights_are_loaded() -> None:
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


def test_borrowing_drafter_weights_raises_when_loading_fails_or_times_out() -> None:
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


def test_failed_load_of_the_current_level_drafter_is_retried_later_and_logged_once(
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
    assert caplog.messages == ["the weights of draft_model cannot be kept in memory: the folder is empty"]
    engine.failure, now = None, 31.0
    drafters.refresh()
    assert engine.held == {DRAFT}


def test_drafter_weights_are_requested_as_soon_as_a_loading_engine_serves() -> None:
    engine = FakeEngine()
    engine.not_serving = NotServing("loading")
    drafters = LoadedDrafters(engine)
    drafters.hold(LADDER[BOTTOM])
    drafters.refresh()
    assert asked(engine) == []
    engine.not_serving = None
    drafters.refresh()
    assert asked(engine) == [""]
