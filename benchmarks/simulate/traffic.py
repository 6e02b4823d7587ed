"""Requests as they come: Poisson arrivals, kinds of text, and what a draft of a given quality shows on each.

Acceptance differs from request to request with a standard deviation of 0.2, as measured, so that a detector that only
ever saw means would look better than it is. All draws come from one generator: the same seed, the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftd.core import WorkloadClass

STEPS = 20  # drafted steps of a request
SPREAD = 0.2  # standard deviation of acceptance between requests

# Acceptance of a drafted token that is reached, by kind of text: code is easier to foresee than prose.
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
    """What each request shows at one block length: drafted tokens accepted, steps that turned one down."""

    accepted: Ints
    rollbacks: Ints


def arrivals(rng: np.random.Generator, count: int, per_second: float) -> Floats:
    """Times in seconds, from 0."""
    return np.cumsum(rng.exponential(1 / per_second, count))


def drafted(rng: np.random.Generator, means: Floats, depths: Sequence[int], steps: int = STEPS) -> dict[int, Seen]:
    """What requests of these mean acceptances show at each depth: the same draws, cut off sooner or later."""
    own = np.clip(rng.normal(means, SPREAD), 0.01, 0.99)
    # How many tokens in a row are accepted is geometric; a block cuts it off.
    runs = np.floor(np.log(rng.random((len(means), steps))) / np.log(own)[:, None])
    return {k: Seen(np.minimum(runs, k).sum(1).astype(np.int64), (runs < k).sum(1)) for k in depths}
