"""What a slice of a prompt may take while rows run, and whose slice is next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FinishReason
from draftd.engine.prefilling import _PATIENCE, MOST_PREFILLING
from draftd.engine.slices import Slices
from draftd.engine.step import StepPlan
from draftd.engine.targets.local import LocalTarget
from tests.rig import Collected, Rig, autoregressive, request, speculative
from tests.scripted import scripted_models

POISON = 250


def settled(slices: Slices, cost, step_seconds: float, slices_taken: int = 40) -> int:
    for _ in range(slices_taken):
        tokens = slices.tokens(step_seconds)
        slices.took(tokens, cost(tokens))
    return slices.tokens(step_seconds)


@settings(max_examples=100, deadline=None)
@given(
    fixed=st.floats(0.0005, 0.03),
    each=st.floats(0.00001, 0.002),
    step_seconds=st.floats(0.005, 0.2),
    most=st.floats(0.01, 0.1),
)
def test_slices_come_to_take_what_they_may(fixed, each, step_seconds, most):
    slices = Slices(512, most)
    tokens = settled(slices, lambda n: fixed + n * each, step_seconds)
    allowed = min(most, 0.7 * step_seconds)
    assert slices.limit(step_seconds) == pytest.approx(allowed)
    if 16 < tokens < 512:
        assert fixed + tokens * each == pytest.approx(allowed, rel=0.1, abs=1.5 * each)
    else:
        assert tokens == (512 if fixed + 512 * each < allowed * 1.1 else 16)


def test_the_first_slice_is_small_and_with_nobody_running_chunks_are_whole():
    slices = Slices(512, 0.05)
    assert slices.tokens(0.03) == 16
    assert slices.tokens(None) == 512
    assert Slices(8, 0.05).tokens(0.03) == 8


def test_one_outlier_changes_little_and_is_forgotten():
    slices = Slices(512, 1.0)
    before = settled(slices, lambda n: n * 0.001, 0.05)
    slices.took(before, 10.0)
    assert slices.tokens(0.05) >= before * 0.74
    slices.took(slices.tokens(0.05), 1e-6)
    assert slices.tokens(0.05) <= before * 1.5
    assert settled(slices, lambda n: n * 0.001, 0.05, 5) == pytest.approx(before, rel=0.05)


class Machine:
    """Time that passes only in forwards: some for each, some for every token of it, and for every token of it some for
    every token that came before."""

    def __init__(self, models, fixed: float = 0.01, each: float = 0.0005, deeper: float = 0.0) -> None:
        self.now, self.prefills = 0.0, list[tuple[str, int]]()
        self._fixed, self._each, self._deeper = fixed, each, deeper
        self.rig = Rig(models, max_batch=8, timer=lambda: self.now, clock=lambda: self.now, wrap=self._timed)
        self._requests = {}
        add = self.rig.scheduler.add

        def known(sequence):
            add(sequence)
            self._requests[sequence.id] = sequence.request.id

        self.rig.scheduler.add = known
        drafter = self.rig.scheduler.drafting.drafters.get(DRAFT_MODEL)
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
def test_prompts_that_arrive_faster_than_they_can_be_taken_in_do_not_double_a_running_rows_gaps(plan):
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


def test_prompts_of_which_more_and_less_is_taken_in_do_not_spoil_each_others_measure():
    """What is read of one prompt by the hundredth slice takes four times as long as by another's first."""
    machine = Machine(scripted_models(0.7), fixed=0.002, each=0.0002, deeper=4e-7)
    runs = watched(machine, request([1, 2, 3], autoregressive(), max_tokens=1000))
    machine.rig.scheduler.step()
    for i in range(5):
        machine.rig.add(request(prompt(1500, i), autoregressive(), max_tokens=4))
        for _ in range(9):
            machine.rig.scheduler.step()
    while machine.rig.scheduler._prefilling.sequences:
        machine.rig.scheduler.step()
    assert runs.outcome is None
    assert max(runs.gaps) <= 1.95 * 0.03


def test_with_nobody_running_a_prompt_is_taken_in_by_whole_chunks():
    machine = Machine(scripted_models(0.7))
    machine.rig.run([request(prompt(1500), speculative(3), max_tokens=2)])
    assert [chunk for _, chunk in machine.prefills] == [512, 512, 476]
    assert set(machine.drafted) == {512}


def test_a_short_prompt_behind_long_ones_starts_within_a_few_slices():
    machine = Machine(scripted_models(0.7))
    machine.rig.add(request([1, 2, 3], autoregressive(), max_tokens=2000))
    machine.rig.scheduler.step()
    for i in range(5):
        machine.rig.add(request(prompt(1400, i), autoregressive()))
    for _ in range(20):
        machine.rig.scheduler.step()
    short = machine.rig.add(request(prompt(40), autoregressive()))
    steps = 0
    while not short.tokens:
        machine.rig.scheduler.step()
        steps += 1
    assert steps <= 3 + _PATIENCE


