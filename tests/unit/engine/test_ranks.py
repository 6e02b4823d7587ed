"""Several ranks of one target, as far as one process shows it: records, what followers hold, and what ends a group.

Whether texts are right over real ranks is for tests/ranks."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from draftd.engine.cache.batched import CacheLayout
from draftd.engine.pair import LoadedModels
from draftd.engine.ranks.caches import lead
from draftd.engine.ranks.channel import Op, Progress, RanksLost, RecordError, decode_record, encode_record
from draftd.engine.ranks.follower import FollowerCaches
from draftd.engine.ranks.group import RankGroup, join_group
from draftd.engine.ranks.model_shard import PIPELINE, TENSOR, ModelShard, share_of
from draftd.errors import ModelLoadError
from draftd.group import Loss
from tests.models.tiny import tiny
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama

PROMPTS = [[n, *range(1, 30), 7 - n] for n in range(1, 4)]


class Mirror:
    """A sender whose follower executes at once, in this process, on a model of its own. `fails`: at such a record."""

    def __init__(self, model: Any) -> None:
        part = share_of(lambda: model, join_group())
        part.agree()
        self.follower = FollowerCaches(part)
        self.sent: list[bytes] = []
        self.progress = 0
        self.fails: Op | None = None

    def send(self, record: bytes) -> None:
        if decode_record(record)[0] is self.fails:
            raise RanksLost(Loss.DIED, "rank 1 is gone")
        self.sent.append(record)
        self.follower.execute(record)

    def report_progress(self, progress: Progress) -> None:
        self.progress = progress.records


def mirrored(**shape: Any) -> tuple[LoadedModels, Mirror]:
    """A pair whose target has a follower."""
    mirror = Mirror(tiny_llama(1, scale=2.0, **shape))
    part = share_of(lambda: tiny_llama(1, scale=2.0, **shape), join_group())
    ranks = lead(part, mirror)
    return replace(pair(part.model, tiny_llama(2, scale=2.0)), ranks=ranks), mirror


class TwoRanks:
    """A group's handle as far as cutting a model asks it."""

    def __init__(self, size: int = 2, rank: int = 1) -> None:
        self.size, self.rank = lambda: size, lambda: rank


class Agreeing(RankGroup):
    """Of two, the other of which gives `theirs`."""

    theirs: list[int]

    def all(self, values: Sequence[int]) -> list[list[int]]:
        return [list(values), [min(pair) for pair in zip(values, self.theirs, strict=True)]]


def test_rank_record_decodes_exactly_and_truncated_or_invalid_record_is_refused() -> None:
    data = encode_record(Op.RESTORE, 3, (5, 1 << 40), [])
    assert decode_record(data) == (Op.RESTORE, [3, [5, 1 << 40], []])
    for at in range(len(data)):
        with pytest.raises(RecordError):
            decode_record(data[:at])
    for wrong in (b"{}", b"7", b"[7]", b'["erase"]', b"\xff"):
        with pytest.raises(RecordError, match="is not a record"):
            decode_record(wrong)


def test_every_rank_operation_has_a_follower_method() -> None:
    assert all(callable(getattr(FollowerCaches, op)) for op in Op)


@pytest.mark.parametrize("sliding", [None, 8], ids=["segments", "snapshots"])
def test_follower_rank_executes_every_record_and_frees_dropped_caches_and_prefixes(sliding: int | None) -> None:
    models, mirror = mirrored(sliding=sliding)
    rig = Rig(models, prefix_bytes=1 << 20, max_batch=2)
    assert models.ranks is not None
    plain = Rig(pair(tiny_llama(1, scale=2.0, sliding=sliding), None))
    asked = [request(prompt, speculative(3), max_tokens=12) for prompt in (*PROMPTS, PROMPTS[0])]
    found = rig.run(asked)
    expected = plain.run([request(one.prompt, autoregressive(), max_tokens=12) for one in asked])
    assert [sink.tokens for sink in found] == [sink.tokens for sink in expected]
    assert found[-1].done.stats.cached_tokens > 0
    models.ranks.give_back()
    _, prefixes = mirror.follower.held
    assert prefixes >= 3
    rig.prefix.shed(0)
    gc.collect()
    models.ranks.give_back()
    assert mirror.follower.held == (1, 0), "the running sequences' caches, which are empty"
    assert len(mirror.sent) == models.ranks.records == mirror.progress


