"""One step of a sweep: its requests, all at once, and whether the daemon decoded them as they were meant."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftd.acceptance.arms import Arm
from draftd.acceptance.capture import Capture, capture
from draftd.acceptance.sweep.schedule import token_seed
from draftd.acceptance.ticks import Tick
from draftd.client.asking import Ask
from draftd.core import DecodeMode, FinishReason, SamplingParams

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient
    from draftd.client.prompts import Prompt

_START_SECONDS = 60.0  # until the last of the threads runs
_LAST_WORDS_SECONDS = 10.0  # what is under way when the run is stopped may end for so long


def ask_for(prompt: Prompt, arm: Arm, *, chat: bool, seed: int, repetition: int) -> Ask:
    """`chat`: the model has a template; without one it is given the last message as it is."""
    sampling = SamplingParams()
    if arm.temperature:
        sampling = SamplingParams(arm.temperature, seed=token_seed(seed, repetition, prompt.name))
    return Ask(
        messages=prompt.messages if chat else None,
        prompt=None if chat else prompt.messages[-1][1],
        max_tokens=prompt.max_tokens,
        sampling=sampling,
        mode=arm.mode,
        max_draft_tokens=arm.block_length if arm.speculative else None,
        drafter=None if arm.automatic else arm.drafter,  # as users ask: who names a drafter gets no other
        depth_mode=arm.depth_mode if arm.speculative else None,
        workload=prompt.workload,
    )


def all_at_once(client: DraftdClient, asks: Sequence[Ask], *, timeout: float) -> list[Capture]:
    """A single one is asked on the thread that is here. What another thread raises is raised here."""
    if len(asks) == 1:
        return [capture(client, asks[0], timeout=timeout)]
    taken: list[Capture | None] = [None] * len(asks)
    failures: list[BaseException] = []
    together = threading.Barrier(len(asks))

    def run(number: int) -> None:
        try:
            together.wait(_START_SECONDS)
            taken[number] = capture(client, asks[number], timeout=timeout)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(number,), name=f"draftd-sweep-{number}", daemon=True)
        for number in range(len(asks))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()  # each answer has its own deadline
    except BaseException:
        ends = time.monotonic() + _LAST_WORDS_SECONDS
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
        raise
    if failures:
        raise failures[0]
    return [one for one in taken if one is not None]


def departure(tick: Tick, arm: Arm) -> str:
    """How the daemon decoded otherwise than `arm` asks; empty where it did not. Such a tick is not of that arm."""
    granted = tick.granted
    if tick.error or granted is None:
        return ""
    mode = DecodeMode.SPECULATIVE if arm.speculative else DecodeMode.AUTOREGRESSIVE
    if granted.mode is not mode:
        return f"asked for {mode}, the daemon decoded {granted.mode}: {granted.reason}"
    if granted.max_draft_tokens != arm.block_length:
        why = f"level {granted.level} ({granted.reason})"
        return f"asked for {arm.block_length}, the daemon allowed {granted.max_draft_tokens}: {why}"
    if arm.speculative and granted.depth_mode is not arm.depth_mode:
        return f"asked for {arm.depth_mode} depth, the daemon chose {granted.depth_mode}: {granted.reason}"
    if granted.drafter is not arm.drafter and not arm.automatic:
        return f"asked for {arm.drafter}, the daemon took {granted.drafter}: level {granted.level} ({granted.reason})"
    if arm.speculative and tick.degraded:
        return f"went on autoregressively: {tick.degraded}"
    if tick.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        return f"ended before its text did: {tick.finish_reason}"
    return ""
