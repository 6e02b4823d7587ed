"""Raw ticks on disk: one JSON object a line, whole when `add` returns, readable after any interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Store:
    """One part's file of records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends one record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """All that were added, by earlier starts too. A line that a kill cut short is left out, and mended."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return [json.loads(line) for line in whole.splitlines()]


class Run:
    """A run's folder: a file of records for each part, and the figures of those that are done."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def store(self, part: str) -> Store:
        return Store(self.folder / f"{part}.jsonl")

    def conditions(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Under what the run was begun: `asked` where it begins now. Figures of one run share them."""
        path = self.folder / "run.json"
        if not path.exists():
            _write(path, asked)
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def figures(self, part: str) -> dict[str, Any] | None:
        """The figures of a part that is done, by key."""
        path = self._figures(part)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def done(self, part: str, figures: Mapping[str, Any]) -> None:
        _write(self._figures(part), figures)

    def _figures(self, part: str) -> Path:
        return self.folder / f"{part}.figures.json"


def _write(path: Path, document: Mapping[str, Any]) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
