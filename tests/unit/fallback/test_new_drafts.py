"""A weaker new draft is not judged by the old one's baseline once it is declared new."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from draftd.core import PROMPT_LOOKUP, DecodeRequest
from draftd.errors import ModelLoadError
from draftd.fallback.probes import ProbeVerdict
from tests.fake_engine import Answering, counted
from tests.unit.fallback.controlled import COOLDOWN, LADDER, SHORT, TOP, Controlled, MemoryStore
from tests.unit.fallback.probing import FULL, LIGHT, SOON, probe_runner

GOOD, WEAK = 0.85, 0.6
KIND = "draft_model/code"


def reload(controlled: Controlled, *, forget: bool) -> None:
    done = controlled.controller.reload_draft(forget=forget)
    controlled.engine.reloads[-1].set_result(1000)
    controlled.at(controlled.now + 1)
    assert done.result(0) == 1000


@pytest.mark.parametrize(("forget", "position"), [(True, TOP), (False, SHORT)], ids=["another", "the same, mended"])
def test_reload_with_weaker_draft_stays_at_top_level_only_if_baselines_are_reset(forget: bool, position: int) -> None:
    controlled = Controlled()
    controlled.traffic(12 * COOLDOWN, GOOD)
    reload(controlled, forget=forget)
    controlled.runner.verdict = ProbeVerdict.BAD  # it is weaker with the frozen prompts too
    assert controlled.traffic(controlled.now + COOLDOWN / 2, WEAK) == position
    if forget:
        assert controlled.traffic(controlled.now + 12 * COOLDOWN, WEAK) == TOP
        assert controlled.controller.state().drift == {"code": 0.0}  # it is learnt of in its turn


def test_reload_of_a_new_draft_clears_saved_baselines_and_is_journalled() -> None:
    store = MemoryStore()
    controlled = Controlled(store)
    controlled.traffic(12 * COOLDOWN, GOOD)
    assert store.document is not None
    assert KIND in store.document["baselines"]
    reload(controlled, forget=False)
    assert KIND in store.document["baselines"]
    assert controlled.told == []
    reload(controlled, forget=True)
    assert store.document["baselines"] == {}
    assert controlled.told == [("full", "full", "reload")]
    assert "forgotten" in controlled.journal.latest(1)[0].evidence


def test_reload_of_a_new_draft_keeps_acceptance_baselines_from_the_baseline_file(tmp_path: Path) -> None:
    path, store = tmp_path / "baselines.json", MemoryStore()
    path.write_text('{"version": 1, "baselines": {"draft_model/chat": {"mean": 0.9, "spread": 0.01}}}')
    controlled = Controlled(store, baseline=path)
    controlled.traffic(12 * COOLDOWN, GOOD)
    assert store.document is not None
    learnt = store.document["baselines"].keys()
    reload(controlled, forget=True)
    assert (learnt, store.document["baselines"].keys()) == ({KIND, "draft_model/chat"}, {"draft_model/chat"})


def test_reload_of_a_new_draft_keeps_the_prompt_lookup_baseline() -> None:
    store = MemoryStore()
    controlled = Controlled(store)
    lookup = [level for level in LADDER if level.drafter == PROMPT_LOOKUP]
    controlled.controller.hold(lookup[0].kind, None)
    controlled.traffic(12 * COOLDOWN, GOOD)
    reload(controlled, forget=True)
    assert store.document is not None
    assert list(store.document["baselines"]) == ["prompt_lookup/code"]


def test_reload_of_a_new_draft_measures_its_probe_baseline_within_two_cooldowns() -> None:
    controlled = Controlled()
    controlled.until(COOLDOWN * 3)
    reload(controlled, forget=False)
    controlled.until(controlled.now + 2 * COOLDOWN)
    assert controlled.runner.learnt == []
    reload(controlled, forget=True)
    controlled.until(controlled.now + 2 * COOLDOWN)
    assert controlled.runner.learnt == [LADDER[TOP]]


def test_failed_draft_reload_keeps_acceptance_baselines() -> None:
    store = MemoryStore()
    controlled = Controlled(store)
    controlled.traffic(12 * COOLDOWN, GOOD)
    done = controlled.controller.reload_draft(forget=True)
    controlled.engine.reloads[0].set_exception(ModelLoadError("the folder is empty"))
    controlled.at(controlled.now + 1)
    with pytest.raises(ModelLoadError):
        done.result(0)
    assert store.document is not None
    assert KIND in store.document["baselines"]
    assert controlled.told == []


def test_probe_after_baselines_are_forgotten_is_not_compared_with_them() -> None:
    engine = Answering(counts=counted(accepted=90, rollbacks=10))
    with probe_runner(engine) as (runner, _):
        for level in (FULL, LIGHT):
            assert runner.probe(level, learn=True).result(SOON).verdict is ProbeVerdict.GOOD
        engine.counts = counted(accepted=60, rollbacks=40)
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.BAD
        runner.baselines.forget()
        assert not runner.baselines.drafters.get(FULL.drafter)
        assert runner.baselines.drafters.get(LIGHT.drafter)  # which drafts from the text alone
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.GOOD


def test_baseline_probe_running_while_baselines_are_forgotten_sets_no_baseline() -> None:
    engine = Answering(counts=counted(accepted=90, rollbacks=10))
    under_way, go = threading.Event(), threading.Event()

    def wait(request: DecodeRequest) -> None:
        under_way.set()
        assert go.wait(SOON)

    engine.says = wait
    with probe_runner(engine) as (runner, _):
        lesson = runner.probe(FULL, learn=True)
        assert under_way.wait(SOON)
        runner.baselines.forget()
        go.set()
        assert lesson.result(SOON).verdict is ProbeVerdict.GOOD
        assert not runner.baselines.drafters.get(FULL.drafter)
