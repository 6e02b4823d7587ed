"""Prompts with the same beginning that come at the same time: one is computed, the others wait and read it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import DRAFT_MODEL, DecodeRequest, FinishReason, Origin, SamplingParams
from draftd.engine.pair import LoadedModels
from draftd.engine.step import StepPlan
from draftd.engine.targets.local import LocalTarget
from tests.rig import Collected, Rig, autoregressive, pair, request, speculative, steady_timer, tiny_llama
from tests.scripted import scripted_models
from tests.unit.engine.test_states import convolutions, recurrences

PLENTY = 64 << 20
MODELS: dict[str, Callable[[], LoadedModels]] = {
    "full attention": lambda: pair(tiny_llama(1, scale=8.0), None),
    "a window": lambda: pair(tiny_llama(1, sliding=48, scale=8.0), None),
    "attention and states": lambda: pair(convolutions(1), None),
    "states": lambda: pair(recurrences(1), None),
}


def words(seed: int, n: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(1, 31) for _ in range(n)]


SYSTEM = words(0, 450)
QUESTIONS = [[*SYSTEM, i, *words(1 + i, 19 + 3 * i)] for i in range(4)]


class Counting:
    """A target that notes how many prompt tokens it computes of each sequence."""

    def __init__(self, target: LocalTarget) -> None:
        self._target = target
        self.slices: list[tuple[int, int]] = []  # sequences, and tokens of each

    def submit(self, plan: StepPlan) -> None:
        self.slices += [(entry.sequence, len(entry.tokens)) for entry in plan.entries if entry.tokens]
        self._target.submit(plan)

    @property
    def computed(self) -> int:
        return sum(tokens for _, tokens in self.slices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def counted(models: LoadedModels, *, prefix_bytes: int = PLENTY, **more: Any) -> tuple[Rig, Counting]:
    rig = Rig(models, prefix_bytes=prefix_bytes, wrap=Counting, timer=steady_timer(), **more)
    target: Any = rig.scheduler.local.target
    return rig, target


def ask(prompt: Sequence[int], **more: Any) -> DecodeRequest:
    return request(prompt, autoregressive(), **{"max_tokens": 8, **more})


def read(sinks: Sequence[Collected]) -> list[int]:
    return [sink.done.stats.cached_tokens for sink in sinks]


def alone(models: LoadedModels, asked: Sequence[DecodeRequest]) -> list[list[int]]:
    rig = Rig(models)
    return [rig.run([one])[0].tokens for one in asked]


@pytest.mark.parametrize("name", MODELS)
def test_simultaneous_equal_prompts_are_prefilled_once(name: str) -> None:
    """Greedy and seeded."""
    models = MODELS[name]()
    asked = [ask(SYSTEM, sampling=SamplingParams(0.9, seed=i) if i % 2 else None) for i in range(4)]
    rig, target = counted(models, prefill_chunk=64)
    sinks = rig.run(asked)
    assert read(sinks) == [0, 449, 449, 449]
    assert target.computed == 453
    assert [sink.tokens for sink in sinks] == alone(models, asked)


@pytest.mark.parametrize("name", MODELS)
def test_simultaneous_prompts_with_common_system_prompt_prefill_it_once(name: str) -> None:
    """Also those that come while it is computed, and one that has less of it in common."""
    models = MODELS[name]()
    asked = [ask(QUESTIONS[0]), ask(SYSTEM[:300] + [0] * 30), *map(ask, QUESTIONS[1:])]
    rig, target = counted(models, prefill_chunk=128)
    sinks = [rig.add(one) for one in asked[:3]]
    rig.scheduler.step()
    sinks += [rig.add(one) for one in asked[3:]]
    rig.drain()
    assert read(sinks) == [0, 300, 450, 450, 450]
    assert target.computed == 470 + 30 + 23 + 26 + 29
    assert [sink.tokens for sink in sinks] == alone(models, asked)


def test_prompt_extending_another_waits_and_reuses_all_of_it() -> None:
    rig, target = counted(MODELS["states"](), prefill_chunk=128)
    sinks = rig.run([ask(SYSTEM), ask(QUESTIONS[0])])
    assert read(sinks) == [0, 450]
    assert target.computed == 470


def test_short_common_beginning_makes_no_prompt_wait_for_another() -> None:
    rig, _ = counted(MODELS["full attention"](), prefill_chunk=512)
    sinks = [rig.add(ask(SYSTEM[:200] + words(i, 30))) for i in range(1, 4)]
    rig.scheduler.step()
    assert len(rig.scheduler.local.not_begun) == 0
    rig.drain()
    assert all(sink.done.reason is FinishReason.LENGTH for sink in sinks)


def test_already_cached_beginning_makes_no_prompt_wait_for_another() -> None:
    rig, _ = counted(MODELS["full attention"]())
    rig.run([ask(SYSTEM)])
    sinks = [rig.add(ask(question)) for question in QUESTIONS]
    rig.scheduler.step()
    assert len(rig.scheduler.local.not_begun) == 0
    rig.drain()
    assert read(sinks) == [450] * 4


def test_simultaneous_prompts_do_not_wait_for_each_other_without_prefix_cache() -> None:
    rig, target = counted(MODELS["full attention"](), prefix_bytes=0)
    sinks = [rig.add(ask(question)) for question in QUESTIONS]
    rig.scheduler.step()
    assert len(rig.scheduler.local.not_begun) == 0
    rig.drain()
    assert read(sinks) == [0] * 4
    assert target.computed == sum(map(len, QUESTIONS))


def test_client_prompt_does_not_wait_for_equal_probe_prompt() -> None:
    rig, target = counted(MODELS["full attention"]())
    own, first, second = (replace(ask(SYSTEM), origin=origin) for origin in (Origin.PROBE, Origin.CLIENT, Origin.PROBE))
    sinks = [rig.add(one) for one in (own, first, second)]
    rig.scheduler.step()
    assert len(rig.scheduler.local.not_begun) == 0
    rig.drain()
    assert read(sinks) == [0, 0, 0]
    assert target.computed == 3 * 450


def test_prompt_does_not_wait_for_equal_prompt_of_peer_delayed_by_fair_share(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, target = counted(MODELS["full attention"](), prefill_chunk=128)
    first, second = rig.add(ask(SYSTEM)), rig.add(ask(SYSTEM))
    rig.scheduler.step()
    monkeypatch.setattr(rig.scheduler.local._shares, "holds", lambda sequence: sequence.id == 1)
    while not second.tokens:
        rig.scheduler.step()
    assert not first.tokens
    assert target.computed == 450
    monkeypatch.undo()
    rig.drain()
    assert first.tokens == second.tokens


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("leaves", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_waiting_prompt_prefills_shared_beginning_when_first_request_is_ended(name: str, leaves: FinishReason) -> None:
    models = MODELS[name]()
    asked = [ask(question) for question in QUESTIONS]
    rig, target = counted(models, prefill_chunk=128)
    first, *others = [rig.add(one) for one in asked]
    rig.scheduler.step()
    rig.scheduler.end({asked[0].id: leaves})
    assert first.done.reason is leaves
    rig.drain()
    kept = 128 if leaves is FinishReason.CANCELLED or name == "full attention" else 0
    assert read(others) == [kept, 450, 450]
    assert target.computed == 128 + (473 - kept) + 26 + 29
    assert [sink.tokens for sink in others] == alone(models, asked[1:])


def test_waiting_prompt_prefills_shared_beginning_when_first_prefill_fails() -> None:
    models = scripted_models(0.7)
    rig, target = counted(models, prefill_chunk=128)
    models.target.fail_on_token = 200
    sinks = rig.run([ask([*SYSTEM, 200]), *map(ask, QUESTIONS[1:])])
    assert sinks[0].done.reason is FinishReason.ERROR
    assert read(sinks[1:])[1:] == [450, 450]
    assert target.computed <= 451 + 473 - 384 + 26 + 29
    models.target.fail_on_token = None
    assert [sink.tokens for sink in sinks[1:]] == alone(models, [ask(question) for question in QUESTIONS[1:]])


def test_prompt_waiting_for_an_equal_one_obeys_cancellation_and_deadline() -> None:
    now = [0.0]
    rig, target = counted(MODELS["full attention"](), prefill_chunk=128, clock=lambda: now[0])
    asked = [ask(SYSTEM), ask(SYSTEM), ask(SYSTEM, deadline=5.0)]
    first, cancelled, late = [rig.add(one) for one in asked]
    rig.scheduler.step()
    assert len(rig.scheduler.local.not_begun) == 2
    rig.scheduler.end({asked[1].id: FinishReason.CANCELLED})
    assert cancelled.done.reason is FinishReason.CANCELLED
    now[0] = 5.0
    rig.scheduler.step()
    assert late.done.reason is FinishReason.DEADLINE
    rig.drain()
    assert first.done.reason is FinishReason.LENGTH
    assert target.computed == 450


def test_short_prompt_runs_right_after_its_shared_beginning_is_prefilled() -> None:
    """A third prompt, shorter than the first, is computed after the second: as if that had not waited."""
    rig, target = counted(MODELS["full attention"](), prefill_chunk=150)
    rig.run([ask(SYSTEM + words(5, 1200)), ask(words(6, 700)), ask(QUESTIONS[0])])
    assert target.slices[:4] == [(1, 150), (1, 150), (1, 150), (3, 20)]


def test_prompts_awaited_by_equal_prompts_share_no_prefill_forward() -> None:
    """Two of one length, each twice: a state is kept on the way only of one that is computed by itself."""
    models = MODELS["states"]()
    texts = [words(seed, 100) for seed in (1, 2)]
    rig, target = counted(models)
    sinks = rig.run([ask(text) for text in (*texts, *texts)])
    assert read(sinks) == [0, 0, 99, 99]
    assert target.computed == 202


def test_after_failed_step_shared_prompt_is_prefilled_once_for_all_its_requests() -> None:
    models = scripted_models(0.7)
    rig, target = counted(models, prefill_chunk=128)
    running = rig.add(ask(words(7, 20), max_tokens=60))
    while len(running.tokens) < 3:
        rig.scheduler.step()
    sinks = [rig.add(ask(SYSTEM, max_tokens=4)) for _ in range(3)]
    while target.computed < 100:
        rig.scheduler.step()
    models.target.fail_on_token = running.tokens[-1]
    rig.scheduler.step()
    models.target.fail_on_token = None
    before = target.computed
    rig.drain()
    assert read(sinks) == [0, 449, 449]
    assert target.computed - before == 452


def test_draft_model_prefills_simultaneous_equal_prompts_once() -> None:
    models = pair(tiny_llama(1, scale=8.0), tiny_llama(2, scale=8.0))
    rig, _ = counted(models, prefill_chunk=32)
    draft: Any = rig.scheduler.local.drafting.drafters[DRAFT_MODEL]
    taken_in, fed = draft.texts.take_in, list[int]()
    draft.texts.take_in = lambda key, tokens: fed.append(len(tokens)) or taken_in(key, tokens)
    asked = [replace(ask(SYSTEM, max_tokens=30), plan=speculative(3)) for _ in range(4)]
    sinks = rig.run(asked)
    assert read(sinks) == [0, 449, 449, 449]
    assert sum(fed) == 450
    assert [sink.tokens for sink in sinks] == alone(models, [ask(SYSTEM, max_tokens=30)] * 4)


def test_engine_status_counts_prefix_hits_of_simultaneous_equal_prompts(running: Any) -> None:
    engine = running(lambda: scripted_models(0.7), prefix_cache_bytes=PLENTY)
    asked = [ask(SYSTEM) for _ in range(4)]
    engine.answer(*asked)
    status = engine.worker.status().prefix
    assert (status.lookups, status.hits, status.read_tokens) == (4, 3, 3 * 449)
