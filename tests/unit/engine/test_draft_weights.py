"""Draft weights that are let go are gone from MLX and from the process, and are back when they are wanted again."""

from __future__ import annotations

import gc
import sys
import weakref

import psutil
import pytest

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName
from draftd.engine.memory import give_back
from tests.rig import autoregressive, request, speculative
from tests.unit.engine.drafts import quantised, random_draft
from tests.wait_until import until

DRAFT, LIGHT = DRAFT_MODEL, LIGHT_DRAFT_MODEL
NONE: frozenset[DrafterName] = frozenset()
MB = 1 << 20
LINUX = sys.platform == "linux"  # elsewhere a process's resident memory is not what the GPU holds for it


def resident() -> int:
    return psutil.Process().memory_info().rss


def test_unloading_draft_frees_its_memory_and_loading_allocates_it_again(running, nano, nano_pair, prompts, tmp_path):
    import mlx.core as mx

    # Most of it in arrays that no C library keeps for reuse: smaller ones may stay with the process.
    folder = random_draft(nano_pair.draft, tmp_path / "big", hidden=2048, layers=1, inner=4200)
    gc.collect()
    engine = running(lambda: nano(draft=folder))
    size = engine.info.draft_weight_bytes
    assert size > 150 * MB
    engine.answer(*[request(p, speculative(3), max_tokens=8) for p in prompts])  # its caches have been used
    give_back()  # what loading left over is no part of the draft
    held, active, rss = engine.worker.status(), mx.get_active_memory(), resident()
    assert held.draft_weight_bytes == size
    gc.disable()  # what goes must not wait for the collector
    try:
        assert engine.worker.keep(NONE).result(30) == 0
        less, freed = mx.get_active_memory(), resident()
    finally:
        gc.enable()
    without = engine.worker.status()
    assert active - less >= size
    if LINUX:
        assert rss - freed >= 0.7 * size, f"{(rss - freed) / MB:.1f} of {size / MB:.1f} MB"
    assert without.draft_weight_bytes == 0
    assert held.weight_bytes - without.weight_bytes == size
    mx.reset_peak_memory()
    assert engine.worker.reload_draft().result(30) == size  # checks the file, and never holds it whole
    assert mx.get_peak_memory() - less < 0.5 * size
    assert engine.worker.keep(frozenset({DRAFT})).result(30) == size
    assert mx.get_active_memory() - less >= size
    if LINUX:
        assert resident() - freed >= 0.7 * size


def test_unloaded_draft_model_has_no_references_left(running, nano, prompts):
    gone = []

    def load():
        models = nano()
        gone.append(weakref.ref(models.draft))
        return models

    engine = running(load)
    engine.answer(*[request(p, speculative(3), max_tokens=20) for p in prompts])
    engine.worker.keep(NONE).result(10)
    assert gone[0]() is None


def test_running_request_keeps_decoding_while_draft_weights_load(running, nano, nano_pair, prompts, tmp_path):
    folder = random_draft(nano_pair.draft, tmp_path / "big", hidden=1024, layers=3, inner=3072)  # some 170 MB

    def load():
        models = nano(light=folder)
        models.tokenizer.eos_ids = frozenset()  # a text that lasts
        return models

    engine = running(load)
    sink = engine.ask(request(prompts[0], autoregressive(), max_tokens=900))
    engine.begun(sink)
    reading = engine.worker.keep(frozenset({DRAFT, LIGHT}))
    before = len(sink.tokens)
    until(reading.done, 150)
    assert len(sink.tokens) - before >= 10  # a step after each piece
    assert reading.result(0) > 100 * MB
    engine.worker.keep(NONE).result(30)


def test_light_draft_loads_on_demand_and_leaves_text_unchanged(running, nano, nano_pair, prompts, tmp_path):
    light = quantised(nano_pair.draft, tmp_path / "light", bits=4)
    engine = running(lambda: nano(light=light))
    assert LIGHT in engine.info.drafters
    assert engine.info.light_draft_model == "light"
    assert engine.worker.status().loaded == {DRAFT}
    plain = engine.answer(*[request(p, autoregressive()) for p in prompts])
    full = engine.worker.status().draft_weight_bytes
    assert engine.worker.keep(frozenset({LIGHT})).result(10) < full / 2
    sinks = [engine.ask(request(p, speculative(4, LIGHT))) for p in prompts]
    engine.ended(*sinks)
    assert [s.tokens for s in sinks] == plain
    assert all(s.done.degraded == "" for s in sinks)
    assert sum(s.done.stats.counts.accepted for s in sinks) > 10


def test_light_draft_with_different_tokenizer_is_not_offered(running, nano, nano_pair, tmp_path):
    from tests.unit.engine.drafts import change_tokenizer

    light = quantised(nano_pair.draft, tmp_path / "light", bits=4)
    change_tokenizer(light)
    engine = running(lambda: nano(light=light))
    assert LIGHT not in engine.info.drafters
    assert engine.info.why_no(DRAFT_MODEL) == ""
    assert "the draft's tokenizer is not the target's (2 of" in engine.info.why_no(LIGHT_DRAFT_MODEL)
    assert engine.worker.keep(frozenset({DRAFT, LIGHT})).result(10) == engine.info.draft_weight_bytes


def test_worker_logit_gap_of_two_given_tokens_is_difference_of_target_model_logits(running, nano, prompts):
    import mlx.core as mx

    models = []

    def load():
        models.append(nano())
        return models[0]

    engine = running(load, prefill_chunk=3)
    tokens = tuple(prompts[0])
    busy = engine.ask(request(prompts[1], speculative(3), max_tokens=60))
    found = engine.worker.logit_gap(tokens, 17, 99).result(30)
    last = engine.answer(request(tokens, autoregressive(), max_tokens=1))[0][0]
    assert engine.worker.logit_gap(tokens, last, 99).result(30) > 0
    engine.ended(busy)
    engine.worker.close()
    logits = models[0].target(mx.array([tokens]))[0, -1]
    assert found == pytest.approx(float((logits[17] - logits[99]).item()), abs=1e-3)
