"""Errors as statuses with details, and bytes that are no request explained."""

from __future__ import annotations

import http

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from draftd import errors
from draftd.fronts.grpc.interceptors import code_of, explain, rich_status
from draftd.v1 import control_pb2, inference_pb2

GENERATE = inference_pb2.GenerateRequest.DESCRIPTOR


def leaves(kind: type[errors.DraftdError]) -> list[type[errors.DraftdError]]:
    below = [leaf for child in kind.__subclasses__() for leaf in leaves(child)]
    return [kind, *below] if kind.__module__ == "draftd.errors" else []


@pytest.mark.parametrize("kind", leaves(errors.DraftdError))
def test_every_error_has_a_grpc_and_an_http_status(kind: type[errors.DraftdError]) -> None:
    error = kind.__new__(kind)
    assert isinstance(code_of(error), grpc.StatusCode)
    assert errors.reason_of(kind).islower()
    assert http.HTTPStatus(kind.http_status) >= 400
    if not leaves(kind)[1:]:
        assert {"grpc_status", "http_status"} <= set(vars(kind)), "each leaf says its own"


def test_grpc_invalid_request_status_names_the_wrong_field() -> None:
    status = rich_status(errors.InvalidRequest("max_tokens", 0, "1 or more"))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    info, bad = status.details
    assert error_details_pb2.ErrorInfo.FromString(info.value).reason == "INVALID_REQUEST"
    violation = error_details_pb2.BadRequest.FromString(bad.value).field_violations[0]
    assert (violation.field, violation.description) == ("max_tokens", "got 0; allowed: 1 or more")


def test_grpc_queue_full_status_carries_the_retry_delay() -> None:
    status = rich_status(errors.QueueFull("full", retry_after=2.5))
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    retry = error_details_pb2.RetryInfo.FromString(status.details[-1].value)
    assert retry.retry_delay.ToNanoseconds() == 2_500_000_000


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
def test_invalid_utf8_in_a_grpc_message_is_refused_by_field_path(data: bytes, path: str) -> None:
    with pytest.raises(DecodeError):
        inference_pb2.GenerateRequest.FromString(data)
    error = explain(data, GENERATE)
    assert error.field == path
    assert "valid UTF-8" in error.allowed


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b", b"\xff" * 20])
def test_undecodable_grpc_bytes_are_reported_as_a_malformed_message(data: bytes) -> None:
    error = explain(data, GENERATE)
    assert error.field == "message"
    assert "draftd.v1.GenerateRequest" in error.allowed


@given(st.binary(max_size=300))
def test_explanation_of_undecodable_grpc_bytes_never_raises(data: bytes) -> None:
    explain(data, GENERATE)
    explain(data, control_pb2.SetFlagRequest.DESCRIPTOR)
