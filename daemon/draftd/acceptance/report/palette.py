"""The colours, each for a light and for a dark page. Charts are drawn once, in colours that stand for their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

PALETTE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # the page
        "paper": ("#fbfaf7", "#15171b"),
        "card": ("#ffffff", "#1c1f25"),
        "raised": ("#f3f1ec", "#252932"),
        "ink": ("#1d2127", "#e9e7e2"),
        "quiet": ("#5c636d", "#a4abb6"),
        "line": ("#e2dfd8", "#333842"),
        "grid": ("#eae8e2", "#2b3039"),
        "accent": ("#1f5fae", "#82b4f7"),
        # how a value stands
        "good": ("#1a7048", "#62c995"),
        "bad": ("#b3261e", "#ff8d82"),
        "unproven": ("#8a5a00", "#e8b455"),
        "absent": ("#5c636d", "#a4abb6"),
        "good-wash": ("#e8f3ed", "#19302a"),
        "bad-wash": ("#fbebe9", "#321f22"),
        "unproven-wash": ("#fbf1dd", "#352b18"),
        "absent-wash": ("#f0efec", "#272b32"),
        # series: told apart without red and green, and by shape and dash besides
        "autoregressive": ("#6f7680", "#a3abb7"),
        "speculative": ("#1f5fae", "#6fa8f5"),
        "second": ("#b4540a", "#f2a35e"),
        "third": ("#0b7a75", "#4ecdc0"),
        "fourth": ("#8a3f97", "#d79be6"),
        "fifth": ("#8a6d00", "#d9c04f"),
    }
)

SERIES = ("autoregressive", "speculative", "second", "third", "fourth", "fifth")

MARKERS: Mapping[str, str] = MappingProxyType(dict(zip(SERIES, "so^DvP", strict=True)))
"""The shape of each series' points, in matplotlib's letters."""

_FIRST = 0x0FAC00  # of the stand-ins: colours that nobody would choose


def stand_in(name: str) -> str:
    """The colour that a chart is drawn in where `name` is meant."""
    return f"#{_FIRST + list(PALETTE).index(name):06x}"


def as_variables(svg: str) -> str:
    """Every stand-in as the style sheet's variable, which is another on a dark page."""
    names = list(PALETTE)

    def variable(found: re.Match[str]) -> str:
        at = int(found[0][1:], 16) - _FIRST
        return f"var(--{names[at]})" if 0 <= at < len(names) else found[0]

    return re.sub(r"#0fac[0-9a-f]{2}", variable, svg)


def style_sheet() -> str:
    """The variables: light, and dark where the reader's system is, or the switch says so."""
    light = "".join(f"--{name}:{pair[0]};" for name, pair in PALETTE.items())
    either = "".join(f"--{name}:light-dark({pair[0]},{pair[1]});" for name, pair in PALETTE.items())
    return f":root{{{light}}}@supports (color:light-dark(#000,#fff)){{:root{{{either}}}}}"
