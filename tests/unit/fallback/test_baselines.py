"""Baselines that probes taught in good times survive a restart."""

from __future__ import annotations

import json
import logging

import pytest

from draftd.core import BUILT_IN_DRAFTERS, DRAFT_MODEL, PROMPT_LOOKUP
from draftd.fallback.baselines import ProbeBaselines
from draftd.fallback.drift import Baseline
from draftd.fallback.probes import ProbeVerdict
from tests.fake_engine import Answering, counted
from tests.unit.fallback.controlled import TOP, Controlled, MemoryStore
from tests.unit.fallback.probing import FULL, SOON, one_prompt, probe_runner, prompts

DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP
PROMPTS, OTHERS = (one_prompt("p", "a question"),), (one_prompt("p", "another"),)


def test_probe_baselines_are_restored_only_for_the_same_probe_prompts() -> None:
    same, others, earlier = (ProbeBaselines.of(prompts) for prompts in (PROMPTS, OTHERS, PROMPTS))
    earlier.drafters = {DRAFT: Baseline(0.9, 0.01), LOOKUP: Baseline(0.3, 0.2)}
    for baselines in (same, others):
        baselines.recall(ProbeBaselines.model_validate_json(earlier.model_dump_json()))
    assert (same.drafters, others.drafters) == (earlier.drafters, {})


def test_probe_after_restart_is_compared_with_the_baseline_saved_before() -> None:
    with probe_runner(Answering(counts=counted(accepted=90, rollbacks=10))) as (runner, _):
        assert runner.probe(FULL, learn=True).result(SOON).verdict is ProbeVerdict.GOOD
        kept = runner.baselines.model_copy()
    weaker = counted(accepted=60, rollbacks=40)
    for prompted, verdict in ((3, ProbeVerdict.BAD), (4, ProbeVerdict.GOOD)):  # with four they are other prompts
        with probe_runner(Answering(counts=weaker), prompts=prompts(prompted)) as (runner, _):
            runner.baselines.recall(kept)
            assert runner.probe(FULL).result(SOON).verdict is verdict


def test_probe_baselines_are_saved_and_restored_with_the_fallback_state() -> None:
    store = MemoryStore()
    first = Controlled(store)
    first.runner.baselines.forget()
    first.at(1)
    assert Controlled(store).runner.known == {PROMPT_LOOKUP}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompts": None}, "probe_baselines.prompts: not set"),
        ({"drafters": {"draft_model": {"mean": 7, "spread": 0}}}, "probe_baselines.drafters.draft_model.mean: got 7"),
    ],
)
def test_unreadable_probe_baseline_is_logged_and_remaining_fallback_state_is_restored(
    changed: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    Controlled(store).traffic(1200, 0.8)
    probed = store.document["probe_baselines"]
    store.text = json.dumps({**store.document, "probe_baselines": {**probed, **changed}})
    with caplog.at_level(logging.WARNING):
        again = Controlled(store)
    assert "measured again" in caplog.text
    assert said in caplog.text
    assert (again.position, store.aside, again.runner.known) == (TOP, 0, set(BUILT_IN_DRAFTERS))
    assert again.controller.state().drift == {"code": 0.0}
    store.text = json.dumps({**store.document, "probe_baselines": None})
    assert Controlled(store).runner.known == set(BUILT_IN_DRAFTERS)
