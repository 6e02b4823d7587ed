"""One prefix as a file: safetensors, and nothing that runs code when it is read.

The header says which text it is of, of which model, and how its arrays go together; a checksum covers all of it. A file
is written under another name, and gets its own when it is whole and on the disk. Imports no MLX: files are read and
written on threads of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from draftd.engine.cache.trie import Tokens

FORMAT = "prefix 1"
SUFFIX = ".safetensors"
TEMPORARY = ".writing"

_MOST_HEADER = 16 << 20
_PIECE = 8 << 20  # bytes read at a time
_CHECKSUM = re.compile(rb'"crc32":"([0-9a-f]{8})"')
_BLANK = "0" * 8
# numpy has no bfloat16: its bits are carried as whole numbers.
_NUMBERS = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class BadFile(ValueError):
    """It is damaged, cut off, or no file of draftd's."""


class Kind(NamedTuple):
    """Of an array: safetensors' name of its numbers, and its shape."""

    numbers: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(_NUMBERS[self.numbers]).itemsize


class Stored(NamedTuple):
    kind: Kind
    data: Any  # a numpy array


@dataclass(frozen=True, slots=True)
class PrefixHeader:
    """What a file says of itself. `key`: of the model, and of all else that its arrays depend on. `tokens`: the text
    from its beginning; the arrays are of the positions from `start` on. `least`: the fewest tokens that they can be cut
    to. `form`: how they go together, in what JSON can hold."""

    key: str
    tokens: Tokens[int]
    start: int
    least: int
    form: Any


class PrefixWriter:
    """Writes one file, an array after the other. On one thread. Everything raises OSError; then call `abort`."""

    def __init__(self, folder: Path, header: PrefixHeader, kinds: Sequence[Kind]) -> None:
        tokens = Stored(Kind("U32", (len(header.tokens),)), np.frombuffer(header.tokens, dtype=np.uint32))
        told: dict[str, Any] = {
            "__metadata__": {
                "draftd": FORMAT,
                "key": header.key,
                "start": str(header.start),
                "least": str(header.least),
                "form": json.dumps(header.form, separators=(",", ":")),
                "crc32": _BLANK,
            }
        }
        end = 0
        for name, (numbers, shape) in zip(_names(len(kinds)), (tokens.kind, *kinds), strict=True):
            begin, end = end, end + Kind(numbers, shape).nbytes
            told[name] = {"dtype": numbers, "shape": list(shape), "data_offsets": [begin, end]}
        raw = json.dumps(told, separators=(",", ":")).encode()
        self._header = raw + b" " * (-len(raw) % 8)
        self.nbytes = 8 + len(self._header) + end
        self._crc = zlib.crc32(self._header)
        handle, self._name = tempfile.mkstemp(dir=folder, suffix=TEMPORARY)  # of mode 0600
        self._file = os.fdopen(handle, "wb", buffering=0)
        try:
            self._write(len(self._header).to_bytes(8, "little") + self._header)
            self.put(tokens)
        except BaseException:
            self.abort()
            raise

    def put(self, one: Stored) -> None:
        data: Any = np.ascontiguousarray(one.data).reshape(-1).view(np.uint8)
        data = memoryview(data)
        self._crc = zlib.crc32(data, self._crc)
        self._write(data)

    def finish(self, path: Path) -> None:
        """It is on the disk, as `path`, when this returns."""
        told = self._header.replace(f'"crc32":"{_BLANK}"'.encode(), f'"crc32":"{self._crc:08x}"'.encode(), 1)
        self._file.seek(8)
        self._write(told)
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._name, path)
        with contextlib.suppress(OSError):  # so that the name survives a power cut, where the file system can
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._name)

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:  # one call may write a part
            left = left[self._file.write(left) :]


def read_header(path: Path) -> PrefixHeader:
    """Without its arrays, which may be damaged still. Raises BadFile or OSError."""
    with path.open("rb", buffering=0) as file:
        return _opened(file)[0]


def read_prefix(path: Path) -> tuple[PrefixHeader, list[Stored]]:
    """All of it. Raises BadFile or OSError."""
    with path.open("rb", buffering=0) as file:
        header, kinds, crc, told = _opened(file)
        arrays = []
        for kind in kinds:
            data: Any = np.empty(kind.nbytes, np.uint8)
            crc = _filled(file, memoryview(data), crc)
            arrays.append(Stored(kind, data.view(_NUMBERS[kind.numbers]).reshape(kind.shape)))
    if crc != told:
        raise BadFile("its checksum does not match")
    return header, arrays


def _opened(file: BinaryIO) -> tuple[PrefixHeader, list[Kind], int, int]:
    """The header; what arrays follow; the checksum up to them, and the one that it shall come to."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(_exactly(file, 8), "little")
    if not 2 <= length <= min(_MOST_HEADER, size - 8):
        raise BadFile("it is no safetensors file, or cut off")
    raw = _exactly(file, length)
    found = _CHECKSUM.search(raw)
    try:
        told = json.loads(raw)
        said = told.pop("__metadata__")
        if said["draftd"] != FORMAT or found is None:
            raise BadFile(f"it is no {FORMAT} of draftd")
        names = _names(len(told) - 1)
        kinds = [Kind(told[name]["dtype"], tuple(map(int, told[name]["shape"]))) for name in names]
        end = 0
        for name, kind in zip(names, kinds, strict=True):
            if told[name]["data_offsets"] != [end, end := end + kind.nbytes] or min((0, *kind.shape)) < 0:
                raise BadFile("its arrays do not lie one after the other")
        if 8 + length + end != size:
            raise BadFile(f"it has {size} bytes, and its header says {8 + length + end}")
        tokens = array("I", bytes(kinds[0].nbytes))
        crc = zlib.crc32(raw.replace(found[0], f'"crc32":"{_BLANK}"'.encode(), 1))
        crc = _filled(file, memoryview(tokens).cast("B"), crc)
        start, least = int(said["start"]), int(said["least"])
        if kinds[0].numbers != "U32" or not 0 <= start < len(tokens) or not 0 <= least <= len(tokens):
            raise BadFile("it says what cannot be")
        header = PrefixHeader(str(said["key"]), tokens, start, least, json.loads(said["form"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise error if isinstance(error, BadFile) else BadFile(f"its header cannot be read ({error})") from None
    return header, kinds[1:], crc, int(found[1], 16)


def _names(arrays: int) -> list[str]:
    return ["tokens", *(f"{i:06}" for i in range(arrays))]


def _exactly(file: BinaryIO, length: int) -> bytes:
    data = bytearray(length)
    _filled(file, memoryview(data), 0)
    return bytes(data)


def _filled(file: BinaryIO, into: memoryview, crc: int) -> int:
    """Fills `into` from the file; the checksum with what was read."""
    while into:
        read = file.readinto(into[:_PIECE])  # type: ignore[attr-defined]
        if not read:
            raise BadFile("it is cut off")
        crc, into = zlib.crc32(into[:read], crc), into[read:]
    return crc
