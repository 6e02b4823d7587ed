"""Decides how one request is decoded: by the flag, the client's wishes, the ladder's ceiling and the model's
capability.

They count in that order, and each can only lower the result of the one before. If there is a remote daemon, the router
then chooses the strategy. The plan has the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from draftd.core import (
    DRAFT_MODEL,
    GRAMMAR,
    MODEL_DRAFTERS,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DepthMode,
    DrafterName,
    FallbackLevel,
    LadderLevel,
    ModePreference,
    WorkloadClass,
    drafter_cost_rank,
)
from draftd.errors import SpeculationUnavailable
from draftd.fallback.ladder import Ladder
from draftd.model_info import ModelInfo
from draftd.planning.flag_file import FlagResolution
from draftd.planning.router import Router, refusal
from draftd.planning.routing import Route, RouteRequest
from draftd.strategies import QualityClass, Strategy


@dataclass(frozen=True, slots=True)
class FlagContext:
    """The attributes that targeting rules match. `caller` is the targeting key."""

    model: str = ""
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    prompt_tokens: int = 0  # only for `decoding-strategy`


@dataclass(frozen=True, slots=True)
class RequestedPlan:
    """The caller's wishes. None means no limit of the caller's (`max_draft_tokens`), the daemon's default
    (`depth_mode`), or the flag's choice (`strategy`); a named strategy is demanded. `constrained`: the answer must
    follow a grammar. `quality`: the least class. `max_seconds`, `max_cost`: of the whole answer. `local_only`: why only
    this daemon's own model can answer. `token_ids_only`: why the request makes sense only with this model's token ids.
    Both are empty if there is no reason."""

    preference: ModePreference = ModePreference.AUTO
    max_draft_tokens: int | None = None
    drafter: DrafterName | None = None
    depth_mode: DepthMode | None = None
    constrained: bool = False
    strategy: Strategy | None = None
    quality: QualityClass | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    local_only: str = ""
    token_ids_only: str = ""

    @property
    def demanded(self) -> Strategy | None:
        """The strategy that the request names; None if the router decides."""
        return None if self.strategy is Strategy.AUTO else self.strategy


class FlagSource(Protocol):
    """Evaluates the flags, as FlagService does. Never blocks on a network, never raises."""

    def evaluate(self, context: FlagContext) -> FlagResolution: ...

    def strategy(self, context: FlagContext) -> FlagResolution:
        """Returns a resolution whose value is one of `Strategy`."""


class Planner:
    """Makes each request's plan. `ladder`: its level is the ceiling. `depth_mode`: for requests that name none.
    `router`: knows the remote daemon, if there is one."""

    def __init__(
        self,
        flag: FlagSource,
        ladder: Ladder[LadderLevel],
        *,
        depth_mode: DepthMode = DepthMode.AUTOMATIC,
        router: Router | None = None,
    ) -> None:
        self._flag = flag
        self.ladder, self.depth_mode = ladder, depth_mode
        self.router = router or Router()

    @property
    def max_draft_tokens(self) -> int:
        """The daemon's own maximum, at any level."""
        return self.ladder.levels[0].max_draft_tokens

    def plan(
        self, wish: RequestedPlan, context: FlagContext, model: ModelInfo, max_tokens: int | None = None
    ) -> DecodePlan:
        """Returns the plan of a request. `max_tokens`: of the answer. Raises SpeculationUnavailable if speculation was
        demanded and is not available, RemoteUnavailable if no strategy can serve the request."""
        flag = self._flag.evaluate(context)
        plan = decide(wish, flag, self.ladder.level, model, self.depth_mode)
        router = self.router
        if not router.enabled and wish.demanded in (None, Strategy.LOCAL) and (wish.quality or 0) <= router.quality:
            return plan
        route = self._route(wish, flag, context, max_tokens)
        if route.strategy is None:
            raise refusal(route)
        return replace(plan, strategy=route.strategy, reason=f"{plan.reason}; {route.reason}")

    def plan_for_peer(self, model: ModelInfo, prompt_tokens: int = 0, *, constrained: bool = False) -> DecodePlan:
        """Returns the plan by which this daemon, as a verifier, itself drafts for a sequence of another daemon."""
        flag = self._flag.evaluate(FlagContext(model.model, prompt_tokens=prompt_tokens))
        return decide(RequestedPlan(constrained=constrained), flag, self.ladder.level, model, DepthMode.AUTOMATIC)

    def route(self, wish: RequestedPlan, context: FlagContext, max_tokens: int | None = None) -> Route:
        """Returns the route that such a request would get now."""
        return self._route(wish, self._flag.evaluate(context), context, max_tokens)

    def local_allowed(self, wish: RequestedPlan) -> bool:
        """Whether this daemon's own model may decode a request that was to be decoded elsewhere."""
        demanded = wish.demanded in (Strategy.REMOTE, Strategy.SPECULATIVE)
        return not demanded and (wish.quality or 0) <= self.router.quality

    def _route(self, wish: RequestedPlan, flag: FlagResolution, context: FlagContext, max_tokens: int | None) -> Route:
        only = wish.demanded
        if wish.strategy is None and self.router.enabled:
            only = Strategy(str(self._flag.strategy(context).value))
        if only is Strategy.SPECULATIVE:
            only = self.router.speculative_or_remote
        request = RouteRequest(
            prompt_tokens=context.prompt_tokens,
            tokens=self.router.expected_tokens(context.workload, max_tokens),
            only=None if only is Strategy.AUTO else only,
            demanded=wish.demanded is not None,
            quality=wish.quality,
            max_seconds=wish.max_seconds,
            max_cost=wish.max_cost,
            no_drafts=_no_drafts(wish, flag, self.ladder.level) or "",
            local_only=wish.local_only,
            token_ids_only=wish.token_ids_only,
        )
        return self.router.route(request, context.caller, context.workload)


