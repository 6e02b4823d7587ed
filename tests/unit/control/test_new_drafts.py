"""A draft that is weaker by design: it is not held to what the old one was, once somebody says that it is another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from draftd.core import PROMPT_LOOKUP, DecodeRequest
from draftd.errors import ModelLoadError
from draftd.fallback.reports import Verdict
from tests.answering import Answering, counted
from tests.unit.control.examined import FULL, LIGHT, SOON, examining
from tests.unit.control.steered import DWELL, LADDER, SHORT, TOP, MemoryStore, Steered

GOOD, WEAK = 0.85, 0.6
KIND = "draft_model/code"


def reload(steered: Steered, *, forget: bool) -> None:
    done = steered.controller.reload_draft(forget=forget)
    steered.engine.reloads[-1].set_result(1000)
    steered.at(steered.now + 1)
    assert done.result(0) == 1000


@pytest.mark.parametrize(("forget", "rung"), [(True, TOP), (False, SHORT)], ids=["another", "the same, mended"])
def test_a_weaker_draft_stays_on_the_top_rung_where_it_is_said_to_be_another(forget: bool, rung: int) -> None:
    steered = Steered()
    steered.traffic(12 * DWELL, GOOD)
    reload(steered, forget=forget)
    assert steered.traffic(steered.now + DWELL / 2, WEAK) == rung
    if forget:
        assert steered.traffic(steered.now + 12 * DWELL, WEAK) == TOP
        assert steered.controller.readings().drift == {"code": 0.0}  # it is learnt of in its turn


def test_that_it_is_another_is_written_down_where_a_restart_and_a_person_find_it() -> None:
    store = MemoryStore()
    steered = Steered(store)
    steered.traffic(12 * DWELL, GOOD)
    assert store.document is not None
    assert KIND in store.document["baselines"]
    reload(steered, forget=False)
    assert KIND in store.document["baselines"]
    assert steered.told == []
    reload(steered, forget=True)
    assert store.document["baselines"] == {}
    assert steered.told == [("full", "full", "reload")]
    assert "forgotten" in steered.journal.latest(1)[0].evidence


def test_frozen_baselines_and_those_of_drafters_without_weights_stay(tmp_path: Path) -> None:
    path, store = tmp_path / "baselines.json", MemoryStore()
    path.write_text('{"version": 1, "baselines": {"draft_model/chat": {"mean": 0.9, "spread": 0.01}}}')
    steered = Steered(store, baseline=path)
    steered.traffic(12 * DWELL, GOOD)
    assert store.document is not None
    learnt = store.document["baselines"].keys()
    reload(steered, forget=True)
    assert (learnt, store.document["baselines"].keys()) == ({KIND, "draft_model/chat"}, {"draft_model/chat"})


def test_prompt_lookup_is_what_it_was() -> None:
    store = MemoryStore()
    steered = Steered(store)
    lookup = [rung for rung in LADDER if rung.drafter == PROMPT_LOOKUP]
    steered.controller._steering.hold(lookup[0].level, None, 0.0)
    steered.traffic(12 * DWELL, GOOD)
    reload(steered, forget=True)
    assert store.document is not None
    assert list(store.document["baselines"]) == ["prompt_lookup/code"]


def test_a_lesson_is_given_of_it_soon() -> None:
    steered = Steered()
    steered.until(DWELL * 3)
    reload(steered, forget=False)
    steered.until(steered.now + 2 * DWELL)
    assert steered.examiner.learnt == []
    reload(steered, forget=True)
    steered.until(steered.now + 2 * DWELL)
    assert steered.examiner.learnt == [LADDER[TOP]]


def test_nothing_is_forgotten_where_it_cannot_be_read() -> None:
    store = MemoryStore()
    steered = Steered(store)
    steered.traffic(12 * DWELL, GOOD)
    done = steered.controller.reload_draft(forget=True)
    steered.engine.reloads[0].set_exception(ModelLoadError("the folder is empty"))
    steered.at(steered.now + 1)
    with pytest.raises(ModelLoadError):
        done.result(0)
    assert store.document is not None
    assert KIND in store.document["baselines"]
    assert steered.told == []


def test_a_probe_is_not_compared_with_what_was_forgotten() -> None:
    engine = Answering(counts=counted(accepted=90, rollbacks=10))
    with examining(engine) as (examiner, _):
        for rung in (FULL, LIGHT):
            assert examiner.learn(rung).result(SOON).verdict is Verdict.GOOD
        engine.counts = counted(accepted=60, rollbacks=40)
        assert examiner.probe(FULL).result(SOON).verdict is Verdict.BAD
        examiner.lessons.forget()
        assert not examiner.knows(FULL)
        assert examiner.knows(LIGHT)  # which drafts from the text alone
        assert examiner.probe(FULL).result(SOON).verdict is Verdict.GOOD


def test_a_lesson_that_was_under_way_meanwhile_teaches_nothing() -> None:
    engine = Answering(counts=counted(accepted=90, rollbacks=10))
    under_way, go = threading.Event(), threading.Event()

    def wait(request: DecodeRequest) -> None:
        under_way.set()
        assert go.wait(SOON)

    engine.says = wait
    with examining(engine) as (examiner, _):
        lesson = examiner.learn(FULL)
        assert under_way.wait(SOON)
        examiner.lessons.forget()
        go.set()
        assert lesson.result(SOON).verdict is Verdict.GOOD
        assert not examiner.knows(FULL)
