"""The command: measures all parts in each repetition, prints a table for each, and all results on the last line.

Every repetition has new processes, because two processes of one program can differ by more than what is measured here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.peers.store import Run
from benchmarks.single.figures import Found
from benchmarks.single.part import Part, Processes, Turn
from benchmarks.single.prompts import Prompts
from benchmarks.single.registry import parts

_INTERRUPTED = 130  # the exit code that shells use for Ctrl-C


def main(arguments: Sequence[str] | None = None, known: Sequence[Part] | None = None) -> int:
    """Runs the command. Returns 0 if every part was measured; 1 if one failed, while the others are measured all the
    same; 2 if `--run` names measurements of another model; 130 after Ctrl-C."""
    known = parts() if known is None else known
    args = _arguments(arguments, known)
    chosen = [part for part in known if not args.parts or part.name in args.parts]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    run = Run(args.run or Path(".benchmarks") / f"single-{time.strftime('%Y%m%d-%H%M%S')}")
    asked = {"model": args.model}
    if (conditions := run.conditions(asked)) != asked:
        console.print(
            f"--run {run.folder}: started with {conditions}; allowed: the same options, not {asked}", style="red"
        )
        return 2
    console.print(f"{args.model} without a draft model; raw measurements: {run.folder}")
    try:
        broken = _measure(args, chosen, run, console)
    except KeyboardInterrupt:
        console.print(f"\nstopped; the measurements are kept. To continue: --run {run.folder}")
        return _INTERRUPTED
    figures: dict[str, Any] = {}
    for part in chosen:
        records = run.store(part.name).records()
        if not records:
            continue  # the part failed
        try:
            found = part.found(records)
        except ValueError as error:
            console.print(f"{part.name}: {error}", style="red", markup=False)
            broken.add(part.name)
            continue
        _show(part.title, len({one["repetition"] for one in records}), found, console)
        figures |= found.figures
    console.print(f"raw measurements: {run.folder}" + (f"; failed: {', '.join(sorted(broken))}" if broken else ""))
    print(json.dumps(figures), flush=True)
    return 1 if broken else 0


def _measure(args: argparse.Namespace, chosen: Sequence[Part], run: Run, console: Console) -> set[str]:
    """Measures the parts in all repetitions. Returns the names of those that failed. A part's repetition is stored as a
    whole, or measured again."""
    prompts = Prompts(args.model)
    broken: set[str] = set()
    for repetition in range(args.repetitions):
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            processes = Processes(stack, args.model)
            for part in chosen:
                store = run.store(part.name)
                if part.name in broken or any(one["repetition"] == repetition for one in store.records()):
                    continue
                console.print(f"repetition {repetition + 1} of {args.repetitions}, [bold]{part.name}[/]")
                draw = random.Random(f"{part.name}/{repetition}")
                turn = Turn(repetition, processes, prompts, console, draw)
                started = time.perf_counter()
                try:
                    part.measure(turn)
                except Exception as error:  # the other parts are measured all the same
                    console.print(f"{part.name}: {type(error).__name__}: {error}", style="red", markup=False)
                    broken.add(part.name)
                    continue
                for record in turn.records:
                    store.add(record)
                console.print(f"  {time.perf_counter() - started:.0f} s", style="dim")
        console.print(f"repetition {repetition + 1} of {args.repetitions}: {time.perf_counter() - began:.0f} s")
    return broken


def _show(title: str, repetitions: int, found: Found, console: Console) -> None:
    table = Table(title=f"{title} (medians of {repetitions}, lowest–highest)", title_justify="left")
    for heading in ("", "ratio", "range", "required", "draftd", "base", "unit", ""):
        table.add_column(heading, justify="right" if heading in ("ratio", "range", "draftd", "base") else "left")
    for row in found.rows:
        one = row.spread
        spread = f"{one.low:.3f}–{one.high:.3f}"
        sides = (f"{one.mine:.4g}", f"{one.base:.4g}")
        table.add_row(row.claim, f"{one.median:.3f}", spread, row.wanted, *sides, row.unit, row.detail)
    console.print(table)
    for note in found.notes:
        console.print(f"  {note}", style="dim", markup=False)


def _arguments(arguments: Sequence[str] | None, known: Sequence[Part]) -> argparse.Namespace:
    listed = "\n".join(f"  {part.name:12} {part.title}" for part in known)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=f"Measures one model without a draft; the last line is JSON.\n\nparts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in known]
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=[],
        help="parts to measure, separated by commas; default: all",
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--run", type=Path, help="folder of stopped measurements in .benchmarks, to continue them")
    args = options.parse(parser, arguments)
    for name in args.parts:
        if name not in names:
            parser.error(f"--parts: got {name}; allowed: {', '.join(names)}")
    if args.repetitions < 1:
        parser.error(f"--repetitions: got {args.repetitions}; allowed: 1 or more")
    if args.draft_model:
        parser.error(f"got the draft model {args.draft_model}; allowed: --model alone, or --real")
    return args