def decide(
    wish: RequestedPlan,
    flag: FlagResolution,
    ceiling: LadderLevel,
    model: ModelInfo,
    depth_mode: DepthMode = DepthMode.AUTOMATIC,
) -> DecodePlan:
    """Returns the plan. `ceiling`: the most that the fallback allows now. `depth_mode`: for a wish that names none.
    Raises SpeculationUnavailable, with the reason, if speculation was demanded and is not available."""
    if (why := _no_drafts(wish, flag, ceiling)) is not None:
        return _autoregressive_plan(wish, flag, ceiling, why)
    drafter = _choose_drafter(wish, ceiling)
    if drafter == GRAMMAR and not wish.constrained:
        return _autoregressive_plan(wish, flag, ceiling, "request: drafter grammar needs a response_format")
    mode, notes = wish.depth_mode or depth_mode, [f"flag: {flag}"]
    if wish.drafter is None:
        drafter = model.stand_in(drafter)
    if drafter not in model.drafters:
        missing = _missing_reason(drafter, wish, model)
        if wish.drafter is not None or mode is DepthMode.FIXED or PROMPT_LOOKUP not in model.drafters:
            return _autoregressive_plan(wish, flag, ceiling, missing)
        # Prompt lookup costs next to nothing, and automatic depth finds out in which texts it pays.
        drafter = PROMPT_LOOKUP
        forced = f" and tokens that the response format forces ({GRAMMAR})" if wish.constrained else ""
        notes.append(f"{missing}, so only text that repeats itself is drafted ({drafter}){forced}")
    depth = ceiling.max_draft_tokens
    if ceiling.kind < FallbackLevel.FULL:
        notes.append(f"ladder: {ceiling.kind.label}")
    if wish.max_draft_tokens is not None and wish.max_draft_tokens > depth:
        notes.append(f"request: max_draft_tokens {wish.max_draft_tokens} lowered to the daemon's {depth}")
    elif wish.max_draft_tokens is not None:
        depth = wish.max_draft_tokens
    others: frozenset[DrafterName] = frozenset()
    if wish.drafter is None and mode is DepthMode.AUTOMATIC:
        # For steps in which they pay more. They are the lightest, so no level excludes them, and need no weights.
        more = {PROMPT_LOOKUP, GRAMMAR} if wish.constrained else {PROMPT_LOOKUP}
        if drafter in MODEL_DRAFTERS and ceiling.kind >= FallbackLevel.SHORT_BLOCK:
            more.update(MODEL_DRAFTERS)  # the faster one drafts
        others = frozenset(more & set(model.drafters) - {drafter})
    reason = "; ".join(notes)
    return DecodePlan(DecodeMode.SPECULATIVE, depth, drafter, ceiling.kind, flag.variant, reason, mode, others)


def _no_drafts(wish: RequestedPlan, flag: FlagResolution, ceiling: LadderLevel) -> str | None:
    """Returns why the request may not draft, whatever drafters there are; None if it may."""
    if not flag.value:
        return f"flag: {flag}"
    if wish.preference is ModePreference.AUTOREGRESSIVE:
        return "request: autoregressive"
    if wish.max_draft_tokens == 0:
        return "request: max_draft_tokens is 0"
    if ceiling.kind is FallbackLevel.AUTOREGRESSIVE:
        return "ladder: autoregressive"
    return "configuration: max_draft_tokens is 0" if ceiling.max_draft_tokens == 0 else None


def _choose_drafter(wish: RequestedPlan, ceiling: LadderLevel) -> DrafterName:
    """Returns the drafter that the level and the client allow."""
    allowed = ceiling.drafter
    assert allowed is not None, ceiling
    if wish.drafter is None:
        return allowed
    if ceiling.kind is FallbackLevel.LIGHT_DRAFT and drafter_cost_rank(wish.drafter) < drafter_cost_rank(allowed):
        return allowed
    return wish.drafter


def _missing_reason(drafter: DrafterName, wish: RequestedPlan, model: ModelInfo) -> str:
    reason = model.why_no(drafter) or model.why_no_model_drafts
    why = f" ({reason})" if reason else ""
    if wish.drafter is not None:
        return f"request: drafter {drafter} is not available{why}"
    if drafter == DRAFT_MODEL and reason:
        return f"model: {reason}"
    return f"model: drafter {drafter} is not available{why}"


def _autoregressive_plan(wish: RequestedPlan, flag: FlagResolution, ceiling: LadderLevel, reason: str) -> DecodePlan:
    if wish.preference is ModePreference.SPECULATIVE:
        raise SpeculationUnavailable(f"the request demands speculation, which is not available: {reason}")
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, ceiling.kind, flag.variant, reason)
