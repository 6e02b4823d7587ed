"""Says what is wrong with bytes that protobuf would not parse. It only says "error parsing message"."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from draftd.errors import InvalidRequest


def explain(data: bytes, message: Descriptor) -> InvalidRequest:
    """The error to answer with: the first string that is not UTF-8, or the message as a whole."""
    with contextlib.suppress(DecodeError):
        for path, value in _strings(data, message, ""):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                shown = value[max(0, error.start - 8) : error.end + 8]
                return InvalidRequest(path, shown, f"valid UTF-8 ({error.reason} at byte {error.start})")
    return InvalidRequest("message", f"{len(data)} bytes", f"a well-formed {message.full_name}")


def _strings(data: bytes, message: Descriptor, prefix: str) -> Iterator[tuple[str, bytes]]:
    """The bytes of each string field, with its path. Raises DecodeError where the wire format breaks."""
    seen: Counter[int] = Counter()
    fields: Any = UnknownFieldSet(Empty.FromString(data))  # to an empty message all are unknown, and kept as they came
    for found in fields:
        field = message.fields_by_number.get(found.field_number)
        if field is None or not isinstance(found.data, bytes):
            continue
        path = prefix + field.name
        if field.is_repeated:
            path += f"[{seen[field.number]}]"
            seen[field.number] += 1
        if field.type == FieldDescriptor.TYPE_STRING:
            yield path, found.data
        elif field.message_type is not None:
            yield from _strings(found.data, field.message_type, f"{path}.")
