"""The calculator: what speculation is worth at each acceptance, by what drafting and verifying cost on this machine."""

from __future__ import annotations

from draftd.acceptance.cost import Costs, alpha_of, break_even, expected_tokens, measured_costs, speedup
from draftd.acceptance.report.blocks import NOTHING, Cell, Charts, Column, Facts, Section, Table, Tone
from draftd.acceptance.report.charts.expected import Point, expected
from draftd.acceptance.report.evidence import Sweep
from draftd.acceptance.report.numbers import figure, share, times
from draftd.acceptance.report.sections.lengths import inks
from draftd.acceptance.ticks import Arm

_COLUMNS = (
    Column("Block"),
    Column("Verifying", "ms"),
    Column("v(k)", "steps"),
    Column("Accepted", "α"),
    Column("Tokens a round", "expected"),
    Column("Speed-up", "expected"),
    Column("Speed-up", "measured"),
    Column("Pays from", "α"),
    Column("To spare"),
)


def calculator(sweep: Sweep, candidate: Arm | None) -> Section | None:
    """None where no draft model's rounds were measured beside autoregressive ones."""
    costs = measured_costs(sweep.ticks)
    if costs is None or costs.draft_cost is None:
        return None
    drawn = {k: ink for k, ink in inks(sweep).items() if k in costs.verify_costs}
    alphas = {arm.block_length: _alpha(sweep, arm) for arm in sweep.lengths if arm.block_length in costs.verify_seconds}
    points = {
        k: Point(alpha, gain.estimate)
        for k, alpha in alphas.items()
        if alpha is not None and (gain := sweep.gains.get(_arm(sweep, k))) is not None
    }
    rows = tuple(_row(sweep, costs, k, alpha) for k, alpha in alphas.items())
    strong = frozenset(at for at, k in enumerate(alphas) if candidate is not None and _arm(sweep, k) == candidate)
    facts = Facts(
        (
            ("One autoregressive step", Cell(f"{figure(costs.autoregressive_seconds * 1000)} ms")),
            (
                "One drafted token",
                Cell(f"{figure((costs.draft_seconds or 0) * 1000)} ms", f"c = {figure(costs.draft_cost)} steps"),
            ),
            ("One verification", Cell(_range(costs), "longer blocks are more to verify: v(k) steps")),
            (
                "Expected speed-up",
                Cell("(1 − αᵏ⁺¹) ÷ ((1 − α) · (k·c + v(k)))", "Leviathan et al. 2023, v(k) as measured"),
            ),
            (
                "α",
                Cell("accepted ÷ (accepted + rollbacks)", "how often a drafted token holds, where those before it did"),
            ),
        )
    )
    chart = expected(points, costs.draft_cost, costs.verify_costs, drawn, _reading(points, costs))
    table = Table("Costs as measured in this run, and what follows from them", _COLUMNS, rows, strong=strong)
    return Section(
        "calculator",
        "What speculation is worth here",
        _lead(costs, alphas, candidate),
        (Charts((chart,), facts), table),
    )


def _arm(sweep: Sweep, block_length: int) -> Arm:
    return next(arm for arm in sweep.lengths if arm.block_length == block_length)


def _alpha(sweep: Sweep, arm: Arm) -> float | None:
    counts = [tick.counts for tick in sweep.of(arm)]
    return alpha_of(sum(one.accepted for one in counts), sum(one.rollbacks for one in counts))


def _row(sweep: Sweep, costs: Costs, k: int, alpha: float | None) -> tuple[Cell, ...]:
    c, v = costs.draft_cost or 0.0, costs.verify_costs
    even = break_even(k, c, v)
    spare = None if alpha is None or even is None else alpha - even
    return (
        Cell(str(k)),
        Cell(figure(costs.verify_seconds[k] * 1000)),
        Cell(figure(v[k])),
        Cell(share(alpha)),
        Cell(NOTHING if alpha is None else f"{expected_tokens(alpha, k):.2f}"),
        Cell(NOTHING if alpha is None else f"{speedup(alpha, k, c, v):.2f}×"),
        times(sweep.gains.get(_arm(sweep, k))),
        Cell("never" if even is None else share(even)),
        Cell(NOTHING if spare is None else f"{spare * 100:+.0f} points".replace("-", "−"), tone=Tone.PLAIN),
    )


def _range(costs: Costs) -> str:
    low, high = (figure(one(costs.verify_seconds.values()) * 1000) for one in (min, max))
    return f"{low} ms" if low == high else f"{low} to {high} ms"


def _lead(costs: Costs, alphas: dict[int, float | None], candidate: Arm | None) -> str:
    k = candidate.block_length if candidate is not None and candidate.block_length in alphas else max(alphas)
    even, alpha = break_even(k, costs.draft_cost or 0.0, costs.verify_costs), alphas[k]
    if even is None:
        return f"On this machine blocks of {k} never pay: a round costs more than it could ever yield."
    text = f"On this machine blocks of {k} pay from an acceptance of {share(even)} on"
    if alpha is None:
        return text + "."
    room = "so there is room for worse" if alpha > even else "so they do not"
    return f"{text}; this run’s was {share(alpha)}, {room}."


def _reading(points: dict[int, Point], costs: Costs) -> str:
    if not points:
        return "Curves by the measured costs; this run has no point on them."
    apart = max(
        abs(point.gain / speedup(point.alpha, k, costs.draft_cost or 0.0, costs.verify_costs) - 1)
        for k, point in points.items()
    )
    agreed = f"Every point lies within {share(apart)} of its curve"
    return (
        f"{agreed}. What parts them is what the formula leaves out: "
        "acceptance that varies between prompts, and time outside the rounds."
    )
