"""A draft is read anew while requests draft with it: they go on with the new one, and their text is the same."""

from __future__ import annotations

import json
import os
import shutil

import mlx.core as mx
import pytest

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName
from draftd.engine.draft_weights import DraftWeights
from draftd.engine.inbox import KeepDrafts, ReloadDrafts
from draftd.engine.jobs import BackgroundJobs
from draftd.errors import ModelLoadError
from draftd.models import folder
from tests.rig import Rig, autoregressive, request, speculative
from tests.unit.engine.drafts import change_tokenizer, change_weights, quantised
from tests.wait_until import calibrated

DRAFT, LIGHT = DRAFT_MODEL, LIGHT_DRAFT_MODEL
NONE: frozenset[DrafterName] = frozenset()


def shuffled(name, array):
    mx.random.seed(0)
    return array[..., mx.random.permutation(array.shape[-1])]


def drafted(engine, prompts):
    """Acceptance and texts of a request for each prompt."""
    sinks = [engine.ask(request(p, speculative(3), max_tokens=32)) for p in prompts]
    engine.ended(*sinks)
    assert all(s.done.degraded == "" for s in sinks)
    counts = [s.done.stats.counts for s in sinks]
    return sum(c.accepted for c in counts) / sum(c.drafted for c in counts), [s.tokens for s in sinks]


def about(acceptance):
    """Steps that draft nothing to keep the price fall where they fall."""
    return pytest.approx(acceptance, rel=0.1)


@pytest.mark.slow
def test_running_requests_continue_drafting_with_reloaded_draft_weights(running, nano, nano_pair, prompts, tmp_path):
    engine, prompts = running(nano), prompts[:2]
    texts = engine.answer(*[request(p, autoregressive(), max_tokens=32) for p in prompts])
    good, drafted_texts = drafted(engine, prompts)
    assert drafted_texts == texts
    change_weights(tmp_path / "draft", shuffled)
    assert drafted(engine, prompts)[0] == about(good)  # a file alone changes nothing
    many = [engine.ask(request(p, speculative(3), max_tokens=120)) for p in prompts for _ in range(2)]
    engine.begun(*many)
    assert engine.worker.reload_draft().result(30) == engine.info.draft_weight_bytes
    running_still = [s for s in many if s.outcome is None]
    assert running_still, "all were over before it: nothing was seen"
    engine.ended(*many)
    assert all(s.done.degraded == "" for s in many)
    assert [s.tokens for s in many[::2]] == [s.tokens for s in many[1::2]]
    bad, bad_texts = drafted(engine, prompts)
    assert bad < 0.5 * good
    assert bad_texts == texts
    shutil.copy(f"{nano_pair.draft}/model.safetensors", tmp_path / "draft" / "model.safetensors")
    engine.worker.reload_draft().result(30)
    again, again_texts = drafted(engine, prompts)
    assert again == about(good)
    assert again_texts == texts


def not_finite(where):
    change_weights(where, lambda name, array: mx.where(array > 1.0, mx.nan, array) if "norm" in name else array)


def too_large(where):
    change_weights(where, lambda name, one: mx.full(one.shape, 3e38, one.dtype) if name == "model.norm.weight" else one)


def cut_off(where):
    os.truncate(where / "model.safetensors", 400_000)


def of_another_shape(where):
    change_weights(where, lambda name, array: array[..., :64])


def missing(where):
    (where / "model.safetensors").unlink()


def broken_configuration(where):
    (where / "config.json").write_text("{")


def without_a_tokenizer(where):
    (where / "tokenizer.json").write_text(json.dumps({"model": {}}))


DAMAGE = {
    not_finite: "some of its weights are not finite",
    too_large: "what it computes is not finite",
    cut_off: "model.safetensors is cut off",
    of_another_shape: "shape",
    missing: "no model.*safetensors in this folder",
    broken_configuration: "config.json is not JSON",
    change_tokenizer: "the draft's tokenizer is not the target's",
    without_a_tokenizer: "its tokenizer cannot be loaded",
}


@pytest.mark.parametrize("held", [True, False])
def test_draft_reload_from_damaged_folder_is_refused_and_old_draft_stays(
    running, nano, nano_pair, prompts, tmp_path, held
):
    engine = running(nano)
    good, texts = drafted(engine, prompts[:1])
    if not held:
        engine.worker.keep(NONE).result(10)
    for damage, said in DAMAGE.items():
        shutil.copytree(nano_pair.draft, tmp_path / "draft", dirs_exist_ok=True)
        damage(tmp_path / "draft")
        sink = engine.ask(request(prompts[0], autoregressive(), max_tokens=30))
        if held or damage is not too_large:  # which shows once all of it is in memory
            with pytest.raises(ModelLoadError, match=said) as refusal:
                engine.worker.reload_draft().result(30)
            assert "\n" not in refusal.value.message
            assert refusal.value.__cause__ is None  # it refers to no frame that holds weights
        engine.ended(sink)
        assert engine.worker.status().loaded == ({DRAFT} if held else NONE)
        if not held:
            with pytest.raises(ModelLoadError, match=said):
                engine.worker.keep(frozenset({DRAFT})).result(30)
    if held:
        assert drafted(engine, prompts[:1]) == (about(good), texts)


def test_reload_command_checks_an_unloaded_draft_without_loading_it(running, nano, tmp_path):
    engine = running(nano)
    engine.worker.keep(NONE).result(10)
    calibrated(engine.worker)
    before = mx.get_active_memory()
    assert engine.worker.reload_draft().result(30) == engine.info.draft_weight_bytes
    assert engine.worker.status().loaded == NONE
    calibrated(engine.worker)
    assert mx.get_active_memory() <= before


def test_draft_reload_replaces_draft_and_light_draft_together_or_neither(running, nano, nano_pair, prompts, tmp_path):
    light = quantised(nano_pair.draft, tmp_path / "light", bits=4)
    engine = running(lambda: nano(light=light))
    engine.worker.keep(frozenset({DRAFT, LIGHT})).result(10)
    both = engine.worker.status().draft_weight_bytes
    assert engine.worker.reload_draft().result(30) == both
    good, texts = drafted(engine, prompts)
    change_weights(tmp_path / "draft", shuffled)
    cut_off(light)
    with pytest.raises(ModelLoadError, match="light draft model"):
        engine.worker.reload_draft().result(30)
    assert drafted(engine, prompts) == (about(good), texts)
    assert engine.worker.status().loaded == {DRAFT, LIGHT}


def test_draft_dropped_during_reload_is_not_loaded_again(nano, prompts, monkeypatch):
    models = nano()
    drafters = DraftWeights(models)
    rig = Rig(models, drafters=drafters.make())
    jobs = BackgroundJobs(rig.scheduler.local, drafters, lambda: models.target, 512)
    monkeypatch.setattr(folder, "_PIECE_BYTES", 1)  # an array a piece
    reload, keep = ReloadDrafts(), KeepDrafts(NONE)
    jobs.take(reload)
    jobs.step()
    jobs.take(keep)
    assert not keep.done.done()
    while jobs.busy:
        jobs.step()
    assert keep.done.result(0) == 0
    assert reload.done.result(0) == models.info.draft_weight_bytes
    assert drafters.loaded.drafters == NONE
    sink = rig.run([request(prompts[0], speculative(3))])[0]
    assert sink.done.degraded == "the draft model is not loaded"


def test_reload_command_without_configured_draft_model_is_refused(running):
    from tests.scripted import scripted_models

    engine = running(lambda: scripted_models(0.7, with_draft=False))
    with pytest.raises(ModelLoadError, match="no draft model is configured"):
        engine.worker.reload_draft().result(10)
