"""What a sweep of one daemon consists of: which arms on which prompts, and what is left out and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from draftd.acceptance.arms import AUTOREGRESSIVE, Arm
from draftd.acceptance.sweep.options import SweepOptions
from draftd.acceptance.sweep.prompts import checksums, distinct, group, tokens_of
from draftd.core import DrafterKind
from draftd.errors import DraftdError
from draftd.protocol import DRAFTERS

if TYPE_CHECKING:
    from draftd.client.prompts import Prompt
    from draftd.v1 import inference_pb2 as pb


class NothingToMeasure(DraftdError):
    """No prompt that was asked for fits into the model's context."""

    status = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """`left_out`: of arms, by their ids, the reason. `left_out_prompts` likewise, by name."""

    options: SweepOptions
    arms: tuple[Arm, ...]
    prompts: tuple[Prompt, ...]
    left_out: Mapping[str, str]
    left_out_prompts: Mapping[str, str]

    def frozen(self, requests: int) -> dict[str, Any]:
        """As it lies in a run's folder. `requests` is how many there are to measure."""
        return {
            **self.options.plan(),
            "arms": [arm.id for arm in self.arms],
            "left_out": [{"arm": arm, "reason": reason} for arm, reason in self.left_out.items()],
            "left_out_prompts": [{"prompt": name, "reason": reason} for name, reason in self.left_out_prompts.items()],
            "prompt_checksums": checksums(self.prompts),
            "requests": requests,
        }


def plan_sweep(options: SweepOptions, model: pb.GetModelResponse, max_batch: int | None = None) -> SweepPlan:
    """`max_batch` is how many requests the daemon decodes together, where that is known.

    Raises NothingToMeasure.
    """
    prompts, left_out_prompts = _prompts(options, model.context_length)
    arms: list[Arm] = []
    left_out: dict[str, str] = {}
    offered = [DRAFTERS[kind] for kind in model.drafters]
    for arm in _wanted(options, offered, model.max_draft_tokens):
        reason = _obstacle(arm, model, max_batch, len(prompts))
        if reason:
            left_out.setdefault(arm.id, reason)
        elif arm not in arms:
            arms.append(arm)
    return SweepPlan(options, tuple(arms), tuple(prompts), left_out, left_out_prompts)


def chosen_prompts(options: SweepOptions, model: pb.GetModelResponse) -> tuple[Prompt, ...]:
    """Those that will be asked; their `checksums` are for the manifest. Raises NothingToMeasure."""
    return tuple(_prompts(options, model.context_length)[0])


def _prompts(options: SweepOptions, context_length: int) -> tuple[list[Prompt], dict[str, str]]:
    shipped = [prompt for name in options.groups for prompt in group(name, context_length, options.each)]
    chosen, left_out = [], {}
    for prompt in distinct([*shipped, *options.prompts]):
        if options.max_tokens is not None:
            prompt = replace(prompt, max_tokens=options.max_tokens)
        needed = tokens_of(prompt) + (prompt.max_tokens or 1)
        if needed > context_length:
            left_out[prompt.name] = f"about {needed} tokens with its answer; the model's context is {context_length}"
        else:
            chosen.append(prompt)
    if not chosen:
        raise NothingToMeasure(f"no prompt fits into the model's context of {context_length} tokens")
    return chosen, left_out


def _wanted(options: SweepOptions, offered: list[DrafterKind | None], most: int) -> Iterator[Arm]:
    """One knob at a time, from the base. What the daemon cannot do is among them."""
    drafters = [kind for kind in offered if kind is not None and kind in (options.drafters or offered)]
    missing = [kind for kind in options.drafters or (DrafterKind.DRAFT_MODEL,) if kind not in offered]
    first = drafters[0] if drafters else (missing or [DrafterKind.DRAFT_MODEL])[0]
    base = Arm(_base_block(options, most), first)
    yield AUTOREGRESSIVE
    for length in sorted(set(options.block_lengths) - {0}):
        yield Arm(length, first)
    yield base
    if options.block_length != base.block_length:
        yield replace(base, block_length=options.block_length)
    yield Arm(_longest(options, most), first, automatic=True)
    for kind in (*drafters, *missing):
        yield replace(base, drafter=kind)
    for temperature in sorted(set(options.temperatures) - {0.0}):
        yield from (replace(arm, temperature=temperature) for arm in (AUTOREGRESSIVE, base))
    for together in sorted(set(options.concurrency) - {1}):
        yield from (replace(arm, concurrency=together) for arm in (AUTOREGRESSIVE, base))


def _base_block(options: SweepOptions, most: int) -> int:
    """The one asked for; where the daemon drafts no such block, the longest of the others that it does."""
    if options.block_length <= most:
        return options.block_length
    return max((length for length in options.block_lengths if 0 < length <= most), default=options.block_length)


def _longest(options: SweepOptions, most: int) -> int:
    """What automatic depth may go up to: the longest block that is swept, or the longest that the daemon drafts."""
    return max(1, min(options.longest_block, most))


def _obstacle(arm: Arm, model: pb.GetModelResponse, max_batch: int | None, prompts: int) -> str:
    """Why this daemon cannot be measured so; empty where it can."""
    if arm.speculative:
        if not model.speculation_available and not model.drafters:
            return f"the daemon does not speculate: {model.speculation_reason or 'it offers no drafter'}"
        if arm.drafter not in [DRAFTERS[kind] for kind in model.drafters]:
            why = model.light_draft_reason if arm.drafter is DrafterKind.LIGHT_DRAFT_MODEL else model.speculation_reason
            return f"the daemon offers no {arm.drafter}" + (f": {why}" if why else "")
        if arm.block_length > model.max_draft_tokens:
            return f"the daemon drafts {model.max_draft_tokens} tokens a round at most (engine.max_draft_tokens)"
    if max_batch is not None and arm.concurrency > max_batch:
        return f"the daemon decodes {max_batch} requests together at most (engine.max_batch)"
    if arm.concurrency > prompts:
        return f"there are {prompts} prompts, and each is asked once at a time"
    return ""
