"""From one step to the next, rows in hand are bound: they draft less, with another drafter, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, Origin
from draftd.engine.observer import EngineObserver
from draftd.errors import InvalidRequest
from tests.rig import Rig, autoregressive, request, speculative
from tests.scripted import scripted_models

DRAFT, LIGHT, LOOKUP = DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
PROMPT = [3, 1, 4, 1, 5]


class Steps(EngineObserver):
    def __init__(self) -> None:
        self.drafted: list[tuple[DrafterName | None, int]] = []

    def on_step(self, request, result, gap):
        self.drafted.append((result.drafter, result.drafted))


def begun(models, plan, steps: int = 4):
    steps_heard = Steps()
    rig = Rig(models, observer=steps_heard)
    sink = rig.add(request(PROMPT, plan, max_tokens=60))
    for _ in range(steps):
        rig.scheduler.step()
    steps_heard.drafted.clear()
    return rig, sink, steps_heard


@pytest.fixture(scope="module")
def text() -> list[int]:
    return Rig(scripted_models(0.7)).run([request(PROMPT, autoregressive(), max_tokens=60)])[0].tokens


def test_running_request_whose_draft_limit_is_lowered_obeys_limit_and_keeps_its_text(text):
    rig, sink, heard = begun(scripted_models(0.7), speculative(6))
    rig.scheduler.lower(2, {DRAFT}, "memory is short")
    rig.drain()
    assert max(drafted for _, drafted in heard.drafted) == 2
    assert sink.done.lowered == "memory is short"
    assert sink.done.degraded == ""
    assert sink.tokens == text


def test_draft_limit_above_a_running_requests_depth_does_not_raise_the_depth(text):
    rig, sink, heard = begun(scripted_models(0.7), speculative(2))
    rig.scheduler.lower(6, {DRAFT}, "memory is short")
    rig.drain()
    assert max(drafted for _, drafted in heard.drafted) == 2
    assert sink.done.lowered == ""
    assert sink.tokens == text


@pytest.mark.parametrize(("most", "drafters"), [(0, {DRAFT, LOOKUP}), (4, set()), (4, {LIGHT})])
def test_running_request_without_an_allowed_drafter_frees_draft_cache_and_stops_drafting(text, most, drafters):
    rig, sink, heard = begun(scripted_models(0.7), speculative(4))
    assert rig.scheduler.local.drafting.drafters[DRAFT].nbytes
    rig.scheduler.lower(most, drafters, "memory is short")
    assert rig.scheduler.local.drafting.drafters[DRAFT].nbytes == 0
    assert not rig.scheduler.local.uses(DRAFT)
    rig.drain()
    assert sum(drafted for _, drafted in heard.drafted) == 0
    assert sink.done.degraded == "memory is short"
    assert sink.tokens == text


def test_running_request_switches_to_prompt_lookup_when_draft_model_is_disallowed():
    models = scripted_models(0.7, vocab_size=5)  # few tokens: what was said before recurs
    expected = Rig(models).run([request(PROMPT[:1], autoregressive(), max_tokens=60)])[0].tokens
    heard = Steps()
    rig = Rig(models, observer=heard)
    sink = rig.add(request(PROMPT[:1], speculative(6), max_tokens=60))
    for _ in range(4):
        rig.scheduler.step()
    heard.drafted.clear()
    rig.scheduler.lower(3, {LOOKUP}, "the draft is bad")
    rig.drain()
    assert {kind for kind, _ in heard.drafted} == {LOOKUP}
    assert 0 < max(drafted for _, drafted in heard.drafted) <= 3
    assert not rig.scheduler.local.drafting.drafters[DRAFT].nbytes
    assert sink.done.lowered == "the draft is bad"
    assert sink.tokens == expected


def test_lowering_draft_limit_affects_running_and_queued_but_not_later_requests(running):
    engine = running(lambda: scripted_models(0.7, step_seconds=0.01), max_batch=1)
    runs = engine.ask(request(PROMPT, speculative(6), max_tokens=40))
    engine.begun(runs)
    waits = engine.ask(replace(request(PROMPT, speculative(6), max_tokens=20), origin=Origin.PROBE))
    inbox = engine.worker._inbox
    with inbox._wake:  # one that no step has taken yet, and one that comes after the command
        early_sink = engine.ask(request(PROMPT, speculative(6), max_tokens=20))
        engine.worker.lower(0, frozenset(), "thermal")
        late_sink = engine.ask(request(PROMPT, speculative(6), max_tokens=20))
    engine.ended(runs, waits, early_sink, late_sink)
    assert [s.done.degraded for s in (runs, waits, early_sink, late_sink)] == ["thermal", "thermal", "thermal", ""]
    assert waits.tokens == early_sink.tokens == late_sink.tokens == runs.tokens[:20]


def test_lowering_draft_limit_to_0_marks_running_request_degraded_and_refuses_minus_1(running):
    engine = running(lambda: scripted_models(0.7, step_seconds=0.005))
    sink = engine.ask(request(PROMPT, speculative(6), max_tokens=60))
    engine.begun(sink)
    engine.worker.lower(0, frozenset(), "quality")
    engine.ended(sink)
    assert sink.done.degraded == "quality"
    with pytest.raises(InvalidRequest, match="max_draft_tokens: got -1"):
        engine.worker.lower(-1, frozenset(), "x")
