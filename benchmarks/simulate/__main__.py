"""python -m benchmarks.simulate: simulates every scenario, and prints a table and one line of JSON. Exits with 1 if the
policy failed in any."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.simulate.daemon import Settings
from benchmarks.simulate.outcome import Outcome, outcome
from benchmarks.simulate.report import show
from benchmarks.simulate.scenario import scenarios
from benchmarks.simulate.world import World


def main(arguments: list[str] | None = None) -> int:
    known = {scenario.name: scenario for scenario in scenarios()}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="requests a scenario (default: 100000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random numbers (default: 1)")
    parser.add_argument(
        "--scenario", action="append", choices=sorted(known), help="simulate only this one; may be repeated"
    )
    parser.add_argument("--steps", action="store_true", help="print each change of the fallback level")
    parser.add_argument("--plot", type=Path, nargs="?", const=Path("docs/detector.png"), metavar="FILE",
                        help="draw the detector's operating curve too (default: docs/detector.png)")  # fmt: skip
    asked = parser.parse_args(arguments)
    if asked.requests < 1:
        parser.error(f"--requests: got {asked.requests}; allowed: 1 or more")

    console, settings = Console(), Settings()
    outcomes: dict[str, Outcome] = {}
    for name in asked.scenario or known:
        run = World(known[name], asked.requests, asked.seed, settings).run()
        outcomes[name] = outcome(run, settings.ladder.cooldown)
        console.print(f"{name}: {run.seconds:.1f} s", style="dim", highlight=False)
        for step in run.steps if asked.steps else ():
            console.print(f"  {step.at:9.0f} s  {step.previous} → {step.current}  {step.signal.text}", highlight=False)
    show(outcomes, {name: known[name].title for name in outcomes}, console)
    result: dict[str, object] = {
        "benchmark": "simulate",
        "seed": asked.seed,
        "scenarios": {name: one.document() for name, one in outcomes.items()},
    }
    if asked.plot is not None:
        from benchmarks.simulate import curve, picture  # only this needs matplotlib

        measured = curve.measure(asked.seed)
        picture.draw(measured, asked.plot)
        console.print(f"drawn: {asked.plot}", highlight=False)
        result["detector"] = measured.document()
    print(json.dumps(result))
    return 1 if any(one.failed for one in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