def test_prompt_log_probabilities_over_two_ranks_equal_those_of_one_rank() -> None:
    models, mirror = mirrored()
    asked = [replace(request(prompt, autoregressive(), max_tokens=3), prompt_logprobs=2) for prompt in PROMPTS]
    found = Rig(models, prefix_bytes=1 << 20, prefill_chunk=8).run(asked)
    alone = Rig(pair(tiny_llama(1, scale=2.0), None)).run(asked)
    for one, other in zip(found, alone, strict=True):
        assert one.prompt is not None
        assert other.prompt is not None
        assert one.tokens == other.tokens
        for told, expected in zip(one.prompt, other.prompt, strict=True):
            assert told.logprob == pytest.approx(expected.logprob, abs=1e-4)
            assert (told.rank, [token for token, _ in told.top]) == (expected.rank, [t for t, _ in expected.top])
    assert len(mirror.sent) == mirror.progress


def test_leader_failure_after_sending_a_record_ends_the_rank_group() -> None:
    models, mirror = mirrored()
    assert models.ranks is not None
    caches = models.ranks.caches(CacheLayout(True, apart=True)).fresh()
    with pytest.raises(RanksLost, match="rank 0 could not give_back: ZeroDivisionError") as lost:
        models.ranks.done(Op.GIVE_BACK, do=lambda: 1 // 0)
    assert lost.value.loss is Loss.FAILED
    sent = len(mirror.sent)
    with pytest.raises(RanksLost, match="rank 0 could not give_back"):
        caches.clear()
    assert len(mirror.sent) == sent


def test_loss_of_a_rank_during_prefix_copy_raises_ranks_lost() -> None:
    models, mirror = mirrored()
    rig = Rig(models, prefix_bytes=1 << 20)
    mirror.fails = Op.EXTRACT
    with pytest.raises(RanksLost, match="rank 1 is gone"):
        rig.run([request(PROMPTS[0], autoregressive(), max_tokens=4)])


def test_caches_of_all_ranks_roll_back_to_the_shortest_length_of_any_rank() -> None:
    group = Agreeing(join_group().handle, "any", 0, 2)
    object.__setattr__(group, "theirs", [3, 9])
    part = ModelShard(tiny_llama(1), group, PIPELINE, {"recurrent state": 1, "full attention": 1})
    caches = part.caches(CacheLayout(True, apart=True)).fresh(6, 6)
    caches.forward(mx.ones((2, 6), dtype=mx.uint32), [6, 6])
    assert part.rollback(caches, [5, 6]) == [3, 6] == caches.lengths
    assert not caches.segmented


def test_model_not_divisible_among_ranks_is_refused_at_load() -> None:
    with pytest.raises(ModelLoadError, match=r"llama cannot run on 3 ranks: .*pipeline"):
        share_of(lambda: tiny_llama(1), RankGroup(TwoRanks(3), "any", 0, 3))
    with pytest.raises(ModelLoadError, match=r"n_kv_heads is 2, which 4 ranks do not divide"):
        share_of(lambda: tiny("llama"), RankGroup(TwoRanks(4), "any", 0, 4))
    with pytest.raises(ModelLoadError, match=r"no shard\(\) for it, and mlx-lm has no pipeline\(\)"):
        share_of(lambda: tiny("gemma"), RankGroup(TwoRanks(), "any", 0, 2))


def test_model_is_split_by_attention_heads_or_else_by_layers() -> None:
    whole = tiny("ministral3")
    half = share_of(lambda: tiny("ministral3"), RankGroup(TwoRanks(2), "any", 1, 2))
    assert half.parallel == TENSOR
    assert (
        half.model.model.layers[0].self_attn.k_proj.weight.shape[0] * 2
        == whole.layers[0].self_attn.k_proj.weight.shape[0]
    )
    third = share_of(lambda: tiny("ministral3"), RankGroup(TwoRanks(3), "any", 1, 3))
    assert third.parallel == PIPELINE
    assert len(third.model.layers) == 1
    assert sum(third.layers.values()) == 3, "caches of the whole model"
