"""`python -m tests.real`: are a real model's texts those of mlx-lm's own loop in every configuration (ten minutes)?

SmolLM2-135M-Instruct, which `make real-model` makes: with 16 bits greedy and with seeds, alone, four and eight at once,
at depths 0 to 8 and automatic, with prompts of all categories (classes); with 4 bits greedy and alone. Prints a row for
each configuration. Exits with 1 if a text differs. The last line is JSON.

--part NAME   only this part: greedy, seeded or 4bit; may be repeated
--each N      prompts of each category (2)
--tokens N    tokens of each text (24)
"""

from __future__ import annotations

import argparse
import json
import sys

from draftd.models.blas import load_blas
from scripts.real_model import FULL, QUANTIZED

_WIDTHS = (66, 6, 10, 8, 9, 8)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    load_blas()
    from tests.real import matrix  # imports MLX, after the BLAS

    parser.add_argument("--part", action="append", choices=matrix.PARTS, metavar="NAME")
    parser.add_argument("--each", type=_positive, default=2)
    parser.add_argument("--tokens", type=_positive, default=24)
    options = parser.parse_args()
    for folder in (FULL, QUANTIZED):
        if not (folder / "config.json").is_file():
            print(f"{folder} is missing: run `make real-model`", file=sys.stderr)
            return 1
    rows = list[matrix.Row]()
    _print_cells("configuration", "texts", "identical", "drafted", "accepted", "seconds")
    for part in options.part or matrix.PARTS:
        for row in matrix.compare(part, each=options.each, tokens=options.tokens):
            rows.append(row)
            _print_cells(row.name, row.texts, row.identical, row.drafted, row.accepted, f"{row.seconds:.1f}")
            for line in row.differences:
                print(f"  {line}", flush=True)
    sums = {name: sum(getattr(row, name) for row in rows) for name in ("texts", "identical", "drafted", "accepted")}
    print(json.dumps({"configurations": len(rows), **sums}))
    return int(sums["identical"] < sums["texts"])


def _print_cells(name: object, *figures: object) -> None:
    first, *others = _WIDTHS
    print(
        f"{name:<{first}}", *(f"{figure:>{width}}" for figure, width in zip(figures, others, strict=True)), flush=True
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}, allowed: 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
