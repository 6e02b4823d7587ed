"""`python -m tests.folders`: are model folders, as people have them, served right, or refused with advice?

Writes right and faulty folders of tiny models, and opens each as `draftd serve` and `draftd doctor` do. Compares ids,
logits and texts with those that other libraries compute from a clean folder. The last line is JSON.

--only WORDS   folders whose item or name contains these words; may be repeated
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftd.models.blas import load_blas

_WIDTH = 150  # columns of the table where the terminal has fewer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.folders", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", default=[], metavar="WORDS")
    args = parser.parse_args()
    load_blas()
    from tests.folders.cases import CASES  # brings MLX in, after the BLAS
    from tests.folders.judge import judged, quiet

    like = str(files("draftd.models") / "nano" / "draft")
    cases = [one for one in CASES if not args.only or any(words in f"{one.item}: {one.name}" for words in args.only)]
    console = Console(stderr=True)
    table = Table(title=f"{len(cases)} folders")
    for head in ("item", "folder", "served or refused", "as it must be"):
        table.add_column(head)
    results = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="draftd-folder-") as root, quiet():
            result = judged(case, Path(root), like)
        results.append(result)
        line = f"{len(results)} of {len(cases)}: {case.item}: {case.name}: {result.wrong or 'right'}"
        console.print(f"{line} ({result.seconds:.1f} s)", highlight=False, markup=False, soft_wrap=True)
        how = "served" if result.served else f"refused: {result.line.replace(root, '…')}"
        table.add_row(case.item, case.name, escape(how), escape(f"no: {result.wrong}" if result.wrong else "yes"))
    Console(width=max(console.width, _WIDTH)).print(table)
    counts = {
        "folders": len(results),
        "served": sum(one.served for one in results),
        "refused": sum(not one.served for one in results),
        "served wrong": sum(one.served and bool(one.wrong) for one in results),
        "refused wrong": sum(not one.served and bool(one.wrong) for one in results),
    }
    print(f"{counts['served wrong']} served wrong, {counts['refused wrong']} refused wrong")
    print(json.dumps(counts))
    return 1 if any(one.wrong for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
