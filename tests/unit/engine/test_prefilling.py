"""Prompts are prefilled by slices and in shared forwards, as prefill_order.py decides, and join the batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FinishReason
from draftd.engine.prefill_order import MOST_PREFILLING
from draftd.engine.step import StepPlan
from draftd.engine.targets.local import LocalTarget
from tests.rig import Collected, Rig, autoregressive, request, speculative
from tests.scripted import scripted_models

POISON = 250


class Machine:
    """Time that passes only in forwards: some for each, some for every token of it, and for every token of it some for
    every token that came before."""

    def __init__(self, models, fixed: float = 0.01, each: float = 0.0005, deeper: float = 0.0, **options: Any) -> None:
        self.now, self.prefills = 0.0, list[tuple[str, int]]()
        self._fixed, self._each, self._deeper = fixed, each, deeper
        self.rig = Rig(models, max_batch=8, timer=lambda: self.now, clock=lambda: self.now, wrap=self._timed, **options)
        self._requests = {}
        add = self.rig.scheduler.add

        def known(sequence):
            add(sequence)
            self._requests[sequence.id] = sequence.request.id

        self.rig.scheduler.add = known
        drafter = self.rig.scheduler.local.drafting.drafters.get(DRAFT_MODEL)
        if drafter is not None:
            self._take_in, drafter.prefill = drafter.prefill, self.take_in
        self.drafted = list[int]()

    def _timed(self, target):
        plans, submit, results = {}, target.submit, target.results

        def submitted(plan):
            plans[plan.step] = plan
            submit(plan)

        def read():
            for result in results():
                self._pass(plans.pop(result.step))
                yield result

        target.submit, target.results = submitted, read
        return target

    def _pass(self, plan):
        for entry in plan.entries:
            if entry.tokens:
                tokens = len(entry.tokens)
                self.prefills.append((self._requests[entry.sequence], tokens))
                self.now += self._fixed + tokens * (self._each + self._deeper * entry.position)
        if not plan.entries[0].tokens:
            self.now += 0.03 if plan.draft is None else 0.04

    def take_in(self, row, chunk):
        self.drafted.append(chunk)
        self.now += (self._fixed + self._each * min(chunk, len(row.tokens))) / 10
        return self._take_in(row, chunk)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(7 * i + seed) % 200 for i in range(length)]


class Gaps(Collected):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine, self.times = machine, list[float]()

    def on_tokens(self, emission) -> None:
        super().on_tokens(emission)
        self.times.append(self._machine.now)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def watched(machine: Machine, req) -> Gaps:
    from draftd.engine.sequence import DecodeSequence

    sink = Gaps(machine)
    machine.rig.scheduler.add(DecodeSequence.of(req, sink, 4096))
    return sink


@pytest.mark.parametrize("plan", [autoregressive(), speculative(3)])
def test_backlog_of_long_prompts_does_not_double_token_gaps_of_running_request(plan):
    machine = Machine(scripted_models(0.7))
    runs = watched(machine, request([1, 2, 3], plan, max_tokens=1000))
    machine.rig.scheduler.step()
    long = [machine.rig.add(request(prompt(1500, i), plan, max_tokens=4)) for i in range(6)]
    while any(sink.outcome is None for sink in long):
        machine.rig.scheduler.step()
        if runs.outcome is not None:
            break
    undisturbed = 0.03 if plan.drafter is None else 0.04
    assert len(machine.prefills) > 100
    assert max(runs.gaps) <= 1.95 * undisturbed
    steps = [gap for gap in runs.gaps if gap > undisturbed + 1e-9]
    assert sum(steps) / len(steps) > 1.5 * undisturbed, "what may be used is used"


def test_prompt_is_prefilled_in_full_chunks_while_no_request_runs():
    machine = Machine(scripted_models(0.7))
    machine.rig.run([request(prompt(1500), speculative(3), max_tokens=2)])
    assert [chunk for _, chunk in machine.prefills] == [512, 512, 476]
    assert set(machine.drafted) == {512}


@pytest.mark.parametrize("plan", [autoregressive(), speculative(3)])
def test_short_prompts_join_batch_together_without_longer_token_gaps(plan):
    machine = Machine(scripted_models(0.7), fixed=0.001, each=0.0001)
    scheduler = machine.rig.scheduler
    runs = watched(machine, request([1, 2, 3], plan, max_tokens=3000))
    machine.rig.add(request(prompt(700, 99), plan, max_tokens=2))  # by which it is learnt how much fits
    for _ in range(30):
        scheduler.step()
    assert scheduler.local.active == 1
    for i in range(6):
        machine.rig.add(request(prompt(40, i), plan, max_tokens=100))
        if i == 2:
            scheduler.step()
            scheduler.step()
            assert len(scheduler.local._running) == 4, "each takes 5 ms, beside steps of 30"
    scheduler.step()
    scheduler.step()
    assert len(scheduler.local._running) == 7
    assert max(runs.gaps) <= 0.05 + (0.03 if plan.drafter is None else 0.04)


def test_several_short_prompts_share_one_longer_slice_when_more_wait_than_run():
    machine = Machine(scripted_models(0.7), fixed=0.01, each=0.0002)
    scheduler = machine.rig.scheduler
    runs = watched(machine, request([1, 2, 3], autoregressive(), max_tokens=3000))
    machine.rig.add(request(prompt(700, 99), autoregressive(), max_tokens=2))
    while scheduler.local.not_begun or scheduler.local.active > 1:
        scheduler.step()
    assert max(runs.gaps) <= 1.95 * 0.03
    scheduler.step()
    first = len(machine.prefills)
    for i in range(5):
        machine.rig.add(request(prompt(60, i), autoregressive(), max_tokens=100))
    while len(scheduler.local._running) < 3:
        scheduler.step()
    assert [tokens for _, tokens in machine.prefills[first:]] == [60] * (len(machine.prefills) - first), "whole ones"
    assert 1.95 * 0.03 < max(runs.gaps) <= 0.03 + 0.05 + 0.012, "for no longer than a slice may ever take"


def test_cached_prefix_tokens_do_not_inflate_prefill_slice_sizes():
    """A chat's turns, each of 30 new tokens after 400 that are cached, and then a new prompt of 400."""
    machine = Machine(scripted_models(0.7), fixed=0.001, prefix_bytes=64 << 20)
    scheduler, chat = machine.rig.scheduler, prompt(400)
    machine.rig.run([request(chat, autoregressive(), max_tokens=2)])
    runs = watched(machine, request([1, 2, 3], autoregressive(), max_tokens=3000))
    for turn in range(10):
        machine.rig.add(request([*chat, *prompt(30, 50 + turn)], autoregressive(), max_tokens=2))
        while scheduler.local.not_begun or scheduler.local.active != 1:
            scheduler.step()
    machine.rig.add(request(prompt(400, 99), autoregressive(), max_tokens=2))
    while scheduler.local.not_begun or scheduler.local.active > 1:
        scheduler.step()
    assert runs.outcome is None
    assert max(runs.gaps) <= 0.03 + 0.05


