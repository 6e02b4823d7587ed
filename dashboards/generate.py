"""Writes the files generated from this folder: `python -m dashboards.generate [--check]`, run from the project's root.

`--docs-url URL` makes the alerts link to a copy of the documents.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dashboards.board import written
from dashboards.boards import boards
from dashboards.rules_grafana import grafana_rules
from dashboards.rules_prometheus import prometheus_rules
from dashboards.settings import Alerting
from draftd import DOCS_URL

ROOT = Path(__file__).parents[1]
PACKAGED = Path("daemon/draftd/grafana")  # in the package, so that an installed draftd can push it


def generated(alerting: Alerting, docs_url: str = DOCS_URL) -> Mapping[Path, str]:
    """Returns each generated file's text by its path from the root. Links in it lead to `docs_url`."""
    files = {PACKAGED / "dashboards" / f"{board.key}.json": written(board) for board in boards(alerting)}
    files[PACKAGED / "alerting" / "rules.yaml"] = grafana_rules(alerting)
    files[Path("dashboards/prometheus/draftd.rules.yaml")] = prometheus_rules(alerting)
    return {path: text.replace(DOCS_URL, docs_url) for path, text in files.items()}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Writes all files. With `--check` it only compares them, and returns 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    parser.add_argument("--docs-url", metavar="URL", default=DOCS_URL, help=f"where the documents are; {DOCS_URL}")
    options = parser.parse_args(arguments)
    files = generated(Alerting(), options.docs_url.rstrip("/"))
    stale = [
        path
        for path, text in files.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]
    if options.check:
        for path in stale:
            print(f"{path} is out of date: run python -m dashboards.generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(files[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
