"""How one request will be decoded: the flag's word, the caller's wish, the ladder's ceiling and the model's capability.

They are asked in that order, and each can only lower the last. The reason travels with the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftd.core import DecodeMode, DecodePlan, DrafterKind, FallbackLevel, ModelInfo, ModePreference
from draftd.errors import SpeculationUnavailable
from draftd.policy.flag import FlagResolution
from draftd.policy.ladder import Rung

_WEIGHT = (DrafterKind.DRAFT_MODEL, DrafterKind.LIGHT_DRAFT_MODEL, DrafterKind.PROMPT_LOOKUP)  # heaviest first


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller asked for. `max_draft_tokens` None means no cap of the caller's own."""

    preference: ModePreference = ModePreference.AUTO
    max_draft_tokens: int | None = None
    drafter: DrafterKind | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the daemon allows: the rung that the ladder stands on. The first one is all that is configured."""

    rung: Rung

    @property
    def level(self) -> FallbackLevel:
        return self.rung.level

    @property
    def depth(self) -> int:
        """Most tokens that a round may draft; 0 is autoregressive."""
        return self.rung.max_draft_tokens


def decide(wish: Wish, flag: FlagResolution, ceiling: Ceiling, model: ModelInfo, prompt_tokens: int = 0) -> DecodePlan:
    """The plan. Raises SpeculationUnavailable, with the reason, where speculation was demanded and cannot be had."""
    said = f"flag: {flag.reason}" + (f" ({flag.error})" if flag.error else "")
    if not flag.value:
        return _lowered(wish, flag, ceiling, f"{said}, variant {flag.variant}")
    if wish.preference is ModePreference.AUTOREGRESSIVE:
        return _lowered(wish, flag, ceiling, "request: autoregressive")
    if wish.max_draft_tokens == 0:
        return _lowered(wish, flag, ceiling, "request: max_draft_tokens is 0")
    if ceiling.level is FallbackLevel.AUTOREGRESSIVE:
        return _lowered(wish, flag, ceiling, "ladder: autoregressive")
    if ceiling.depth == 0:
        return _lowered(wish, flag, ceiling, "configuration: max_draft_tokens is 0")
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
    allowed = ceiling.rung.drafter
    assert allowed is not None, ceiling
    if wish.drafter is None:
        return allowed
    if ceiling.level is FallbackLevel.LIGHT_DRAFT and _WEIGHT.index(wish.drafter) < _WEIGHT.index(allowed):
        return allowed
    return wish.drafter


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
