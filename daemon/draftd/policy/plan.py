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


def decide(wish: Wish, flag: FlagResolution, ceiling: Ceiling, model: ModelInfo) -> DecodePlan:
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
    if not model.speculation_available:
        return _lowered(wish, flag, ceiling, f"model: {model.speculation_reason}")

    notes = [said]
    drafter = _drafter(wish, ceiling, model, notes)
    if drafter is None:
        return _lowered(wish, flag, ceiling, notes[-1])
    depth = ceiling.max_draft_tokens
    if ceiling.level < FallbackLevel.FULL:
        depth = max(1, depth // 2)
        notes.append(f"ladder: {ceiling.level.name.lower()}")
    if wish.max_draft_tokens is not None and wish.max_draft_tokens > depth:
        notes.append(f"request: max_draft_tokens {wish.max_draft_tokens} lowered to the daemon's {depth}")
    elif wish.max_draft_tokens is not None:
        depth = wish.max_draft_tokens
    return DecodePlan(DecodeMode.SPECULATIVE, depth, drafter, ceiling.level, flag.variant, "; ".join(notes))


def _drafter(wish: Wish, ceiling: Ceiling, model: ModelInfo, notes: list[str]) -> DrafterKind | None:
    """The drafter to use; None, with a note why, where there is none that may be used."""
    if ceiling.level is FallbackLevel.LIGHT_DRAFT:
        if DrafterKind.PROMPT_LOOKUP in model.drafters:
            return DrafterKind.PROMPT_LOOKUP
        notes.append("ladder: light_draft, and no light drafter is loaded")
        return None
    if wish.drafter in model.drafters:
        return wish.drafter
    if wish.drafter is not None:
        notes.append(f"request: drafter {wish.drafter} is not available{_because(model)}")
        if wish.preference is ModePreference.SPECULATIVE:
            return None
    return ceiling.drafter if ceiling.drafter in model.drafters else model.drafters[0]


def _because(model: ModelInfo) -> str:
    return f" ({model.speculation_reason})" if model.speculation_reason else ""


def _lowered(wish: Wish, flag: FlagResolution, ceiling: Ceiling, reason: str) -> DecodePlan:
    if wish.preference is ModePreference.SPECULATIVE:
        raise SpeculationUnavailable(f"speculation was demanded, and is not available: {reason}")
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, ceiling.level, flag.variant, reason)
