"""Bytes that protobuf turns down are explained."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from draftd.fronts.grpc import wire
from draftd.v1 import control_pb2, inference_pb2

GENERATE = inference_pb2.GenerateRequest.DESCRIPTOR


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (field(1, b"ok \xff"), "prompt"),
        (field(11, b"\xc3"), "caller"),
        (field(6, b"fine") + field(6, b"\xed\xa0\x80"), "stop[1]"),
        (field(2, field(1, field(2, b"ok")) + field(1, field(2, b"\x80"))), "chat.messages[1].content"),
        (field(2, field(1, field(1, b"\xff"))), "chat.messages[0].role"),
    ],
)
def test_the_string_that_is_not_utf8_is_named(data: bytes, path: str) -> None:
    with pytest.raises(DecodeError):
        inference_pb2.GenerateRequest.FromString(data)
    error = wire.explain(data, GENERATE)
    assert error.field == path
    assert "valid UTF-8" in error.allowed


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b", b"\xff" * 20])
def test_anything_else_is_a_malformed_message(data: bytes) -> None:
    error = wire.explain(data, GENERATE)
    assert error.field == "message"
    assert "draftd.v1.GenerateRequest" in error.allowed


@given(st.binary(max_size=300))
def test_no_bytes_break_the_explanation(data: bytes) -> None:
    wire.explain(data, GENERATE)
    wire.explain(data, control_pb2.SetFlagRequest.DESCRIPTOR)
