"""Stores raw measurements on disk: a JSON object on each line, complete when `add` returns, readable after an
interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Store:
    """One part's file of raw records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends one record."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Returns all records that were added, by earlier starts too. Removes a last line that a kill cut short."""
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return [json.loads(line) for line in whole.splitlines()]


class Run:
    """The folder of one set of measurements: a file of raw records for each part, and the results of finished parts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def store(self, part: str) -> Store:
        return Store(self.folder / f"{part}.jsonl")

    def conditions(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that the measurements were started with. If there are none yet, stores and returns
        `asked`."""
        path = self.folder / "run.json"
        if not path.exists():
            _write(path, asked)
        return dict(json.loads(path.read_text(encoding="utf-8")))

    def figures(self, part: str) -> dict[str, Any] | None:
        """Returns the results of a finished part by key, or None."""
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
