"""The prompts of a probe: always the same ones, so that what differs from one probe to the next is the draft."""

from __future__ import annotations

import numpy as np

from benchmarks.simulate.traffic import SPREAD, STEPS
from draftd.fallback.drift import AcceptanceSample, Baseline

PROBE_PROMPTS = 8


class Prompts:
    """Each is easier or harder than the mean by an amount of its own. The baseline is learnt from one run while all is
    well, as the daemon does."""

    def __init__(self, rng: np.random.Generator, mean: float) -> None:
        self._easier = rng.normal(0, SPREAD, PROBE_PROMPTS)
        seen = self.shown(rng, mean, 4)
        pooled = AcceptanceSample(sum(sample.accepted for sample in seen), sum(sample.rollbacks for sample in seen))
        spread = float(np.std([sample.acceptance for sample in seen], ddof=1))
        self.baseline = Baseline(pooled.acceptance, spread)

    def shown(self, rng: np.random.Generator, mean: float, depth: int) -> list[AcceptanceSample]:
        """One run of them with a draft that is accepted at `mean` on average."""
        own = np.clip(mean + self._easier, 0.01, 0.99)
        runs = np.floor(np.log(rng.random((PROBE_PROMPTS, STEPS))) / np.log(own)[:, None])
        accepted, rollbacks = np.minimum(runs, depth).sum(1), (runs < depth).sum(1)
        return [AcceptanceSample(int(a), int(r)) for a, r in zip(accepted, rollbacks, strict=True)]