def test_prefill_slices_do_not_delay_requests_about_to_finish():
    machine = Machine(scripted_models(0.7))
    scheduler = machine.rig.scheduler
    runs = watched(machine, request([1, 2, 3], autoregressive(), max_tokens=5))
    scheduler.step()
    machine.rig.add(request(prompt(60), autoregressive(), max_tokens=5))
    machine.rig.drain()
    assert runs.gaps == pytest.approx([0.03] * 4)
    assert [tokens for _, tokens in machine.prefills] == [3, 60], "and what waited was prefilled whole"


def arriving(machine, *, before_first_step: int, after_it: int, size: int = 60):
    """Short requests, of which some come while the first are prefilled; by how many are running at each decode step."""
    rig, running = machine.rig, list[int]()
    for i in range(before_first_step):
        rig.add(request(prompt(size, i), autoregressive(), max_tokens=9))
    rig.scheduler.step()
    for i in range(before_first_step, before_first_step + after_it):
        rig.add(request(prompt(size, i), autoregressive(), max_tokens=9))
    decode = rig.scheduler.local._decode

    def noted(members, **options):
        running.append(len(members))
        decode(members, **options)

    rig.scheduler.local._decode = noted
    rig.drain()
    return running


def test_prompts_arriving_during_first_prefill_decode_in_the_same_batch():
    assert arriving(Machine(scripted_models(0.7)), before_first_step=1, after_it=5) == [6] * 8


def test_single_later_prompt_does_not_delay_first_decode_step():
    running = arriving(Machine(scripted_models(0.7)), before_first_step=1, after_it=1)
    assert running[0] == 1


def test_slow_prefill_of_later_prompts_does_not_delay_first_decode_step():
    running = arriving(Machine(scripted_models(0.7), each=0.01), before_first_step=1, after_it=6)
    assert running[0] == 1


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_texts_equal_those_decoded_alone_under_random_arrivals_and_cancellations(data):
    models = scripted_models(0.7, context_length=1024)
    machine = Machine(models)
    scheduler = machine.rig.scheduler
    sinks, gone = [], set()
    for i in range(data.draw(st.integers(1, 7))):
        length = data.draw(st.sampled_from([1, 3, 17, 40, 90, 300]))
        plan = data.draw(st.sampled_from([autoregressive(), speculative(3), speculative(2, PROMPT_LOOKUP)]))
        asked = request(prompt(length, i), plan, max_tokens=data.draw(st.integers(1, 20)))
        sinks.append((asked, machine.rig.add(asked)))
        for _ in range(data.draw(st.integers(0, 8))):
            scheduler.step()
        if data.draw(st.integers(0, 3)) == 0:
            victim = data.draw(st.sampled_from(sinks))[0]
            gone.add(victim.id)
            scheduler.end({victim.id: FinishReason.CANCELLED})
    machine.rig.drain()
    for asked, sink in sinks:
        alone = Rig(models).run([request(asked.prompt, autoregressive(), max_tokens=asked.max_tokens)])[0].tokens
        assert sink.finishes == 1
        if sink.done.reason is FinishReason.CANCELLED:
            assert asked.id in gone
            assert sink.tokens == alone[: len(sink.tokens)]
        else:
            assert sink.tokens == alone
    assert scheduler.local.kv_cache_bytes == 0
    assert scheduler.local.active == len(scheduler.local.not_begun) == 0