def test_a_long_prompt_under_an_endless_stream_of_short_ones_has_its_share_of_slices():
    machine = Machine(scripted_models(0.7))
    machine.rig.add(request([1, 2, 3], autoregressive(), max_tokens=4000))
    machine.rig.scheduler.step()
    asked = request(prompt(600), autoregressive(), max_tokens=2)
    long, steps = machine.rig.add(asked), 0
    while not long.tokens:
        while machine.rig.scheduler.waiting < 4:
            machine.rig.add(request(prompt(60, steps), autoregressive(), max_tokens=2))
        machine.rig.scheduler.step()
        steps += 1
        assert steps < 1000
    order = [id for id, _ in machine.prefills[1:]]
    mine = [i for i, id in enumerate(order) if id == asked.id]
    assert len(order) > 3 * len(mine), "others were taken in meanwhile"
    assert max(b - a for a, b in zip([-1, *mine], mine, strict=False)) <= _PATIENCE + MOST_PREFILLING


@pytest.mark.parametrize("plan", [autoregressive(), speculative(3)])
def test_short_prompts_that_fit_into_a_slices_time_join_together_and_no_sequence_waits_longer_for_it(plan):
    machine = Machine(scripted_models(0.7), fixed=0.001, each=0.0001)
    scheduler = machine.rig.scheduler
    runs = watched(machine, request([1, 2, 3], plan, max_tokens=3000))
    machine.rig.add(request(prompt(700, 99), plan, max_tokens=2))  # by which it is learnt how much fits
    for _ in range(30):
        scheduler.step()
    assert scheduler.active == 1
    for i in range(6):
        machine.rig.add(request(prompt(40, i), plan, max_tokens=100))
        if i == 2:
            scheduler.step()
            scheduler.step()
            assert len(scheduler._running) == 4, "each takes 5 ms, beside steps of 30"
    scheduler.step()
    scheduler.step()
    assert len(scheduler._running) == 7
    assert max(runs.gaps) <= 0.05 + (0.03 if plan.drafter is None else 0.04)


def test_a_short_prompt_beside_running_sequences_is_prefilled_whole_if_the_time_of_a_slice_is_enough():
    machine = Machine(scripted_models(0.7), fixed=0.01, each=0.0002)
    scheduler = machine.rig.scheduler
    machine.rig.run([request(prompt(140), autoregressive(), max_tokens=2)])
    asked = [request([i], autoregressive(), max_tokens=3000) for i in (1, 2, 3)]
    runs = [watched(machine, one) for one in asked]
    machine.rig.add(request(prompt(700, 99), autoregressive(), max_tokens=2))
    while scheduler.waiting or scheduler.active > 3:
        scheduler.step()
    assert max(max(one.gaps) for one in runs) <= 1.95 * 0.03, "a long one has slices of a share of a step"
    scheduler.step()
    first = len(machine.prefills)
    one, other = (request(prompt(size, size), autoregressive(), max_tokens=100) for size in (140, 300))
    machine.rig.add(one)
    machine.rig.add(other)
    while len(scheduler._running) < 5:
        scheduler.step()
    assert [tokens for id, tokens in machine.prefills[first:] if id == one.id] == [140], "38 ms, where 50 are allowed"
    assert len([tokens for id, tokens in machine.prefills[first:] if id == other.id]) > 5, "70 ms"
    assert max(max(one.gaps) for one in runs) <= 0.03 + 0.05


def test_where_more_short_prompts_wait_than_sequences_run_one_long_slice_takes_several():
    machine = Machine(scripted_models(0.7), fixed=0.01, each=0.0002)
    scheduler = machine.rig.scheduler
    runs = watched(machine, request([1, 2, 3], autoregressive(), max_tokens=3000))
    machine.rig.add(request(prompt(700, 99), autoregressive(), max_tokens=2))
    while scheduler.waiting or scheduler.active > 1:
        scheduler.step()
    assert max(runs.gaps) <= 1.95 * 0.03
    scheduler.step()
    first = len(machine.prefills)
    for i in range(5):
        machine.rig.add(request(prompt(60, i), autoregressive(), max_tokens=100))
    while len(scheduler._running) < 3:
        scheduler.step()
    assert [tokens for _, tokens in machine.prefills[first:]] == [60] * (len(machine.prefills) - first), "whole ones"
    assert 1.95 * 0.03 < max(runs.gaps) <= 0.03 + 0.05 + 0.012, "for no longer than a slice may ever take"


def test_sequences_that_end_soon_are_not_held_up_by_slices():
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
    decode = rig.scheduler._decode

    def noted(members, **options):
        running.append(len(members))
        decode(members, **options)

    rig.scheduler._decode = noted
    rig.drain()
    return running


def test_what_arrives_while_the_first_prompt_is_prefilled_decodes_with_it():
    assert arriving(Machine(scripted_models(0.7)), before_first_step=1, after_it=5) == [6] * 8


