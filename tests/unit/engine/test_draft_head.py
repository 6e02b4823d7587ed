"""The drafter of a draft head: what it is fed, what it drafts, and that no text depends on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import pytest

from draftd.core import DRAFT_HEAD, PEER, SamplingParams
from draftd.engine.cache.alone_mode import prepare_alone, tokens_alone
from draftd.engine.cache.model_layers import logits_at, record_states, states_of, without_head
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import CalibratedCosts, StepCosts
from draftd.engine.drafters.base import Text
from draftd.engine.drafters.chained import ChainedDrafter
from draftd.engine.drafters.draft_head import DraftHead
from draftd.engine.drafters.sources import LoadedHead
from draftd.engine.exactness.operations import MeasuredLayer
from draftd.engine.features import Features
from draftd.engine.head_forms import take_form
from draftd.engine.pair import LoadedModels, assemble
from draftd.exactness import OperationKind
from draftd.models.head_families import DFLASH, EAGLE, MTP
from draftd.models.head_weights import open_head
from draftd.models.heads import find_head
from draftd.models.mlx_lm import load_target, make_prompt_cache, vocabulary_size
from tests.heads.layouts import LAYOUTS
from tests.rig import Collected, Rig, automatic, autoregressive, pair, request, speculative, tiny_llama
from tests.rigged_head import (
    CHAINED,
    TOLERANCE_OF_STATES,
    WINDOWED,
    RiggedHead,
    check_fed,
    random_head,
    rigged,
    with_random_head,
)
from tests.scripted import ByteTokenizer
from tests.scripted_edge import Edge


@pytest.fixture(scope="module")
def models(nano_pair) -> LoadedModels:
    from draftd.engine.pair import load_models

    loaded = load_models(str(nano_pair.target), progress=lambda line: None)
    return with_random_head(replace(loaded, head=None))


def rig_with_head(models: LoadedModels, drafter: type[RiggedHead] = RiggedHead, **options) -> tuple[Rig, RiggedHead]:
    rig = Rig(models, head_drafter=drafter, **options)
    head = rig.scheduler.local.drafting.drafters[DRAFT_HEAD]
    assert isinstance(head, RiggedHead)
    return rig, head


def prompts(*lengths: int) -> list[list[int]]:
    return [[5 + (7 * i + 3 * length) % 900 for i in range(length)] for length in lengths]


def plain_texts(models: LoadedModels, texts: Sequence[Sequence[int]], **more) -> list[list[int]]:
    rig = Rig(models)
    return [sink.tokens for sink in rig.run([request(text, autoregressive(), **more) for text in texts])]


def counts(sinks: Sequence[Collected]) -> tuple[int, int]:
    return (
        sum(sink.done.stats.counts.drafted for sink in sinks),
        sum(sink.done.stats.counts.accepted for sink in sinks),
    )


@pytest.mark.parametrize("chunk", [512, 24])
def test_head_is_fed_every_hidden_state_once_in_batch_of_unlike_lengths(models: LoadedModels, chunk: int) -> None:
    rig, head = rig_with_head(models, prefill_chunk=chunk)
    texts = prompts(3, 70, 41)
    sinks = rig.run([request(text, speculative(3, DRAFT_HEAD), max_tokens=24) for text in texts])
    assert [sink.tokens for sink in sinks] == plain_texts(models, texts, max_tokens=24)
    check_fed(models, head)
    assert counts(sinks)[0] > 60


@pytest.mark.parametrize("kind", [EAGLE.kind, DFLASH.kind, WINDOWED, CHAINED])
def test_head_of_other_kind_is_fed_all_states_and_text_stays_same(nano_pair, kind: str) -> None:
    """From slices, after rollbacks, and from the prefix cache."""
    from draftd.engine.pair import load_models

    loaded = load_models(str(nano_pair.target), progress=lambda line: None)
    models = with_random_head(replace(loaded, head=None), kind)
    texts = prompts(9, 70)
    expected = plain_texts(models, texts, max_tokens=48)
    rig, head = rig_with_head(models, rigged(kind), prefix_bytes=64 << 20, prefill_chunk=24)
    head.right, head.answers = 0.7, {tuple(t): [*t, *a] for t, a in zip(texts, expected, strict=True)}
    for whole in (True, False):
        head.fed_features.clear()
        sinks = rig.run([request(text, speculative(4, DRAFT_HEAD), max_tokens=40) for text in texts])
        drafted, accepted = counts(sinks)
        assert 0.2 < accepted / drafted < 0.95
        assert [sink.tokens for sink in sinks] == [answer[:40] for answer in expected]
        check_fed(models, head, whole=whole)


def test_chained_heads_have_the_same_entries_after_one_slice_of_a_prompt_and_after_two(models: LoadedModels) -> None:
    heads, entries = random_head(models.target, CHAINED), []
    record_states(models.target)  # what the other tests' head takes
    states, tokens = mx.random.normal((1, 320, 256)), list(range(5, 405))
    for size in (320, 160):  # the first needs two forwards too, within one call
        drafter, text = ChainedDrafter(heads, models.info.vocab_size), Text(tokens)
        drafter.begin(text, 0)
        for start in range(0, 320, size):
            drafter.feed(text, Features(start, size, states, 0, start))
        segment = drafter.texts._texts[id(text)].caches.extract(0, 0, 320)
        entries.append(mx.concatenate(segment.layers[-1], axis=-1))
    assert mx.allclose(*entries, atol=1e-4).item()


def test_input_of_a_norm_that_exact_mode_computes_in_pieces_is_recorded_whole() -> None:
    model, tokens = tiny_llama(2), mx.array([[1, 2, 0], [2, 1, 1]])
    norm = model.model.norm
    record_states(model, [norm])
    _, whole = states_of(model, lambda: logits_at(model, tokens, None, None))
    mode, call = prepare_alone(model), SimpleNamespace(path="model.norm", method="__call__")
    MeasuredLayer(call, OperationKind.NORM, None, is_split=True, equal=frozenset({2, 4})).split(norm, mode)
    with tokens_alone(model):
        _, states = states_of(model, lambda: logits_at(model, tokens, None, None))
    assert whole is not None
    assert states is not None
    assert mx.array_equal(states, whole).item()


@pytest.mark.parametrize("depth", [1, 4])
def test_perfect_head_is_accepted_whole_at_every_depth(models: LoadedModels, depth: int) -> None:
    texts = prompts(9, 33, 20)
    expected = plain_texts(models, texts, max_tokens=40)
    rig, head = rig_with_head(models, prefix_bytes=64 << 20)
    head.right, head.answers = 1.0, {tuple(t): [*t, *a] for t, a in zip(texts, expected, strict=True)}
    for _ in range(2):  # the second time from the prefix cache
        sinks = rig.run([request(text, speculative(depth, DRAFT_HEAD), max_tokens=36) for text in texts])
        drafted, accepted = counts(sinks)
        assert drafted == accepted > 40
        assert [sink.tokens for sink in sinks] == [answer[:36] for answer in expected]


def test_head_that_errs_is_rolled_back_and_text_stays_same(models: LoadedModels) -> None:
    texts = prompts(9, 33)
    expected = plain_texts(models, texts, max_tokens=48)
    rig, head = rig_with_head(models)
    head.right, head.answers = 0.6, {tuple(t): [*t, *a] for t, a in zip(texts, expected, strict=True)}
    sinks = rig.run([request(text, speculative(4, DRAFT_HEAD), max_tokens=40) for text in texts])
    drafted, accepted = counts(sinks)
    assert 0.2 < accepted / drafted < 0.8
    assert [sink.tokens for sink in sinks] == [answer[:40] for answer in expected]
    check_fed(models, head)


@pytest.mark.parametrize("kind", [MTP, EAGLE.kind, DFLASH.kind, CHAINED])
def test_text_taken_up_from_prefix_cache_goes_on_with_kept_state(models: LoadedModels, kind: str) -> None:
    first, models = prompts(60)[0], with_random_head(models, kind)
    rig, head = rig_with_head(models, rigged(kind), prefix_bytes=64 << 20)
    (sink,) = rig.run([request(first, speculative(2, DRAFT_HEAD), max_tokens=20)])
    turn = [*first, *sink.tokens, 11, 12, 13]
    head.fed_features.clear()
    head.drafts.clear()
    (again,) = rig.run([request(turn, speculative(2, DRAFT_HEAD), max_tokens=20)])
    assert again.done.stats.cached_tokens >= 60
    assert again.done.stats.counts.drafted > 10
    check_fed(models, head, whole=False)
    assert again.tokens == plain_texts(models, [turn], max_tokens=20)[0]
    rebuilt, witness = rig_with_head(models, rigged(kind))
    rebuilt.run([request(turn, speculative(2, DRAFT_HEAD), max_tokens=20)])
    assert head.drafts == witness.drafts, "its drafts are those of a head that saw the whole text"
    with_random_head(models)  # so that the target records again what the other tests' head takes


def test_seeded_and_sampled_texts_do_not_depend_on_head(models: LoadedModels) -> None:
    texts = prompts(9, 33)
    seeded = SamplingParams(temperature=0.8, seed=3)
    plain = plain_texts(models, texts, max_tokens=24, sampling=seeded)
    rig, _ = rig_with_head(models)
    sinks = rig.run([request(t, speculative(3, DRAFT_HEAD), max_tokens=24, sampling=seeded) for t in texts])
    assert [sink.tokens for sink in sinks] == plain
    unseeded = SamplingParams(temperature=0.8)
    sinks = rig.run([request(t, speculative(3, DRAFT_HEAD), max_tokens=24, sampling=unseeded) for t in texts])
    assert all(len(sink.tokens) == 24 for sink in sinks)


def test_parked_text_keeps_head_primed_and_bounded(models: LoadedModels) -> None:
    rig, head = rig_with_head(models)
    (sink,) = rig.run([request(prompts(9)[0], automatic(3, DRAFT_HEAD), max_tokens=150)])
    assert len(sink.tokens) == 150
    check_fed(models, head)
    assert not head._waiting, "all is forgotten at the end"


def test_head_keeps_no_states_of_its_own_of_a_text_that_only_waits(models: LoadedModels) -> None:
    """They would hold all keys and values that there were when they were made."""
    head, text = DraftHead(models.head, models.info.vocab_size), Text(list(range(5, 405)))
    head.begin(text, 0)
    for start in (0, 128, 256):
        head.feed(text, Features(start, 128, mx.zeros((1, 128, 256))))
    assert head.texts.length(id(text)) > 256
    assert not head.texts._texts[id(text)].states


@pytest.fixture(scope="module", params=["qwen3_5_raw_tied", "qwen3_next_raw"])
def recurrent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModels:
    """A tiny model with recurrent layers, and its own head."""
    layout = next(layout for layout in LAYOUTS if layout.name == request.param)
    folder = tmp_path_factory.mktemp(layout.name)
    layout.write(folder)
    config = json.loads((folder / "config.json").read_text())
    target, _ = load_target(folder, config)
    target.set_dtype(mx.float32)
    files = find_head(folder, config)
    assert files is not None
    head = open_head(files, target)
    take_form(head, target, head.form)
    loaded = LoadedHead(head=head)
    return assemble(
        target, None, ByteTokenizer(256), model="tiny", draft_model=None, context_length=512, backend="cpu", head=loaded
    )


def test_head_of_recurrent_target_is_fed_every_state_once_after_rollbacks(recurrent: LoadedModels) -> None:
    texts = [[token % 256 for token in text] for text in prompts(3, 70, 41)]
    expected = plain_texts(recurrent, texts, max_tokens=30)
    rig, head = rig_with_head(recurrent, prefill_chunk=24, prefix_bytes=64 << 20)
    head.right, head.answers = 0.6, {tuple(t): [*t, *a] for t, a in zip(texts, expected, strict=True)}
    sinks = rig.run([request(text, speculative(3, DRAFT_HEAD), max_tokens=24) for text in texts])
    assert [sink.tokens for sink in sinks] == [answer[:24] for answer in expected]
    check_fed(recurrent, head, tolerance=TOLERANCE_OF_STATES)
    head.fed_features.clear()
    turn = [*texts[1], *sinks[1].tokens, 7, 8, 9]
    expected = plain_texts(recurrent, [turn], max_tokens=30)
    head.right, head.answers = 1.0, {tuple(turn): [*turn, *expected[0]]}
    (again,) = rig.run([request(turn, speculative(3, DRAFT_HEAD), max_tokens=24)])
    assert again.done.stats.cached_tokens >= 80
    assert again.tokens == expected[0][:24]
    drafted, accepted = counts([again])
    assert drafted == accepted > 10, "it drafts from the first token on, as its state was kept"
    check_fed(recurrent, head, whole=False, tolerance=TOLERANCE_OF_STATES)


def test_verifiers_head_drafts_between_proposals_and_is_fed_their_states_too(models: LoadedModels) -> None:
    (prompt,) = prompts(12)
    (expected,) = plain_texts(models, [prompt], max_tokens=130)
    prices = CalibratedCosts({1: 1.0}, {DRAFT_HEAD: {(1, n): 1 + 0.01 * n for n in (1, 4)}}, {}, 1, {DRAFT_HEAD: 0.01})
    rig, head = rig_with_head(models, depth=DepthControl(StepCosts(prices), 4))
    head.right, head.answers = 0.7, {tuple(prompt): [*prompt, *expected]}
    edge = Edge(prompt)
    rig.add(edge.asked(automatic(4, DRAFT_HEAD, PEER), 8, 120, SamplingParams()))
    rig.scheduler.step()
    edge.receive()
    for _ in range(3):
        edge.send([], run=20)
        edge.rest(rig)
        at = len(edge.answer)
        edge.send([*expected[at : at + 4], (expected[at + 4] + 1) % 900])  # the last one is wrong
        edge.rest(rig)
        assert len(edge.answer) == at + 5
    assert edge.answer == expected[: len(edge.answer)]
    assert sum(verdict.own_drafted for verdict in edge.verdicts) > 20
    check_fed(models, head)


def test_head_of_vocabulary_below_hidden_size_is_tried_with_ids_of_its_own() -> None:
    """Ids beyond the embedding would be read from whatever lies behind it."""
    models = with_random_head(pair(tiny_llama(1, vocab=3), None, vocab=3))
    for model in (models.target, models.head):
        with without_head(model):
            assert model(mx.array([[0, 1]]), cache=make_prompt_cache(model)).shape == (1, 2, 3)
            assert vocabulary_size(model) == 3
