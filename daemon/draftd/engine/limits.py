"""The engine's limits: set once, from the settings and the machine's figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REST_SECONDS = 0.25
"""Seconds without a request until an idle engine measures: a client may ask again right after an answer, or as soon as
the daemon serves."""

MOST_REPLAYED = 4
"""The most tokens of a sequence that a target computes again before a draft, if a layer could not be rolled back to
their end; nor may they be more than are drafted. A sequence with more drafts nothing in its next step, which computes
them. A step is as wide as its widest sequence; of several bounds this was measured as the fastest
(benchmarks/layers.py)."""


EXACT_SLICE = 64
"""Tokens of a prompt in one forward of an exact model. Slices begin at its multiples, and only a prompt's last one is
shorter. Prompts are computed in slices, because a token at a time would take far too long. A token's bits depend on its
slice, so slices must depend on nothing but the prompt."""


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Limits for sequences that another daemon's target decodes."""

    max_draft_tokens: int = 8  # proposed at a time; 0 streams without drafts
    in_flight: int = 4  # proposals of a sequence on their way
    sequences: int = 64  # open at a time; more wait
    step_seconds: float = 5.0  # the longest wait for a verdict, without a step's wait in the verifier's queue


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine. The engine thread calls `memory_share` and `headroom` between steps, any thread
    `available`: they must not block."""

    queue_capacity: int = 64  # requests that wait
    max_batch: int = 8  # requests that decode at one time
    max_draft_tokens: int = 8  # the most that any plan lets a step draft; costs are measured up to it
    exact: bool = False  # a text does not depend on depth, batch, slices or cached prefixes
    prefill_chunk: int = 512  # tokens of prompt in one forward
    prefill_slice_seconds: float = 1.0  # the longest that running sequences wait for a slice of a prompt
    prefix_cache_bytes: int | None = 0  # for kept prompts; None: from the memory figures below
    prefix_folder: Path | None = None  # where prefixes are kept over a restart; None keeps none
    prefix_disk_bytes: int = 0  # of files there that are not pinned
    prefix_pinned_bytes: int = 4 * 2**30  # of the pinned ones
    kv_cache_bytes: int | None = None  # for running requests; None: from the memory figures once the model is loaded
    gather_seconds: float = 0.0  # the longest that a peer's step waits for those of other peers
    part_of_peer: float = 1.0  # of the target's time, the most that a peer gets while others want it
    idle_unload_seconds: float = 0.0  # without requests, until the weights are unloaded; 0: never
    remote: RemoteLimits = RemoteLimits()
    #: The share of the prefix cache that the machine's memory has room for now, from 0 to 1.
    memory_share: Callable[[], float] = lambda: 1.0
    #: Bytes that may still be taken, 0 or less in critical memory pressure; None if not known.
    headroom: Callable[[], int | None] = lambda: None
    #: Bytes that the machine has left for any use; None if not known.
    available: Callable[[], int | None] = lambda: None
