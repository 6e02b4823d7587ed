"""What rank 0 tells the others to do, as bytes: one operation on caches a record, in the order in which they are done.

Little-endian: version (1 byte), operation (1), how many numbers (1) and lists (1) follow, the record's number (4); the
numbers, 4 bytes each; each list, its length in 4 bytes before its numbers; a CRC32 of all that. Caches and cached
prefixes go by numbers that rank 0 gives. No tokens: they come with the forward itself.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

VERSION = 1
_HEAD = struct.Struct("<BBBBI")
_NUMBER = struct.Struct("<I")
LARGEST = 0xFFFF_FFFF


class Op(enum.IntEnum):
    """With its numbers, and after a semicolon its lists."""

    NEW = 1  # caches, batched, apart, level, axes, call_cost + 1 or 0, forwards: of the model, with no rows
    FRESH = 2  # caches of which, new caches; lengths
    FORWARD = 3  # caches, width, positions that are read of each row or 0; widths, these positions
    ROLLBACK = 4  # caches; lengths
    SPLIT = 5  # caches, new caches, rest; rows
    JOIN = 6  # caches, those that join
    SELECT = 7  # caches; rows
    CLEAR = 8  # caches
    PRETEND = 9  # caches; lengths
    EXTRACT = 10  # caches, new prefix, row, start, end
    RESTORE = 11  # caches; prefixes, lengths
    HALVE = 12  # prefix, its new first part, its new rest, length of the first part
    DROP = 13  # ; caches, prefixes
    GIVE_BACK = 14  # freed memory, to the system


_SHAPES = {
    Op.NEW: (7, 0),
    Op.FRESH: (2, 1),
    Op.FORWARD: (3, 2),
    Op.ROLLBACK: (1, 1),
    Op.SPLIT: (3, 1),
    Op.JOIN: (2, 0),
    Op.SELECT: (1, 1),
    Op.CLEAR: (1, 0),
    Op.PRETEND: (1, 1),
    Op.EXTRACT: (5, 0),
    Op.RESTORE: (1, 2),
    Op.HALVE: (4, 0),
    Op.DROP: (0, 2),
    Op.GIVE_BACK: (0, 0),
}


class RecordError(Exception):
    """Bytes that are no record, or not the next one."""


@dataclass(frozen=True, slots=True)
class Record:
    """`number`: of this record, from 1 on, and 1 again after the largest."""

    op: Op
    number: int
    numbers: tuple[int, ...]
    lists: tuple[tuple[int, ...], ...]


def following(number: int) -> int:
    """The number of the record after this one."""
    return number % LARGEST + 1


def encoded(op: Op, number: int, numbers: Sequence[int], lists: Sequence[Sequence[int]]) -> bytes:
    values = list(numbers)
    for one in lists:
        values.append(len(one))
        values += one
    body = struct.pack(f"<BBBBI{len(values)}I", VERSION, op, len(numbers), len(lists), number, *values)
    return body + _NUMBER.pack(zlib.crc32(body))


def decoded(data: bytes) -> Record:
    """Raises RecordError."""
    if len(data) < _HEAD.size + _NUMBER.size or len(data) % _NUMBER.size:
        raise RecordError(f"{len(data)} bytes are no record")
    body = data[: -_NUMBER.size]
    if _NUMBER.unpack(data[-_NUMBER.size :])[0] != zlib.crc32(body):
        raise RecordError("a record was damaged on its way")
    version, code, count, lists, number = _HEAD.unpack_from(body)
    if version != VERSION:
        raise RecordError(f"a record has version {version}, and this rank reads {VERSION}")
    try:
        op = Op(code)
    except ValueError:
        raise RecordError(f"a record has the unknown operation {code}") from None
    if (count, lists) != _SHAPES[op]:
        raise RecordError(f"a record of {op.name} has {count} numbers and {lists} lists")
    values = struct.unpack(f"<{(len(body) - _HEAD.size) // _NUMBER.size}I", body[_HEAD.size :])
    numbers, at, found = values[:count], count, list[tuple[int, ...]]()
    for _ in range(lists):
        if at >= len(values) or len(values) < (end := at + 1 + values[at]):
            raise RecordError(f"a record of {op.name} ends too early")
        found.append(values[at + 1 : end])
        at = end
    if len(numbers) < count or at != len(values):
        raise RecordError(f"a record of {op.name} has another length than it says")
    return Record(op, number, numbers, tuple(found))
