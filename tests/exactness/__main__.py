"""`python -m tests.exactness`: does the measurement find every planted difference, and does `engine.exact` remove it?

It takes fifteen minutes. Twenty changes of last bits are put one at a time into tiny models whose logits nearly tie,
into mlx-lm's attention and draftd's caches: the measurement must name each. Then texts are decoded in 32 ways (depths
0, 1, 4, automatic; alone, eight; prefixes, none; two slice widths): with `exact` all must be the same; without it, at
least one text must differ. The same without such a change, on this machine's BLAS. Exits with 1 otherwise. The last
line is JSON.

--names       only measure, with the BLAS of this process, and say what each change was called
--only NAME   only plants with this in their name; may be repeated
--tokens N    tokens of each text (8)
--usual N     ways that are compared without `exact` (4)
--jobs N      processes (2)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from draftd.models.blas import load_blas

_BLAS = -1  # the part without a planted change
_TOTALS = ("planted", "named", "texts", "differ", "bits", "usual_texts", "usual_differ")
_WIDTHS = (38, 14, 82, 9, 9, 9, 9, 8)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exactness", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--usual", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.names:
        return _name(given)
    if given.part is not None:
        return _run(given)
    _print("change", "model", "named", "exact", "differ", "usual", "differ", "seconds")
    parts = [*range(given.jobs), *([] if given.only else [_BLAS])]
    with ThreadPoolExecutor(given.jobs) as pool:
        counted = list(pool.map(_child, parts))
    if None in counted:
        return 1
    totals = {key: sum(counts[key] for counts in counted if counts) for key in _TOTALS}
    print(json.dumps(totals))
    named = totals["named"] == totals["planted"]
    return 0 if named and not totals["differ"] and not totals["bits"] and totals["usual_differ"] else 1


def _child(part: int) -> dict[str, int] | None:
    """Runs a part in a process, and prints its rows. Returns its counts; None if it failed."""
    # In the reference BLAS nothing differs without a planted change.
    environment = {**os.environ, **({} if part == _BLAS else {"DRAFTD_BLAS": "reference"})}
    command, counts = [sys.executable, "-m", "tests.exactness", *sys.argv[1:], "--part", str(part)], None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                counts = json.loads(line)
            else:
                print(line, end="", flush=True)
    return None if child.returncode else counts


def _name(given: Any) -> int:
    load_blas()
    from tests.exactness import plants, texts

    totals = dict.fromkeys(("planted", "named", "others"), 0)
    for plant in plants.PLANTS:
        if given.only and not any(part in plant.name for part in given.only):
            continue
        models = texts.tied_pair(plant.model)
        with plant.put(models.target):
            operations = texts.measured(models).operations
        names = [operation.name for operation in operations if plant.named in operation.name]
        totals["planted"] += 1
        totals["named"] += bool(names)
        # What contains the layer differs with it.
        totals["others"] += sum(not plant.named.startswith(_inner(operation.name)) for operation in operations if
                                operation.name not in names)  # fmt: skip
        print(f"{plant.name}: {', '.join(f'{one.name} {one.in_words()}' for one in operations)}", flush=True)
    print(json.dumps(totals))
    return 0


def _inner(name: str) -> str:
    return name.removeprefix("model.")


def _run(given: Any) -> int:
    load_blas()
    from tests.exactness import plants, texts  # bring MLX in, after the BLAS

    totals = dict.fromkeys(_TOTALS, 0)
    if given.part == _BLAS:
        _row(totals, given, texts, "none, on this machine's BLAS", "llama wide", None)
    chosen = [plant for plant in plants.PLANTS if not given.only or any(part in plant.name for part in given.only)]
    for plant in chosen[given.part :: given.jobs] if given.part != _BLAS else ():
        totals["planted"] += 1
        _row(totals, given, texts, plant.name, plant.model, plant)
    print(json.dumps(totals))
    return 0


def _row(totals: dict[str, int], given: Any, texts: Any, name: str, model: str, plant: Any) -> None:
    began = time.monotonic()
    usual, exact = texts.tied_pair(model), texts.tied_pair(model)
    put = plant.put if plant else texts.nothing
    with put(usual.target):
        named = texts.named(usual, plant)
        without = texts.compare(usual, texts.some_ways(given.usual), given.tokens)
    with put(exact.target):
        layers = texts.exact(exact)
        compared = texts.compare(exact, texts.WAYS, given.tokens)
    totals["named"] += plant is not None and bool(named)
    totals["texts"] += compared.texts
    totals["differ"] += compared.differ
    totals["bits"] += compared.bits
    totals["usual_texts"] += without.texts
    totals["usual_differ"] += without.differ
    how = " (by token)" if layers.by_token else ""
    seconds = time.monotonic() - began
    _print(name, model, named or "not named", f"{compared.texts}{how}", f"{compared.differ}/{compared.bits}",
           without.texts, without.differ, f"{seconds:.0f}")  # fmt: skip


def _print(*cells: object) -> None:
    line: Sequence[str] = [f"{cell!s:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)]
    print(" ".join(line).rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
