"""The labels that every draftd metric shares: few values each, never an id."""

from __future__ import annotations

from collections.abc import Callable

from draftd.core import ContextTier, DecodePlan, DrafterKind, ModelInfo, WorkloadClass
from draftd.telemetry import attributes as a

Labels = dict[str, str]


class Naming:
    """Knows what is loaded, and so how the model and draft labels read. Asks until there is an answer, then never."""

    def __init__(self, info: Callable[[], ModelInfo | None]) -> None:
        self._ask = info
        self._known: ModelInfo | None = None

    def info(self) -> ModelInfo | None:
        if self._known is None:
            self._known = self._ask()
        return self._known

    def model(self) -> str:
        info = self.info()
        return info.model if info is not None else "unknown"

    def labels(self, plan: DecodePlan | None, workload: WorkloadClass, tier: ContextTier | None) -> Labels:
        """`plan` and `tier` are None for a request that was refused before it had them."""
        info = self.info()
        found = {
            a.MODEL.name: info.model if info is not None else "unknown",
            a.DRAFT_MODEL.name: draft_label(info.draft_model if info is not None else None, plan),
            a.WORKLOAD.name: workload.value,
        }
        if plan is not None:
            found[a.MODE.name] = plan.mode.value
            found[a.PLAN_LEVEL.name] = plan.level.label
        if tier is not None:
            found[a.CONTEXT_TIER.name] = tier.value
        return found


def draft_label(draft_model: str | None, plan: DecodePlan | None) -> str:
    """What the draft label says: it is the pair's in both modes, so that the modes can be compared."""
    if plan is not None and plan.drafter not in (None, DrafterKind.DRAFT_MODEL):
        return plan.drafter.value
    return draft_model or "none"
