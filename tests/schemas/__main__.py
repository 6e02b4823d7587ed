"""`python -m tests.schemas`: is every answer under a JSON schema valid?

Uses each drawn schema, greedy and at temperature 1, autoregressively and with drafts, with the embedded pair. Answers
that end in `stop` must be valid; those that `length` cut off are counted separately. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.resources import files

from draftd.models.blas import load_blas


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schemas", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th schema")
    args = parser.parse_args()
    load_blas()
    from draftd.engine.pair import load_models
    from tests.schemas.conformance import examined
    from tests.schemas.drawn import schemas

    nano, began = files("draftd.models") / "nano", time.monotonic()
    models = load_models(str(nano / "target"), str(nano / "draft"), progress=lambda line: None)
    found = examined(models, schemas()[:: args.every])
    for line in found.wrong:
        print(line, file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    print(json.dumps(found.counts))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
