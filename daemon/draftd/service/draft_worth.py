"""The worth of drafting with a model on this machine, by the learnt costs."""

from __future__ import annotations

from draftd.core import MODEL_DRAFTERS
from draftd.engine.depth.saved import DrafterWorth, LearntCosts


def draft_worth(learnt: LearntCosts | None, most: int) -> DrafterWorth | None:
    """Returns the worth of the draft model or the draft head at up to `most` tokens a step, of the one that pays more;
    None if too little is known. Depth control uses the faster one, so only its worth calls for a warning."""
    if learnt is None:
        return None
    worths = [worth for drafter in MODEL_DRAFTERS if (worth := learnt.worth(drafter, most)) is not None]
    return max(worths, key=lambda worth: worth.speedup, default=None)
