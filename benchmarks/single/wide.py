"""Part `wide`: seconds of a forward of a few tokens by the target as draftd loads it, divided by those of mlx-lm's
model.

Verifying a draft is such a forward. One process holds the model twice, and the forwards alternate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.arms import helper
from benchmarks.single.figures import Found, Record, Row, median_of, spread
from benchmarks.single.part import MLX_LM, Turn

DRAFTD = "draftd"
_CLAIMED = 5  # the width on the last line: four draft tokens and the token before them


@dataclass(frozen=True, slots=True)
class Wide:
    name: str = "wide"
    title: str = "seconds of a forward over mlx-lm's, by its width in tokens, after 128 tokens of context"
    widths: tuple[int, ...] = (1, 2, 5, 8)
    forwards: int = 12

    def measure(self, turn: Turn) -> None:
        turn.processes.rest()
        widths = ",".join(map(str, self.widths))
        with helper("benchmarks.single.forwards", turn.processes.model, widths, str(self.forwards)) as (_, said):
            for one in json.loads(said):
                turn.add(one["arm"], one)

    def found(self, records: Sequence[Record]) -> Found:
        rows = []
        for width in self.widths:
            found = spread(records, DRAFTD, MLX_LM, median_of("seconds"), width=width)
            wanted = "≤ 1.05" if width == _CLAIMED else ""
            rows.append(Row(f"{width} tokens", found, "s", wanted))
            if width == _CLAIMED:
                figures = {"wide5_vs_mlx_lm": found.document()}
        return Found(figures, rows)
