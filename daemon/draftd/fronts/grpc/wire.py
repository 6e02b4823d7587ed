"""Says what is wrong with bytes that protobuf would not parse. It only says "error parsing message"."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from draftd.errors import InvalidRequest

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 16  # draftd's own messages are three deep


def explain(data: bytes, message: Descriptor) -> InvalidRequest:
    """The error to answer with: the first string that is not UTF-8, or the message as a whole."""
    try:
        for path, value in _strings(data, message, "", 0):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                shown = value[max(0, error.start - 8) : error.end + 8]
                return InvalidRequest(path, shown, f"valid UTF-8 ({error.reason} at byte {error.start})")
    except (ValueError, IndexError):
        pass
    return InvalidRequest("message", f"{len(data)} bytes", f"a well-formed {message.full_name}")


def _strings(data: bytes, message: Descriptor, prefix: str, depth: int) -> Iterator[tuple[str, bytes]]:
    """The bytes of each string field, with its path. Raises ValueError or IndexError where the wire format breaks."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    seen: dict[int, int] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind == _LENGTH:
            size, at = _varint(data, at)
            value = data[at : at + size]
            if len(value) < size:
                raise ValueError("cut short")
            at += size
            field = message.fields_by_number.get(number)
            if field is None:
                continue
            path = prefix + field.name
            if field.is_repeated:
                path += f"[{seen.get(number, 0)}]"
                seen[number] = seen.get(number, 0) + 1
            if field.type == FieldDescriptor.TYPE_STRING:
                yield path, value
            elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
                yield from _strings(value, field.message_type, path + ".", depth + 1)
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("varint too long")
