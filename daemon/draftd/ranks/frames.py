"""Frames: the messages on a connection between rank 0 and a follower.

    4 bytes  length of the body     1 byte  version     1 byte  kind     8 bytes  step     4 bytes  CRC-32     body

All numbers are unsigned and big-endian. The checksum covers version, kind, step and body. `step` numbers the RECORDs of
a connection from 1, and is 0 in other frames. A RECORD's body is `engine.ranks.channel`'s; all others are JSON objects.
The receiver of a damaged frame ends the connection: nothing is sent twice.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from draftd.engine.ranks.channel import Progress

VERSION = 1
MOST_BYTES = 16 << 20  # of a body; records have a few dozen, lists of files some hundred thousand
_HEAD = struct.Struct("!IBBQI")
_SUMMED = struct.Struct("!BBQ")


class FrameKind(enum.IntEnum):
    """The kinds of frames. Those up to ECHO belong to the handshake (handshake.py), in their order."""

    CHALLENGE = 1  # from rank 0: to be signed
    HELLO = 2  # from a follower: what it is
    WELCOME = 3  # from rank 0: how to join
    HASHING = 4  # from a follower: how far
    PROOF = 5  # from a follower: the hashes of its model's files
    MEET = 6  # from rank 0: try to reach the neighbour; from a follower: done
    GO = 7  # from rank 0: all fits
    ECHO = 8  # from rank 0, and back: to time the connection
    REFUSED = 9  # from rank 0: why there is no group
    FAILED = 10  # from both: why a rank ends
    READY = 11  # from a follower: it has read its weights
    RECORD = 12  # from rank 0
    PING = 13  # from both
    END = 14  # from rank 0: the group ends in order


class BadFrame(ValueError):
    """The error for bytes that are not a frame of this version."""


class Frame(NamedTuple):
    kind: FrameKind
    step: int
    body: bytes

    def fields(self) -> dict[str, Any]:
        """Returns the JSON object in the body. Raises BadFrame."""
        try:
            fields = json.loads(self.body)
        except ValueError as error:
            raise BadFrame(f"the frame's body is not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise BadFrame("the frame's body is not a JSON object")
        return fields


def frame(kind: FrameKind, step: int = 0, body: bytes = b"") -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(_SUMMED.pack(VERSION, kind, step)))
    return _HEAD.pack(len(body), VERSION, kind, step, checksum) + body


def json_frame(kind: FrameKind, fields: Mapping[str, Any]) -> bytes:
    return frame(kind, 0, json.dumps(fields).encode())


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._rest = most_bytes, bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the complete frames. Raises BadFrame at the first damaged one."""
        self._rest += data
        begin = 0
        try:
            while len(self._rest) - begin >= _HEAD.size:
                length, version, kind, step, checksum = _HEAD.unpack_from(self._rest, begin)
                if version != VERSION:
                    raise BadFrame(f"protocol version {version}, expected {VERSION}")
                if length > self._most:
                    raise BadFrame(f"{length} bytes, more than {self._most}")
                end = begin + _HEAD.size + length
                if len(self._rest) < end:
                    return
                body, begin = bytes(self._rest[begin + _HEAD.size : end]), end
                if zlib.crc32(body, zlib.crc32(_SUMMED.pack(version, kind, step))) != checksum:
                    raise BadFrame("the frame's checksum is wrong")
                try:
                    yield Frame(FrameKind(kind), step, body)
                except ValueError:
                    raise BadFrame(f"unknown kind {kind}") from None
        finally:
            del self._rest[:begin]


def ping(progress: Progress) -> bytes:
    """Returns a sign of life with a rank's progress."""
    return json_frame(FrameKind.PING, progress._asdict())


def progress_of(pinged: Frame) -> Progress:
    """Returns the progress in a sign of life. Raises BadFrame."""
    try:
        return Progress(**pinged.fields())
    except TypeError as error:
        raise BadFrame(f"no report ({error})") from None
