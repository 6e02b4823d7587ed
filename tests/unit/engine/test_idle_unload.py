"""Weights that no request needs are let go, and the next request has them again, with the same text."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import mlx.core as mx
import pytest

from draftd.core import DRAFT_MODEL, FinishReason, Origin
from draftd.engine import weights as idle
from draftd.engine.handle import EngineState
from draftd.engine.pair import load_models
from draftd.errors import NotServing
from tests.rig import autoregressive, request, speculative
from tests.unit.engine.drafts import change_weights
from tests.wait_until import until

PROMPT = [5, 6, 7, 8] * 20


@pytest.fixture
def engine(running, nano, nano_pair, tmp_path):
    """One that may let its weights go, on a copy of the embedded draft."""
    shutil.copytree(nano_pair.draft, tmp_path / "model")

    def load():
        return load_models(str(tmp_path / "model"), str(tmp_path / "draft"), progress=lambda line: None)

    return running(load, idle_unload_seconds=3600.0, prefix_cache_bytes=64 << 20, prefix_folder=tmp_path / "prefixes")


def test_request_after_idle_unload_reloads_weights_and_gives_same_text(engine):
    worker, asked = engine.worker, [request(PROMPT, plan) for plan in (autoregressive(), speculative(3))]
    worker.keep(frozenset({DRAFT_MODEL})).result(30)
    expected = engine.answer(*asked)
    learnt = worker.learnt()
    held, before = worker.status().weight_bytes, mx.get_active_memory()
    engine.unload()
    status = worker.status()
    assert (status.weight_bytes, status.prefix.bytes, status.loaded) == (0, 0, frozenset())
    assert mx.get_active_memory() <= before - held
    assert worker.info.weight_bytes > 0
    assert learnt is None or worker.learnt() is not None

    sinks = [engine.ask(one) for one in asked]
    engine.ended(*sinks)
    assert [sink.tokens for sink in sinks] == expected
    assert sinks[1].done.stats.counts.drafted > 0, "the draft is there again too"
    assert worker.status().weight_bytes == held


def test_machine_sleep_time_counts_towards_idle_unload(engine, monkeypatch):
    until(lambda: engine.worker.state is EngineState.READY, 30)
    real = idle.sleepless_seconds  # type: ignore[attr-defined]
    monkeypatch.setattr(idle, "sleepless_seconds", lambda: real() + 3600.0)
    until(lambda: engine.worker.unloaded, 30, "the weights to go")


def test_probe_requests_do_not_reload_idle_unloaded_weights(engine):
    engine.unload()
    with pytest.raises(NotServing, match="until a client sends a request"):
        engine.ask(replace(request(PROMPT, autoregressive()), origin=Origin.PROBE))
    with pytest.raises(NotServing, match="until a client sends a request"):
        engine.worker.logit_gap((1, 2, 3), 4, 5).result(10)
    engine.worker.keep(frozenset()).result(10)
    assert engine.worker.unloaded
    assert engine.worker.pin_prefix("system", tuple(PROMPT)).result(30).name == "system"


def test_deadline_passing_during_weight_reload_ends_request_and_leaves_weights_unloaded(engine):
    engine.unload()
    sink = engine.ask(replace(request(PROMPT, autoregressive()), deadline=time.monotonic()))
    engine.ended(sink)
    assert sink.done.reason is FinishReason.DEADLINE
    assert engine.worker.unloaded


def test_unreadable_weights_fail_only_the_request_that_reloads_them(engine, tmp_path, caplog):
    (expected,) = engine.answer(request(PROMPT, autoregressive()))
    engine.unload()
    weights = tmp_path / "model" / "model.safetensors"
    weights.rename(tmp_path / "away")
    sink = engine.ask(request(PROMPT, autoregressive()))
    engine.ended(sink)
    assert sink.done.reason is FinishReason.ERROR
    assert "the weights could not be loaded again: model: " in sink.done.error
    assert engine.worker.unloaded
    shutil.copy(tmp_path / "away", weights)
    assert engine.answer(request(PROMPT, autoregressive())) == [expected]
    assert "its files have changed since they were read" in caplog.text


def test_weight_reload_refuses_nan_weights_and_weights_whose_output_is_not_finite(engine, nano_pair, tmp_path):
    (expected,) = engine.answer(request(PROMPT, autoregressive()))
    wrong = {mx.nan: "some of its weights are not finite", 3e38: "what it computes is not finite"}
    for value, said in wrong.items():
        engine.unload()
        change_weights(
            tmp_path / "model",
            lambda name, array, value=value: (
                mx.full(array.shape, value, array.dtype) if "model.norm" in name else array
            ),
        )
        sink = engine.ask(request(PROMPT, autoregressive()))
        engine.ended(sink)
        assert sink.done.error.startswith(f"the weights could not be loaded again: model: {tmp_path / 'model'}: {said}")
        assert engine.worker.unloaded
        shutil.copy(f"{nano_pair.draft}/model.safetensors", tmp_path / "model")
        assert engine.answer(request(PROMPT, autoregressive())) == [expected]


def test_request_after_idle_unload_is_served_with_changed_weights_file(engine, tmp_path):
    (before,) = engine.answer(request(PROMPT, autoregressive()))
    engine.unload()
    change_weights(tmp_path / "model", lambda name, array: array[..., ::-1])
    (after,) = engine.answer(request(PROMPT, autoregressive()))
    assert after != before
    assert not engine.worker.files.target.changed