def test_one_prompt_that_arrives_later_holds_none_up():
    running = arriving(Machine(scripted_models(0.7)), before_first_step=1, after_it=1)
    assert running[0] == 1


def test_waiting_prompts_hold_none_up_for_longer_than_half_a_second():
    running = arriving(Machine(scripted_models(0.7), each=0.01), before_first_step=1, after_it=6)
    assert running[0] == 1


def test_what_fits_into_a_time_is_known_once_a_slice_was_measured():
    slices = Slices(512, 0.1)
    assert not slices.fit(1, 1.0)
    slices.took(100, 0.1)
    assert slices.fit(20, 0.02)
    assert not slices.fit(21, 0.02)
    assert not slices.fit(1, 0.015), "fewer than the least take as long as these"
    assert not slices.fit(513, 10.0), "more than a chunk are not taken in at once"


def test_equals_are_taken_in_in_the_order_in_which_they_came():
    machine = Machine(scripted_models(0.7))
    asked = [request(prompt(50, i), autoregressive(), max_tokens=3) for i in range(7)]
    for one in asked:
        machine.rig.add(one)
    machine.rig.drain()
    assert list(dict.fromkeys(id for id, _ in machine.prefills)) == [one.id for one in asked]


def test_no_more_than_a_few_are_taken_in_at_a_time_and_no_more_than_may_run():
    machine = Machine(scripted_models(0.7))
    scheduler = machine.rig.scheduler
    for i in range(12):
        machine.rig.add(request(prompt(700 - 40 * i, i), speculative(2), max_tokens=30))
    most = 0
    while not scheduler.idle:
        scheduler.step()
        most = max(most, len(scheduler._prefilling.prefilling))
        assert len(scheduler._prefilling.prefilling) <= MOST_PREFILLING
        assert scheduler.active <= 8
    assert most == MOST_PREFILLING


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whatever_arrives_and_leaves_texts_are_those_alone_and_nothing_is_left_over(data):
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
    assert scheduler.kv_cache_bytes == 0
    assert scheduler.active == scheduler.waiting == 0


@pytest.mark.parametrize("state", ["waiting", "first slice", "last slice"])
def test_a_deadline_acts_while_waiting_and_in_prefill(state):
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


def test_prompts_of_about_the_same_length_share_a_forward_and_give_their_own_texts():
    models = scripted_models(0.7)
    rig = Rig(models, wrap=Noting)
    lengths = [20, 90, 24, 31, 95, 22, 300]
    asked = [
        request(prompt(length, i), speculative(2) if i % 2 else autoregressive(), max_tokens=1 + 6 * (i % 3))
        for i, length in enumerate(lengths)
    ]
    sinks = rig.run(asked)
    assert rig.scheduler.target.forwards[:2] == [[20, 22, 24, 31], [90, 95]]
    for one, sink in zip(asked, sinks, strict=True):
        assert (
            sink.tokens == Rig(models).run([request(one.prompt, autoregressive(), max_tokens=one.max_tokens)])[0].tokens
        )
    assert rig.scheduler.kv_cache_bytes == 0


def test_of_prompts_that_share_a_forward_that_fails_only_the_one_whose_fault_it_is_fails():
    models = scripted_models(0.7)
    rig = Rig(models, wrap=Noting)
    asked = [request([*prompt(20, i), POISON if i == 1 else 1], autoregressive(), max_tokens=9) for i in range(3)]
    sinks = rig.run(asked)
    assert [len(forward) for forward in rig.scheduler.target.forwards] == [3, 1, 1, 1]
    assert [sink.done.reason for sink in sinks] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert sinks[1].done.error == "prefill failed: poison"
    assert rig.scheduler.kv_cache_bytes == 0


def test_who_leaves_before_those_it_shared_a_forward_with_run_takes_nothing_with_it():
    models = scripted_models(0.7)
    rig = Rig(models)
    asked = [request(prompt(20 + i, i), autoregressive(), max_tokens=9) for i in range(4)]
    sinks = [rig.add(one) for one in asked]
    rig.scheduler._prefill(8, [])
    rig.scheduler.end({asked[1].id: FinishReason.CANCELLED, asked[3].id: FinishReason.CANCELLED})
    rig.drain()
    for i in (0, 2):
        assert sinks[i].tokens == Rig(models).run([asked[i]])[0].tokens


def test_slices_of_a_drain_end_with_it():
    machine = Machine(scripted_models(0.7, context_length=4096), each=0.02, deeper=0.00001)
    machine.rig.add(request(prompt(3000), autoregressive(), max_tokens=4))
    machine.rig.scheduler.step()
    assert machine.prefills[-1][1] == 512  # ten seconds
    machine.rig.scheduler.drain(until := machine.now + 20)
    while machine.now < until:
        machine.rig.scheduler.step()
    assert machine.now - until < 16 * 0.06
    assert sum(tokens for _, tokens in machine.prefills[1:]) > 16 / 0.06  # and no time is wasted
