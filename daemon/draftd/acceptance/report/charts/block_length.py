"""How much a longer block yields, and how much of it is accepted."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from draftd.acceptance.report.blocks import Chart, Key
from draftd.acceptance.report.canvas import draw, line, reference, whisker
from draftd.acceptance.report.numbers import figure, share
from draftd.acceptance.report.palette import stand_in
from draftd.acceptance.statistics import Interval

Curve = Mapping[int, Interval]
"""By block length; 0 is autoregressive."""


def throughput(curve: Curve, knee: int | None, reading: str) -> Chart:
    lengths = sorted(curve)
    plain = curve.get(0)

    def paint(axes: Axes) -> None:
        if plain is not None:
            axes.axhspan(plain.low, plain.high, color=stand_in("autoregressive"), alpha=0.18, linewidth=0)
            reference(axes, plain.estimate, ink="autoregressive")
        whisker(axes, lengths, [curve[k] for k in lengths], "speculative")
        line(axes, lengths, [curve[k].estimate for k in lengths], "speculative")
        if knee is not None and knee in curve:
            axes.plot(knee, curve[knee].estimate, "o", ms=17, mfc="none", mec=stand_in("second"), mew=2.2, zorder=4)
        axes.set_xticks(lengths)
        axes.set_ylim(0, max(one.high for one in curve.values()) * 1.12)

    told = ", ".join(f"{figure(curve[k].estimate)} at {k}" for k in lengths)
    keys = [Key("median, with 95 % interval", "speculative")]
    if plain is not None:
        keys.append(Key("autoregressive", "autoregressive", "dashed"))
    if knee is not None and knee in curve:
        keys.append(Key(f"the knee: {knee}", "second", "ring"))
    title = "Decode throughput by block length"
    description = f"Tokens a second by tokens drafted a round: {told}. {reading}"
    svg = draw("throughput", title, description, paint, across="tokens drafted a round", up="tokens/s")
    return Chart("throughput", title, reading, description, svg, tuple(keys))


def acceptance(accepted: Curve, first: Curve, reading: str) -> Chart:
    """`accepted`: accepted of drafted; `first`: of those drafted first in their block."""
    lengths = sorted(accepted)

    def paint(axes: Axes) -> None:
        for curve, ink in ((accepted, "speculative"), (first, "third")):
            known = sorted(curve)
            whisker(axes, known, [curve[k] for k in known], ink, scale=100)
            line(axes, known, [curve[k].estimate * 100 for k in known], ink)
        axes.set_xticks(lengths)
        axes.set_ylim(0, 104)

    told = ", ".join(f"{share(curve_at.estimate)} at {k}" for k, curve_at in sorted(accepted.items()))
    title = "Acceptance by block length"
    description = f"Share of drafted tokens that were accepted, by tokens drafted a round: {told}. {reading}"
    svg = draw("acceptance", title, description, paint, across="tokens drafted a round", up="% of drafted tokens")
    keys = (Key("accepted / drafted", "speculative"), Key("first of the block", "third"))
    return Chart("acceptance", title, reading, description, svg, keys)


def positions(shares: Mapping[int, tuple[float | None, ...]], inks: Mapping[int, str], reading: str) -> Chart:
    """By block length, the share accepted at each position, from the first."""

    def paint(axes: Axes) -> None:
        for k, values in sorted(shares.items()):
            known = [(at, value * 100) for at, value in enumerate(values, 1) if value is not None]
            line(axes, [at for at, _ in known], [value for _, value in known], inks[k])
        axes.set_xticks(range(1, max(len(values) for values in shares.values()) + 1))
        axes.set_ylim(0, 104)

    told = "; ".join(
        f"blocks of {k}: " + ", ".join(share(value) for value in values) for k, values in sorted(shares.items())
    )
    title = "Acceptance by position in the block"
    description = f"Share of tokens drafted at each position that were accepted. {told}. {reading}"
    svg = draw("positions", title, description, paint, across="position in the block", up="% of drafted tokens")
    return Chart(
        "positions", title, reading, description, svg, tuple(Key(f"blocks of {k}", inks[k]) for k in sorted(shares))
    )


def yielded(curve: Curve, reading: str) -> Chart:
    """Tokens that a draft yields, the target's own counted; at most one more than it is long."""
    lengths = sorted(curve)

    def paint(axes: Axes) -> None:
        axes.plot(lengths, [k + 1 for k in lengths], color=stand_in("quiet"), lw=1.2, ls=(0, (4, 3)), zorder=1.5)
        whisker(axes, lengths, [curve[k] for k in lengths], "speculative")
        line(axes, lengths, [curve[k].estimate for k in lengths], "speculative")
        axes.set_xticks(lengths)
        axes.set_ylim(0, (max(lengths) + 1) * 1.06)

    told = ", ".join(f"{figure(curve[k].estimate)} at {k}" for k in lengths)
    title = "Tokens a draft yields"
    description = f"Accepted tokens and the target's own, by tokens drafted a round: {told}. {reading}"
    svg = draw("yielded", title, description, paint, across="tokens drafted a round", up="tokens")
    keys = (Key("median, with 95 % interval", "speculative"), Key("all accepted", "quiet", "dashed"))
    return Chart("yielded", title, reading, description, svg, keys)
