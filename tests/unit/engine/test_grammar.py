"""An answer follows its grammar, and is the same text whoever drafts it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from draftd.core import DRAFT_MODEL, GRAMMAR, PROMPT_LOOKUP, FinishReason, SamplingParams
from draftd.engine.drafters.base import Draft, Drafter
from draftd.engine.drafters.forced_tokens import ForcedTokens
from draftd.engine.pair import LoadedModels, assemble, load_models, load_tokenizer
from draftd.engine.sampling.transforms import one_hot
from draftd.models import grammar
from draftd.models.mlx_lm import model_classes
from draftd.models.tokenizer import Tokenizer
from tests.rig import Rig, automatic, autoregressive, request, speculative

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["book_flight", "find_train"]},
        "from": {"type": "string", "maxLength": 12},
        "passenger_category": {"enum": ["adult", "child"]},
        "bags": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 40}, "maxItems": 3},
    },
    "required": ["name", "from", "passenger_category", "bags"],
    "additionalProperties": False,
}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=1.0, seed=7),
    "seeded and filtered": SamplingParams(temperature=1.2, seed=7, top_p=0.9, min_p=0.01),
}
PLANS = {
    "draft model": speculative(4),
    "prompt lookup": speculative(3, PROMPT_LOOKUP),
    "forced tokens": speculative(6, GRAMMAR),
    "automatic": automatic(4, DRAFT_MODEL, PROMPT_LOOKUP, GRAMMAR),
}
TEXTS = ["Book a flight from Miami on Thursday.", "What is the weather?", "A train for a child from Rome.", "Hello"]


@pytest.fixture(scope="module")
def nano(nano_pair: Any) -> LoadedModels:
    return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)


@pytest.fixture(scope="module")
def small(nano_pair: Any) -> LoadedModels:
    """The embedded draft as target and as draft: for many answers."""
    return load_models(nano_pair.draft, nano_pair.draft, progress=lambda line: None)


def answers(
    models: LoadedModels, plan: Any, samplings: Sequence[SamplingParams], source: str, *, free: int = 0
) -> list[Any]:
    """Of four requests at once that follow a grammar, and of `free` beside them that do not. They take `samplings` in
    turn."""
    prompts = [models.tokenizer.render_chat([{"role": "user", "content": text}]) for text in TEXTS]
    ways = [samplings[i % len(samplings)] for i in range(len(prompts))]
    asked = [
        request(ids, plan, max_tokens=100, sampling=way, grammar=source) for ids, way in zip(prompts, ways, strict=True)
    ]
    asked += [
        request(ids, plan, max_tokens=24, sampling=way) for ids, way in zip(prompts[:free], ways[:free], strict=True)
    ]
    return Rig(models).run(asked)


def test_grammar_constrained_text_is_the_same_under_every_draft_plan(nano: LoadedModels):
    """Beside each other: greedy, with a seed, and with a seed and filters."""
    source, samplings = grammar.json_schema(json.dumps(SCHEMA)), list(SAMPLINGS.values())
    plain = answers(nano, autoregressive(), samplings, source, free=3)
    for sink in plain[:4]:
        assert sink.done.reason is FinishReason.STOP
        found = json.loads(nano.tokenizer.decode(sink.tokens))
        assert list(found) == SCHEMA["required"]
        assert all(0 <= bag <= 40 for bag in found["bags"])
    free = answers(nano, autoregressive(), samplings, "")
    assert [sink.tokens for sink in plain[4:]] == [sink.tokens[:24] for sink in free[:3]]
    for name, plan in PLANS.items():
        assert [sink.tokens for sink in answers(nano, plan, samplings, source, free=3)] == [
            sink.tokens for sink in plain
        ], name


def test_unseeded_grammar_answers_follow_masked_target_distribution(small: LoadedModels):
    """Of 320 answers, the token after a drafted one: each share within 4.5 standard deviations of the target's, over
    what is left of the vocabulary by the grammar."""
    texts, tokenizer = ["So yes", "So no", "So maybe"], small.tokenizer
    prompt = tokenizer.render_chat([{"role": "user", "content": "Is it?"}])
    first = tokenizer.encode_rendered("So")
    pieces = [tokenizer.decode([token]) for token in range(4096)]
    legal = [i for i, piece in enumerate(pieces) if piece and any(one[2:].startswith(piece) for one in texts)]
    logits = small.target(mx.array([[*prompt, *first]]))[0, -1].astype(mx.float32)
    p = dict(zip(legal, np.array(mx.softmax(logits[mx.array(legal)] / 2.0)), strict=True))
    sampling = SamplingParams(temperature=2.0)
    for plan in (speculative(2), speculative(2, GRAMMAR)):
        rig = Rig(small, max_batch=64)
        asked = request(prompt, plan, max_tokens=8, sampling=sampling, grammar=grammar.regex("So( yes| no| maybe)"))
        sinks = [rig.add(replace(asked, id=str(i))) for i in range(320)]
        rig.drain()
        found = [sink for sink in sinks if sink.tokens[: len(first)] == first]
        counted = Counter(sink.tokens[len(first)] for sink in found)
        assert set(counted) <= set(p)
        for token, share in p.items():
            bound = 4.5 * (share * (1 - share) / len(found)) ** 0.5 + 1 / len(found)
            assert abs(counted[token] / len(found) - share) <= bound, (plan.drafter, counted, p)


def test_model_that_never_picks_legal_tokens_still_completes_json_schema(nano_pair: Any):
    """Random weights never choose JSON by themselves: each forward that runs ahead is in vain, and taken back, in
    layers with states as well."""
    config = {
        "model_type": "lfm2", "vocab_size": 4096, "hidden_size": 32, "num_hidden_layers": 3, "norm_eps": 1e-5,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "conv_bias": False,
        "conv_L_cache": 3, "block_dim": 32, "block_ff_dim": 64, "block_multiple_of": 32, "full_attn_idxs": [1],
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False, "rope_theta": 10000.0,
    }  # fmt: skip
    model_class, args_class = model_classes(config)
    made = []
    for seed in (3, 4):
        mx.random.seed(seed)
        model = model_class(args_class.from_dict(dict(config)))
        model.set_dtype(mx.float32)
        mx.eval(model.parameters())
        made.append(model)
    tokenizer = Tokenizer(load_tokenizer(nano_pair.target)._wrapper)
    models = assemble(
        *made, tokenizer, model="tiny", draft_model="tiny", context_length=512, backend="test"
    )  # fmt: skip
    source = grammar.json_schema(json.dumps(SCHEMA))
    plain = answers(models, autoregressive(), [SamplingParams()], source, free=2)
    assert [sink.done.reason for sink in plain[:4]] == [FinishReason.STOP] * 4
    for plan in (PLANS["draft model"], PLANS["automatic"]):
        assert [sink.tokens for sink in answers(models, plan, [SamplingParams()], source, free=2)] == [
            sink.tokens for sink in plain
        ]


def test_grammar_forced_tokens_are_drafted_and_mostly_accepted(nano: LoadedModels):
    sinks = answers(nano, speculative(6, GRAMMAR), [SamplingParams()], grammar.json_schema(json.dumps(SCHEMA)))
    counts = [sink.done.stats.counts for sink in sinks]
    assert sum(one.drafted for one in counts) > sum(one.emitted for one in counts) / 2
    assert sum(one.accepted for one in counts) > 0.8 * sum(one.drafted for one in counts)
    assert not any(one.draft_forwards for one in counts)


def test_grammar_answer_keeps_its_text_when_failed_step_forces_new_prefill_of_sequences(nano: LoadedModels):
    """After a step that failed every sequence is prefilled anew, with what its answer has by then."""
    source = grammar.json_schema(json.dumps(SCHEMA))
    [whole, *_] = answers(nano, autoregressive(), [SamplingParams()], source)
    rig = Rig(nano)
    prompt = nano.tokenizer.render_chat([{"role": "user", "content": TEXTS[0]}])
    sink = rig.add(request(prompt, speculative(4), max_tokens=100, grammar=source))
    while len(sink.tokens) < 9:
        rig.scheduler.step()
    rig.scheduler.local._rebuild(RuntimeError("a step failed"), rig.scheduler.local._running)
    rig.drain()
    assert "a step failed" in sink.done.degraded
    assert sink.tokens == whole.tokens


def test_answer_grammar_permits_reasoning_between_marks_before_answer(nano: LoadedModels):
    """Between marks that are tokens of their own, or text."""
    assert nano.grammars is not None
    body = grammar.choice(["yes"])
    for marks in (("<|user|>", "<|assistant|>"), ("[think]", "[/think]")):
        for begun in (False, True):
            source = nano.grammars.answer(body, thought=marks, begun=begun)
            nano.grammars.compile(source)
            for text, whole in ((f"hm yes no{marks[1]}\nyes", True), ("yes", not begun), (f"hm{marks[1]}no", False)):
                matcher = nano.grammars.matcher(source)
                opened = text if begun or text == "yes" else marks[0] + text
                ids = nano.tokenizer.encode_rendered(opened)
                assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) is whole, (marks, text)


def test_end_token_that_grammar_forbids_does_not_end_answer(nano: LoadedModels):
    """The model would end at once: alone that is seen when it is read, beside a neighbour without a seed masks come
    first."""
    prompt = nano.tokenizer.render_chat([{"role": "user", "content": TEXTS[0]}])
    ending = SamplingParams(logit_bias=tuple((token, 30.0) for token in nano.tokenizer.eos_ids))
    asked = request(prompt, autoregressive(), max_tokens=30, sampling=ending, grammar=grammar.regex("[a-z ]{20,}"))
    [alone] = Rig(nano).run([asked])
    rig = Rig(nano)
    sink = rig.add(replace(asked, id="other"))
    while len(sink.tokens) < 4:
        rig.scheduler.step()
    rig.add(request(prompt, autoregressive(), max_tokens=20, sampling=SamplingParams(temperature=1.0)))
    rig.drain()
    assert alone.done.reason is FinishReason.STOP
    assert sink.tokens == alone.tokens


def test_drafts_are_verified_under_grammar_whose_matcher_cannot_roll_back(nano: LoadedModels):
    """A mark that is text ends a thought: llguidance lets no matcher take tokens back there."""
    assert nano.grammars is not None
    source = nano.grammars.answer(grammar.choice(["yes"]), thought=("[think]", "[/think]"), begun=True)
    prompt = nano.tokenizer.render_chat([{"role": "user", "content": TEXTS[0]}])
    asked = request(prompt, autoregressive(), max_tokens=16, sampling=SAMPLINGS["seeded and filtered"], grammar=source)
    [plain] = Rig(nano).run([asked])
    for name, plan in PLANS.items():
        [found] = Rig(nano).run([replace(asked, plan=plan)])
        assert (found.done.error, found.tokens) == ("", plain.tokens), name


def test_grammar_drafter_with_failed_matcher_does_not_fail_request(nano: LoadedModels):
    """Such as one that takes too much to follow. Depth control asks it outside of any request."""
    prompt = nano.tokenizer.render_chat([{"role": "user", "content": TEXTS[0]}])
    rig = Rig(nano)
    sink = rig.add(request(prompt, automatic(4, GRAMMAR), max_tokens=20, grammar=grammar.regex("[a-z ]{9,}")))
    drafter = rig.scheduler.local.drafting.drafters[GRAMMAR]
    assert isinstance(drafter, ForcedTokens)
    while not drafter._states:
        rig.scheduler.step()
    for state in drafter._states.values():
        assert not state.matcher.consume_token(min(nano.tokenizer.eos_ids) + 1)
    rig.drain()
    assert (sink.done.error, sink.done.degraded) == ("", "")
    assert len(sink.tokens) > 3


def test_grammar_in_use_stays_compiled_when_cache_overflows(nano: LoadedModels, monkeypatch: pytest.MonkeyPatch):
    """Until its request has ended, whatever others ask for meanwhile: or the engine thread would compile it."""
    monkeypatch.setattr(grammar, "_KEPT_CHARACTERS", 1000)
    grammars = nano.tokenizer.grammars(4096)
    assert grammars is not None
    held, first = grammars.compile(grammar.choice(["held"]))
    for number in range(20):
        grammars.compile(grammar.choice([f"{number}" * 20]))
    assert first
    assert [grammars.compile(grammar.choice([text]))[1] == 0 for text in ("held", "0" * 20, "19" * 20)] == [
        True, False, True
    ]  # fmt: skip
    assert held is grammars.compile(grammar.choice(["held"]))[0]


def test_illegal_draft_token_is_resampled_without_biasing_legal_tokens(small: LoadedModels):
    """A draft that puts half on an illegal token, half on the likeliest legal one, which must not become likelier: its
    share of second tokens, after one first, is within 4.5 standard deviations."""
    assert small.grammars is not None
    tokenizer, dice = small.tokenizer, random.Random(3)
    prompt = tokenizer.render_chat([{"role": "user", "content": "Hello"}])
    legal = [i for i in range(4096) if (text := tokenizer.decode([i])) and set(text) <= {"a", "b"}]
    p = np.array(mx.softmax(small.target(mx.array([[*prompt, legal[0]]]))[0, -1][mx.array(legal)] / 4.0))
    likeliest, illegal = legal[int(p.argmax())], next(i for i in range(10, 4096) if i not in legal)

    class Half(Drafter):
        def propose(self, sequences: Any, depths: Any, sampling: Any) -> Draft:
            tokens = mx.array([[dice.choice((likeliest, illegal))] for _ in sequences], dtype=mx.uint32)
            q = (one_hot(mx.array([[likeliest]]), 4096) + one_hot(mx.array([[illegal]]), 4096)) / 2
            return Draft(tokens, [1] * len(sequences), mx.repeat(q, len(sequences), axis=0), [1] * len(sequences))

    rig = Rig(small, max_batch=64, drafters={DRAFT_MODEL: Half(), GRAMMAR: ForcedTokens(small.grammars, 4096)})
    sampling, source = SamplingParams(temperature=4.0), grammar.regex("[ab]{4,}")
    asked = request(prompt, speculative(1), max_tokens=3, sampling=sampling, grammar=source)
    sinks = [rig.add(replace(asked, id=str(i))) for i in range(1200)]
    rig.drain()
    found = [sink.tokens[1] for sink in sinks if sink.tokens[0] == legal[0]]
    share = float(p.max())
    assert abs(found.count(likeliest) / len(found) - share) <= 4.5 * (share * (1 - share) / len(found)) ** 0.5
