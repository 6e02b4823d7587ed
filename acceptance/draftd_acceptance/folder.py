"""A run is a folder of plain files. Measurements are appended line by line and never rewritten.

run.json              format, name, and which daemon it was begun with
manifests/0001.json   the manifest of each session: each time that a command worked on the run
sweep.json            the options of a stage; also soak.json, quality.json
sweep.jsonl           its ticks, one a line; also soak.jsonl, quality.jsonl
machine.jsonl         samples of the machine taken during the stages
gate.json report.html report.md   derived, and can be written again at any time
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from draftd.errors import FieldError, wrong_field
from draftd_acceptance.manifest import Manifest
from draftd_acceptance.ticks import MachineSample, Stage, Tick

_T = TypeVar("_T")


class RunError(FieldError):
    """A run's folder is damaged, or lacks what was requested. The message names the file and the line."""


class _About(BaseModel):
    """run.json"""

    format: Literal[1]
    name: str = ""
    created: str = ""
    daemon: dict[str, Any] = {}


class RunFolder:
    """Safe to append to from several threads; one process at a time."""

    def __init__(self, path: Path) -> None:
        """Use `create` or `open` instead."""
        self.path = path
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, name: str = "", daemon: Mapping[str, Any] | None = None) -> RunFolder:
        """Creates a run. `daemon` describes the daemon to measure, for commands that resume the run. Raises RunError if
        the path holds anything else."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(str(path), "something else", "a new or empty folder, or the folder of a run to resume")
        path.mkdir(parents=True, exist_ok=True)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = _About(format=1, name=name or path.name, created=created, daemon=dict(daemon or {}))
        folder = cls(path)
        folder.write("run.json", to_json(about))
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens a run. Raises RunError if the folder holds no run, or one of another format."""
        folder = cls(path)
        folder._about()
        return folder

    @property
    def name(self) -> str:
        return self._about().name or self.path.name

    @property
    def daemon(self) -> dict[str, Any]:
        """The description of the daemon that the run was begun with."""
        return self._about().daemon

    def _about(self) -> _About:
        try:
            return parse_json(_About, (self.path / "run.json").read_bytes(), str(self.path / "run.json"))
        except FileNotFoundError:
            raise RunError(str(self.path), "no run.json", "the folder of a run, with its run.json") from None

    # sessions

    def begin_session(self, manifest: Manifest) -> int:
        """Keeps the manifest and returns the session's number, from 1."""
        with self._lock:
            number = max(self.manifests(), default=0) + 1
            (self.path / "manifests").mkdir(exist_ok=True)
            self.write(f"manifests/{number:04}.json", to_json(manifest))
        return number

    def manifests(self) -> dict[int, Manifest]:
        """Returns the manifests by session. Raises RunError if one cannot be read."""
        paths = sorted((self.path / "manifests").glob("[0-9]*.json"))
        return {int(path.stem): parse_json(Manifest, path.read_bytes(), str(path)) for path in paths}

    # plans

    def plan(self, stage: Stage) -> dict[str, Any] | None:
        """Returns the options that a stage began with; None if it has not begun."""
        path = self.path / f"{stage}.json"
        try:
            return parse_json(dict[str, Any], path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def freeze_plan(self, stage: Stage, plan: Mapping[str, Any]) -> None:
        """Keeps a stage's options. Raises RunError, naming the field, if the stage began with others."""
        wanted = json.loads(json.dumps(plan))
        begun = self.plan(stage)
        if begun is None:
            self.write(f"{stage}.json", to_json(wanted))
            return
        for name in sorted({*begun, *wanted}):
            if begun.get(name) != wanted.get(name):
                allowed = f"{begun.get(name)!r}, as this run began with; use a new run for other options"
                raise RunError(f"{stage}: {name}", wanted.get(name), allowed)

    # measurements

    def ticks(self, stage: Stage) -> list[Tick]:
        """Returns the ticks in the order of measurement."""
        return list(self._lines(f"{stage}.jsonl", Tick))

    def samples(self, stage: Stage | None = None) -> list[MachineSample]:
        return [one for one in self._lines("machine.jsonl", MachineSample) if stage is None or one.stage == stage]

    def keep_tick(self, tick: Tick) -> None:
        self._append(f"{tick.place.stage}.jsonl", tick)

    def keep_sample(self, sample: MachineSample) -> None:
        self._append("machine.jsonl", sample)

    def write(self, name: str, text: str) -> Path:
        """Writes a file, whole or not at all."""
        beside = self.path / f"{name}.new"
        beside.write_text(text, encoding="utf-8", newline="")
        return beside.replace(self.path / name)

    def _append(self, name: str, value: Any) -> None:
        line = _adapter(type(value)).dump_json(value)
        with self._lock, (self.path / name).open("ab+") as file:
            _drop_partial_line(file)
            file.write(line + b"\n")

    def _lines(self, name: str, kind: type[_T]) -> Iterator[_T]:
        """A last line without an end was being written when the run ended; it is left out."""
        with contextlib.suppress(FileNotFoundError):
            for number, line in enumerate((self.path / name).read_bytes().split(b"\n")[:-1], 1):
                if line.strip():
                    yield parse_json(kind, line, f"{self.path / name}, line {number}")


def to_json(value: Any) -> str:
    """Returns a document in the form that a run's folder keeps."""
    return json.dumps(_adapter(type(value)).dump_python(value, mode="json"), indent=2, ensure_ascii=False) + "\n"


def parse_json(kind: type[_T], text: str | bytes, place: str) -> _T:
    """Parses a JSON document. Raises RunError with the first wrong field, after its `place`."""
    try:
        return cast(_T, _adapter(kind).validate_json(text))
    except ValidationError as error:
        raise RunError(*wrong_field(error, f"{place}: ")) from None


def _drop_partial_line(file: Any) -> None:
    """Cuts off a partial last line that a killed process left, so that the next line is whole."""
    end = file.tell()
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
