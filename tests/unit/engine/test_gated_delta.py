"""States of gated delta layers after a rejected draft: computed exactly, so that no token is fed again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from draftd.core import DecodePlan
from draftd.engine.cache.alone import split_states
from draftd.engine.cache.alone_mode import prepare_alone, tokens_alone
from draftd.engine.cache.base import Caches, pad_rows
from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.cache.gated_delta import DeltaBlock, notes_of
from draftd.engine.cache.layouts import make_caches
from draftd.engine.pair import LoadedModels
from draftd.engine.step import DecodeStep
from tests.models.tiny import tiny
from tests.rig import Collected, Rig, autoregressive, pair, request, speculative

MODELS = ["qwen3_next", "qwen3_5"]
PROMPTS = [[5, 6, 7, 8], [9] * 30, [3, 1, 4, 1, 5]]
VOCABULARY = 96


def fed(caches: Caches, *blocks: Sequence[int]) -> np.ndarray:
    """Feeds one block to each row. Returns the logits, rows × width × vocabulary."""
    logits = caches.forward(pad_rows(blocks), [len(block) for block in blocks])
    mx.eval(logits, caches.arrays())
    return np.array(logits)


def joined(caches: Caches, prompts: Sequence[Sequence[int]]) -> Caches:
    """Returns caches that have these prompts as rows."""
    batch = caches.fresh()
    fed(batch, prompts[0])
    for prompt in prompts[1:]:
        row = caches.fresh()
        fed(row, prompt)
        batch.join(row)
    return batch


def states(caches: Caches, row: int) -> list[np.ndarray]:
    """Returns a row's arrays in all layers: keys, values and states."""
    kept: Any = caches.extract(row, 0, caches.lengths[row])
    assert kept is not None
    return [np.array(array) for part in kept.parts for array in part.arrays]


def assert_states(caches: Caches, row: int, expected: Caches, *, atol: float = 1e-5) -> None:
    assert caches.lengths[row] == expected.lengths[0]
    for actual, wanted in zip(states(caches, row), states(expected, 0), strict=True):
        np.testing.assert_allclose(actual, wanted, atol=atol)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kept", [1, 2, 4])
