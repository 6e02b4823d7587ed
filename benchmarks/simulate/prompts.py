"""Simulates the prompts of a probe. They are always the same, so that only the draft differs between two probes."""

from __future__ import annotations

import numpy as np

from benchmarks.simulate.traffic import SPREAD, STEPS
from draftd.fallback.drift import AcceptanceSample, Baseline

PROBE_PROMPTS = 8


class Prompts:
    """Prompts of which each is easier or harder than the mean by a fixed amount. `baseline` is learned from one probe
    without a fault, as the daemon learns it."""

    def __init__(self, rng: np.random.Generator, mean: float) -> None:
        self._easier = rng.normal(0, SPREAD, PROBE_PROMPTS)
        seen = self.shown(rng, mean, 4)
        pooled = AcceptanceSample(sum(sample.accepted for sample in seen), sum(sample.rollbacks for sample in seen))
        spread = float(np.std([sample.acceptance for sample in seen], ddof=1))
        self.baseline = Baseline(pooled.acceptance, spread)

    def shown(self, rng: np.random.Generator, mean: float, depth: int) -> list[AcceptanceSample]:
        """Returns each prompt's acceptance in a probe at `depth` draft tokens, with a draft whose mean acceptance is
        `mean`."""
        own = np.clip(mean + self._easier, 0.01, 0.99)
        runs = np.floor(np.log(rng.random((PROBE_PROMPTS, STEPS))) / np.log(own)[:, None])
        accepted, rollbacks = np.minimum(runs, depth).sum(1), (runs < depth).sum(1)
        return [AcceptanceSample(int(a), int(r)) for a, r in zip(accepted, rollbacks, strict=True)]
