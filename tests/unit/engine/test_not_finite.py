"""A model that computes no numbers is not loaded; where it first does so on a request, that one ends with an error that
says so, and no other text changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodeRequest, FinishReason, SamplingParams
from draftd.engine.cache.layouts import why_not_batched
from draftd.engine.pair import load_models
from draftd.engine.sampling.transforms import greatest
from draftd.engine.targets.choice import NOT_FINITE
from draftd.errors import ModelLoadError
from draftd.models.grammar import regex
from tests.conftest import NanoPair
from tests.rig import Collected, Rig, automatic, autoregressive, pair, request, speculative, tiny_llama
from tests.scripted_edge import Edge
from tests.unit.engine.drafts import change_weights
from tests.unit.models.checkpoints import quantised

VOCABULARY, TOKENS = 96, 24
PROMPTS = [[5, 6, 7, 8], [9] * 30, [3, 1, 4, 1, 5]]
_MARK, _NEVER = 12345.0, 1 << 20  # a hidden state that stands for the fault; a token that no text has

Spoil = Callable[[mx.array], mx.array]


def one_entry(value: float) -> Spoil:
    return lambda logits: mx.where(mx.arange(logits.shape[-1]) == 40, value, logits)


SPOILS: dict[str, Spoil] = {
    "one NaN": one_entry(float("nan")),
    "one infinity": one_entry(float("inf")),
    "NaN everywhere": lambda logits: mx.full(logits.shape, float("nan")),
    "no token left": lambda logits: mx.full(logits.shape, -float("inf")),
}
PLANS = {
    "plain": autoregressive(),
    "draft": speculative(3),
    "lookup": speculative(3, PROMPT_LOOKUP),
    "automatic": automatic(4, DRAFT_MODEL, PROMPT_LOOKUP),
}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=1.0, seed=7, top_p=0.95),
    "free": SamplingParams(temperature=1.0),
}
CASES = [("one NaN", plan, sampling) for plan in ("plain", "draft") for sampling in SAMPLINGS]
CASES += [("one NaN", plan, sampling) for plan in ("lookup", "automatic") for sampling in ("greedy", "seeded")]
CASES += [(spoil, *way) for spoil in SPOILS if spoil != "one NaN" for way in (("plain", "greedy"), ("draft", "free"))]


class Faulty:
    """A pair of Llamas that always agrees, until the target is told to fail. Its trial is over, and sees nothing of
    it."""

    def __init__(self) -> None:
        self.models = pair(*(tiny_llama(3, vocab=VOCABULARY, scale=4.0) for _ in range(2)), vocab=VOCABULARY)
        self._token, self._spoil = _NEVER, one_entry(0.0)
        self._texts: dict[tuple[str, str], list[list[int]]] = {}
        self._sound = [(one, one.model.embed_tokens.weight) for one in (self.models.target, self.models.draft)]
        target, owner = self.models.target, self
        body = type(target.model)

        class Body(body):  # type: ignore[misc, valid-type]
            def __call__(self, inputs: mx.array, *rest: Any, **more: Any) -> mx.array:
                return mx.where((inputs == owner._token)[..., None], _MARK, super().__call__(inputs, *rest, **more))

        class Head(nn.Linear):
            def __call__(self, x: mx.array) -> mx.array:
                logits: mx.array = super().__call__(x)
                return mx.where(x[..., :1] == _MARK, owner._spoil(logits), logits)

        target.model.__class__, target.lm_head.__class__ = Body, Head
        del target._draftd_last_positions  # the head is to be asked for positions anew

    def spoil(self, token: int, spoil: Spoil) -> None:
        """From now on the logits that follow `token` are changed, wherever it is in a text."""
        self._token, self._spoil = token, spoil

    def mend(self) -> None:
        self._token = _NEVER
        for model, weight in self._sound:
            model.model.embed_tokens.weight = weight

    def texts(self, plan: str, sampling: str) -> list[list[int]]:
        """The answers without a fault."""
        if (plan, sampling) not in self._texts:
            self._texts[plan, sampling] = [sink.tokens for sink in Rig(self.models).run(asked(plan, sampling))]
        return self._texts[plan, sampling]


def without_numbers(model: Any, token: int) -> None:
    """Keys, values and all that follows `token` are NaN."""
    weight = model.model.embed_tokens.weight
    model.model.embed_tokens.weight = mx.where((mx.arange(weight.shape[0]) == token)[:, None], mx.nan, weight)


def asked(plan: str, sampling: str) -> list[DecodeRequest]:
    return [request(one, PLANS[plan], max_tokens=TOKENS, sampling=SAMPLINGS[sampling]) for one in PROMPTS]


def own_token(texts: list[list[int]]) -> int:
    """A token that the first answer has after some others, and nothing else has."""
    others = {token for text in [*PROMPTS, *texts[1:]] for token in text}
    return next(token for i, token in enumerate(texts[0]) if i > 1 and token not in others | {*texts[0][:i]})


def ended(sink: Collected) -> tuple[FinishReason, str]:
    return sink.done.reason, sink.done.error


@pytest.fixture(scope="module")
def made() -> Faulty:
    return Faulty()


@pytest.fixture
def faulty(made: Faulty) -> Iterator[Faulty]:
    yield made
    made.mend()


@pytest.mark.parametrize(("spoil", "plan", "sampling"), CASES)
def test_non_finite_logits_end_only_the_affected_request(spoil: str, plan: str, sampling: str, faulty: Faulty) -> None:
    expected = faulty.texts(plan, sampling)
    bad = own_token(expected)
    faulty.spoil(bad, SPOILS[spoil])
    first, *others = Rig(faulty.models).run(asked(plan, sampling))
    assert ended(first) == (FinishReason.ERROR, NOT_FINITE)
    assert first.tokens == expected[0][: len(first.tokens)]
    assert 0 < len(first.tokens) <= expected[0].index(bad) + 1
    assert [sink.tokens for sink in others] == expected[1:]
    assert [ended(sink) for sink in others] == [(FinishReason.LENGTH, "")] * 2


@pytest.mark.parametrize("plan", ["plain", "draft"])
def test_non_finite_keys_in_cache_do_not_affect_neighbouring_or_later_requests(plan: str, faulty: Faulty) -> None:
    """Neither those beside it, nor one that comes after it and has its place."""
    expected = faulty.texts(plan, "greedy")
    without_numbers(faulty.models.target, own_token(expected))
    rig = Rig(faulty.models)
    sinks = [rig.add(one) for one in asked(plan, "greedy")]
    while sinks[0].outcome is None:
        rig.scheduler.step()
    late = rig.run(asked(plan, "greedy")[1:])
    assert ended(sinks[0]) == (FinishReason.ERROR, NOT_FINITE)
    assert [sink.tokens for sink in (*sinks[1:], *late)] == expected[1:] * 2
    assert not any(sink.done.degraded for sink in (*sinks[1:], *late))


def test_prompt_with_non_finite_logits_fails_alone(faulty: Faulty) -> None:
    prompts = [[1, 2, 3], [4, 5, 90], [6, 7, 8]]
    expected = Rig(faulty.models).run([request(prompt, autoregressive(), max_tokens=8) for prompt in prompts])
    without_numbers(faulty.models.target, 90)
    sinks = Rig(faulty.models).run([request(prompt, autoregressive(), max_tokens=8) for prompt in prompts])
    assert [sink.tokens for sink in sinks] == [expected[0].tokens, [], expected[2].tokens]
    assert ended(sinks[1]) == (FinishReason.ERROR, NOT_FINITE)


@pytest.mark.parametrize("spoil", SPOILS)
def test_prompt_log_probabilities_with_non_finite_logits_fail_the_request(spoil: str, faulty: Faulty) -> None:
    """Within a prompt, whose other logits choose the answer."""
    faulty.spoil(90, SPOILS[spoil])
    plain = [request(prompt, autoregressive(), max_tokens=2) for prompt in ([1, 90, 3, 4], [6, 7, 8])]
    asked = [*plain, *(replace(one, id=f"{one.id}-told", prompt_logprobs=0) for one in plain)]
    sinks = Rig(faulty.models).run(asked)
    assert [sink.done.error for sink in sinks] == ["", "", NOT_FINITE, ""]
    assert [sink.prompt is None for sink in sinks] == [True, True, True, False]


def test_draft_model_computing_non_finite_values_changes_no_text(faulty: Faulty) -> None:
    expected = faulty.texts("plain", "greedy")
    without_numbers(faulty.models.draft, expected[0][1])
    sinks = Rig(faulty.models).run(asked("draft", "greedy"))
    assert [(sink.tokens, sink.done.error) for sink in sinks] == [(text, "") for text in expected]


def test_token_with_minus_infinity_logit_does_not_fail_request(faulty: Faulty) -> None:
    faulty.spoil(PROMPTS[0][-1], one_entry(-float("inf")))
    sinks = Rig(faulty.models).run(asked("draft", "free"))
    assert [ended(sink) for sink in sinks] == [(FinishReason.LENGTH, "")] * 3


def test_non_finite_logits_end_edge_drafted_text_with_error_but_not_local_request(faulty: Faulty) -> None:
    expected = faulty.texts("plain", "greedy")
    bad = own_token(expected)
    faulty.spoil(bad, SPOILS["one NaN"])
    rig, edge = Rig(faulty.models), Edge(PROMPTS[0])
    sink, other = rig.add(edge.request(4, TOKENS)), rig.add(asked("plain", "greedy")[1])
    while sink.outcome is None:
        rig.scheduler.step()
        edge.receive()
        edge.send(expected[0][len(edge.answer) : len(edge.answer) + 4])
    rig.drain()
    assert ended(sink) == (FinishReason.ERROR, NOT_FINITE)
    assert 0 < len(edge.answer) <= expected[0].index(bad) + 1
    assert edge.answer == expected[0][: len(edge.answer)]
    assert other.tokens == expected[1]


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
def test_grammar_mask_does_not_hide_non_finite_logits(sampling: str, nano_pair: NanoPair) -> None:
    models = load_models(nano_pair.draft, progress=lambda line: None)
    one = request(PROMPTS[1], autoregressive(), max_tokens=6, sampling=SAMPLINGS[sampling], grammar=regex("[a-z]+"))
    (sink,) = Rig(models).run([one])
    assert not sink.done.error
    without_numbers(models.target, 4000)  # which the grammar never allows; the embedding is the head as well
    (sink,) = Rig(models).run([one])
    assert (ended(sink), sink.tokens) == ((FinishReason.ERROR, NOT_FINITE), [])


@pytest.mark.parametrize("vocabulary", [96, 97, 4096])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_largest_logit_check_detects_nan_or_infinity_at_any_vocabulary_position(
    dtype: mx.Dtype, vocabulary: int
) -> None:
    places = mx.arange(vocabulary)[:: max(1, vocabulary // 128)][:, None]  # one in each row
    sound = mx.random.normal((places.shape[0], 1, vocabulary), key=mx.random.key(1)).astype(dtype)
    for value in (float("nan"), float("inf")):
        found = greatest(mx.where(mx.arange(vocabulary) == places[..., None], value, sound))
        assert not mx.isfinite(found).any().item()
    assert mx.array_equal(greatest(sound), mx.max(sound, axis=-1)).item()
    ruled_out = mx.where(mx.arange(vocabulary) == places[..., None], sound, -float("inf"))
    assert mx.isfinite(greatest(ruled_out)).all().item()
    assert not mx.isfinite(greatest(mx.full(sound.shape, -float("inf"), dtype))).any().item()


# at load


def too_large(name: str, array: mx.array) -> mx.array:
    """Finite weights, of which the model makes none."""
    return mx.full(array.shape, 3e38, dtype=array.dtype) if name == "model.norm.weight" else array


def test_load_time_batching_trial_refuses_model_that_computes_non_finite_values() -> None:
    model = tiny_llama(1)
    model.model.norm.weight = mx.full((16,), 3e38)
    with pytest.raises(ModelLoadError, match="what it computes is not finite") as caught:
        why_not_batched(model)
    assert caught.value.cure


@pytest.mark.parametrize("role", ["model", "draft model"])
def test_loading_refuses_target_or_draft_whose_finite_weights_compute_non_finite_values(
    role: str, nano_pair: NanoPair, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(nano_pair.draft, tmp_path / "model"))
    change_weights(folder, too_large)
    target, draft = (folder, None) if role == "model" else (nano_pair.draft, str(folder))
    with pytest.raises(ModelLoadError) as caught:
        load_models(str(target), draft, progress=lambda line: None)
    assert (
        caught.value.what
        == f"{role}: {folder}: what it computes is not finite (NaN or infinity), although its weights are"
    )


def test_loading_refuses_model_with_non_finite_packed_quantisation_scales(nano_pair: NanoPair, tmp_path: Path) -> None:
    quantised("nvfp4", 4, 16)(nano_pair.draft, tmp_path / "model")
    change_weights(
        tmp_path / "model",
        lambda name, array: mx.full(array.shape, 0x7F, array.dtype) if "down_proj.scales" in name else array,
    )
    with pytest.raises(
        ModelLoadError, match=r"some of its weights are not finite \(model\.layers\.0\.mlp\.down_proj\."
    ):
        load_models(str(tmp_path / "model"), progress=lambda line: None)
