"""The depths with the most expected tokens a second, against all that there are; and what an answer may still bring."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from draftd.core import DRAFT_MODEL, FinishReason, Origin, WorkloadClass
from draftd.engine.depth.acceptance_rates import AnswerLengths
from draftd.engine.depth.costs import Batch
from draftd.engine.depth.estimate import BestDepths, DepthCandidate, StepEstimate, best_depth
from draftd.engine.limits import MOST_REPLAYED
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, automatic, autoregressive, request

DRAFT = DRAFT_MODEL
VERIFIED = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]  # seconds by tokens verified beyond the first
STEPPED = [1.0, 1.4, 1.8, 2.2, 2.6, 3.0, 3.4]  # and as many steps of a draft before it


def expected(*stands: float) -> list[float]:
    out, reach = [1.0], 1.0
    for rate in stands:
        reach *= rate
        out.append(out[-1] + reach)
    return out


def candidate(
    draft: list[float], lookup: list[float] | None = None, ready: bool = True, most: int = 5
) -> DepthCandidate:
    sequence = DecodeSequence.of(request([1], automatic(most)), Collected(), 100)
    return DepthCandidate(0, sequence, most, DRAFT, ready=ready, draft=draft, lookup=lookup or [1.0])


def estimate(
    *candidates: DepthCandidate, others: float = 0.0, fixed_depth: int = 0, fixed_steps: int = 0
) -> StepEstimate:
    size = len(candidates)
    return StepEstimate(Batch(size), list(candidates), others, fixed_depth, fixed_steps, STEPPED, VERIFIED)


@pytest.mark.parametrize(
    ("rates", "ratios", "depth"),
    [
        ([0.9, 0.9, 0.9], [1.1, 1.2, 1.3], 3),
        ([0.9, 0.1, 0.1], [1.1, 1.3, 1.5], 1),
        ([0.2, 0.2], [1.3, 1.6], 0),
        ([0.5, 0.5], [1.5, 1.75], 0),  # just as fast: a step without a draft is surer
        ([], [], 0),
    ],
)
def test_best_depth_maximises_expected_tokens_per_step_time(
    rates: list[float], ratios: list[float], depth: int
) -> None:
    assert best_depth(expected(*rates), [1.0, *ratios]) == depth


@pytest.mark.parametrize(
    ("fixed_depth", "fixed_steps", "depth", "lookup", "seconds"),
    [
        (0, 0, 0, 0, 1.0),
        (0, 0, 3, 0, 2.2),
        (0, 0, 0, 3, 1.3),
        (0, 0, 2, 4, 1.4 + (2.6 - 1.4) * 2 / 4),  # two steps, and four to verify
        (5, 0, 0, 0, 1.5),  # a row of fixed depth looks five up: verified with it, and no step
        (5, 0, 2, 0, 1.5 + (3.0 - 1.5) * 2 / 5),
        (5, 2, 0, 0, 1.5 + (3.0 - 1.5) * 2 / 5),  # another one drafts two with weights
        (5, 2, 1, 0, 1.5 + (3.0 - 1.5) * 2 / 5),  # drafting along is free as far as that
        (3, 3, 5, 0, 3.0),
    ],
)
def test_step_time_estimate_uses_deepest_draft_and_widest_verification(
    fixed_depth: int, fixed_steps: int, depth: int, lookup: int, seconds: float
) -> None:
    found = estimate(candidate(expected(0.9)), fixed_depth=fixed_depth, fixed_steps=fixed_steps)
    assert found.seconds(depth, lookup) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "sequences",
    [[[1.0, 1.0]], [[0.5, 0.5]], [[0.0, 0.0]], [[0.8] * 4], [[0.9] * 3, [0.6] * 3], [[0.8] * 4] * 4],
    ids=str,
)
def test_expected_replay_after_rejections_matches_simulated_positions_and_time(sequences: list[list[float]]) -> None:
    batch = replace(estimate(*[candidate(expected(*rates)) for rates in sequences]), replays=True)
    depth = len(sequences[0])
    most = min(depth, MOST_REPLAYED)
    dice, held, positions, verified, emitted, steps = random.Random(1), [0] * len(sequences), 0, 0.0, 0, 20_000
    for _ in range(steps):
        wider = max(0, *(n if n <= most else n - depth for n in held))
        positions, verified = positions + wider, verified + VERIFIED[min(depth + wider, len(VERIFIED) - 1)]
        for i, rates in enumerate(sequences):
            drafts = held[i] <= most
            accepted = next((n for n, rate in enumerate(rates) if dice.random() >= rate), depth) if drafts else 0
            held[i] = 0 if accepted == depth or not drafts else held[i] + accepted + 1
            emitted += accepted + 1
    found, missed = batch.expected_replay(depth, 0)
    assert sum(found) == pytest.approx(1.0)
    again = sum(n * p for n, p in enumerate(found))
    assert again == pytest.approx(positions / steps, rel=0.05, abs=0.02)
    assert sum(c.tokens(depth) for c in batch.candidates) - missed == pytest.approx(emitted / steps, rel=0.02)
    assert batch.seconds(0) == 1.0
    drafted = estimate(*batch.candidates).seconds(depth) - VERIFIED[depth]
    assert batch.seconds(depth) == pytest.approx(drafted + verified / steps, rel=0.02)


@pytest.mark.parametrize("seed", range(40))
def test_best_draft_and_lookup_depths_match_exhaustive_search(seed: int) -> None:
    dice = random.Random(seed)

    def stands() -> list[float]:
        return expected(*(dice.random() for _ in range(6)))

    some = [
        candidate(stands(), stands()[: dice.randrange(1, 6)], dice.random() < 0.8, dice.randrange(1, 6))
        for _ in range(dice.randrange(1, 5))
    ]
    batch = estimate(*some, others=dice.choice([0.0, 1.0, 2.5]), fixed_depth=dice.choice([0, 0, 4]))
    found = batch.best()

    def rate(depth: int, lookup: int) -> float:
        tokens = batch.others
        for c in batch.candidates:
            draft = c.draft[min(depth, c.most)] if c.ready else 1.0
            tokens += max(draft, c.lookup[min(lookup, len(c.lookup) - 1)])
        return tokens / batch.seconds(depth, lookup)

    assert found.rate == pytest.approx(max(rate(*one) for one in product(range(6), range(6))))
    assert found.rate == pytest.approx(rate(found.depth, found.lookup))


def test_depth_estimate_gives_unprefilled_draft_depth_0_unless_caller_assumes_prefill() -> None:
    unknown = estimate(candidate(expected(0.9, 0.9, 0.9, 0.9, 0.9, 0.9), ready=False))
    assert unknown.best() == BestDepths(0, 0, 1.0, 1.0)
    assert unknown.best(if_ready=True).depth > 0


CODE, CHAT = WorkloadClass.CODE, WorkloadClass.CHAT


def sequence(
    kind: WorkloadClass = CODE, emitted: int = 0, allowed: int = 1000, origin: Origin = Origin.CLIENT
) -> DecodeSequence:
    asked = replace(request([1], autoregressive(), max_tokens=allowed), workload=kind, origin=origin)
    made = DecodeSequence.of(asked, Collected(), 4096)
    made.stats.counts.emitted = emitted
    assert made.emitted == emitted
    return made


def ended(lengths: AnswerLengths, *tokens: int, reason: FinishReason = FinishReason.STOP, **more: object) -> None:
    for one in tokens:
        over = sequence(emitted=one, **more)  # type: ignore[arg-type]
        over.finish = reason
        lengths.learn(over)


def test_expected_answer_length_starts_at_default_capped_by_max_tokens() -> None:
    lengths = AnswerLengths()
    assert lengths.expected_remaining(sequence()) == 128
    assert lengths.expected_remaining(sequence(allowed=50)) == 50
    assert lengths.expected_remaining(sequence(allowed=50, emitted=40)) == 10


def test_expected_answer_length_approaches_mean_of_its_workload_class() -> None:
    lengths = AnswerLengths()
    ended(lengths, *[20] * 12)
    assert lengths.expected_remaining(sequence()) == pytest.approx(44, abs=3)
    ended(lengths, *[20] * 40)
    assert lengths.expected_remaining(sequence()) == pytest.approx(20, abs=6)
    assert lengths.expected_remaining(sequence(emitted=500)) == lengths.expected_remaining(sequence()), (
        "however long it is already"
    )
    assert lengths.expected_remaining(sequence(CHAT)) == 128, "other kinds have lengths of their own"


def test_expected_answer_length_follows_recent_answers_and_forgets_old_answers() -> None:
    lengths = AnswerLengths()
    ended(lengths, *[20] * 300, *[200] * 300)
    assert lengths.expected_remaining(sequence()) > 190


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR])
def test_cancelled_or_failed_answers_do_not_change_expected_answer_length(reason: FinishReason) -> None:
    lengths = AnswerLengths()
    ended(lengths, *[3] * 50, reason=reason)
    assert lengths.expected_remaining(sequence()) == 128


def test_probe_answers_do_not_change_expected_answer_length() -> None:
    lengths = AnswerLengths()
    ended(lengths, *[3] * 50, origin=Origin.PROBE)
    assert lengths.expected_remaining(sequence()) == 128
