"""Draws docs/fallback.png and docs/dashboards/fallback.png: `python -m tests.stack.timeline`, about two minutes.

The scene of the test (tests.stack.test_fallback) with longer pauses. It shows acceptance, level and throughput while
the draft is damaged and repaired, with steps caused by real alerts, and the dashboard of the same. With `--own` the
daemon's own guard causes the steps, and there is no dashboard.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dashboards.board import written
from dashboards.boards import boards
from dashboards.render.asking import Shown, Source
from dashboards.render.page import save
from dashboards.render.reading import parsed
from tests.stack.falling import ALERTING, Answered, Falling, alerted, embedded, falling

ROOT = Path(__file__).parents[2]
_BIN_SECONDS = 2.0
_INK, _GOOD, _BAD, _FAINT = "#1f2933", "#2a7de1", "#d64545", "#9aa5b1"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stack.timeline", description=__doc__)
    parser.add_argument("--own", action="store_true", help="without alerts: the daemon's own guard")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "fallback.png")
    parser.add_argument("--board", type=Path, default=ROOT / "docs" / "dashboards" / "fallback.png")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        scene = falling(embedded, Path(name), {}) if options.own else alerted(embedded, Path(name))
        with scene as running:
            began, started = time.monotonic(), time.time()
            running.until_at("full", 60)
            time.sleep(15)
            running.swap(good=False)
            swapped = time.monotonic()
            running.until_at("autoregressive", 120)
            time.sleep(20)
            running.swap(good=True)
            mended = time.monotonic()
            running.until_at("full", 180)
            time.sleep(10)
            ended, ladder = time.monotonic(), running.ladder
            if running.prometheus:
                board = next(one for one in boards(ALERTING) if one.key == "fallback")
                shown = Shown(started, time.time(), 1.0)
                note = "a draft is damaged and mended; windows shortened to seconds"
                save(parsed(written(board)), Source(running.prometheus), shown, options.board, note)
                print(options.board)
        assert running.clients.wrong == [], running.clients.wrong
        draw(running, ladder, began, ended, [(swapped, "draft damaged"), (mended, "draft mended")], options.out)
    print(options.out)
    return 0


def draw(of: Falling, ladder: list[str], began: float, ended: float, marks: list[tuple[float, str]], out: Path) -> None:
    """Draws three charts over one time axis, in seconds from `began`. `ladder` are the levels' names from the top."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (top, middle, bottom) = pyplot.subplots(
        3, 1, sharex=True, figsize=(11, 7), dpi=110, height_ratios=(3, 3, 2), layout="constrained"
    )
    answers = [a for a in of.clients.answered if began <= a.at <= ended]

    def acceptance(bin_: list[Answered]) -> float | None:
        reached = sum(a.accepted + a.rollbacks for a in bin_)
        return sum(a.accepted for a in bin_) / reached if reached else None

    times, shares = _binned(answers, began, ended, acceptance)
    top.plot(times, shares, color=_GOOD, marker=".", linewidth=1.5)
    top.axhline(0.4, color=_BAD, linewidth=1, linestyle="--")
    top.text(ended - began, 0.41, "floor", color=_BAD, ha="right", va="bottom", fontsize=9)
    top.set(ylim=(0, 1.04), ylabel="acceptance")
    top.set_title("A draft goes bad under traffic, and is mended: no request failed, no text differed", loc="left")

    rows = {name: -number for number, name in enumerate(ladder)}
    steps = [(max(0.0, at - began), rows[name]) for at, name in of.seen if at <= ended]
    middle.step(
        [*(at for at, _ in steps), ended - began], [*(row for _, row in steps), steps[-1][1]], where="post",
        color=_INK, linewidth=2,
    )  # fmt: skip
    middle.set_yticks(list(rows.values()), [_shown(name) for name in rows], fontsize=9)
    middle.set(ylabel="level", ylim=(0.5 - len(rows), 0.5))

    times, speed = _binned(answers, began, ended, lambda bin_: sum(a.tokens for a in bin_) / _BIN_SECONDS)
    bottom.fill_between(times, [s or 0.0 for s in speed], color=_GOOD, alpha=0.3, step="mid")
    bottom.set(ylabel="tokens/s", xlabel="seconds", xlim=(0, ended - began), ylim=(0, None))
    for at, name in marks:
        for axis in (top, middle, bottom):
            axis.axvline(at - began, color=_FAINT, linewidth=1, linestyle=":")
        top.text(at - began + 0.5, 0.97, name, color=_INK, va="top", fontsize=9)
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        axis.set_axisbelow(True)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    pyplot.close(figure)


def _shown(level: str) -> str:
    """Returns the level's name without the drafter: there is only one light one here."""
    return "light draft" if level.startswith("light_draft") else level.replace("_", " ")


def _binned(
    answers: list[Answered], began: float, ended: float, value: Callable[[list[Answered]], float | None]
) -> tuple[list[float], list[float | None]]:
    """Returns the middle of each bin, and `value` of the answers that ended in it."""
    count = int((ended - began) / _BIN_SECONDS) + 1
    bins: list[list[Answered]] = [[] for _ in range(count)]
    for answer in answers:
        bins[int((answer.at - began) / _BIN_SECONDS)].append(answer)
    return [(i + 0.5) * _BIN_SECONDS for i in range(count)], [value(bin_) for bin_ in bins]


if __name__ == "__main__":
    sys.exit(main())
