"""How one request will be decoded: the flag, what the client asks for, the ladder's ceiling and the model's capability.

They are asked in that order, and each can only lower the last. The reason travels with the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftd.core import (
    DRAFT_MODEL,
    GRAMMAR,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DepthMode,
    DrafterName,
    FallbackLevel,
    ModePreference,
    WorkloadClass,
    drafter_cost_rank,
)
from draftd.errors import SpeculationUnavailable
from draftd.fallback.ladder import LadderLevel, LevelInForce
from draftd.model_info import ModelInfo
from draftd.planning.flag_file import FlagResolution
from draftd.strategies import QualityClass, Strategy


@dataclass(frozen=True, slots=True)
class FlagContext:
    """What targeting rules can match on. `caller` is the targeting key."""

    model: str = ""
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller asked for. `max_draft_tokens` None means no cap of the caller's own, `depth_mode` None the
    daemon's default. `constrained`: the answer must follow a grammar. `strategy` None: the flag's; a strategy that is
    named is demanded. `quality`: the least class of the answer; `max_seconds`, `max_cost`: of the whole answer."""

    preference: ModePreference = ModePreference.AUTO
    max_draft_tokens: int | None = None
    drafter: DrafterName | None = None
    depth_mode: DepthMode | None = None
    constrained: bool = False
    strategy: Strategy | None = None
    quality: QualityClass | None = None
    max_seconds: float | None = None
    max_cost: float | None = None


class FlagSource(Protocol):
    """Answers what the flag says: FlagService. Never blocks on a network, never raises."""

    def evaluate(self, context: FlagContext) -> FlagResolution: ...


class Planner:
    """Gives each request its plan. `in_force` holds the level that is the ceiling; `depth_mode` is for requests that
    name none."""

    def __init__(
        self, flag: FlagSource, in_force: LevelInForce, *, depth_mode: DepthMode = DepthMode.AUTOMATIC
    ) -> None:
        self._flag = flag
        self.in_force, self.depth_mode = in_force, depth_mode

    @property
    def max_draft_tokens(self) -> int:
        """The daemon's own, whatever the level."""
        return self.in_force.ladder[0].max_draft_tokens

    def plan(self, wish: Wish, context: FlagContext, model: ModelInfo) -> DecodePlan:
        """Raises SpeculationUnavailable where speculation was demanded and cannot be had."""
        flag = self._flag.evaluate(context)
        return decide(wish, flag, self.in_force.level, model, self.depth_mode)


def decide(
    wish: Wish,
    flag: FlagResolution,
    ceiling: LadderLevel,
    model: ModelInfo,
    depth_mode: DepthMode = DepthMode.AUTOMATIC,
) -> DecodePlan:
    """The plan. `ceiling` is the most that the fallback allows now; `depth_mode` is for a wish that names none. Raises
    SpeculationUnavailable, with the reason, where speculation was demanded and cannot be had."""
    said = f"flag: {flag.reason}" + (f" ({flag.error})" if flag.error else "")
    if not flag.value:
        return _lowered(wish, flag, ceiling, f"{said}, variant {flag.variant}")
    if wish.preference is ModePreference.AUTOREGRESSIVE:
        return _lowered(wish, flag, ceiling, "request: autoregressive")
    if wish.max_draft_tokens == 0:
        return _lowered(wish, flag, ceiling, "request: max_draft_tokens is 0")
    if ceiling.kind is FallbackLevel.AUTOREGRESSIVE:
        return _lowered(wish, flag, ceiling, "ladder: autoregressive")
    if ceiling.max_draft_tokens == 0:
        return _lowered(wish, flag, ceiling, "configuration: max_draft_tokens is 0")
    drafter = _drafter(wish, ceiling)
    if drafter == GRAMMAR and not wish.constrained:
        return _lowered(wish, flag, ceiling, "request: drafter grammar needs a response_format")
    mode, notes = wish.depth_mode or depth_mode, [said]
    if drafter not in model.drafters:
        missing = _missing(drafter, wish, model)
        if wish.drafter is not None or mode is DepthMode.FIXED or PROMPT_LOOKUP not in model.drafters:
            return _lowered(wish, flag, ceiling, missing)
        # It costs next to nothing, and automatic depth finds out in which texts it pays.
        drafter = PROMPT_LOOKUP
        notes.append(f"{missing}: {drafter} in its place")
    depth = ceiling.max_draft_tokens
    if ceiling.kind < FallbackLevel.FULL:
        notes.append(f"ladder: {ceiling.kind.label}")
    if wish.max_draft_tokens is not None and wish.max_draft_tokens > depth:
        notes.append(f"request: max_draft_tokens {wish.max_draft_tokens} lowered to the daemon's {depth}")
    elif wish.max_draft_tokens is not None:
        depth = wish.max_draft_tokens
    others: frozenset[DrafterName] = frozenset()
    if wish.drafter is None and mode is DepthMode.AUTOMATIC:
        # In steps where it pays more. It is the lightest, so that no level excludes it, and needs no weights in memory.
        weightless = {PROMPT_LOOKUP, GRAMMAR} if wish.constrained else {PROMPT_LOOKUP}
        others = frozenset(weightless & set(model.drafters) - {drafter})
    reason = "; ".join(notes)
    return DecodePlan(DecodeMode.SPECULATIVE, depth, drafter, ceiling.kind, flag.variant, reason, mode, others)


def _drafter(wish: Wish, ceiling: LadderLevel) -> DrafterName:
    """The one drafter that the level and the client allow."""
    allowed = ceiling.drafter
    assert allowed is not None, ceiling
    if wish.drafter is None:
        return allowed
    if ceiling.kind is FallbackLevel.LIGHT_DRAFT and drafter_cost_rank(wish.drafter) < drafter_cost_rank(allowed):
        return allowed
    return wish.drafter


def _missing(drafter: DrafterName, wish: Wish, model: ModelInfo) -> str:
    reason = model.why_no(drafter) or model.why_no(DRAFT_MODEL)
    why = f" ({reason})" if reason else ""
    if wish.drafter is not None:
        return f"request: drafter {drafter} is not available{why}"
    if drafter == DRAFT_MODEL and reason:
        return f"model: {reason}"
    return f"model: drafter {drafter} is not available{why}"


def _lowered(wish: Wish, flag: FlagResolution, ceiling: LadderLevel, reason: str) -> DecodePlan:
    if wish.preference is ModePreference.SPECULATIVE:
        raise SpeculationUnavailable(f"speculation was demanded, and is not available: {reason}")
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, ceiling.kind, flag.variant, reason)
