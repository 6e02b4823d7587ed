"""Arms as a reader wants them named, in the order in which a reader wants them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from draftd.acceptance.ticks import Arm, Tick
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName

_ID = re.compile(
    r"(?:ar|(?P<how>k|auto)(?P<k>\d+))(?:-(?P<drafter>[a-z][a-z_]+))?(?:-t(?P<t>[\d.e+-]+))?(?:-x(?P<x>\d+))?"
)
_DRAFTERS = {PROMPT_LOOKUP: "Prompt lookup", LIGHT_DRAFT_MODEL: "Light draft"}


def parse(id_: str) -> Arm | None:
    """The arm of that name; None for one that no version of draftd gave."""
    found = _ID.fullmatch(id_)
    if not found:
        return None
    k = int(found["k"] or 0)
    drafter = None if not k else DrafterName(found["drafter"] or DRAFT_MODEL)
    return Arm(k, drafter, float(found["t"] or 0), int(found["x"] or 1), k > 0 and found["how"] == "auto")


def name(arm: Arm | str) -> str:
    """Autoregressive; Speculative, 4 a round; Automatic, up to 6 a round; Prompt lookup, 4 a round; … temperature 0.8;
    … 2 at a time."""
    known = parse(arm) if isinstance(arm, str) else arm
    if known is None:
        return str(arm)
    parts = ["Autoregressive"]
    if known.automatic:
        parts = ["Automatic", f"up to {known.block_length} a round"]
    elif known.speculative:
        parts = [_DRAFTERS.get(known.drafter, "Speculative") if known.drafter else "", f"{known.block_length} a round"]
    if known.temperature:
        parts.append(f"temperature {known.temperature:g}")
    if known.concurrency > 1:
        parts.append(f"{known.concurrency} at a time")
    return ", ".join(parts)


def present(ticks: Iterable[Tick]) -> tuple[Arm, ...]:
    """Those that were measured: the greedy ones of one request by block length, then what departs from them."""
    found = {parse(tick.place.arm) for tick in ticks if not tick.place.warm_up}
    return tuple(sorted((arm for arm in found if arm is not None), key=_order))


def _order(arm: Arm) -> tuple[object, ...]:
    odd = arm.drafter not in (None, DRAFT_MODEL)
    return arm.concurrency, arm.temperature, odd, str(arm.drafter) if odd else "", arm.automatic, arm.block_length
