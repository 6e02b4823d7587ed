"""How much the engine may take on: set once, from the settings and from what the machine says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REST_SECONDS = 0.25
"""Without a request, until an engine measures what waits for an idle moment: who has an answer may ask again at once,
and who has started a daemon may ask as soon as it serves."""

MOST_REPLAYED = 4
"""Tokens of a sequence that a target computes again in front of a draft, where a layer could not be rolled back to
their end: so many, and no more than are drafted. A sequence with more of them drafts nothing in its next step, with
which they end. All sequences of a step are as wide as the widest: more bounds were measured, and this was the fastest
(benchmarks/layers.py)."""


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Of sequences that another daemon's target decodes."""

    max_draft_tokens: int = 8  # proposed at a time; 0 streams without drafts
    in_flight: int = 4  # proposals of a sequence on their way
    sequences: int = 64  # open at a time; more wait
    step_seconds: float = 5.0  # in which a verdict comes, besides what steps wait in the verifier's queue


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_share` and `headroom` are asked on the engine thread, between steps, `available` on any: they must not
    block."""

    queue_capacity: int = 64  # requests that wait
    max_batch: int = 8  # requests that decode at one time
    max_draft_tokens: int = 8  # the most that any plan lets a step draft; costs are known up to there
    prefill_chunk: int = 512  # tokens of prompt in one forward
    prefill_slice_seconds: float = 1.0  # the longest that running sequences wait for a slice of a prompt
    prefix_cache_bytes: int | None = 0  # for what is kept of prompts; None: by what is known of memory, as below
    prefix_folder: Path | None = None  # where prefixes are kept over a restart; None keeps none
    prefix_disk_bytes: int = 0  # of files there that are not pinned
    prefix_pinned_bytes: int = 4 * 2**30  # of the pinned ones
    kv_cache_bytes: int | None = None  # for running requests; None: by what is known of memory once the model is there
    gather_seconds: float = 0.0  # the longest that a peer's step waits for those of other peers
    part_of_peer: float = 1.0  # of the target's time, that a peer has at most while others want it
    idle_unload_seconds: float = 0.0  # without requests, until the weights are let go; 0: never
    remote: RemoteLimits = RemoteLimits()
    #: How much of what may be held for later requests the machine's memory has room for now, from 0 to 1.
    memory_share: Callable[[], float] = lambda: 1.0
    #: Bytes that may still be taken, 0 or less in critical memory pressure; None where that is not known.
    headroom: Callable[[], int | None] = lambda: None
    #: Bytes that the machine has left, whoever they are meant for; None where that is not known.
    available: Callable[[], int | None] = lambda: None
