"""Protobuf messages as plain values for `--json`: numbers as numbers, durations in seconds, times in ISO 8601, enums by
their short name.

Protobuf's own JSON writes 64-bit counts as strings, which no filter can compare or add.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp


def as_json(message: Message) -> str:
    """One line of JSON."""
    return json.dumps(plain(message))


def plain(message: Message) -> dict[str, Any]:
    """Every field by its own name; a message or optional field that is not set is None."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: Any) -> Any:
    if isinstance(value, Duration):
        return value.ToNanoseconds() / 1e9
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return plain(value)
    if field.enum_type is not None:
        return _short(field, value)
    return value


def _short(field: Any, number: int) -> str | int:
    """CODE of WORKLOAD_CLASS_CODE, in lower case; a number that this version does not know stays one."""
    names = field.enum_type.values_by_number
    if number not in names:
        return number
    prefix = names[0].name.removesuffix("UNSPECIFIED")
    return str(names[number].name.removeprefix(prefix).lower())
