"""What is measured is the pair: the ladder is held at the top meanwhile, and no operator's hold is touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from draftd.acceptance import session as module
from draftd.acceptance.session import NotMeasurable, held
from draftd.core import FallbackLevel
from draftd.engine.scripted import scripted_models
from draftd.fallback.ladder import Hold
from tests.fallback import NOW, FakeController
from tests.serving import Served, serving
from tests.waiting import until


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def served(tmp_path: Path, controller: FakeController) -> Iterator[Served]:
    with serving(tmp_path, lambda: scripted_models(0.7), controller=controller) as made:
        yield made


def test_holds_the_top_while_it_measures_and_lets_go(served: Served, controller: FakeController) -> None:
    with held(served.client):
        assert controller.now.hold is not None
        assert (controller.now.hold.rung, controller.now.rung) == (0, 0)
        assert controller.now.hold.until is not None  # a harness that is killed leaves nothing behind for long
    assert controller.now.hold is None


def test_renews_before_it_expires(served: Served, controller: FakeController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.02)
    renewals = []
    hold = controller.hold

    def counted(level: FallbackLevel, expires_in: float | None) -> None:
        renewals.append(expires_in)
        hold(level, expires_in)

    monkeypatch.setattr(controller, "hold", counted)
    with held(served.client):
        until(lambda: len(renewals) >= 3, 10)
    assert set(renewals) == {module._HOLD_SECONDS}


def test_an_operators_own_hold_on_the_top_stays(served: Served, controller: FakeController) -> None:
    mine = Hold(0, None)
    controller.now = replace(controller.now, hold=mine)
    with held(served.client):
        assert controller.now.hold is mine
    assert controller.now.hold is mine


def test_a_hold_that_an_operator_puts_in_its_place_is_neither_renewed_nor_released(
    served: Served, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.02)
    theirs = Hold(len(controller.now.ladder) - 1, NOW + 9999)
    with held(served.client):
        controller.now = replace(controller.now, hold=theirs)
        until(lambda: not any(t.name == "draftd-hold" for t in module.threading.enumerate()), 10)
    assert controller.now.hold is theirs


def test_refuses_a_daemon_that_is_held_lower(served: Served, controller: FakeController) -> None:
    controller.now = replace(controller.now, hold=Hold(len(controller.now.ladder) - 1, None))
    with (
        pytest.raises(NotMeasurable, match=r"level: got 'held at autoregressive'.*draftd level release"),
        held(served.client),
    ):
        raise AssertionError


def test_refuses_while_the_flag_is_off(served: Served) -> None:
    served.client.set_flag("off")
    with pytest.raises(NotMeasurable, match=r"flag: got 'off'.*draftd flag set on"), held(served.client):
        raise AssertionError


def test_a_daemon_without_a_ladder_is_measured_as_it_is(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7)) as plain, held(plain.client):
        assert plain.client.status().level == "full"
