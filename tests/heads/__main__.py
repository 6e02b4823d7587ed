"""`python -m tests.heads`: are draft heads read right, fed right, and does no text depend on them?

It takes about half an hour. Numbers: each published layout gives the logits of an independent forward at draft
positions 1 to 3, and heads of other families are refused by name. States: a head is fed each hidden state once, as a
forward of its own computes it, after slices, rollbacks and prefix hits; a perfect head is accepted whole. Controls: the
trained heads are accepted less when they are used in a wrong way. Texts: with drafts that are partly
right, all texts are those without drafts. Exits with 1 otherwise. The last line is JSON.

--only PART   numbers, states, controls or texts; may be repeated
--texts N     texts of each cell (70)
--model PATH  a model with a trained head, for the controls; may be repeated (the embedded target with both of its
              heads, and SmolLM2)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from draftd.models.blas import load_blas
from scripts.real_model import FULL as REAL

PARTS = ("numbers", "states", "controls", "texts")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.heads", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", choices=PARTS, default=[])
    parser.add_argument("--texts", type=int, default=70)
    parser.add_argument("--model", action="append", type=Path, default=[])
    given = parser.parse_args()
    load_blas()
    from tests.heads import controls, numbers, states, texts
    from tests.heads.targets import EAGLE_HEAD, NANO

    results, failures = dict[str, Any](), list[str]()
    checks = {
        "numbers": numbers.check,
        "states": states.check,
        "controls": lambda: controls.check(
            [(model, None) for model in given.model]
            or [(NANO / "target", None), (NANO / "target", EAGLE_HEAD), (REAL, None)]
        ),
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
