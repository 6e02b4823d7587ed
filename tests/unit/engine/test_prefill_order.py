"""Which waiting sequence begins, whose slice is next, and how long it is: tables, without a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DrafterName, FinishReason
from draftd.engine.prefill_order import (
    LEAST_SLICE,
    MOST_HELD_BACK,
    MOST_OVERTAKEN,
    MOST_PREFILLING,
    PATIENCE,
    BeginOrder,
    PendingPrompt,
    PromptSlice,
    SlicePlanner,
    SliceRate,
    count_passed,
    drafter_waits,
    end_soon,
    next_prompt,
    share_forward,
)
from draftd.engine.remote.peer import PeerSequence
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, autoregressive, request, speculative

CHUNK = 64


def sequence(
    tokens: int, *, drafter: DrafterName | None = None, peer: bool = False, max_tokens: int = 32
) -> DecodeSequence:
    plan = autoregressive() if drafter is None else speculative(3, drafter)
    asked = request([1] * tokens, plan, max_tokens=max_tokens)
    if peer:
        asked = replace(asked, peer=PeerSequence(1, asked.prompt, lambda verdict: None))
    return DecodeSequence.of(asked, Collected(), 4096)


def prompts(*tokens: int) -> list[PendingPrompt]:
    return [PendingPrompt(sequence(length)) for length in tokens]


def begin(order: BeginOrder, queue: Sequence[int], without_memory: Collection[int] = ()) -> list[int]:
    """The places in the queue of the prompts that begin."""
    begun: list[int] = []
    for place, tokens in enumerate(queue):
        if order.closed:
            break
        if not order.allows(tokens):
            continue
        if place in without_memory:
            order.held_back += 1
            continue
        order.begin(tokens, first=place == len(begun))
        begun.append(place)
    return begun


@pytest.mark.parametrize(
    ("running", "left", "room", "queue", "expected"),
    [
        pytest.param(True, [], 8, [40, 40], [0, 1], id="in their order"),
        pytest.param(True, [], 8, [40] * 5, [0, 1, 2], id="the last place is for a shorter one"),
        pytest.param(True, [], 8, [40, 40, 40, 50, 30, 10], [0, 1, 2, 4], id="which may overtake"),
        pytest.param(True, [20, 30, 40], 8, [20, 19], [1], id="shorter than what is left of the others"),
        pytest.param(False, [], 8, [40] * 6, [0, 1, 2, 3], id="four that share a few forwards"),
        pytest.param(False, [], 12, [16] * 20, [*range(12)], id="more short ones where nothing runs"),
        pytest.param(False, [], 20, [16] * 20, [*range(16)], id="as many as four chunks take"),
        pytest.param(True, [], 12, [16] * 20, [0, 1, 2, 3], id="as many as one chunk takes beside others"),
        pytest.param(False, [], 12, [16] * 4 + [17, 16], [0, 1, 2, 3], id="none overtakes a longer one for that"),
        pytest.param(False, [5, 5], 3, [5, 5], [0], id="no more than there is room for"),
        pytest.param(False, [5, 5], 2, [5], [], id="no room"),
    ],
)
def test_prompts_started_are_limited_by_free_batch_places_their_length_and_chunk_budget(
    running: bool, left: list[int], room: int, queue: list[int], expected: list[int]
) -> None:
    assert begin(BeginOrder(left, room, CHUNK, running=running, overtaken=0), queue) == expected


@pytest.mark.parametrize(
    ("without_memory", "waiting", "overtaken", "expected", "overtaken_then"),
    [
        ({0}, 3, 0, [1, 2], 2),
        ({0}, 3, MOST_OVERTAKEN - 1, [1], MOST_OVERTAKEN),
        ({0}, 3, MOST_OVERTAKEN, [], MOST_OVERTAKEN),
        ({1}, 3, MOST_OVERTAKEN, [0, 2], 1),  # the first of the queue begins: the next one is counted from here on
        (range(MOST_HELD_BACK - 1), MOST_HELD_BACK, 0, [MOST_HELD_BACK - 1], 1),
        (range(MOST_HELD_BACK), MOST_HELD_BACK + 1, 0, [], 0),
    ],
)
def test_request_without_memory_is_overtaken_a_bounded_number_of_times(
    without_memory: Collection[int], waiting: int, overtaken: int, expected: list[int], overtaken_then: int
) -> None:
    order = BeginOrder([], 8, CHUNK, running=False, overtaken=overtaken)
    assert begin(order, [5] * waiting, without_memory) == expected
    assert order.overtaken == overtaken_then


@pytest.mark.parametrize(
    ("tokens", "passed", "expected"),
    [
        ([300, 40, 60], [0, 0, 0], 1),
        ([300, 40, 40], [0, 0, 0], 1),  # the first of equals
        ([300, 40, 40], [PATIENCE - 1, 0, 0], 1),
        ([300, 40, 40], [PATIENCE, 0, 0], 0),
        ([300, 400, 40], [PATIENCE, PATIENCE + 1, 0], 1),
    ],
)
def test_next_prefill_slice_goes_to_shortest_or_repeatedly_passed_over_prompt(
    tokens: list[int], passed: list[int], expected: int
) -> None:
    candidates = prompts(*tokens)
    for prompt, slices in zip(candidates, passed, strict=True):
        prompt.passed = slices
    assert next_prompt(candidates) is candidates[expected]


def test_next_prefill_slice_goes_to_prompt_whose_prefix_another_prompt_awaits() -> None:
    first, other = prompts(1500, 700)
    assert next_prompt([first, other]) is other
    first.shared[sequence(470)] = 450
    assert next_prompt([first, other]) is first
    first.position = 450
    assert next_prompt([first, other]) is other


def test_long_prompt_gets_prefill_slice_at_bounded_intervals_despite_new_short_prompts() -> None:
    long, *short = prompts(600, *[60] * (MOST_PREFILLING - 1))
    turns = []
    for turn in range(200):
        chosen = next_prompt([long, *short])
        count_passed([long, *short], [chosen])
        if chosen is long:
            turns.append(turn)
        else:
            short[short.index(chosen)] = prompts(60)[0]
    gaps = [after - before for before, after in zip([-1, *turns], [*turns, 200], strict=True)]
    assert PATIENCE < max(gaps) <= PATIENCE + MOST_PREFILLING


@pytest.mark.parametrize(
    ("drafter", "done", "ready", "expected"),
    [
        (DRAFT_MODEL, (True, True), False, True),
        (PROMPT_LOOKUP, (True, True), False, False),
        (DRAFT_MODEL, (False, True), False, False),
        (DRAFT_MODEL, (True, False), False, False),
        (DRAFT_MODEL, (True, True), True, False),
    ],
)
def test_draft_prefill_waits_for_another_prompt_that_shares_its_prefix(
    drafter: DrafterName, done: tuple[bool, bool], ready: bool, expected: bool
) -> None:
    first, second = (PendingPrompt(sequence(90, drafter=kind)) for kind in (drafter, DRAFT_MODEL))
    first.done, second.done = done
    first.shared[second.sequence] = 89
    candidates = [second] if ready else [second, first]
    assert drafter_waits(second, candidates) is expected
    if expected:
        assert next_prompt(candidates) is first


@pytest.mark.parametrize(
    ("first", "tokens", "expected"),
    [
        (20, 512, [20, 22, 24, 31]),  # with 90, 236 of 450 tokens would be computed for nothing
        (90, 512, [90, 95]),
        (20, 66, [20, 22, 24]),
        (20, 20, [20]),
        (20, 19, [20]),
        (300, 512, [300]),
    ],
)
def test_whole_prompts_of_similar_length_share_a_prefill_forward(first: int, tokens: int, expected: list[int]) -> None:
    candidates = {prompt.left: prompt for prompt in prompts(20, 90, 24, 31, 95, 22, 300)}
    assert [prompt.left for prompt in share_forward(candidates[first], [*candidates.values()], tokens)] == expected


def test_shared_prefill_forward_limits_total_padding_over_all_its_prompts() -> None:
    candidates = prompts(20, 40, 60)
    assert share_forward(candidates[0], candidates, 512) == candidates[:2]


@pytest.mark.parametrize("reason", ["opened", "failed together", "awaited", "ended"])
@pytest.mark.parametrize("place", [0, 1])
def test_prompt_started_ended_retried_or_awaited_by_another_prompt_is_prefilled_alone(reason: str, place: int) -> None:
    candidates = prompts(20, 20)
    special = candidates[place]
    if reason == "opened":
        special.position = 0
    elif reason == "failed together":
        special.alone = True
    elif reason == "awaited":
        special.shared[sequence(20)] = 19
    else:
        special.sequence.end(FinishReason.CANCELLED)
    assert share_forward(candidates[0], candidates, 512) == candidates[:1]


def test_batch_counts_as_ending_soon_only_if_all_are_client_sequences_near_their_end() -> None:
    ending, longer, peers = (sequence(3, max_tokens=4), sequence(3), sequence(3, max_tokens=4, peer=True))
    assert end_soon([ending, ending])
    assert not any(map(end_soon, ([], [ending, longer], [ending, peers])))


# how long slices are


def settle(rate: SliceRate, cost: Callable[[int], float], step_seconds: float, slices: int = 40) -> int:
    for _ in range(slices):
        tokens = rate.tokens(step_seconds)
        rate.learn(tokens, cost(tokens))
    return rate.tokens(step_seconds)


@settings(max_examples=100, deadline=None)
@given(
    fixed=st.floats(0.0005, 0.03),
    each=st.floats(0.00001, 0.002),
    step_seconds=st.floats(0.005, 0.2),
    most=st.floats(0.01, 0.1),
)
def test_prefill_slice_size_converges_to_allowed_time(
    fixed: float, each: float, step_seconds: float, most: float
) -> None:
    rate = SliceRate(512, most)
    tokens = settle(rate, lambda n: fixed + n * each, step_seconds)
    allowed = min(most, 0.7 * step_seconds)
    assert rate.limit(step_seconds) == pytest.approx(allowed)
    if 16 < tokens < 512:
        assert fixed + tokens * each == pytest.approx(allowed, rel=0.1, abs=1.5 * each)
    else:
        assert tokens == (512 if fixed + 512 * each < allowed * 1.1 else 16)


def test_prefill_slice_starts_at_minimum_size_only_while_a_sequence_runs() -> None:
    rate = SliceRate(512, 0.05)
    assert rate.tokens(0.03) == 16
    assert rate.tokens(None) == 512
    assert SliceRate(8, 0.05).tokens(0.03) == 8


def test_prefill_slice_rate_soon_recovers_from_a_single_outlier() -> None:
    rate = SliceRate(512, 1.0)
    before = settle(rate, lambda n: n * 0.001, 0.05)
    rate.learn(before, 10.0)
    assert rate.tokens(0.05) >= before * 0.74
    rate.learn(rate.tokens(0.05), 1e-6)
    assert rate.tokens(0.05) <= before * 1.5
    assert settle(rate, lambda n: n * 0.001, 0.05, 5) == pytest.approx(before, rel=0.05)


def test_prefill_slice_rate_predicts_what_fits_only_after_a_measurement() -> None:
    rate = SliceRate(512, 0.1)
    assert not rate.fits(1, 1.0)
    rate.learn(100, 0.1)
    assert rate.fits(20, 0.02)
    assert not rate.fits(21, 0.02)
    assert not rate.fits(1, 0.015), "fewer than the least take as long as these"
    assert not rate.fits(513, 10.0), "more than a chunk are not prefilled at once"


def planner(tokens_per_second: int = 1005) -> SlicePlanner:
    """One that has measured a slice beside running sequences."""
    plans = SlicePlanner(512, 0.05)
    plans.learn(PromptSlice(prompts(600), 512, 0.03), tokens_per_second, 1.0, whole=False)
    return plans


@pytest.mark.parametrize(
    ("length", "peer", "step_seconds", "seconds_left", "expected"),
    [
        pytest.param(600, False, None, math.inf, (512, None), id="no sequence waits"),
        pytest.param(600, False, 0.03, math.inf, (21, 0.03), id="a share of a step"),
        pytest.param(600, False, 0.3, math.inf, (50, 0.3), id="the longest slice"),
        pytest.param(51, False, 0.03, math.inf, (21, 0.03), id="too long for that"),
        pytest.param(50, False, 0.03, math.inf, (50, math.inf), id="short enough to be prefilled whole"),
        pytest.param(50, True, 0.03, math.inf, (21, 0.03), id="but not a peer's"),
        pytest.param(600, True, None, math.inf, (50, 0.15), id="a peer's, alone"),
        pytest.param(128, True, None, math.inf, (512, None), id="a short one of a peer"),
        pytest.param(600, False, None, 0.04, (28, 0.04), id="the drain ends"),
        pytest.param(600, False, 0.03, 0.04, (21, 0.03), id="the drain ends after a step"),
        pytest.param(600, False, 0.05, 0.04, (28, 0.04), id="and before one"),
        pytest.param(41, False, 0.03, 0.04, (21, 0.03), id="too long for the drain"),
        pytest.param(600, False, None, 0.0, (LEAST_SLICE, 0.0), id="the drain is over"),
    ],
)
def test_first_prefill_slice_is_bounded_by_step_time_and_time_left_before_drain_deadline(
    length: int, peer: bool, step_seconds: float | None, seconds_left: float, expected: tuple[int, float | None]
) -> None:
    prompt = PendingPrompt(sequence(length, peer=peer))
    assert planner().first([prompt], step_seconds, seconds_left) == ([prompt], *expected)


def test_prompt_with_short_uncached_rest_is_prefilled_whole() -> None:
    prompt = PendingPrompt(sequence(300), 250)
    assert planner().first([prompt], 0.03).step_seconds == math.inf


@pytest.mark.parametrize(
    ("tokens", "whole", "step_seconds", "short", "long"),
    [
        (100, True, None, (50, math.inf), (16, 0.03)),
        (100, True, 0.03, (50, math.inf), (16, 0.03)),
        (100, False, 0.03, (50, math.inf), (21, 0.03)),
        (100, False, None, (16, 0.03), (16, 0.03)),  # a chunk, not a slice
        (LEAST_SLICE - 1, True, None, (16, 0.03), (16, 0.03)),  # a few tokens say nothing
    ],
)
def test_short_prompt_is_prefilled_whole_once_a_fast_slice_was_measured(
    tokens: int,
    whole: bool,
    step_seconds: float | None,
    short: tuple[int, float],
    long: tuple[int, float],
) -> None:
    plans = SlicePlanner(512, 0.05)
    plans.learn(PromptSlice(prompts(tokens), 512, step_seconds), tokens, tokens / 1005, whole=whole)
    assert plans.first(prompts(40), 0.03)[1:] == short
    assert plans.first(prompts(600), 0.03)[1:] == long


@pytest.mark.parametrize(
    ("tokens", "step_seconds", "rest", "seconds", "expected"),
    [
        pytest.param([300, 30, 40], None, 80, 0.0, ([30, 40], 80), id="all that fit into the rest"),
        pytest.param([300, 30, 40], None, 69, 0.0, ([30], 69), id="one that fits"),
        pytest.param([300, 30, 40], None, 29, 0.0, None, id="no rest"),
        pytest.param([300, 18, 20], 0.03, 0, 0.003, ([18], 18), id="the shortest in the time that is left"),
        pytest.param([300, 18, 20], 0.03, 0, 0.004, None, id="too little time"),
        pytest.param([300, 18, 20], math.inf, 0, 0.03, ([18], 18), id="the longest slice"),
        pytest.param([], 0.03, 0, 0.0, None, id="no prompt"),
        pytest.param([], None, 512, 0.0, None, id="no prompt where nothing runs"),
    ],
)
def test_further_prefill_slice_follows_if_a_whole_prompt_fits_in_remaining_budget(
    tokens: list[int], step_seconds: float | None, rest: int, seconds: float, expected: tuple[list[int], int] | None
) -> None:
    following = planner().following(prompts(*tokens), step_seconds, rest, seconds)
    chosen = None if following is None else ([prompt.left for prompt in following.prompts], following.tokens)
    assert chosen == expected


def test_ended_prompt_gets_no_further_prefill_slice() -> None:
    candidates = prompts(20)
    candidates[0].sequence.end(FinishReason.LENGTH)
    assert planner().following(candidates, None, 512, 0.0) is None
    assert planner().following(candidates, 0.03, 0, 0.0) is None


def test_draft_prefill_follows_in_same_step_only_if_it_fits_whole() -> None:
    plans, prompt = planner(), PendingPrompt(sequence(100, drafter=DRAFT_MODEL))
    prompt.position, prompt.done = 100, True
    assert plans.following([prompt], 0.03, 0, 0.0) is None, "nothing is known of the drafter"
    plans.rate(prompt, DRAFT_MODEL).learn(500, 0.1)
    assert plans.following([prompt], 0.03, 0, 0.0) == ([prompt], 0, 0.03)
    assert plans.following([prompt], 0.03, 0, 0.002) is None
    assert plans.following([prompt], None, 512, 0.0) is None, "the drafter's slice comes with the target's"
    second = PendingPrompt(sequence(100, drafter=DRAFT_MODEL), position=100, done=True)
    prompt.shared[second.sequence] = 99
    assert plans.following([second, prompt], 0.03, 0, 0.0) == ([prompt], 0, 0.03), "the second one's drafter waits"


def test_slow_slices_of_long_prompts_do_not_distort_slice_rate_of_new_prompts() -> None:
    """A token after 1,400 others takes four times as long as a first one."""
    plans, candidates = SlicePlanner(512, 0.05), prompts(*[1500] * 5)
    longest = 0.0
    for turn in range(400):
        prompt = candidates[min(turn // 9, 4) if turn % 2 else turn // 2 % 5]
        if not prompt.left:
            continue
        current = plans.first([prompt], 0.03)
        position = prompt.position or 0
        tokens = min(current.tokens, prompt.left)
        seconds = 0.002 + tokens * (0.0002 + 4e-7 * position)
        plans.learn(current, tokens, seconds, whole=False)
        prompt.position = position + tokens
        longest = max(longest, seconds)
    assert sum(prompt.left for prompt in candidates) < 1500
    assert longest <= 0.95 * 0.03
