"""Drafts are let go and had again while requests run, and no text differs for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, FinishReason
from draftd.errors import ModelLoadError, NotServing, QueueFull
from tests.rig import autoregressive, request, speculative
from tests.scripted import scripted_models

DRAFT, LIGHT, LOOKUP = DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
NONE: frozenset[DrafterName] = frozenset()
PROMPT = [3, 1, 4, 1, 5]


def slow(**options):
    return scripted_models(0.7, step_seconds=0.004, **options)


def text(running, n: int = 40) -> list[int]:
    return running.answer(request(PROMPT, autoregressive(), max_tokens=n))[0]


def test_keep_drafts_engine_command_loads_named_draft_models_and_unloads_all_remaining(running):
    engine = running(lambda: scripted_models(0.7, light_acceptance=0.5))
    assert engine.info.drafters == (DRAFT, LIGHT, LOOKUP)
    assert engine.worker.status().loaded == {DRAFT}
    for kinds in ({LIGHT}, {DRAFT, LIGHT}, NONE, {DRAFT}):
        engine.worker.keep(frozenset(kinds)).result(10)
        assert engine.worker.status().loaded == kinds
    assert engine.worker.keep(frozenset({LOOKUP})).result(10) == 0  # needs no weights: not a kind that can be held
    assert engine.worker.status().loaded == NONE


def test_draft_is_unloaded_once_no_running_request_drafts_with_it(running):
    engine = running(slow)
    sink = engine.ask(request(PROMPT, speculative(3), max_tokens=300))
    engine.begun(sink)
    gone = engine.worker.keep(NONE)
    late = engine.ask(request(PROMPT, speculative(3), max_tokens=20))
    engine.begun(late)
    assert sink.outcome is None
    assert not gone.done()
    assert engine.worker.status().loaded == {DRAFT}
    engine.ended(sink, late)
    assert gone.result(10) == 0
    assert engine.worker.status().loaded == NONE
    assert sink.done.degraded == ""
    assert sink.done.stats.counts.drafted > 100
    assert late.done.degraded == "the draft model is not loaded"  # else a stream of requests would keep it for ever
    assert late.tokens == sink.tokens[:20] == text(engine, 20)


def test_request_with_unloaded_draft_decodes_autoregressively_and_reports_why(running):
    engine = running(lambda: scripted_models(0.7, light_acceptance=0.7))
    engine.worker.keep(NONE).result(10)
    asked = [request(PROMPT, speculative(3, kind)) for kind in (DRAFT, LIGHT, LOOKUP)]
    sinks = [engine.ask(one) for one in asked]
    engine.ended(*sinks)
    assert [s.done.degraded for s in sinks] == [
        "the draft model is not loaded",
        "the light draft model is not loaded",
        "",
    ]
    assert {tuple(s.tokens) for s in sinks} == {tuple(text(engine, 32))}


def test_later_keep_drafts_command_supersedes_pending_keep_drafts_command(running):
    engine = running(lambda: slow(light_acceptance=0.5))
    sink = engine.ask(request(PROMPT, speculative(3), max_tokens=200))
    engine.begun(sink)
    first = engine.worker.keep(frozenset({LIGHT}))
    second = engine.worker.keep(frozenset({DRAFT}))
    second.result(10)
    assert first.result(0) == second.result(0)
    assert engine.worker.status().loaded == {DRAFT}
    after = engine.ask(request(PROMPT, speculative(3), max_tokens=8))
    engine.ended(after)
    assert after.done.degraded == ""


def test_light_draft_and_full_draft_serve_requests_side_by_side(running):
    engine = running(lambda: scripted_models(0.9, light_acceptance=0.4))
    engine.worker.keep(frozenset({DRAFT, LIGHT})).result(10)
    full, light = (engine.ask(request(PROMPT, speculative(1, kind), max_tokens=600)) for kind in (DRAFT, LIGHT))
    engine.ended(full, light)
    assert full.tokens == light.tokens == text(engine, 600)
    assert full.done.stats.counts.acceptance == pytest.approx(0.9, abs=0.06)
    assert light.done.stats.counts.acceptance == pytest.approx(0.4, abs=0.1)


def test_failed_draft_reload_is_reported_to_caller_and_engine_keeps_serving(running):
    class Lost:
        name = "draft"

        def files(self):
            return None

        def open(self):
            raise ModelLoadError("draft: the disk is gone")

    models = scripted_models(0.7)
    engine = running(lambda: replace(models, sources={DRAFT: Lost()}))
    engine.worker.keep(NONE).result(10)
    with pytest.raises(ModelLoadError, match="the disk is gone"):
        engine.worker.keep(frozenset({DRAFT})).result(10)
    assert engine.worker.status().loaded == NONE
    with pytest.raises(ModelLoadError, match="the disk is gone"):  # tried again when asked again
        engine.worker.keep(frozenset({DRAFT})).result(10)
    assert len(text(engine)) == 40


def test_pending_engine_commands_fail_with_not_serving_when_engine_closes(running):
    engine = running(slow)
    sink = engine.ask(request(PROMPT, speculative(3), max_tokens=4000))
    engine.begun(sink)
    waits = engine.worker.keep(NONE)
    assert engine.worker.close()
    with pytest.raises(NotServing):
        waits.result(0)
    for ask in (
        lambda: engine.worker.keep(NONE),
        engine.worker.reload_draft,
        lambda: engine.worker.lower(0, NONE, "x"),
    ):
        with pytest.raises(NotServing):
            ask()
    assert sink.done.reason is FinishReason.CANCELLED


def test_pending_engine_commands_fail_with_not_serving_when_engine_crashes(running):
    engine = running(slow)
    sink = engine.ask(request(PROMPT, speculative(3), max_tokens=4000))
    engine.begun(sink)
    waits = engine.worker.keep(NONE)

    class Dies(Exception):
        pass

    def die(*args):
        raise Dies("on purpose")

    engine.worker._inbox.report = die  # what no request can cause
    engine.ended(sink)
    assert sink.done.reason is FinishReason.ERROR
    with pytest.raises(NotServing, match="on purpose"):
        waits.result(10)


def test_engine_inbox_refuses_more_than_64_pending_commands(running):
    engine = running(slow)
    with engine.worker._inbox._wake:  # the engine cannot take any meanwhile
        for _ in range(64):
            engine.worker.lower(1, NONE, "test")
        with pytest.raises(QueueFull, match="64 commands"):
            engine.worker.lower(1, NONE, "test")


def test_engine_commands_before_load_are_refused_as_still_loading():
    from draftd.engine.loop import EngineWorker

    worker = EngineWorker(lambda progress: slow())
    for ask in (lambda: worker.keep(NONE), worker.reload_draft, lambda: worker.logit_gap((1,), 2, 3)):
        with pytest.raises(NotServing, match="still loading"):
            ask()
    assert worker.status().loaded == NONE
