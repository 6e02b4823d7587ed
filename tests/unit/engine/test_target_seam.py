"""The scheduler knows of a target what the protocol has: behind nothing else the texts are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import PROMPT_LOOKUP, SamplingParams
from draftd.engine.step import PlanEntry, StepPlan, StepResult
from draftd.engine.targets.base import SequenceOptions, Target
from tests.rig import Rig, automatic, autoregressive, pair, request, speculative, steady_timer, tiny_llama
from tests.scripted import scripted_models

GREEDY, SEEDED, FREE = SamplingParams(), SamplingParams(0.9, top_p=0.9, seed=5), SamplingParams(1.0)
LOOKUP = speculative(3, PROMPT_LOOKUP)


class Seam:
    """A target of the protocol's methods alone, which notes the plans that cross it."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self.plans = list[StepPlan]()
        self.unread = self.ahead = 0  # plans submitted and not read; those submitted while another was unread

    def open(self, sequence: int, options: SequenceOptions) -> int | None:
        return self._inner.open(sequence, options)

    def cached_prefix(self, tokens: Sequence[int]) -> int | None:
        return self._inner.cached_prefix(tokens)

    def fork(self, sequence: int, length: int) -> None:
        self._inner.fork(sequence, length)

    def submit(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.ahead += self.unread > 0
        self.unread += 1
        self._inner.submit(plan)

    def results(self) -> Iterator[StepResult]:
        for result in self._inner.results():
            self.unread -= 1
            yield result

    def keep(self, sequence: int, length: int, *, last: bool = False) -> None:
        self._inner.keep(sequence, length, last=last)

    def close(self, sequences: Any) -> None:
        self._inner.close(list(sequences))

    def reset(self) -> None:
        self._inner.reset()

    @property
    def slice_width(self) -> int:
        return self._inner.slice_width

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes


def behind_seam(models: Any, **more: Any) -> tuple[Rig, Seam]:
    rig = Rig(models, wrap=Seam, **more)
    target: Any = rig.scheduler.local.target
    return rig, target


@pytest.fixture(scope="module")
def models() -> Any:
    return pair(tiny_llama(1, scale=2.0), tiny_llama(2, scale=2.0))


def prompt(length: int, first: int) -> list[int]:
    return [(7 * i + first) % 31 for i in range(length)]


@pytest.mark.parametrize("batch", [1, 4])
def test_texts_are_equal_when_scheduler_sees_only_the_python_target_interface(models: Any, batch: int) -> None:
    """Greedy, seeded and free, drafted for and not; prompts of unlike length in slices, joined and left at will."""
    plans = [speculative(4), autoregressive(), LOOKUP, automatic(3), speculative(1), autoregressive()]
    changed = replace(SEEDED, seed=2**63, logit_bias=((3, 2.0),), repetition_penalty=1.3, frequency_penalty=0.2)
    ways = [FREE, SEEDED, changed, GREEDY, SEEDED, GREEDY]

    def asked() -> list[Any]:
        cases = enumerate(zip(plans, ways, strict=True))
        return [request(prompt(5 + 9 * i, i), plan, max_tokens=20 + 6 * i, sampling=way) for i, (plan, way) in cases]

    def made() -> dict[str, Any]:
        """Steps take the same time in both: what is drawn without a seed depends on when a draft is there."""
        return {"max_batch": batch, "prefill_chunk": 8, "timer": steady_timer()}

    direct = Rig(models, **made()).run(asked())
    rig, target = behind_seam(models, **made())
    through = rig.run(asked())
    assert [sink.tokens for sink in through] == [sink.tokens for sink in direct]
    assert not any(sink.done.degraded for sink in through)
    entries = [entry for plan in target.plans for entry in plan.entries]
    assert any(entry.drafted for entry in entries)
    assert sum(len(entry.tokens) for entry in entries) == sum(5 + 9 * i for i in range(6))
    assert sum(entry.tokens != () and not entry.wanted for entry in entries) > 10, "slices"


def test_autoregressive_steps_are_launched_early_through_the_python_target_interface(models: Any) -> None:
    def asked() -> list[Any]:
        ways = [GREEDY, SEEDED, GREEDY]
        return [request(prompt(6, i), autoregressive(), max_tokens=24, sampling=way) for i, way in enumerate(ways)]

    rig, target = behind_seam(models)
    assert [sink.tokens for sink in rig.run(asked())] == [sink.tokens for sink in Rig(models).run(asked())]
    assert target.ahead > 15
    assert sum(len(entry.tokens) for plan in target.plans for entry in plan.entries) == 18, "answers are not sent back"


def test_prompt_in_prefix_cache_submits_only_its_last_token_to_target(models: Any) -> None:
    rig, target = behind_seam(scripted_models(0.7), prefix_bytes=1 << 24)
    rig.run([request(prompt(60, 1), speculative(3), max_tokens=8)])
    del target.plans[:]
    (sink,) = rig.run([request(prompt(60, 1), speculative(3), max_tokens=8)])
    assert sink.done.stats.cached_tokens == 59
    assert target.plans[0].entries == [PlanEntry(2, 59, tuple(prompt(60, 1)[59:]))]
