"""Pins: named prefixes that stay on disk. Each is a small JSON file beside the prefix files that it names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from draftd.errors import InvalidRequest
from draftd.files import replace_file

MOST_PINS = 32
LEAST = 16  # tokens: shorter prefixes are not looked up
_VERSION = 1
_MOST_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A named prefix. `model`: digest of the target whose tokens these are. `files`: prefix files on disk, the target's
    first. `created`: seconds since the epoch."""

    name: str
    model: str
    tokens: tuple[int, ...]
    files: tuple[str, ...]
    created: float = field(default_factory=time.time)


def check_name(name: str) -> None:
    """Raises InvalidRequest if `name` is not a valid pin name."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest("name", name, "1 to 64 letters, digits, underscores, dots and dashes")


class Pins:
    """The pins of one folder. Any thread may read; one thread writes, by replacing `by_name`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.by_name: Mapping[str, Pin] = {}

    @property
    def oldest_first(self) -> list[Pin]:
        return sorted(self.by_name.values(), key=lambda pin: pin.created)

    @property
    def files(self) -> frozenset[str]:
        return frozenset(name for pin in self.by_name.values() for name in pin.files)

    def load(self, put_aside: Callable[[Path, Exception], None]) -> None:
        """Reads all pins. `put_aside` receives each unreadable file and its error."""
        for path in sorted(self._folder.glob("pin-*.json")):
            try:
                if path.stat().st_size > _MOST_BYTES:
                    raise ValueError(f"more than {_MOST_BYTES} bytes")
                document = json.loads(path.read_bytes())
                if document.pop("version") != _VERSION:
                    raise ValueError("its format has another version")
                pin = Pin(
                    **{**document, "tokens": tuple(map(int, document["tokens"])), "files": tuple(document["files"])}
                )
                if path.name != _file(pin.name) or not _NAME.fullmatch(pin.name):
                    raise ValueError("its name does not match its content")
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                put_aside(path, error)
                continue
            self.by_name = {**self.by_name, pin.name: pin}

    def save(self, pin: Pin) -> None:
        """Writes the pin to disk before it returns. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self._folder / _file(pin.name), json.dumps({"version": _VERSION, **asdict(pin)}))
        self.by_name = {**self.by_name, pin.name: pin}

    def drop(self, name: str) -> None:
        """Deletes the pin. Raises OSError if the file cannot be deleted."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (self._folder / _file(name)).unlink()
        self.by_name = {other: pin for other, pin in self.by_name.items() if other != name}


def _file(name: str) -> str:
    """Returns the pin's file name: a hash, because some file systems ignore case."""
    return f"pin-{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
