"""Gives each request its plan: evaluates the flag in the request's context and asks policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftd.core import DecodePlan, DrafterKind, FallbackLevel, ModelInfo, WorkloadClass
from draftd.policy.flag import FlagResolution
from draftd.policy.plan import Ceiling, Wish, decide


@dataclass(frozen=True, slots=True)
class PlanAsk:
    """What a plan depends on, of one request."""

    wish: Wish
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FlagContext:
    """What targeting rules can match on. `caller` is the targeting key."""

    model: str = ""
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""


class FlagSource(Protocol):
    """Answers what the flag says. Never blocks on a network, never raises."""

    def evaluate(self, context: FlagContext) -> FlagResolution: ...


class FixedFlag:
    """A flag that always says the same: the seam's fake."""

    def __init__(self, value: bool = True) -> None:
        self.value = value

    def evaluate(self, context: FlagContext) -> FlagResolution:
        return FlagResolution("on" if self.value else "off", self.value, "STATIC")


class Planner:
    """`max_draft_tokens` and `drafter` are the daemon's own. The ladder's level is FULL until something lowers it."""

    def __init__(self, flag: FlagSource, *, max_draft_tokens: int, drafter: DrafterKind | None = None) -> None:
        self._flag = flag
        self._max_draft_tokens = max_draft_tokens
        self._drafter = drafter

    @property
    def max_draft_tokens(self) -> int:
        return self._max_draft_tokens

    @property
    def level(self) -> FallbackLevel:
        return FallbackLevel.FULL

    def plan(self, ask: PlanAsk, model: ModelInfo) -> DecodePlan:
        """Raises SpeculationUnavailable where speculation was demanded and cannot be had."""
        resolution = self._flag.evaluate(FlagContext(model.model, ask.workload, ask.caller))
        ceiling = Ceiling(self._max_draft_tokens, self._drafter, self.level)
        return decide(ask.wish, resolution, ceiling, model, ask.prompt_tokens)
