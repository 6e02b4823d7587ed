"""Prefixes on disk, in one folder: they outlive the process and serve later texts.

Pinned files stay until their pins are dropped; of the others the most recently used stay, within a limit. Files of
another model or version are never used but count towards the limits. A damaged or foreign file is renamed and logged.
Imports no MLX.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from draftd.engine.cache.pins import Pin, Pins
from draftd.engine.cache.prefix_file import (
    SUFFIX,
    TEMPORARY,
    BadFile,
    PrefixHeader,
    PrefixWriter,
    StoredArray,
    read_header,
    read_prefix,
)
from draftd.engine.cache.trie import Node, TokenTrie, pack_tokens
from draftd.errors import NoRoom

_log = logging.getLogger(__name__)

ASIDE = ".damaged"
_MOST_ASIDE = 8  # renamed damaged files that are kept
_OLD_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}\.safetensors(\.damaged)?")  # names that earlier versions used
_MOST_FILES = 4096


@dataclass(slots=True, eq=False)
class DiskPrefix:
    """A prefix file and its header without arrays. `used`: seconds since the epoch."""

    name: str
    nbytes: int
    used: float
    header: PrefixHeader
    node: Node[DiskPrefix] | None = None


class PrefixPiece(NamedTuple):
    """A prefix file, and the `length` of the text in tokens up to which its content is used."""

    file: DiskPrefix
    length: int


class DiskUsage(NamedTuple):
    """Bytes and files on disk, pinned ones included, and failed writes since the start. Fields of `PrefixStatus`
    (observer.py)."""

    disk_bytes: int
    disk_limit_bytes: int
    disk_files: int
    pins: int
    pinned_bytes: int
    disk_errors: int
    pin_errors: int


class PrefixDisk:
    """The folder of prefix files. Any thread: only `close` waits for the disk. Reading and writing have a thread
    each."""

    def __init__(self, folder: Path, limit_bytes: int, pinned_bytes: int) -> None:
        """`limit_bytes` is for unpinned files, `pinned_bytes` for pinned ones. The folder is created with the first
        file; no other process may use it."""
        self.folder, self.limit, self.pinned_limit = folder, limit_bytes, pinned_bytes
        self.pins = Pins(folder)
        self._lock = threading.RLock()
        self._files: dict[str, DiskPrefix] = {}
        self._tries: dict[str, TokenTrie[DiskPrefix]] = {}
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-prefix-read")
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-prefix-write")
        self._coming: set[str] = set()  # files of pins that are not saved yet
        self._full = False  # the last write failed, and that was logged
        self._errors = self._pin_errors = 0

    def start(self) -> Future[None]:
        """Reads the folder's index. Nothing is found before that is done."""
        return self._writing.submit(self._scan)

    def close(self, seconds: float) -> None:
        """Starts nothing more and waits up to `seconds` for running work; the next start deletes incomplete files."""
        last = self._writing.submit(lambda: None)
        self._reading.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(TimeoutError):
            last.result(seconds)
        self._writing.shutdown(wait=False, cancel_futures=True)

    @property
    def usage(self) -> DiskUsage:
        pinned = self.pins.files
        with self._lock:
            sizes = {name: file.nbytes for name, file in self._files.items()}
        pinned_bytes, size = sum(size for name, size in sizes.items() if name in pinned), sum(sizes.values())
        pins = len(self.pins.by_name)
        return DiskUsage(size, self.limit, len(sizes), pins, pinned_bytes, self._errors, self._pin_errors)

    # finding

    def parts(self, key: str, tokens: Sequence[int], have: int, *, segments: bool) -> list[PrefixPiece]:
        """Returns the files that have more of a text's beginning than its first `have` tokens: successive segments, or
        the single file that covers most."""
        with self._lock:
            trie = self._tries.get(key)
            path = trie.path(pack_tokens(tokens)) if trie is not None else []
            shared = sum(n for _, n in path)
            lengths = {value: node.end for node, n in path if (value := node.value) and n == len(node.edge)}
            if path:
                longer = (value for node in TokenTrie.below(path[-1][0]) if (value := node.value) is not None)
                lengths |= {file: min(shared, len(file.header.tokens)) for file in longer}
        chosen: list[PrefixPiece] = []
        while True:
            fit = [
                PrefixPiece(file, length)
                for file, length in lengths.items()
                if length > have and file.header.least <= length
                if file.header.start <= have
            ]
            best = max(fit, key=lambda part: part.length, default=None)
            if best is None:
                break
            chosen.append(best)
            have = best.length
            if not segments:
                break
        return chosen

    def name_of(self, key: str, tokens: Sequence[int], start: int) -> str:
        digest = hashlib.sha256(pack_tokens(tokens).tobytes() + start.to_bytes(8, "little")).hexdigest()
        return f"{key[:16]}-{digest[:32]}{SUFFIX}"

    def has(self, name: str) -> bool:
        with self._lock:
            return name in self._files

    def bytes_of(self, names: Sequence[str]) -> int:
        with self._lock:
            return sum(self._files[name].nbytes for name in names if name in self._files)

    def read(self, file: DiskPrefix) -> Future[list[StoredArray]]:
        """Reads a file's arrays. The future raises BadFile if the file is damaged, which is then renamed."""
        return self._reading.submit(self._read, file)

    def _read(self, file: DiskPrefix) -> list[StoredArray]:
        path = self.folder / file.name
        try:
            header, arrays = read_prefix(path)
            if header != file.header:
                raise BadFile("the file was replaced since the folder was listed")
        except (BadFile, OSError) as error:
            self._forget(file)
            self._put_aside(path, error)
            raise
        file.used = time.time()
        with contextlib.suppress(OSError):
            os.utime(path, (file.used, file.used))
        return arrays

    # writing

    def begin(self, header: PrefixHeader, nbytes: int, pin: Sequence[str] | None = None) -> Future[PrefixWriter]:
        """Starts a file for arrays of `nbytes` in all. Then `put` each array after the one before is done, and call
        `finish` or `abort`. The futures raise NoRoom if the disk is full or fails.

        `pin`: names of the files already written for a pin that is not saved yet; None if the file is for no pin. Files
        for a pin stay until `settle` releases them, and afterwards as long as a saved pin names them."""
        return self._writing.submit(self._begin, header, nbytes, pin)

    def put(self, writer: PrefixWriter, stored: StoredArray) -> Future[None]:
        return self._writing.submit(self._put, writer, stored)

    def finish(self, writer: PrefixWriter) -> Future[str]:
        """Completes the file. The future returns its name."""
        return self._writing.submit(self._finish, writer)

    def abort(self, begun: Future[PrefixWriter]) -> None:
        """Deletes the incomplete file."""

        def remove() -> None:
            with contextlib.suppress(Exception):
                begun.result().abort()

        with contextlib.suppress(RuntimeError):  # closed: the next start deletes it
            self._writing.submit(remove)

    def pin(self, pin: Pin) -> Future[None]:
        """Saves a pin; its files no longer count as unpinned. The future ends when the pin is on disk."""

        def save() -> None:
            with self._told_once(pin=True):
                self.pins.save(pin)
            self._full = False

        return self._writing.submit(save)

    def settle(self, names: Sequence[str]) -> None:
        """Declares that no unsaved pin will name these files any more."""

        def release() -> None:
            self._coming.difference_update(names)
            self._bound()

        with contextlib.suppress(RuntimeError):
            self._writing.submit(release)

    def drop(self, name: str) -> Future[None]:
        """Deletes a pin: its files then count as unpinned. An unknown name is no error."""

        def remove() -> None:
            with self._told_once(pin=True):
                self.pins.drop(name)
            self._bound()

        return self._writing.submit(remove)

    def _begin(self, header: PrefixHeader, nbytes: int, pin: Sequence[str] | None) -> PrefixWriter:
        if pin is not None:
            pinned_bytes = self.usage.pinned_bytes + self.bytes_of(
                [name for name in pin if name not in self.pins.files]
            )
            if pinned_bytes + nbytes > self.pinned_limit:
                raise NoRoom(
                    f"{len(header.tokens)} tokens take {nbytes} bytes, and pinned prefixes already {pinned_bytes} of "
                    f"{self.pinned_limit} bytes (engine.prefix_pinned_bytes)"
                )
        elif nbytes > self.limit:
            raise NoRoom(f"a prefix of {nbytes} bytes is larger than engine.prefix_disk_bytes, {self.limit}")
        with self._told_once(pin=pin is not None):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return PrefixWriter(self.folder, header, pinned=pin is not None)

    def _put(self, writer: PrefixWriter, stored: StoredArray) -> None:
        with self._told_once(writer, pin=writer.pinned):
            writer.put(stored)

    def _finish(self, writer: PrefixWriter) -> str:
        header = writer.header
        name = self.name_of(header.key, header.tokens, header.start)
        with self._told_once(writer, pin=writer.pinned):
            writer.finish(self.folder / name)
        self._full = False
        self._add(DiskPrefix(name, writer.nbytes, time.time(), header))
        if writer.pinned:
            self._coming.add(name)
        else:
            self._bound()
        return name

    @contextlib.contextmanager
    def _told_once(self, writer: PrefixWriter | None = None, *, pin: bool) -> Iterator[None]:
        """Turns a disk error into NoRoom, counts it, and logs it once until a write succeeds."""
        try:
            yield
        except OSError as error:
            if writer is not None:
                writer.abort()
            if pin:
                self._pin_errors += 1
            else:
                self._errors += 1
            message = f"no prefix can be written to {self.folder}: {error.strerror}"
            if not self._full:
                self._full = True
                _log.warning("%s; requests are still served", message)
            raise NoRoom(message) from error

    # the index of files

    def _scan(self) -> None:
        self.pins.load(self._put_aside)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in sorted(self.folder.iterdir()):
                killed = path.name.endswith(TEMPORARY) or path.name.startswith(".pin-")  # left by a killed process
                if killed or _OLD_NAME.fullmatch(path.name):
                    with contextlib.suppress(OSError):
                        path.unlink()
                elif path.name.endswith(SUFFIX):
                    self._look_at(path)
        self._bound()

    def _look_at(self, path: Path) -> None:
        try:
            stat, header = path.stat(), read_header(path)
            if path.name != self.name_of(header.key, header.tokens, header.start):
                raise BadFile("its name does not match its content")
        except (BadFile, OSError) as error:
            self._put_aside(path, error)
            return
        self._add(DiskPrefix(path.name, stat.st_size, stat.st_mtime, header))

    def _put_aside(self, path: Path, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else str(error)
        try:
            os.replace(path, path.with_name(path.name + ASIDE))
        except OSError as failed:
            _log.warning("the prefix or pin %s cannot be used: %s (%s)", path, why, failed.strerror)
            return
        _log.warning("the prefix or pin %s cannot be used: %s; it was renamed to %s%s", path, why, path.name, ASIDE)
        aside = sorted(self.folder.glob(f"*{ASIDE}"), key=lambda file: file.stat().st_mtime)
        for old in aside[:-_MOST_ASIDE]:
            with contextlib.suppress(OSError):
                old.unlink()

    def _add(self, file: DiskPrefix) -> None:
        with self._lock:
            if (before := self._files.get(file.name)) is not None:
                self._forget(before)
            trie = self._tries.setdefault(file.header.key, TokenTrie(lambda value, n: (None, value)))
            node = trie.grow(file.header.tokens)
            other = node.value
            if other is None or other.header.start >= file.header.start:
                node.value, file.node = file, node
                if other is not None:
                    other.node = None  # the new file covers it
            self._files[file.name] = file

    def _forget(self, file: DiskPrefix) -> None:
        with self._lock:
            self._files.pop(file.name, None)
            node, file.node = file.node, None
            if node is not None:
                node.value = None
                self._tries[file.header.key].prune(node)

    def _bound(self) -> None:
        """Deletes the least recently used unpinned files beyond the limit."""
        pinned = self.pins.files | self._coming
        with self._lock:
            others = sorted(
                (file for file in self._files.values() if file.name not in pinned), key=lambda file: file.used
            )
        size = sum(file.nbytes for file in others)
        for i, file in enumerate(others):
            if size <= self.limit and len(others) - i <= _MOST_FILES:
                break
            size -= file.nbytes
            self._forget(file)
            with contextlib.suppress(OSError):
                (self.folder / file.name).unlink()
