"""A run is a folder of plain files. What was measured is appended line by line and never rewritten.

run.json              format and name
manifests/0001.json   what was measured, one for each session: each time that a command went to work on it
sweep.json            what was asked of a stage; likewise soak.json, quality.json
sweep.jsonl           its ticks, one a line; likewise soak.jsonl, quality.jsonl
machine.jsonl         samples of the machine beside them
gate.json report.html report.md   derived, and written anew from the rest at any time
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from draftd.acceptance.manifest import Manifest
from draftd.acceptance.samples import Sample
from draftd.acceptance.ticks import Stage, Tick
from draftd.acceptance.validation import first_fault
from draftd.errors import FieldError

FORMAT = 1
_T = TypeVar("_T")


class RunError(FieldError):
    """A run's folder is not as it should be, or is asked for what it does not hold: names the file and the line."""


class RunFolder:
    """Safe to append to from several threads; one process at a time."""

    def __init__(self, path: Path) -> None:
        """Use `create` or `open`."""
        self.path = path
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, name: str = "", daemon: Mapping[str, Any] | None = None) -> RunFolder:
        """`daemon`: which one is measured, for whoever goes on with the run. Raises RunError where there is something
        else already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(
                str(path), "something else", "a folder that is empty or not there yet; an existing run is gone on with"
            )
        path.mkdir(parents=True, exist_ok=True)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"format": FORMAT, "name": name or path.name, "created": created, "daemon": dict(daemon or {})}
        _write(path / "run.json", about)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Raises RunError for a folder that holds no run, or one of another format."""
        about = _read(path / "run.json")
        if about is None:
            raise RunError(str(path), "no run.json", "a folder with one, as draftd's own commands write it")
        if about.get("format") != FORMAT:
            raise RunError(f"{path / 'run.json'}: format", about.get("format"), str(FORMAT))
        return cls(path)

    @property
    def name(self) -> str:
        return str((_read(self.path / "run.json") or {}).get("name") or self.path.name)

    @property
    def daemon(self) -> dict[str, Any]:
        """Which daemon it was begun with."""
        return dict((_read(self.path / "run.json") or {}).get("daemon") or {})

    # sessions

    def begin_session(self, manifest: Manifest) -> int:
        """Keeps the manifest, and gives the session's number, from 1."""
        with self._lock:
            number = max(self.manifests(), default=0) + 1
            folder = self.path / "manifests"
            folder.mkdir(exist_ok=True)
            _write(folder / f"{number:04}.json", _adapter(Manifest).dump_python(manifest, mode="json"))
        return number

    def manifests(self) -> dict[int, Manifest]:
        """By session. Raises RunError for one that cannot be read."""
        found = {}
        for path in sorted((self.path / "manifests").glob("[0-9]*.json")):
            found[int(path.stem)] = _parsed(Manifest, path.read_bytes(), str(path))
        return found

    # what was asked

    def plan(self, stage: Stage) -> dict[str, Any] | None:
        """What was asked of a stage when it began; None where it has not."""
        return _read(self.path / f"{stage}.json")

    def freeze_plan(self, stage: Stage, plan: Mapping[str, Any]) -> None:
        """Keeps what is asked of a stage. Raises RunError, naming the field, where it began with something else."""
        wanted = json.loads(json.dumps(plan))
        begun = self.plan(stage)
        if begun is None:
            _write(self.path / f"{stage}.json", wanted)
            return
        for name in sorted({*begun, *wanted}):
            if begun.get(name) != wanted.get(name):
                raise RunError(
                    f"{stage}: {name}",
                    wanted.get(name),
                    f"{begun.get(name)!r}, as this run began with; measure otherwise in a run of its own",
                )

    # what was measured

    def ticks(self, stage: Stage) -> list[Tick]:
        """In the order in which they were measured."""
        return list(self._lines(self.path / f"{stage}.jsonl", Tick))

    def samples(self, stage: Stage | None = None) -> list[Sample]:
        found = self._lines(self.path / "machine.jsonl", Sample)
        return [one for one in found if stage is None or one.stage == stage]

    def keep_tick(self, tick: Tick) -> None:
        self._append(self.path / f"{tick.place.stage}.jsonl", _adapter(Tick).dump_json(tick))

    def keep_sample(self, sample: Sample) -> None:
        self._append(self.path / "machine.jsonl", _adapter(Sample).dump_json(sample))

    def write(self, name: str, text: str) -> Path:
        """A derived file, whole or not at all."""
        path = self.path / name
        _replace(path, text.encode())
        return path

    def _append(self, path: Path, line: bytes) -> None:
        with self._lock:
            with contextlib.suppress(FileNotFoundError):
                _mend(path)
            with path.open("ab") as file:
                file.write(line + b"\n")

    def _lines(self, path: Path, kind: type[_T]) -> Iterator[_T]:
        """A last line that is cut short was being written when the run ended: it is left out."""
        if not path.exists():
            return
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):
            if line.strip():
                yield _parsed(kind, line, f"{path}, line {number}")


def _mend(path: Path) -> None:
    """Cuts off what a process that was killed left of a line, so that the next one is whole."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        if not end:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _parsed(kind: Any, text: bytes, place: str) -> Any:
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise RunError(*first_fault(error, place)) from None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(str(path), None, f"a file with a JSON object ({error})") from None
    if not isinstance(found, dict):
        raise RunError(str(path), found, "a JSON object")
    return found


def _write(path: Path, value: Mapping[str, Any]) -> None:
    _replace(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.replace(path)
