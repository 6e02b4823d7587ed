"""Simulates requests: Poisson arrivals, prompt categories (classes), and the acceptance of a draft of a given quality.

Acceptance varies between requests with a standard deviation of 0.2, as measured; a detector that saw only means would
look better than it is. One generator draws all random numbers: the same seed gives the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftd.core import WorkloadClass

STEPS = 20  # drafted steps of a request
SPREAD = 0.2  # standard deviation of acceptance between requests

# Probability that a drafted token is accepted if all before it were, by category: code is more predictable than prose.
MEANS: Mapping[WorkloadClass, float] = {
    WorkloadClass.CODE: 0.84,
    WorkloadClass.CHAT: 0.70,
    WorkloadClass.PROSE: 0.62,
}
LOOKUP_MEANS: Mapping[WorkloadClass, float] = {
    WorkloadClass.CODE: 0.45,
    WorkloadClass.CHAT: 0.25,
    WorkloadClass.PROSE: 0.20,
}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of each request at one depth: its accepted draft tokens, and its steps in which one was rejected."""

    accepted: Ints
    rollbacks: Ints


def arrivals(rng: np.random.Generator, count: int, per_second: float) -> Floats:
    """Returns the times of Poisson arrivals, in seconds from 0."""
    return np.cumsum(rng.exponential(1 / per_second, count))


def drafted(rng: np.random.Generator, means: Floats, depths: Sequence[int], steps: int = STEPS) -> dict[int, Seen]:
    """Returns the counts of requests with these mean acceptances, by depth. All depths share the same random numbers,
    cut off at the depth."""
    own = np.clip(rng.normal(means, SPREAD), 0.01, 0.99)
    # How many tokens in a row are accepted is geometric; a block cuts it off.
    runs = np.floor(np.log(rng.random((len(means), steps))) / np.log(own)[:, None])
    return {k: Seen(np.minimum(runs, k).sum(1).astype(np.int64), (runs < k).sum(1)) for k in depths}
