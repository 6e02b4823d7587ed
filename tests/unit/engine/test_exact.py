"""engine.exact: texts that do not depend on how they are computed, and the measurement that says what would."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from draftd.core import DRAFT_MODEL, SamplingParams
from draftd.engine.cache.alone import pieces
from draftd.engine.cache.alone_mode import mode_of, tokens_alone
from draftd.engine.cache.slices import ExactSlices
from draftd.engine.exactness import job as exactness_job
from draftd.engine.exactness.job import IDLE_SECONDS, ExactnessJob
from draftd.engine.exactness.measure import ExactLayers
from draftd.engine.limits import EXACT_SLICE, Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels
from draftd.engine.prefill_order import slice_end
from draftd.errors import ConfigError, InvalidRequest, NotNow
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd.settings.serving import EngineSettings
from tests.exactness import plants, texts
from tests.models.tiny import tiny
from tests.rig import Rig, autoregressive, pair, request, speculative
from tests.wait_until import loaded, until

PLANTED = {plant.name: plant for plant in plants.PLANTS}
SAME = OperationExactness("whole forward", OperationKind.FORWARD)


def exact_pair(name: str) -> tuple[LoadedModels, ExactLayers]:
    models = texts.tied_pair(name)
    return models, texts.exact(models)


# what is computed


def test_rows_are_cut_into_allowed_counts_with_longest_first():
    assert pieces(20, {1, 5, 12}) == [(0, 12), (12, 17), (17, 18), (18, 19), (19, 20)]
    assert pieces(3, {1, 2, 3}) == [(0, 3)]


@pytest.mark.parametrize(
    ("start", "tokens", "end"), [(0, 30, 64), (0, 64, 64), (64, 100, 128), (64, 500, 200), (128, 72, 200)]
)
def test_slice_of_exact_prompt_ends_at_multiple_or_at_its_end(start, tokens, end):
    assert slice_end(start, tokens, 200, EXACT_SLICE) == end


@pytest.mark.parametrize(("start", "tokens"), [(0, 30), (7, 1), (150, 50)])
def test_slice_of_usual_prompt_ends_anywhere(start, tokens):
    assert slice_end(start, tokens, 200, 1) == start + tokens


def test_exact_model_caches_whole_prompt_slices_only():
    slices = ExactSlices(model=None)
    assert [slices.usable(n, 130) for n in (63, 64, 129, 192, 400)] == [0, 64, 128, 128, 128]
    assert [slices.widest(n, 130, 512) for n in (0, 64, 128, 130, 300)] == [64, 64, 2, 8, 8]


def test_exact_slice_that_begins_off_a_multiple_raises():
    with pytest.raises(AssertionError, match="a slice begins at 10"):
        ExactSlices(model=None).widest(10, 130, 512)


# texts

TOKENS = 6
TOGETHER = texts.Way("depth 4", 8, True, 64)


@pytest.mark.parametrize("name", ["gate at 4 rows only", "values of a cache beside others"])
def test_exact_model_has_one_text_in_all_ways_and_usual_one_has_several(name):
    plant = PLANTED[name]
    usual = texts.tied_pair(plant.model)
    with plant.put(usual.target):
        assert texts.compare(usual, [TOGETHER], TOKENS).bits > 0
    exact = texts.tied_pair(plant.model)
    with plant.put(exact.target):
        texts.exact(exact)
        compared = texts.compare(exact, [TOGETHER, texts.Way("automatic", 1, False, 64)], TOKENS)
    assert (compared.texts, compared.differ, compared.bits) == (16, 0, 0)


@pytest.mark.parametrize("name", ["lfm2", "qwen2_moe", "gpt_oss", "falcon_h1"])
def test_exact_states_experts_and_windows_have_one_text_alone_and_together(name):
    models, layers = exact_pair(name)
    assert not layers.by_token
    compared = texts.compare(models, [TOGETHER], TOKENS)
    assert (compared.differ, compared.bits) == (0, 0)


@pytest.mark.parametrize("name", ["gemma2", "deepseek_v3"])
def test_model_without_callable_attention_is_exact_token_by_token(name):
    models, layers = exact_pair(name)
    assert layers.by_token
    compared = texts.compare(models, [texts.Way("depth 1", 8, False, 64)], TOKENS)
    assert (compared.differ, compared.bits) == (0, 0)


def test_resumed_exact_answer_continues_as_if_uninterrupted():
    models, _ = exact_pair("llama")
    prompt = texts.prompts(models.info.vocab_size)[3]
    (whole,) = Rig(models).run([request(prompt, autoregressive(), max_tokens=20)])
    begun = replace(request([*prompt, *whole.tokens[:9]], speculative(4), max_tokens=11), answered=9, logprobs=0)
    expected = Rig(models).run([replace(request(prompt, autoregressive(), max_tokens=20), logprobs=0)])[0]
    (rest,) = Rig(models, prefill_chunk=64).run([begun])
    assert rest.tokens == expected.tokens[9:]
    assert [chosen.logprob for chosen in rest.logprobs] == [chosen.logprob for chosen in expected.logprobs[9:]]


def test_answer_is_not_reused_as_beginning_of_longer_prompt():
    models, _ = exact_pair("llama")
    prompt = texts.prompts(models.info.vocab_size)[3]
    rig = Rig(models, prefix_bytes=1 << 26)
    (first,) = rig.run([request(prompt, autoregressive(), max_tokens=80)])
    longer = [*prompt, *first.tokens, 5]
    (again,) = rig.run([request(longer, autoregressive(), max_tokens=4)])
    assert again.done.stats.cached_tokens == len(prompt) - len(prompt) % EXACT_SLICE
    assert again.tokens == Rig(models).run([request(longer, autoregressive(), max_tokens=4)])[0].tokens


def test_prompt_logprobs_do_not_change_an_exact_text():
    models, _ = exact_pair("llama")
    asked = replace(request(texts.prompts(models.info.vocab_size)[3], autoregressive(), max_tokens=8), logprobs=0)
    (plain,) = Rig(models).run([asked])
    (told,) = Rig(models).run([replace(asked, id="told", prompt_logprobs=0)])
    assert told.tokens == plain.tokens
    assert [chosen.logprob for chosen in told.logprobs] == [chosen.logprob for chosen in plain.logprobs]


def test_seeded_text_is_same_at_every_depth_and_batch():
    models, _ = exact_pair("llama")
    sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=3)
    prompts = texts.prompts(models.info.vocab_size, 3)
    alone = [
        Rig(models).run([request(prompt, autoregressive(), max_tokens=12, sampling=sampling)])[0].tokens
        for prompt in prompts
    ]
    together = Rig(models, max_batch=8).run(
        [request(prompt, speculative(4, DRAFT_MODEL), max_tokens=12, sampling=sampling) for prompt in prompts]
    )
    assert [sink.tokens for sink in together] == alone


def test_same_layers_make_model_exact_when_it_is_loaded_again():
    plant = PLANTED["queries from 2 rows"]
    first, again = texts.tied_pair("llama"), texts.tied_pair("llama")
    with plant.put(first.target):
        layers = texts.exact(first)
    with plant.put(again.target):
        layers.install(again.target)
        compared = texts.compare(again, [texts.Way("depth 4", 8, False, 512)], 8)
    assert (compared.differ, compared.bits) == (0, 0)


# measurement


def test_measurement_names_planted_changes_and_nothing_else():
    """In a process with the reference BLAS, where nothing differs without a plant."""
    command = [sys.executable, "-m", "tests.exactness", "--names"]
    for name in ("rows only", "last norm", "experts", "several queries", "taps", "delta rule"):
        command += ["--only", name]
    run = subprocess.run(command, env={**os.environ, "DRAFTD_BLAS": "reference"}, capture_output=True, text=True)
    assert json.loads(run.stdout.splitlines()[-1]) == {"planted": 6, "named": 6, "others": 0}, run.stdout + run.stderr


def test_measurement_leaves_model_as_it_was():
    models = texts.tied_pair("qwen2_moe")  # whose layers share one activation
    kinds = [type(module) for module in models.target.modules()]
    texts.measured(models)
    assert [type(module) for module in models.target.modules()] == kinds
    assert mode_of(models.target) is None


def test_measurement_of_exact_model_finds_no_whole_forward_that_differs():
    plant = PLANTED["attention of several sequences"]
    models = texts.tied_pair("llama")
    with plant.put(models.target):
        layers = texts.exact(models)
        exactness = texts.measured(models, layers)
    assert exactness.exact
    assert not exactness.forward.differs
    assert exactness.flips == 0
    assert "attention" in exactness.named


def test_estimated_flips_are_about_as_many_as_counted():
    """The change is large, so that a few thousand tokens are enough: logits of a wide step are off by up to 0.3."""
    models = pair(tiny("llama"), None, vocab=96)
    drawn = random.Random(8)
    text = mx.array([[drawn.randrange(4, 96) for _ in range(400)] for _ in range(10)])
    before = mx.argmax(models.target(text), axis=-1)
    with plants.noise("lm_head", 0.3)(models.target):
        estimated = texts.measured(models).flips
        changed = int((mx.argmax(models.target(text), axis=-1) != before).sum().item())
    counted = 1000 * changed / text.size
    assert counted / 3 < estimated < counted * 3, (counted, estimated)


# the job of an idle engine


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def job_of(pieces: Generator[str, None, Exactness], clock: Clock) -> ExactnessJob:
    return ExactnessJob(lambda: None, lambda model: pieces, clock)


def test_exactness_job_waits_until_engine_has_been_idle_for_a_moment():
    clock = Clock()
    job = ExactnessJob(lambda: None, lambda model: iter(()), clock)  # type: ignore[arg-type,return-value]
    assert not job.due(idle=False)
    assert not job.due(idle=True)
    clock.now = IDLE_SECONDS
    assert job.due(idle=True)


def test_exactness_job_keeps_its_result_and_is_not_due_again():
    def work() -> Generator[str, None, Exactness]:
        yield "half"
        return Exactness(False, False, SAME)

    clock = Clock()
    job = job_of(work(), clock)
    clock.now = IDLE_SECONDS
    job.step()
    assert job.result is None
    job.step()
    assert job.result == Exactness(False, False, SAME)
    assert not job.due(idle=True)


def test_exactness_job_begins_again_from_the_start_after_it_was_stopped():
    begun = []

    def begin(model: Any) -> Generator[str, None, Exactness]:
        begun.append(model)
        yield "half"
        return Exactness(False, False, SAME)

    job = ExactnessJob(lambda: "model", begin, Clock())
    job.step()
    job.stop()
    job.step()
    assert begun == ["model", "model"]


def test_exactness_job_that_fails_is_logged_once_and_given_up(caplog):
    def work() -> Generator[str, None, Exactness]:
        raise RuntimeError("no memory")
        yield "never"

    clock = Clock()
    job = job_of(work(), clock)
    clock.now = IDLE_SECONDS
    job.step()
    assert "could not be measured" in caplog.text
    assert not job.due(idle=True)


@pytest.mark.parametrize("exact", [False, True])
def test_idle_engine_measures_its_model_and_says_so(exact, monkeypatch):
    monkeypatch.setattr(exactness_job, "IDLE_SECONDS", 0.2)
    models = texts.tied_pair("llama")
    worker = EngineWorker(
        lambda progress: models,
        limits=Limits(max_batch=2, max_draft_tokens=2, exact=exact),
        exactness_prompts=lambda tokenizer: texts.prompts(models.info.vocab_size, 3),
    )
    worker.start()
    loaded(worker)
    try:
        until(lambda: worker.status().exactness is not None, 120, "the measurement")
        exactness = worker.status().exactness
        assert exactness is not None
        assert exactness.exact == exact
        assert exactness.positions > 0
        assert not (exact and exactness.forward.differs)
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("exact", "error", "why"),
    [(True, InvalidRequest, "at least 64 tokens; engine.exact keeps"), (False, NotNow, "no engine.prefix_dir|is 0")],
)
def test_exact_engine_refuses_to_pin_a_prefix_of_less_than_a_slice(exact, error, why):
    models = texts.tied_pair("llama")
    worker = EngineWorker(lambda progress: models, limits=Limits(max_batch=2, max_draft_tokens=1, exact=exact))
    worker.start()
    loaded(worker)
    try:
        with pytest.raises(error, match=why):
            worker.pin_prefix("short", tuple(range(4, 34)))
    finally:
        worker.close()


# settings


def test_engine_exact_requires_prefill_chunk_of_at_least_64():
    with pytest.raises(ConfigError, match=r"engine\.prefill_chunk: got 32; .*at least 64"):
        EngineSettings(exact=True, prefill_chunk=32)
    assert EngineSettings(prefill_chunk=32).prefill_chunk == 32


def test_usual_model_is_computed_as_usual_within_each_alone():
    models = texts.tied_pair("llama")
    with tokens_alone(models.target):
        assert mode_of(models.target) is None
