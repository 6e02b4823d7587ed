"""A prefix as a file: an uncompressed ZIP archive, in which nothing can run code when it is read.

The header names the text, the model, and how the arrays fit together; each part has a checksum. A file is written under
a temporary name, and renamed when it is complete and on disk. Imports no MLX: files are read and written on threads of
their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from draftd.engine.cache.trie import Tokens
from draftd.files import take_name

FORMAT = "prefix 2"
SUFFIX = ".prefix"
TEMPORARY = ".writing"

_HEADER, _TOKENS, _ARRAYS = "header.json", "tokens", "arrays"
_MOST_HEADER = 16 << 20


class BadFile(ValueError):
    """The error for a file that is damaged, incomplete, or not draftd's."""


class StoredArray(NamedTuple):
    """A numpy array. `numbers`: the name of its type; numpy has no bfloat16, whose bits are stored as uint16."""

    numbers: str
    data: Any


@dataclass(frozen=True, slots=True)
class PrefixHeader:
    """The header of a file. `key`: identifies the model and everything else that the arrays depend on. `tokens`: the
    text from its beginning; the arrays cover positions from `start` on. `least`: the fewest tokens that they can be cut
    to. `form`: how they fit together, in JSON."""

    key: str
    tokens: Tokens[int]
    start: int
    least: int
    form: Any


class PrefixWriter:
    """Writes one file, array by array, on one thread. Methods raise OSError; the caller then calls `abort`."""

    def __init__(self, folder: Path, header: PrefixHeader, *, pinned: bool = False) -> None:
        """`pinned`: a future pin will name the file."""
        self.header, self.pinned, self.nbytes = header, pinned, 0
        self._kinds: list[tuple[str, tuple[int, ...]]] = []
        handle, self._name = tempfile.mkstemp(dir=folder, suffix=TEMPORARY)  # mode 0600
        self._file = os.fdopen(handle, "wb")
        self._archive = ZipFile(self._file, "w")
        self._arrays = self._archive.open(_ARRAYS, "w", force_zip64=True)

    def put(self, stored: StoredArray) -> None:
        self._kinds.append((stored.numbers, stored.data.shape))
        data: Any = np.ascontiguousarray(stored.data).reshape(-1).view(np.uint8)
        self._arrays.write(data)

    def finish(self, path: Path) -> None:
        """Completes the file and renames it to `path`; it is on disk when this returns."""
        header = self.header
        said = [FORMAT, header.key, header.start, header.least, header.form, self._kinds]
        self._arrays.close()
        self._archive.writestr(_TOKENS, header.tokens.tobytes())
        self._archive.writestr(_HEADER, json.dumps(said, separators=(",", ":")))
        self._archive.close()
        self.nbytes = self._file.tell()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        take_name(self._name, path)

    def abort(self) -> None:
        for part in (self._arrays, self._archive, self._file):
            with contextlib.suppress(OSError, ValueError):
                part.close()
        with contextlib.suppress(OSError):
            os.unlink(self._name)


def read_header(path: Path) -> PrefixHeader:
    """Returns the header without the arrays, which may still be damaged. Raises BadFile or OSError."""
    with _open_archive(path) as (_, header, _):
        return header


def read_prefix(path: Path) -> tuple[PrefixHeader, list[StoredArray]]:
    """Returns the header and all arrays. Raises BadFile or OSError."""
    with _open_archive(path) as (archive, header, kinds), archive.open(_ARRAYS) as file:
        arrays = []
        for numbers, shape in kinds:
            kind = np.dtype("uint16" if numbers == "bfloat16" else numbers)
            data = file.read(int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
            arrays.append(StoredArray(numbers, np.frombuffer(data, kind).reshape(shape)))
        if file.read(1):
            raise BadFile("it has more arrays than its header lists")
        return header, arrays


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[tuple[ZipFile, PrefixHeader, list[tuple[str, list[int]]]]]:
    """Yields the archive, its header, and the arrays that it should have. Turns any error into BadFile."""
    try:
        with ZipFile(path) as archive:
            if any(part.compress_type != ZIP_STORED for part in archive.infolist()):
                raise BadFile("an entry is compressed and could unpack to any size")
            if archive.getinfo(_HEADER).file_size > _MOST_HEADER:
                raise BadFile("its header is too long")
            said, key, start, least, form, kinds = json.loads(archive.read(_HEADER))
            tokens = array("I", archive.read(_TOKENS))
            if said != FORMAT or not 0 <= start < len(tokens) or not 0 <= least <= len(tokens):
                raise BadFile(f"it is not a prefix file of draftd ({FORMAT})")
            yield archive, PrefixHeader(str(key), tokens, start, least, form), kinds
    except (BadFile, OSError, MemoryError):
        raise
    except Exception as error:  # zipfile raises many, depending on the damage
        raise BadFile(f"it cannot be read ({error or type(error).__name__})") from None
