"""The command: runs the parts in order, prints a table for each, and all results on the last line."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import options
from benchmarks.arms import Prompt
from benchmarks.peers.part import Context, Draws, Figure, Pair, Part
from benchmarks.peers.report import last_line, show
from benchmarks.peers.store import Run
from benchmarks.run import load_prompts

_PROMPTS_A_CLASS = 80  # all held-out prompts of a category (class)
_INTERRUPTED = 130  # the exit code that shells use for Ctrl-C


def main(arguments: Sequence[str] | None, known: Sequence[Part]) -> int:
    """Runs the command. Returns 0 if every part was measured, whether or not its results pass; 1 if one failed; 2 if
    `--run` names measurements with other options; 130 after Ctrl-C."""
    args = _arguments(arguments, known)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    run = Run(args.run or Path(".benchmarks") / f"peers-{time.strftime('%Y%m%d-%H%M%S')}")
    asked = {"quick": args.quick, "seed": args.seed, "model": args.model, "draft_model": args.draft_model}
    conditions = run.conditions(asked)
    if conditions != asked:
        console.print(
            f"--run {run.folder}: started with {conditions}; allowed: the same options, not {asked}", style="red"
        )
        return 2
    console.print(f"{args.model} and {args.draft_model or 'no draft model'}; raw measurements: {run.folder}")
    began = time.perf_counter()
    try:
        prompts = load_prompts(args.model, _PROMPTS_A_CLASS)
        found, broken = _all(args, run, prompts, console, known)
    except KeyboardInterrupt:
        console.print(f"\nstopped; the measurements are kept. To continue: --run {run.folder}")
        return _INTERRUPTED
    for part in known if args.plot else ():
        if isinstance(part, Draws) and part.name in found:
            part.draw(run.store(part.name), args.plot)
            console.print(f"drawn: {args.plot}")
    console.print(f"raw measurements: {run.folder}")
    print(last_line(found, broken, conditions, time.perf_counter() - began), flush=True)
    return 1 if broken else 0


def _all(
    args: argparse.Namespace, run: Run, prompts: Sequence[Prompt], console: Console, known: Sequence[Part]
) -> tuple[dict[str, list[Figure]], dict[str, str]]:
    """Runs the parts. Returns the results by part, and the errors of the parts that failed."""
    found: dict[str, list[Figure]] = {}
    broken: dict[str, str] = {}
    for part in known:
        if args.parts and part.name not in args.parts:
            continue
        kept: dict[str, Any] | None = run.figures(part.name)
        if kept is not None:
            found[part.name] = [Figure.of_document(key, document) for key, document in kept.items()]
            show(f"{part.title} (measured before)", found[part.name], console)
            continue
        console.print(f"[bold]{part.name}[/]: {part.title}")
        began = time.perf_counter()
        context = Context(
            Pair(args.model, args.draft_model), prompts, console, run.store(part.name), args.quick, args.seed
        )
        try:
            figures = part.run(context)
        except Exception as error:  # the other parts are measured all the same
            broken[part.name] = f"{type(error).__name__}: {error}"
            console.print(traceback.format_exc(), style="red", markup=False)
            continue
        found[part.name] = figures
        run.done(part.name, {one.key: one.document() for one in figures})
        show(part.title, figures, console)
        console.print(f"  {time.perf_counter() - began:.0f} s", style="dim")
    return found, broken


def _arguments(arguments: Sequence[str] | None, known: Sequence[Part]) -> argparse.Namespace:
    listed = "\n".join(f"  {part.name:16} {part.title}" for part in known)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=f"Measures part by part; the last line is JSON.\n\nparts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in known]
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=[],
        help="parts to measure, separated by commas; default: all",
    )
    parser.add_argument("--quick", action="store_true", help="measure for a tenth of the time, to try the command out")
    parser.add_argument("--run", type=Path, help="folder of stopped measurements in .benchmarks, to continue them")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random numbers")
    parser.add_argument("--plot", type=Path, help="PNG file to which the results of `growth` are drawn")
    args = options.parse(parser, arguments)
    for name in args.parts:
        if name not in names:
            parser.error(f"--parts: got {name}; allowed: {', '.join(names)}")
    return args
