"""Bars and curves out of block characters."""

from __future__ import annotations

from collections.abc import Sequence

_UP = " ▁▂▃▄▅▆▇█"
_RIGHT = " ▏▎▍▌▋▊▉█"
_STEPS = 8


def bar(share: float, width: int) -> str:
    """`width` columns, filled from the left. What is above nothing shows, however little."""
    share = min(max(share, 0.0), 1.0)
    eighths = round(share * width * _STEPS)
    if share and not eighths:
        eighths = 1
    full, rest = divmod(eighths, _STEPS)
    return ("█" * full + (_RIGHT[rest] if rest else "")).ljust(width)


def spark(values: Sequence[float | None], height: int, top: float) -> list[str]:
    """`height` lines, the upper one first; `top` fills them. A zero shows as the thinnest line, None as nothing."""
    lines = []
    for row in reversed(range(height)):
        line = ""
        for value in values:
            if value is None:
                line += " "
                continue
            eighths = max(1, round(value / top * height * _STEPS)) if top else 1
            line += _UP[min(max(eighths - row * _STEPS, 0), _STEPS)]
        lines.append(line)
    return lines
