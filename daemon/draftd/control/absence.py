"""Drafters that the ladder names and that cannot be had here, and why: nothing is drafted on their rungs."""

from __future__ import annotations

from collections.abc import Sequence

from draftd.control.seams import EngineControl
from draftd.core import DrafterKind
from draftd.errors import DraftdError
from draftd.policy.ladder import Rung


def absent(drafter: DrafterKind, engine: EngineControl) -> str:
    """Why it cannot be had; empty where it can, and while nobody knows yet."""
    try:
        info = engine.info
    except DraftdError:
        return ""
    if drafter in info.drafters:
        return ""
    reasons = {
        DrafterKind.DRAFT_MODEL: info.speculation_reason,
        DrafterKind.LIGHT_DRAFT_MODEL: info.light_draft_reason,
    }
    return reasons.get(drafter) or f"{drafter} is not configured"


def absentees(ladder: Sequence[Rung], engine: EngineControl) -> dict[DrafterKind, str]:
    """All of a ladder's, with the reason."""
    kinds = dict.fromkeys(rung.drafter for rung in ladder if rung.drafter is not None)
    return {kind: why for kind in kinds if (why := absent(kind, engine))}
