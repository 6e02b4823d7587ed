"""What earlier requests left is used by those that begin alike, and no text changes by it.

The scripted pair's answers come from the sum of all that the cache holds: a stale or missing entry changes the text.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil
import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, FinishReason, Origin, SamplingParams
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.observer import PrefixStatus
from draftd.engine.pair import LoadedModels
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, Rig, autoregressive, pair, request, speculative, tiny_llama
from tests.scripted import ScriptedModel, scripted_models
from tests.wait_until import until

PLENTY = 64 << 20
PLANS: dict[str, DecodePlan] = {
    "autoregressive": autoregressive(),
    "draft model": speculative(4),
    "prompt lookup": speculative(4, PROMPT_LOOKUP),
}


def words(seed: int, n: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(1, 250) for _ in range(n)]


def converse(
    rig: Rig,
    chats: Sequence[Sequence[int]],
    plan: DecodePlan,
    turns: int = 3,
    between: Callable[[int], None] = lambda turn: None,
    **more: object,
) -> list[list[Collected]]:
    """Some chats of a few turns, each turn of all of them at once; every turn goes on from the answer before."""
    texts, out = [list(chat) for chat in chats], []
    for turn in range(turns):
        sinks = rig.run([request(text, plan, max_tokens=20 + 7 * i, **more) for i, text in enumerate(texts)])  # type: ignore[arg-type]
        out.append(sinks)
        texts = [[*text, *sink.tokens, *words(1000 + turn, 9)] for text, sink in zip(texts, sinks, strict=True)]
        between(turn)
    return out


def answers(turns: list[list[Collected]]) -> list[list[list[int]]]:
    return [[sink.tokens for sink in sinks] for sinks in turns]


def read(sinks: Sequence[Collected]) -> list[int]:
    return [sink.done.stats.cached_tokens for sink in sinks]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("sampled", [False, True])
def test_chat_turns_reuse_cached_prefix_and_give_the_same_text(plan, sampled):
    models = scripted_models(0.7)
    chats = [words(1, 300), words(1, 200) + words(2, 30), words(3, 40), words(4, 5)]
    more = {"sampling": SamplingParams(temperature=1.0, seed=3)} if sampled else {}
    plain = converse(Rig(models), chats, plan, **more)
    rig = Rig(models, prefix_bytes=PLENTY, prefill_chunk=64)
    again = converse(rig, chats, plan, **more)
    assert answers(again) == answers(plain)
    assert not any(s.done.stats.looked_up or s.done.stats.cached_tokens for sinks in plain for s in sinks)
    for before, sinks in itertools.pairwise(again):
        for last, sink in zip(before, sinks, strict=True):
            held = last.done.stats.prompt_tokens + len(last.tokens)
            assert sink.done.stats.looked_up
            assert held - 1 <= sink.done.stats.cached_tokens <= held  # the last token may be in no cache


def test_fully_cached_prompt_is_computed_from_its_last_token_only():
    models = scripted_models(0.7)
    rig = Rig(models, prefix_bytes=PLENTY)
    for plan in (autoregressive(), speculative(4), autoregressive()):
        (sink,) = rig.run([request(words(1, 100), plan)])
        assert sink.tokens == Rig(models).run([request(words(1, 100), autoregressive())])[0].tokens
    assert sink.done.stats.cached_tokens == 99


def test_requests_share_cached_system_prompt_of_a_still_running_request():
    models = scripted_models(0.7)
    system = words(1, 150)
    rig = Rig(models, prefix_bytes=PLENTY)
    first = rig.add(request(system + words(2, 20), speculative(3), max_tokens=400))
    while not first.tokens:
        rig.scheduler.step()
    forks = [system + words(10 + i, 25) for i in range(5)]
    sinks = rig.run([request(fork, speculative(3)) for fork in forks])
    assert read(sinks) == [150] * 5
    assert [s.tokens for s in sinks] == [s.tokens for s in Rig(models).run([request(f, speculative(3)) for f in forks])]
    long = Rig(models).run([request(system + words(2, 20), speculative(3), max_tokens=400)])
    assert first.tokens == long[0].tokens
    assert rig.prefix.texts == 6


def test_prefix_cache_keeps_pieces_of_a_long_answer_while_it_is_generated():
    rig = Rig(scripted_models(0.7), prefix_bytes=PLENTY)
    prompt = words(1, 20)
    sink = rig.add(request(prompt, speculative(4), max_tokens=600))
    while len(sink.tokens) < 300:
        rig.scheduler.step()
    (other,) = rig.run([request(prompt + sink.tokens[:250], autoregressive(), max_tokens=1)])
    assert other.done.stats.cached_tokens >= 128
    assert sink.tokens == Rig(scripted_models(0.7)).run([request(prompt, autoregressive(), max_tokens=600)])[0].tokens


def test_prefill_slice_split_into_narrow_cpu_forwards_gives_the_same_text(monkeypatch):
    prompt = words(1, 300)
    whole = Rig(scripted_models(0.7), prefix_bytes=PLENTY).run([request(prompt, autoregressive())])
    monkeypatch.setattr("draftd.engine.cache.prefill._WIDEST_ON_CPU", 70)
    rig = Rig(scripted_models(0.7), prefix_bytes=PLENTY)
    assert [s.tokens for s in rig.run([request(prompt, autoregressive())])] == [s.tokens for s in whole]
    (again,) = rig.run([request(prompt, autoregressive(), max_tokens=1)])
    assert again.done.stats.cached_tokens == len(prompt) - 1


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_prefixes_evicted_from_cache_are_recomputed_with_the_same_text(plan):
    models = scripted_models(0.7)
    chats = [words(1, 300), words(1, 200) + words(2, 30), words(3, 40)]
    plain = converse(Rig(models), chats, plan)
    for bound in (0, 500, 2000, 6000):
        rig = Rig(models, prefix_bytes=PLENTY)
        between = [lambda turn, rig=rig, bound=bound: rig.prefix.shed(bound)]
        assert answers(converse(rig, chats, plan, between=between[0])) == answers(plain)
    small = Rig(models, prefix_bytes=3000)
    assert answers(converse(small, chats, plan)) == answers(plain)
    assert 0 < small.prefix.bytes <= 3000


@pytest.mark.parametrize("chunk", [16, 64])
def test_prompt_cancelled_during_prefill_leaves_its_computed_part_in_prefix_cache(chunk):
    models = scripted_models(0.7)
    rig = Rig(models, prefix_bytes=PLENTY, prefill_chunk=chunk)
    prompt = words(1, 400)
    asked = request(prompt, speculative(3))
    gone = rig.add(asked)
    for _ in range(160 // chunk):
        rig.scheduler.step()
    rig.scheduler.end({asked.id: FinishReason.CANCELLED})
    assert not gone.tokens
    (sink,) = rig.run([request(prompt, speculative(3))])
    assert sink.done.stats.cached_tokens == 160 // chunk * chunk
    assert sink.tokens == Rig(models).run([request(prompt, autoregressive())])[0].tokens


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_cancelled_or_stopped_request_leaves_exactly_its_own_text_in_prefix_cache(plan):
    """Stopped within accepted tokens, or with the next forward under way."""
    models = scripted_models(0.9)
    prompt = words(1, 60)
    (whole,) = Rig(models).run([request(prompt, plan, max_tokens=60)])

    class After:
        def __init__(self, n: int) -> None:
            self.left = n

        def feed(self, tokens: Sequence[int]) -> int | None:
            self.left -= len(tokens)
            return None if self.left > 0 else len(tokens) + self.left

    for n in range(1, 14):
        rig = Rig(models, prefix_bytes=PLENTY)
        if n % 2:
            sink = rig.add(stopped := request(prompt, plan, max_tokens=60))
            while len(sink.tokens) < n:
                rig.scheduler.step()
            rig.scheduler.end({stopped.id: FinishReason.CANCELLED})
        else:
            (sink,) = rig.run([request(prompt, plan, max_tokens=60, stop=After(n))])
            assert len(sink.tokens) == n
        went_on = prompt + sink.tokens
        (rest,) = rig.run([request(went_on, plan, max_tokens=60 - len(sink.tokens))])
        assert sink.tokens + rest.tokens == whole.tokens
        assert len(went_on) - 1 == rest.done.stats.cached_tokens
        other = [*went_on, 1, 2, 3]
        assert rig.run([request(other, plan)])[0].tokens == Rig(models).run([request(other, plan)])[0].tokens


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_draft_acceptance_is_the_same_with_prefix_cache(plan):
    models = scripted_models(0.8)
    chats = [words(1, 200), words(2, 150)]
    plain, again = converse(Rig(models), chats, plan), converse(Rig(models, prefix_bytes=PLENTY), chats, plan)
    for sinks, others in zip(plain, again, strict=True):
        for a, b in zip(sinks, others, strict=True):
            # Scripted drafts are wrong at fixed places, but steps begin elsewhere where prefill gave other tokens.
            assert b.done.stats.counts.accepted == a.done.stats.counts.accepted


def test_draft_model_prefills_only_tokens_missing_from_its_prefix_cache():
    models = scripted_models(0.8)
    rig = Rig(models, prefix_bytes=PLENTY)
    draft = rig.scheduler.local.drafting.drafters[DRAFT_MODEL]
    assert isinstance(draft, DraftModel)
    prompt = words(1, 300)
    assert models.draft is not None
    fed: list[int] = []
    whole = models.draft.__class__.__call__

    class Counting(ScriptedModel):
        def __call__(self, inputs, cache):
            fed.append(inputs.shape[1])
            return whole(self, inputs, cache)

    models.draft.__class__ = Counting
    rig.run([request(prompt, speculative(3), max_tokens=10)])
    assert sum(n for n in fed if n > 4) == 300  # the first token of the answer is there by then
    fed.clear()
    rig.run([request([*prompt, 5, 6, 7], speculative(3), max_tokens=10)])
    assert max(fed) <= 4
    rig.run([request([*words(5, 300), 5, 6, 7], autoregressive(), max_tokens=10)])
    fed.clear()
    (sink,) = rig.run([request([*words(5, 300), 5, 6, 7], speculative(3), max_tokens=10)])
    taken_in = sum(n for n in fed if n > 4)
    assert (sink.done.stats.cached_tokens, taken_in) == (302, 303), "the target's part serves without the draft's"


def test_replacing_draft_model_drops_prefixes_of_the_previous_draft():
    models = scripted_models(0.8)
    rig = Rig(models, prefix_bytes=PLENTY)
    prompt = words(1, 300)
    rig.run([request(prompt, speculative(3))])
    both = rig.prefix.bytes
    drafting = rig.scheduler.local.drafting
    other = scripted_models(0.8).draft
    drafting.put(DRAFT_MODEL, DraftModel(other, 256, prefix=rig.prefix))
    assert rig.prefix.bytes < both
    (sink,) = rig.run([request(prompt, speculative(3))])
    assert sink.done.stats.cached_tokens == 299
    assert sink.done.stats.counts.accepted > 0
    assert rig.prefix.bytes == both
    drafting.remove(DRAFT_MODEL)
    assert 0 < rig.prefix.bytes < both
    assert sink.tokens == rig.run([request(prompt, autoregressive())])[0].tokens


def test_failed_step_discards_previously_cached_prefixes():
    models = scripted_models(0.7)
    target = models.target
    prompts = [words(1, 100), words(2, 120)]
    plain = Rig(models).run([request(p, speculative(3), max_tokens=40) for p in prompts])
    rig = Rig(models, prefix_bytes=PLENTY)
    rig.run([request(words(3, 90), speculative(3))])
    sinks = [rig.add(request(p, speculative(3), max_tokens=40)) for p in prompts]
    while any(len(s.tokens) < 10 for s in sinks):
        rig.scheduler.step()
    target.fail_on_token = int(plain[0].tokens[len(sinks[0].tokens) - 1])
    rig.scheduler.step()
    target.fail_on_token = None
    rig.drain()
    assert rig.prefix.texts <= 2
    (anew,) = rig.run([request(words(3, 90), speculative(3))])
    assert anew.done.stats.cached_tokens == 0
    for sink, before in zip(sinks, plain, strict=True):
        if sink.done.reason is not FinishReason.ERROR:
            assert sink.tokens == before.tokens


@pytest.mark.parametrize("origin", [Origin.PROBE, Origin.CANARY])
def test_probe_and_canary_requests_neither_use_nor_fill_prefix_cache(origin):
    rig = Rig(scripted_models(0.7), prefix_bytes=PLENTY)
    prompt = words(1, 100)
    (own,) = rig.run([replace(request(prompt, speculative(3)), origin=origin)])
    assert rig.prefix.bytes == 0
    rig.run([request(prompt, speculative(3))])
    held = rig.prefix.bytes
    (again,) = rig.run([replace(request([*prompt, 3], speculative(3)), origin=origin)])
    assert (again.done.stats.looked_up, again.done.stats.cached_tokens) == (False, 0)
    assert rig.prefix.bytes == held
    assert not own.done.stats.looked_up


def test_prefix_of_failed_request_is_not_cached():
    rig = Rig(scripted_models(0.7), prefix_bytes=PLENTY)

    class Broken(Collected):
        def on_tokens(self, emission):
            raise RuntimeError("gone")

    sink = Broken()
    rig.scheduler.add(DecodeSequence.of(request(words(1, 100), autoregressive()), sink, 4096))
    rig.drain()
    assert sink.done.reason is FinishReason.ERROR
    assert rig.prefix.bytes == 0


LLAMAS: dict[str, Callable[[], LoadedModels]] = {
    "plain": lambda: pair(tiny_llama(1, scale=8.0), tiny_llama(2, scale=8.0)),
    "a ring": lambda: pair(tiny_llama(1, sliding=48, scale=8.0), tiny_llama(2, scale=8.0)),
}


@pytest.mark.parametrize("models", LLAMAS.values(), ids=LLAMAS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_prefix_cache_gives_the_same_text_on_plain_and_sliding_window_llama(models, plan):
    made = models()
    chats = [[t % 31 for t in words(i, n)] for i, n in enumerate((70, 20, 33))]

    def say(rig: Rig) -> list[list[Collected]]:
        texts, out = [list(c) for c in chats], []
        for turn in range(3):
            sinks = rig.run([request(text, plan, max_tokens=12 + 5 * i) for i, text in enumerate(texts)])
            out.append(sinks)
            texts = [[*t, *s.tokens, turn, 5, 6] for t, s in zip(texts, sinks, strict=True)]
        return out

    plain, again = say(Rig(made)), say(Rig(made, prefix_bytes=PLENTY, prefill_chunk=24))
    assert answers(again) == answers(plain)
    assert all(n > 20 for sinks in again[1:] for n in read(sinks))


# a real engine


def test_engine_status_counts_prefix_cache_lookups_hits_and_tokens_read(running):
    engine = running(lambda: scripted_models(0.7), prefix_cache_bytes=PLENTY)
    prompt = words(1, 100)
    (said,) = engine.answer(request(prompt, speculative(3)))
    engine.answer(request([*prompt, *said, 3], speculative(3)), request(words(2, 50), autoregressive()))
    engine.answer(replace(request(prompt, speculative(3)), origin=Origin.PROBE))
    status = engine.worker.status().prefix
    assert (status.lookups, status.hits) == (3, 1)
    assert 131 <= status.read_tokens <= 132
    assert (status.entries, status.limit_bytes) == (2, PLENTY)
    assert 0 < status.bytes < PLENTY
    assert engine.worker.status().kv_cache_bytes == 0


@pytest.mark.parametrize("models", [lambda: scripted_models(0.7), lambda: pair(tiny_llama(1, sliding=16), None)])
def test_texts_too_long_for_prefix_cache_are_counted_and_logged_once(running, models, caplog, monkeypatch):
    monkeypatch.setattr("draftd.engine.loop._LEARNT_SECONDS", 0.0)
    info = running(models).worker.info
    room = 60 * info.position_bytes + info.sequence_bytes
    engine = running(models, prefix_cache_bytes=room)
    assert engine.worker.status().prefix.limit_tokens == 60
    asked = [([1 + n] * 40, 20) for n in range(2)] + [([3 + n] * (50 + n), 12) for n in range(4)]
    for prompt, most in asked:
        engine.answer(request(prompt, autoregressive(), max_tokens=most))
    engine.answer(replace(request([9] * 70, autoregressive()), skip_prefix_cache=True))
    status = engine.worker.status().prefix
    assert (status.unfit, status.longest_unfit_tokens) == (4, 65)
    assert status.warning == (
        "4 of 6 requests had texts too long for the prefix cache, which has room for 60 tokens: a request that begins "
        f"with the same tokens computes the rest again; engine.prefix_cache_bytes={room + 5 * info.position_bytes} has "
        "room for the longest, 65 tokens"
    )
    until(lambda: any("too long for the prefix cache" in line for line in caplog.messages))
    assert len([line for line in caplog.messages if "too long for the prefix cache" in line]) == 1
    assert status.too_small(60, 0)
    assert not replace(status, lookups=41).too_small(60, 0)
    assert not replace(status, unfit=2).too_small(60, 0)


def test_unset_prefix_cache_size_is_derived_from_free_memory(running):
    free = 8 << 30
    engine = running(lambda: scripted_models(0.7), prefix_cache_bytes=None, headroom=lambda: free, max_batch=4)
    status, info = engine.worker.status().prefix, engine.worker.info
    assert status.limit_bytes == min(256 << 20, psutil.virtual_memory().total // 32)  # for so small a model
    assert status.limit_tokens == status.limit_bytes // info.position_bytes


def test_engine_without_prefix_cache_setting_looks_up_and_stores_nothing(running):
    engine = running(lambda: scripted_models(0.7))
    for _ in range(2):
        engine.answer(request(words(1, 100), speculative(3)))
    assert engine.worker.status().prefix == PrefixStatus()


def test_idle_engine_shrinks_prefix_cache_while_memory_is_short(running):
    share = [1.0]
    engine = running(lambda: scripted_models(0.7), prefix_cache_bytes=PLENTY, memory_share=lambda: share[0])

    def read() -> int:
        before = engine.worker.status().prefix.read_tokens
        engine.answer(request(words(1, 100), speculative(3)))
        return engine.worker.status().prefix.read_tokens - before

    assert (read(), read()) == (0, 99)
    share[0] = 0.5
    until(lambda: engine.worker.status().prefix.limit_bytes == PLENTY // 2, what="half the bound")
    assert read() == 99
    share[0] = 0.0
    until(lambda: engine.worker.status().prefix.bytes == 0, what="all to be given up")
    assert (read(), read()) == (0, 0)
    share[0] = 1.0
    until(lambda: engine.worker.status().prefix.limit_bytes == PLENTY, what="the whole bound")
    assert (read(), read()) == (0, 99)


def test_prefix_cache_gives_same_text_across_draft_reload_and_unload(nano, prompts, running):
    """The embedded pair: some chats, the draft exchanged between their turns and let go before the last."""
    engine = running(nano, prefix_cache_bytes=PLENTY)
    plain = running(nano)
    texts = [list(prompt) for prompt in prompts[:2]]
    for turn in range(3):
        if turn == 1:
            engine.worker.reload_draft().result(60)
        if turn == 2:
            engine.worker.keep(frozenset()).result(60)
        asked = [request(text, speculative(4), max_tokens=24) for text in texts]
        sinks = [engine.ask(one) for one in asked]
        engine.ended(*sinks)
        expected = plain.answer(*[request(text, speculative(4), max_tokens=24) for text in texts])
        assert [sink.tokens for sink in sinks] == expected
        if turn:
            held = [sink.done.stats.cached_tokens for sink in sinks]
            assert all(n >= len(text) - 13 for n, text in zip(held, texts, strict=True))
        texts = [
            [*text, *sink.tokens, *prompts[(i + turn) % 4][:12]]
            for i, (text, sink) in enumerate(zip(texts, sinks, strict=True))
        ]
