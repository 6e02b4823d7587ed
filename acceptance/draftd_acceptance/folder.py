"""A run is a folder of plain files. What was measured is appended line by line and never rewritten.

run.json              format, name, and which daemon it was begun with
manifests/0001.json   what was measured, one for each session: each time that a command worked on it
sweep.json            what was asked of a stage; likewise soak.json, quality.json
sweep.jsonl           its ticks, one a line; likewise soak.jsonl, quality.jsonl
machine.jsonl         samples of the machine beside them
gate.json report.html report.md   derived, and written anew from the rest at any time
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
    """A run's folder is not as it should be, or is asked for what it does not hold: names the file and the line."""


class _About(BaseModel):
    """run.json"""

    format: Literal[1]
    name: str = ""
    created: str = ""
    daemon: dict[str, Any] = {}


class RunFolder:
    """Safe to append to from several threads; one process at a time."""

    def __init__(self, path: Path) -> None:
        """Use `create` or `open`."""
        self.path = path
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, name: str = "", daemon: Mapping[str, Any] | None = None) -> RunFolder:
        """`daemon`: which one is measured, for commands that resume the run. Raises RunError where there is something
        else already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(str(path), "something else", "an empty or new folder; an existing run is resumed")
        path.mkdir(parents=True, exist_ok=True)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        about = _About(format=1, name=name or path.name, created=created, daemon=dict(daemon or {}))
        folder = cls(path)
        folder.write("run.json", to_json(about))
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Raises RunError for a folder that holds no run, or one of another format."""
        folder = cls(path)
        folder._about()
        return folder

    @property
    def name(self) -> str:
        return self._about().name or self.path.name

    @property
    def daemon(self) -> dict[str, Any]:
        """Which daemon it was begun with."""
        return self._about().daemon

    def _about(self) -> _About:
        try:
            return parse_json(_About, (self.path / "run.json").read_bytes(), str(self.path / "run.json"))
        except FileNotFoundError:
            raise RunError(str(self.path), "no run.json", "a folder with one, as draftd's commands write it") from None

    # sessions

    def begin_session(self, manifest: Manifest) -> int:
        """Keeps the manifest, and gives the session's number, from 1."""
        with self._lock:
            number = max(self.manifests(), default=0) + 1
            (self.path / "manifests").mkdir(exist_ok=True)
            self.write(f"manifests/{number:04}.json", to_json(manifest))
        return number

    def manifests(self) -> dict[int, Manifest]:
        """By session. Raises RunError for one that cannot be read."""
        paths = sorted((self.path / "manifests").glob("[0-9]*.json"))
        return {int(path.stem): parse_json(Manifest, path.read_bytes(), str(path)) for path in paths}

    # what was asked

    def plan(self, stage: Stage) -> dict[str, Any] | None:
        """What was asked of a stage when it began; None where it has not."""
        path = self.path / f"{stage}.json"
        try:
            return parse_json(dict[str, Any], path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def freeze_plan(self, stage: Stage, plan: Mapping[str, Any]) -> None:
        """Keeps what is asked of a stage. Raises RunError, naming the field, where it began with something else."""
        wanted = json.loads(json.dumps(plan))
        begun = self.plan(stage)
        if begun is None:
            self.write(f"{stage}.json", to_json(wanted))
            return
        for name in sorted({*begun, *wanted}):
            if begun.get(name) != wanted.get(name):
                allowed = f"{begun.get(name)!r}, as this run began with; use a new run for other options"
                raise RunError(f"{stage}: {name}", wanted.get(name), allowed)

    # what was measured

    def ticks(self, stage: Stage) -> list[Tick]:
        """In the order in which they were measured."""
        return list(self._lines(f"{stage}.jsonl", Tick))

    def samples(self, stage: Stage | None = None) -> list[MachineSample]:
        return [one for one in self._lines("machine.jsonl", MachineSample) if stage is None or one.stage == stage]

    def keep_tick(self, tick: Tick) -> None:
        self._append(f"{tick.place.stage}.jsonl", tick)

    def keep_sample(self, sample: MachineSample) -> None:
        self._append("machine.jsonl", sample)

    def write(self, name: str, text: str) -> Path:
        """A file, whole or not at all."""
        beside = self.path / f"{name}.new"
        beside.write_text(text, encoding="utf-8", newline="")
        return beside.replace(self.path / name)

    def _append(self, name: str, value: Any) -> None:
        line = _adapter(type(value)).dump_json(value)
        with self._lock, (self.path / name).open("ab+") as file:
            _drop_partial_line(file)
            file.write(line + b"\n")

    def _lines(self, name: str, kind: type[_T]) -> Iterator[_T]:
        """A last line that is cut short was being written when the run ended: it is left out."""
        with contextlib.suppress(FileNotFoundError):
            for number, line in enumerate((self.path / name).read_bytes().split(b"\n")[:-1], 1):
                if line.strip():
                    yield parse_json(kind, line, f"{self.path / name}, line {number}")


def to_json(value: Any) -> str:
    """A document as it lies in a run's folder."""
    return json.dumps(_adapter(type(value)).dump_python(value, mode="json"), indent=2, ensure_ascii=False) + "\n"


def parse_json(kind: type[_T], text: str | bytes, place: str) -> _T:
    """A JSON document. Raises RunError with the first field that is wrong, after the `place` where it stands."""
    try:
        return cast(_T, _adapter(kind).validate_json(text))
    except ValidationError as error:
        raise RunError(*wrong_field(error, f"{place}: ")) from None


def _drop_partial_line(file: Any) -> None:
    """Cuts off what a process that was killed left of a line, so that the next one is whole."""
    end = file.tell()
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
