"""How one request will be decoded: the flag's word, the caller's wish, the ladder's ceiling and the model's capability.

They are asked in that order, and each can only lower the last. The reason travels with the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftd.core import DecodeMode, DecodePlan, DrafterKind, FallbackLevel, ModelInfo, ModePreference
from draftd.errors import SpeculationUnavailable
from draftd.policy.flag import FlagResolution


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller asked for. `max_draft_tokens` None means no cap of the caller's own."""

    preference: ModePreference = ModePreference.AUTO
    max_draft_tokens: int | None = None
    drafter: DrafterKind | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the daemon allows: its depth, the drafter where the caller names none, and the ladder's level."""

    max_draft_tokens: int
    drafter: DrafterKind | None = None
    level: FallbackLevel = FallbackLevel.FULL

    @property
    def depth(self) -> int:
        """Most tokens that a round may draft at this level; 0 is autoregressive."""
        if self.level is FallbackLevel.AUTOREGRESSIVE or not self.max_draft_tokens:
            return 0
        return self.max_draft_tokens if self.level is FallbackLevel.FULL else max(1, self.max_draft_tokens // 2)


def decide(wish: Wish, flag: FlagResolution, ceiling: Ceiling, model: ModelInfo, prompt_tokens: int = 0) -> DecodePlan:
    """The plan. Raises SpeculationUnavailable, with the reason, where speculation was demanded and cannot be had."""
    said = f"flag: {flag.reason}" + (f" ({flag.error})" if flag.error else "")
    if not flag.value:
        return _lowered(wish, flag, ceiling, f"{said}, variant {flag.variant}")
    if wish.preference is ModePreference.AUTOREGRESSIVE:
        return _lowered(wish, flag, ceiling, "request: autoregressive")
    if wish.max_draft_tokens == 0:
        return _lowered(wish, flag, ceiling, "request: max_draft_tokens is 0")
    if ceiling.max_draft_tokens == 0:
        return _lowered(wish, flag, ceiling, "configuration: max_draft_tokens is 0")
    if ceiling.level is FallbackLevel.AUTOREGRESSIVE:
        return _lowered(wish, flag, ceiling, "ladder: autoregressive")
    drafter = _drafter(wish, ceiling)
    if drafter not in model.drafters:
        return _lowered(wish, flag, ceiling, _missing(drafter, wish, model))
    limit = model.rollback_limit
    if limit is not None and prompt_tokens + 1 >= limit:
        # The engine would find the same in its first round; here a demand can still be refused.
        reason = f"model: its rotating cache of {limit} tokens is full after a prompt of {prompt_tokens}"
        return _lowered(wish, flag, ceiling, reason)

    notes = [said]
    depth = ceiling.depth
    if ceiling.level < FallbackLevel.FULL:
        notes.append(f"ladder: {ceiling.level.label}")
    if wish.max_draft_tokens is not None and wish.max_draft_tokens > depth:
        notes.append(f"request: max_draft_tokens {wish.max_draft_tokens} lowered to the daemon's {depth}")
    elif wish.max_draft_tokens is not None:
        depth = wish.max_draft_tokens
    return DecodePlan(DecodeMode.SPECULATIVE, depth, drafter, ceiling.level, flag.variant, "; ".join(notes))


def _drafter(wish: Wish, ceiling: Ceiling) -> DrafterKind:
    """The one drafter that may be used: none takes another's place unasked, for not every drafter pays everywhere."""
    if ceiling.level is FallbackLevel.LIGHT_DRAFT:
        return DrafterKind.PROMPT_LOOKUP
    return wish.drafter or ceiling.drafter or DrafterKind.DRAFT_MODEL


def _missing(drafter: DrafterKind, wish: Wish, model: ModelInfo) -> str:
    why = f" ({model.speculation_reason})" if model.speculation_reason else ""
    if wish.drafter is not None:
        return f"request: drafter {drafter} is not available{why}"
    if drafter is DrafterKind.DRAFT_MODEL and model.speculation_reason:
        return f"model: {model.speculation_reason}"
    return f"model: drafter {drafter} is not available{why}"


def _lowered(wish: Wish, flag: FlagResolution, ceiling: Ceiling, reason: str) -> DecodePlan:
    if wish.preference is ModePreference.SPECULATIVE:
        raise SpeculationUnavailable(f"speculation was demanded, and is not available: {reason}")
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, ceiling.level, flag.variant, reason)