@pytest.mark.parametrize("state", ["waiting", "first slice", "last slice"])
def test_deadline_ends_request_while_queued_and_during_prefill(state):
    machine = Machine(scripted_models(0.7))
    scheduler = machine.rig.scheduler
    machine.rig.add(request([1, 2, 3], autoregressive(), max_tokens=400))
    scheduler.step()
    if state == "waiting":
        for i in range(MOST_PREFILLING):
            machine.rig.add(request(prompt(500, i), autoregressive()))
    deadline = machine.now + 0.5
    late = machine.rig.add(request(prompt(900), speculative(2), deadline=deadline))
    if state == "last slice":
        machine.now += 0.4
    while late.outcome is None:
        scheduler.step()
    assert late.done.reason is FinishReason.DEADLINE
    assert late.tokens == []
    assert machine.now <= deadline + 0.1


class Noting:
    """A target that notes how long the prompts of each forward are. One with the token `POISON` fails, with all that
    share its forward."""

    def __init__(self, target: LocalTarget) -> None:
        self._target = target
        self.forwards: list[list[int]] = []

    def submit(self, plan: StepPlan) -> None:
        prompts = [entry.tokens for entry in plan.entries if entry.tokens]
        if prompts:
            self.forwards.append([len(tokens) for tokens in prompts])
            if any(POISON in tokens for tokens in prompts):
                raise RuntimeError("poison")
        self._target.submit(plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def test_prompts_of_similar_length_share_prefill_forward_and_keep_their_texts():
    models = scripted_models(0.7)
    rig = Rig(models, wrap=Noting)
    lengths = [20, 90, 24, 31, 95, 22, 300]
    asked = [
        request(prompt(length, i), speculative(2) if i % 2 else autoregressive(), max_tokens=1 + 6 * (i % 3))
        for i, length in enumerate(lengths)
    ]
    sinks = rig.run(asked)
    assert rig.scheduler.local.target.forwards[:2] == [[20, 22, 24, 31], [90, 95]]  # type: ignore[attr-defined]
    for one, sink in zip(asked, sinks, strict=True):
        assert (
            sink.tokens == Rig(models).run([request(one.prompt, autoregressive(), max_tokens=one.max_tokens)])[0].tokens
        )
    assert rig.scheduler.local.kv_cache_bytes == 0


def test_failed_shared_prefill_forward_fails_only_the_faulty_prompt():
    models = scripted_models(0.7)
    rig = Rig(models, wrap=Noting)
    asked = [request([*prompt(20, i), POISON if i == 1 else 1], autoregressive(), max_tokens=9) for i in range(3)]
    sinks = rig.run(asked)
    assert [len(forward) for forward in rig.scheduler.local.target.forwards] == [3, 1, 1, 1]  # type: ignore[attr-defined]
    assert [sink.done.reason for sink in sinks] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert sinks[1].done.error == "prefill failed: poison"
    assert rig.scheduler.local.kv_cache_bytes == 0


def test_cancelling_prompts_after_shared_prefill_forward_keeps_remaining_texts():
    models = scripted_models(0.7)
    rig = Rig(models)
    asked = [request(prompt(20 + i, i), autoregressive(), max_tokens=9) for i in range(4)]
    sinks = [rig.add(one) for one in asked]
    rig.scheduler.local._prefill(8, [])
    rig.scheduler.end({asked[1].id: FinishReason.CANCELLED, asked[3].id: FinishReason.CANCELLED})
    rig.drain()
    for i in (0, 2):
        assert sinks[i].tokens == Rig(models).run([asked[i]])[0].tokens


def test_prefill_slices_stop_soon_after_drain_deadline():
    machine = Machine(scripted_models(0.7, context_length=4096), each=0.02, deeper=0.00001)
    machine.rig.add(request(prompt(3000), autoregressive(), max_tokens=4))
    machine.rig.scheduler.step()
    assert machine.prefills[-1][1] == 512  # ten seconds
    machine.rig.scheduler.local.prefilling.drain_until = until = machine.now + 20
    while machine.now < until:
        machine.rig.scheduler.step()
    assert machine.now - until < 16 * 0.06
    assert sum(tokens for _, tokens in machine.prefills[1:]) > 16 / 0.06  # and no time is wasted
