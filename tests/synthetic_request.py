"""Simulates one request, decoded step by step by a daemon of given speed and acceptance."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from draftd.client.timing import TimedChunk
from draftd.core import PROMPT_LOOKUP, DecodeMode, FinishReason
from draftd.counts import DraftCounts, StepCounts
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, GrantedPlan, RunPlace, ServerTiming, Tick

BEGAN = 1_760_000_000.0  # Unix time of a run's beginning
_PROMPT_TOKENS = {"short_control": 24, "medium_reasoning": 180, "long_context": 620}


@dataclass(frozen=True, slots=True)
class Truth:
    """Properties of the daemon. `alpha` is the probability that a drafted token is accepted if all before it were.

    A step of k costs token_seconds * (1 + verify_slope * k) + k * draft_seconds; an autoregressive step token_seconds.
    `noise` is the relative standard deviation of every time, `spread` that of alpha between groups (absolute).
    """

    alpha: float = 0.88
    token_seconds: float = 0.020
    draft_seconds: float = 0.0025
    verify_slope: float = 0.04
    first_token_seconds: float = 0.060  # autoregressive, without the prompt's own cost
    first_token_factor: float = 1.01  # speculative over autoregressive
    prompt_token_seconds: float = 0.0004
    network_seconds: float = 0.0008
    noise: float = 0.02
    spread: float = 0.03
    lookup_alpha: float = 0.55
    sampled_alpha: float = 0.78  # at a temperature
    batch_slope: float = 0.15  # a further row makes a step this much longer

    def alpha_of(self, arm: Arm, group: str = "") -> float:
        alpha = self.alpha
        if arm.drafter == PROMPT_LOOKUP:
            alpha = self.lookup_alpha
        elif arm.temperature:
            alpha = self.sampled_alpha
        lift = {"code": 1.0, "tool_call": 1.0, "prose": -1.0, "chat": -1.0}.get(group, 0.0)
        return min(0.999, max(0.0, alpha + lift * self.spread)) if alpha else 0.0

    def step_seconds(self, arm: Arm) -> tuple[float, float]:
        """Returns the seconds of drafting and of verifying in one step."""
        verify = self.token_seconds * (1 + self.verify_slope * arm.block_length)
        verify *= 1 + self.batch_slope * (arm.concurrency - 1)
        draft = 0.0002 if arm.drafter == PROMPT_LOOKUP else arm.block_length * self.draft_seconds
        return draft, verify

    def speedup(self, block_length: int) -> float:
        """Returns the speed-up by Leviathan's formula, with these costs."""
        arm = Arm(block_length) if block_length else AUTOREGRESSIVE
        tokens = sum(self.alpha**i for i in range(block_length + 1))
        return tokens * self.token_seconds / sum(self.step_seconds(arm))


def request(
    random_: random.Random,
    truth: Truth,
    arm: Arm,
    place: RunPlace,
    elapsed: float,
    *,
    tokens: int = 48,
    alpha: float | None = None,
    error: str = "",
    text: str | None = None,
) -> Tick:
    """Simulates one request, step by step."""

    def time(seconds: float) -> float:
        return seconds * max(0.2, random_.gauss(1.0, truth.noise))

    chance = truth.alpha_of(arm, place.group) if alpha is None else alpha
    prompt_tokens = _PROMPT_TOKENS.get(place.group, 60) + len(place.prompt)
    queue = time(0.0004)
    prefill = time(truth.first_token_seconds + prompt_tokens * truth.prompt_token_seconds)
    if arm.speculative:
        prefill *= truth.first_token_factor
    at = queue + prefill + truth.network_seconds
    chunks, counts, made = [TimedChunk(at, 1, 0)], DraftCounts(), 1
    counts.add(StepCounts(0, 0, 1, 0, 0.0, time(truth.token_seconds)))
    while made < tokens:
        drafting, verifying = (time(seconds) for seconds in truth.step_seconds(arm))
        accepted = 0
        while accepted < arm.block_length and random_.random() < chance:
            accepted += 1
        emitted = min(accepted + 1, tokens - made)
        at += drafting + verifying
        made += emitted
        chunks.append(TimedChunk(at, emitted, min(accepted, emitted)))
        forwards = 0 if arm.drafter in (None, PROMPT_LOOKUP) else arm.block_length
        even = (drafting + verifying) / truth.token_seconds - 1 if arm.speculative else 0.0
        counts.add(StepCounts(arm.block_length, accepted, emitted, forwards, drafting, verifying, even))
    mode = DecodeMode.SPECULATIVE if arm.speculative else DecodeMode.AUTOREGRESSIVE
    return Tick(
        place=place,
        elapsed=elapsed,
        asked_at=BEGAN + elapsed,
        ended=at + 0.0002,
        chunks=() if error else tuple(chunks),
        error=error,
        prompt_tokens=prompt_tokens,
        output_tokens=0 if error else made,
        finish_reason=None if error else FinishReason.LENGTH,
        granted=GrantedPlan(mode, arm.block_length, arm.drafter, "full", "on", "asked for", arm.depth_mode),
        served=None if error else ServerTiming(queue, prefill, queue + prefill, at - truth.network_seconds),
        counts=DraftCounts() if error else counts,
        digest="" if error else _digest(place, arm),
        text=text,
    )


def _digest(place: RunPlace, arm: Arm) -> str:
    """Returns the text's digest: greedy texts are the same in both modes, sampled ones all differ."""
    said = f"{place.prompt} {place.repetition} {arm.id}" if arm.temperature else place.prompt
    return hashlib.sha256(said.encode()).hexdigest()[:16]
