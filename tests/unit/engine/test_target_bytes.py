"""All that crosses the seam to a target can be written as bytes, and the text is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import PROMPT_LOOKUP, SamplingParams, TokenLogprobs
from draftd.engine.step import Entry, EntryResult, StepPlan, StepResult
from draftd.engine.targets.base import SequenceOptions, Target
from tests.rig import Rig, automatic, autoregressive, pair, request, speculative, tiny_llama
from tests.scripted import scripted_models

GREEDY, SEEDED, FREE = SamplingParams(), SamplingParams(0.9, top_p=0.9, seed=5), SamplingParams(1.0)
LOOKUP = speculative(3, PROMPT_LOOKUP)


class ThroughBytes:
    """A target behind bytes: nothing else reaches the one behind it, draft distributions among that."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self.plans = list[StepPlan]()
        self.unread = self.ahead = 0  # plans submitted and not read; those submitted while another was unread

    def open(self, sequence: int, options: SequenceOptions) -> int | None:
        return self._inner.open(sequence, SequenceOptions.from_bytes(options.to_bytes()))

    def known(self, tokens: Sequence[int]) -> int | None:
        return self._inner.known(tokens)

    def fork(self, sequence: int, length: int) -> None:
        self._inner.fork(sequence, length)

    def submit(self, plan: StepPlan) -> None:
        plan = StepPlan.from_bytes(plan.to_bytes())
        self.plans.append(plan)
        self.ahead += self.unread > 0
        self.unread += 1
        self._inner.submit(plan)

    def results(self) -> Iterator[StepResult]:
        for result in self._inner.results():
            self.unread -= 1
            yield StepResult.from_bytes(result.to_bytes())

    def keep(self, sequence: int, length: int, *, last: bool = False) -> None:
        self._inner.keep(sequence, length, last=last)

    def close(self, sequences: Any) -> None:
        self._inner.close(list(sequences))

    def reset(self) -> None:
        self._inner.reset()

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes


def behind_bytes(models: Any, **more: Any) -> tuple[Rig, ThroughBytes]:
    rig = Rig(models, wrap=ThroughBytes, **more)
    target: Any = rig.scheduler.target
    return rig, target


@pytest.fixture(scope="module")
def models() -> Any:
    return pair(tiny_llama(1, scale=2.0), tiny_llama(2, scale=2.0))


def prompt(length: int, first: int) -> list[int]:
    return [(7 * i + first) % 31 for i in range(length)]


@pytest.mark.parametrize("batch", [1, 4])
def test_texts_are_the_same_through_bytes(models: Any, batch: int) -> None:
    """Greedy and seeded, drafted for and not, prompts of unlike length in slices, joined and left at unlike times."""
    plans = [speculative(4), autoregressive(), LOOKUP, automatic(3), speculative(1), autoregressive()]
    changed = replace(SEEDED, seed=2**63, logit_bias=((3, 2.0),), repetition_penalty=1.3, frequency_penalty=0.2)
    ways = [GREEDY, SEEDED, changed, GREEDY, SEEDED, GREEDY]

    def asked() -> list[Any]:
        cases = enumerate(zip(plans, ways, strict=True))
        return [request(prompt(5 + 9 * i, i), plan, max_tokens=20 + 6 * i, sampling=way) for i, (plan, way) in cases]

    direct = Rig(models, max_batch=batch, prefill_chunk=8).run(asked())
    rig, target = behind_bytes(models, max_batch=batch, prefill_chunk=8)
    through = rig.run(asked())
    assert [sink.tokens for sink in through] == [sink.tokens for sink in direct]
    assert not any(sink.done.degraded for sink in through)
    entries = [entry for plan in target.plans for entry in plan.entries]
    assert any(entry.drafted for entry in entries)
    assert sum(len(entry.tokens) for entry in entries) == sum(5 + 9 * i for i in range(6))
    assert sum(entry.tokens != () and not entry.wanted for entry in entries) > 10, "slices"


def test_plain_steps_run_ahead_through_bytes(models: Any) -> None:
    def asked() -> list[Any]:
        ways = [GREEDY, SEEDED, GREEDY]
        return [request(prompt(6, i), autoregressive(), max_tokens=24, sampling=way) for i, way in enumerate(ways)]

    rig, target = behind_bytes(models)
    assert [sink.tokens for sink in rig.run(asked())] == [sink.tokens for sink in Rig(models).run(asked())]
    assert target.ahead > 15
    assert sum(len(entry.tokens) for plan in target.plans for entry in plan.entries) == 18, "answers are not sent back"


def test_what_is_found_in_the_prefix_store_is_not_sent(models: Any) -> None:
    rig, target = behind_bytes(scripted_models(0.7), prefix_bytes=1 << 24)
    rig.run([request(prompt(60, 1), speculative(3), max_tokens=8)])
    del target.plans[:]
    (sink,) = rig.run([request(prompt(60, 1), speculative(3), max_tokens=8)])
    assert sink.done.stats.cached_tokens == 59
    assert target.plans[0].entries == [Entry(2, 59, tuple(prompt(60, 1)[59:]))]


def test_without_a_seed_nothing_is_drafted_through_bytes(models: Any) -> None:
    """Exact sampling needs the draft's distributions, which only a target on this machine takes."""
    rig, _ = behind_bytes(models)
    free, seeded = rig.run(
        [request(prompt(6, i), speculative(3), max_tokens=20, sampling=way) for i, way in enumerate([FREE, SEEDED])]
    )
    assert "without a seed" in free.done.degraded
    assert free.done.stats.counts.drafted == 0
    assert len(free.tokens) == 20
    alone = request(prompt(6, 1), autoregressive(), max_tokens=20, sampling=SEEDED)
    assert seeded.tokens == Rig(models).run([alone])[0].tokens
    assert seeded.done.stats.counts.drafted > 0


def test_values_survive_bytes() -> None:
    way = replace(SEEDED, seed=2**64 - 1, logit_bias=((3, -0.5), (4, 2.0)), presence_penalty=0.1)
    options = SequenceOptions(7, 9, way, (1, 2, 3), ends=(30, 31), min_tokens=4, logprobs=0, prompt_logprobs=2)
    assert SequenceOptions.from_bytes(options.to_bytes()) == options
    plan = StepPlan(3, [Entry(1, 0, (5, 6), wanted=False), Entry(2, 8, (), 2)], [[4, 4]])
    assert StepPlan.from_bytes(plan.to_bytes()) == plan
    told = (TokenLogprobs(-0.1, ((4, -0.1), (5, -2.0))), TokenLogprobs(-3.0))
    taken = EntryResult(1, [], 5, prompt=(TokenLogprobs(-2.0, (), 7),))
    result = StepResult(3, [taken, EntryResult(2, [4], 9, 1, told)], 3)
    assert StepResult.from_bytes(result.to_bytes()) == result
