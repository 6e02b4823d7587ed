"""Tiny random checkpoints of models with a draft head, in each layout that is published.

`LAYOUTS` are the layouts that draftd loads, with a module for each family. `REFUSED` are heads of other families, which
it refuses by name: `refused.py`. The other modules write them and read them back.

A raw checkpoint has the vendor's names and values: norms hold w of (1 + w), the convolution is (channels, 1, width). A
converted checkpoint has mlx-lm's: norms hold 1 + w, the convolution is (channels, width, 1), experts are stacked. Only
NumPy is used, also for bf16 and for 4 bit, so that nothing here depends on the code under test.

In every layout of one `target` the target's weights are the same numbers, and the head's differ only by rounding.
"""

from __future__ import annotations

from tests.heads.layouts import (
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
    qwen3_5,
    qwen3_5_moe,
    qwen3_next,
    step,
)
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.refused import REFUSED as REFUSED

LAYOUTS: list[Layout] = [
    layout
    for family in (
        *(qwen3_next, qwen3_5, qwen3_5_moe),
        *(bailing, deepseek, dflash, eagle, ernie, exaone, glm, longcat, mimo, nemotron_h, step),
    )
    for layout in family.LAYOUTS
]