def test_rolled_back_state_has_the_bits_of_a_forward_whose_other_tokens_are_padding(name, kept):
    empty, block = make_caches(tiny(name)), [11, 22, 33, 44, 55]
    caches, expected = joined(empty, [PROMPTS[0]]), joined(empty, [PROMPTS[0]])
    fed(caches, block)
    assert caches.rollback([4 + kept]) == [4 + kept]
    expected.forward(mx.array([block]), [kept])  # products of one width have the same bits
    for actual, wanted in zip(states(caches, 0), states(expected, 0), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize(("name", "steps"), [("qwen3_next", 40), ("qwen3_5", 40), ("kimi_linear", 8)])
def test_ragged_batch_with_random_rollbacks_has_states_and_logits_of_plain_decoding(name, steps):
    empty, dice = make_caches(tiny(name)), random.Random(name)
    caches, alone = joined(empty, PROMPTS), [joined(empty, [prompt]) for prompt in PROMPTS]
    for step in range(steps):
        blocks = [[dice.randrange(VOCABULARY) for _ in range(dice.randint(1, 5))] for _ in alone]
        kept = [dice.randint(0 if step % 7 == 3 else 1, len(block)) for block in blocks]
        wanted = [length + n for length, n in zip(caches.lengths, kept, strict=True)]
        logits = fed(caches, *blocks)
        assert caches.rollback(wanted) == wanted
        for row, (own, block, n) in enumerate(zip(alone, blocks, kept, strict=True)):
            for at, token in enumerate(block[:n]):
                np.testing.assert_allclose(logits[row, at], fed(own, [token])[0, 0], atol=1e-4)
            if step % 8 == 7:
                assert_states(caches, row, own, atol=1e-4)
        if step == 30:
            caches.select([2, 0])
            alone = [alone[2], alone[0]]


@pytest.mark.parametrize("name", MODELS)
def test_rollback_over_two_forwards_restores_the_state_within_either(name):
    empty, first, second = make_caches(tiny(name)), [11, 22, 33], [44, 55]
    for kept in (0, 2, 3, 4):
        expected = joined(empty, [[*PROMPTS[0], *[*first, *second][:kept]]])
        caches = make_caches(tiny(name), forwards=2)
        caches.join(joined(empty, [PROMPTS[0]]))
        fed(caches, first)
        fed(caches, second)
        assert caches.rollback([4 + kept]) == [4 + kept]
        assert_states(caches, 0, expected)


def test_rows_that_left_or_joined_after_the_block_do_not_change_what_the_others_restore():
    empty, block = make_caches(tiny("qwen3_next")), [11, 22, 33]
    caches = joined(empty, PROMPTS)
    fed(caches, block, block, block)
    caches.select([0, 1])  # the last row leaves
    assert caches.rollback([6, 31]) == [6, 31]
    for row, kept in ((0, 2), (1, 1)):
        expected = joined(empty, [PROMPTS[row]])
        fed(expected, block[:kept])
        assert_states(caches, row, expected)
    fed(caches, block, block)
    caches.join(joined(empty, [PROMPTS[2]]))  # no note covers the new row, so rows go back to before the block
    assert caches.rollback([8, 34, 5]) == [6, 34, 5]


@pytest.mark.parametrize(("width", "noted"), [(1, False), (2, True), (17, True), (33, False)])
def test_only_a_draft_s_block_is_noted(width, noted):
    caches = joined(make_caches(tiny("qwen3_next")), PROMPTS[:1])
    assert isinstance(caches, BatchedCaches)
    fed(caches, [7] * width)
    assert [state._before[-1].block is not None for state in caches._states] == [noted, noted]
    fed(caches, [7])
    assert [len(state._before) for state in caches._states] == [1, 1]
    assert all(state._before[-1].block is None for state in caches._states)


def test_states_of_two_layers_are_computed_only_after_a_rejection(monkeypatch):
    calls, whole = list[list[int]](), DeltaBlock.states_after

    def counted(self: DeltaBlock, rows: Sequence[int], counts: Sequence[int]) -> list[mx.array]:
        calls.append(list(counts))
        return whole(self, rows, counts)

    caches = joined(make_caches(tiny("qwen3_next")), PROMPTS[:2])
    monkeypatch.setattr(DeltaBlock, "states_after", counted)
    fed(caches, [1, 2, 3], [1, 2, 3])
    caches.rollback(caches.lengths)
    fed(caches, [1, 2, 3], [1, 2, 3])
    assert calls == []
    caches.rollback([9, 36])
    assert calls == [[2], [2]]


class Served(NamedTuple):
    """A tiny model with a draft that is sometimes wrong, the target's own texts, and the rig that decodes them."""

    models: LoadedModels
    texts: list[list[int]]

    def decode(self, plan: DecodePlan) -> tuple[list[Collected], list[int]]:
        """Decodes all prompts. Returns the sinks, and the positions that replays added to each step."""
        rig, steps = Rig(self.models), list[int]()
        learn = rig.scheduler.local.depth.learn

        def note(sequences: Any, decoding: Any, done: DecodeStep, seconds: float) -> Any:
            steps.append(done.replayed)
            return learn(sequences, decoding, done, seconds)

        rig.scheduler.local.depth.learn = note  # type: ignore[method-assign]
        return rig.run([request(prompt, plan, max_tokens=30) for prompt in PROMPTS]), steps


def served(name: str) -> Served:
    target, draft = tiny(name), tiny(name)
    mx.random.seed(3)
    draft.update(tree_map(lambda a: a + 0.02 * mx.random.normal(a.shape), draft.parameters()))
    models = pair(target, draft, vocab=VOCABULARY)
    return Served(models, [sink.tokens for sink in Served(models, []).decode(autoregressive())[0]])


@pytest.mark.parametrize("name", MODELS)
def test_batch_speculates_with_the_text_of_plain_decoding_and_replays_nothing(name):
    model = served(name)
    sinks, replays = model.decode(speculative(3))
    assert [sink.tokens for sink in sinks] == model.texts
    assert sum(sink.done.stats.counts.rollbacks for sink in sinks) > 3
    assert set(replays) == {0}


def test_state_that_is_not_rolled_back_is_noticed_at_load_and_the_model_replays(monkeypatch, caplog):
    right, whole = served("qwen3_next"), DeltaBlock.states_after
    monkeypatch.setattr(DeltaBlock, "states_after", lambda self, rows, _: whole(self, rows, [self.width] * len(rows)))
    wrong = served("qwen3_next")
    notes = notes_of(wrong.models.target)
    assert notes is not None
    assert not notes.active
    assert "computes accepted tokens again after a rejection" in caplog.text
    sinks, replays = wrong.decode(speculative(3))
    assert [sink.tokens for sink in sinks] == right.texts
    assert max(replays) > 0
    notes.active = True  # without the check at load
    assert [sink.tokens for sink in wrong.decode(speculative(3))[0]] != right.texts


def test_layer_that_takes_single_tokens_goes_back_to_before_the_block():
    model = tiny("qwen3_next")
    caches, mode = joined(make_caches(model), PROMPTS[:1]), prepare_alone(model)
    for layer in model.modules():
        if hasattr(layer, "conv1d"):
            split_states(layer, mode)
    before = joined(make_caches(model), PROMPTS[:1])
    with tokens_alone(model):
        fed(caches, [11, 22, 33])
    assert caches.rollback([6]) == [4]
    assert_states(caches, 0, before)
    fed(caches, [11, 22, 33])
    assert caches.rollback([6]) == [6]
