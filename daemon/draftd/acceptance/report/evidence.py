"""All that a report rests on, read once from a run's folder and derived anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.acceptance.cost import CostRates
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.manifest import Manifest
from draftd.acceptance.report.arms import present
from draftd.acceptance.samples import Sample
from draftd.acceptance.statistics import Interval
from draftd.acceptance.summary import ArmSummary, against, measure, select, summarise
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Stage, Tick
from draftd.core import DRAFT_MODEL

_OF_ALL = (
    "decode_tokens_per_second",
    "time_to_first_token",
    "inter_token_p95",
    "acceptance",
    "acceptance_at_position_0",
    "mean_accepted_length",
)
"""What is shown of every arm; the other metrics only of some."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """`gains` are decode throughput over the autoregressive arm of the same temperature and concurrency."""

    ticks: Sequence[Tick]
    samples: Sequence[Sample]
    plan: Mapping[str, Any]
    arms: tuple[Arm, ...]
    summaries: Mapping[Arm, ArmSummary]
    gains: Mapping[Arm, Interval | None]

    @property
    def lengths(self) -> tuple[Arm, ...]:
        """The arms that differ in nothing but the block length, from 0; of the draft model where there is one."""
        fixed = [arm for arm in self.arms if arm.speculative and not arm.automatic]
        alone = [arm for arm in fixed if not arm.temperature and arm.concurrency == 1]
        drafters = [arm.drafter for arm in alone]
        first = DRAFT_MODEL if DRAFT_MODEL in drafters else next(iter(drafters), None)
        plain = [AUTOREGRESSIVE] if AUTOREGRESSIVE in self.arms else []
        return (*plain, *(arm for arm in alone if arm.drafter == first))

    def figure(self, arm: Arm, metric: str) -> Interval | None:
        """One of summary.METRICS; None where the arm was not measured."""
        if arm not in self.summaries:
            return None
        figures = self.summaries[arm].figures
        return figures[metric] if metric in figures else measure(self.of(arm), metric)

    def of(self, arm: Arm) -> list[Tick]:
        return select(self.ticks, arm=arm.id)


def sweep(folder: RunFolder) -> Sweep | None:
    """None where the run has none."""
    ticks = folder.ticks(Stage.SWEEP)
    arms = present(select(ticks))
    if not arms:
        return None
    samples = folder.samples(Stage.SWEEP)
    return Sweep(
        ticks,
        samples,
        folder.plan(Stage.SWEEP) or {},
        arms,
        {arm: summarise(ticks, samples, arm.id, _OF_ALL) for arm in arms},
        {
            arm: against(ticks, arm.id, arm.baseline.id, "decode_tokens_per_second")
            for arm in arms
            if arm.speculative and arm.baseline in arms
        },
    )


def rates(manifests: Mapping[int, Manifest], watts: float | None) -> CostRates | None:
    """As the daemon's settings have them, with the power that was measured where they name none."""
    if not manifests:
        return None
    found = CostRates.from_settings(manifests[max(manifests)].settings)
    return None if found is None else found.measuring(watts)
