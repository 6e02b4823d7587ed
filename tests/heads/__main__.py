"""`python -m tests.heads`: are draft heads read right, fed right, and does no text depend on them?

It takes about twelve minutes. Numbers: each published layout gives the logits of an independent forward at draft
positions 1 to 3, and heads of other families are refused by name. States: a head is fed each hidden state once, as a
forward of its own computes it, after slices, rollbacks and prefix hits; a perfect head is accepted whole. Controls: the
trained head of the embedded pair is accepted less when it is used in a wrong way. Texts: with drafts that are partly
right, all texts are those without drafts. Exits with 1 otherwise. The last line is JSON.

--only PART   numbers, states, controls or texts; may be repeated
--texts N     texts of each cell (70)
--head FILE   the trained head of the controls (training/heads/embedded/mtp.safetensors)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from draftd.models.blas import load_blas

PARTS = ("numbers", "states", "controls", "texts")
HEAD = Path("training/heads/embedded/mtp.safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.heads", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    parser.add_argument("--texts", type=int, default=70)
    parser.add_argument("--head", type=Path, default=HEAD)
    given = parser.parse_args()
    load_blas()
    from tests.heads import controls, numbers, states, texts

    results, failures = dict[str, Any](), list[str]()
    checks = {
        "numbers": numbers.check,
        "states": states.check,
        "controls": lambda: controls.check(given.head),
        "texts": lambda: texts.check(given.texts),
    }
    for part in given.only or PARTS:
        counts, failed = checks[part]()
        results, failures = results | counts, failures + failed
    for failure in failures:
        print(f"FAILED: {failure}")
    print(json.dumps(results))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
