"""Computes what the draft heads of each family say, in NumPy's float64, from the vendors' tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.heads import layouts
from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array
from tests.heads.references import (
    bailing,
    deepseek,
    dflash,
    eagle,
    ernie,
    exaone,
    glm,
    longcat,
    mimo,
    nemotron_h,
    qwen,
    step,
)


class Reference(Protocol):
    """A head. `takes_normed_states`: the target's states are those after its final norm. `least_router_margin`: between
    the last expert that was chosen and the first that was not, in all that was computed."""

    takes_normed_states: bool
    least_router_margin: float

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, each step after the likeliest token."""


_OPEN: dict[str, Callable[[Layout, Path], Reference]] = {
    layout.name: module.reference
    for module, own in (
        (bailing, layouts.bailing.LAYOUTS),
        (deepseek, layouts.deepseek.LAYOUTS),
        (dflash, layouts.dflash.LAYOUTS),
        (eagle, layouts.eagle.LAYOUTS),
        (ernie, layouts.ernie.LAYOUTS),
        (exaone, layouts.exaone.LAYOUTS),
        (glm, layouts.glm.LAYOUTS),
        (longcat, layouts.longcat.LAYOUTS),
        (mimo, layouts.mimo.LAYOUTS),
        (nemotron_h, layouts.nemotron_h.LAYOUTS),
        (step, layouts.step.LAYOUTS),
    )
    for layout in own
}


def reference(layout: Layout, folder: Path) -> Reference:
    """Returns the reference for a layout that was written to `folder`."""
    return _OPEN.get(layout.name, qwen.reference)(layout, folder)
