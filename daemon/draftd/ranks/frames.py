"""What goes over a connection between rank 0 and a follower: frames, each with its length, version, kind, step number
and checksum.

    4 bytes  length of the body     1 byte  version     1 byte  kind     8 bytes  step     4 bytes  CRC-32     body

All numbers are unsigned and big-endian. The checksum is over version, kind, step and body. The body of a RECORD is
`engine.ranks.channel`'s, that of a PING is `Report`'s; all others are JSON objects. Whoever sees a frame that is
not as it should be ends the connection: nothing is sent twice.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftd.engine.ranks.channel import Progress

VERSION = 1
MOST_BYTES = 16 << 20  # of a body; records are some dozen bytes, lists of files some hundred thousand
_HEAD = struct.Struct("!IBBQI")
_SUMMED = struct.Struct("!BBQ")
_REPORT = struct.Struct("!QQQd")


class Kind(enum.IntEnum):
    """Those up to GO are the handshake's (handshake.py), in their order."""

    HELLO = 1  # of a follower: what it is
    WELCOME = 2  # of rank 0: how to join
    HASHING = 3  # of both: how far
    PROOF = 4  # of a follower: the hashes of its model's files
    MEET = 5  # of rank 0: now try to reach the neighbour; and of a follower, once it has
    GO = 6  # of rank 0: all fits
    REFUSED = 7  # of rank 0: why there is no group
    FAILED = 8  # of both: why a rank ends
    READY = 9  # of a follower: it has read its weights
    RECORD = 10  # of rank 0
    PING = 11  # of both
    END = 12  # of rank 0: the group ends in order


class BadFrame(ValueError):
    """What came is no frame of this version."""


class Frame(NamedTuple):
    kind: Kind
    step: int
    body: bytes

    def fields(self) -> dict[str, Any]:
        """Of a JSON body. Raises BadFrame."""
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise BadFrame(f"its body is not JSON ({error})") from None
        if not isinstance(found, dict):
            raise BadFrame("its body is no JSON object")
        return found


def encoded(kind: Kind, step: int = 0, body: bytes = b"") -> bytes:
    sum_ = zlib.crc32(body, zlib.crc32(_SUMMED.pack(VERSION, kind, step)))
    return _HEAD.pack(len(body), VERSION, kind, step, sum_) + body


def told(kind: Kind, fields: Mapping[str, Any]) -> bytes:
    """A frame with a JSON body."""
    return encoded(kind, 0, json.dumps(fields).encode())


class FrameReader:
    """Cuts what arrives into frames."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._left = most_bytes, bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now. Raises BadFrame at the first that is wrong."""
        self._left += data
        begin = 0
        try:
            while len(self._left) - begin >= _HEAD.size:
                length, version, kind, step, sum_ = _HEAD.unpack_from(self._left, begin)
                if version != VERSION:
                    raise BadFrame(f"version {version}, and not {VERSION}")
                if length > self._most:
                    raise BadFrame(f"{length} bytes, more than {self._most}")
                end = begin + _HEAD.size + length
                if len(self._left) < end:
                    return
                body, begin = bytes(self._left[begin + _HEAD.size : end]), end
                if zlib.crc32(body, zlib.crc32(_SUMMED.pack(version, kind, step))) != sum_:
                    raise BadFrame("its checksum is wrong")
                try:
                    found = Kind(kind)
                except ValueError:
                    raise BadFrame(f"kind {kind}, which is not known") from None
                yield Frame(found, step, body)
        finally:
            del self._left[:begin]


@dataclass(frozen=True, slots=True)
class Report:
    """A PING's body: what a rank has executed, and the memory that it may hold (0: not known)."""

    progress: Progress = field(default_factory=lambda: Progress(0, 0, 0.0))
    limit_bytes: int = 0

    def encoded(self) -> bytes:
        one = self.progress
        return _REPORT.pack(one.records, one.memory_bytes, self.limit_bytes, one.collective_seconds)

    @classmethod
    def of(cls, body: bytes) -> Report:
        """Raises BadFrame."""
        try:
            records, memory, limit, seconds = _REPORT.unpack(body)
        except struct.error as error:
            raise BadFrame(f"no report ({error})") from None
        return cls(Progress(records, memory, seconds), limit)
