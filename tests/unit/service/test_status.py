"""Errors as statuses with details."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from draftd import errors
from draftd.fronts.grpc.status import code_of, reason_of, rich_status


def leaves(kind: type[errors.DraftdError]) -> list[type[errors.DraftdError]]:
    below = [leaf for child in kind.__subclasses__() for leaf in leaves(child)]
    return [kind, *below] if kind.__module__ == "draftd.errors" else []


@pytest.mark.parametrize("kind", leaves(errors.DraftdError))
def test_every_error_has_a_status_of_grpcs(kind: type[errors.DraftdError]) -> None:
    error = kind.__new__(kind)
    assert isinstance(code_of(error), grpc.StatusCode)
    assert reason_of(error).isupper()


def test_a_wrong_field_is_a_bad_request_with_its_name() -> None:
    status = rich_status(errors.InvalidRequest("max_tokens", 0, "1 or more"))
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    info, bad = status.details
    assert error_details_pb2.ErrorInfo.FromString(info.value).reason == "INVALID_REQUEST"
    violation = error_details_pb2.BadRequest.FromString(bad.value).field_violations[0]
    assert (violation.field, violation.description) == ("max_tokens", "got 0; allowed: 1 or more")


def test_a_full_queue_says_when_to_come_back() -> None:
    status = rich_status(errors.QueueFull("full", retry_after=2.5))
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    retry = error_details_pb2.RetryInfo.FromString(status.details[-1].value)
    assert retry.retry_delay.ToNanoseconds() == 2_500_000_000
