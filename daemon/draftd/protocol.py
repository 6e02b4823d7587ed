"""Conversions between the API's messages and the core types, for daemon and client."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from draftd.core import (
    DecodeMode,
    DepthMode,
    FinishReason,
    ModePreference,
    SamplingParams,
    TokenLogprobs,
    WorkloadClass,
)
from draftd.counts import DraftCounts
from draftd.errors import InvalidRequest
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd.strategies import QualityClass, Strategy
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M", bound=enum.Enum)

_LEAST_FLOAT32 = 2.0**-126  # the smallest positive value with full precision

MESSAGE_SLACK = 4
"""How many times `server.max_message_bytes` gRPC lets through: of such a message the daemon can still say what is wrong
with it; what is larger gRPC refuses, as RESOURCE_EXHAUSTED."""

DETAILS_KEY = "grpc-status-details-bin"
"""Where gRPC carries a google.rpc.Status."""

RELAYED_KEY = "draftd-relayed"
"""Metadata key of requests that a daemon sends for its own callers, whom the answering daemon cannot tell apart."""


def _members_by_number(kind: Any, members: type[M]) -> dict[Any, M]:
    """Maps the API's numbers to core members of the same name: DECODE_MODE_AUTO of `DecodeMode` to AUTO."""
    named = {number: members.__members__.get(name.removeprefix(_prefix(kind))) for name, number in kind.items()}
    return {number: member for number, member in named.items() if member is not None}


def member(members: Mapping[K, V], value: K, field: str, names: Iterable[str]) -> V:
    """Returns the member for `value`. Raises InvalidRequest, listing the allowed `names`, if there is none."""
    if value not in members:
        raise InvalidRequest(field, value, ", ".join(names))
    return members[value]


def number(kind: Any, member: enum.Enum | None) -> Any:
    """Returns the API's member of the same name; None, which leaves the field unset, for None."""
    return None if member is None else kind.Value(_prefix(kind) + member.name)


def _prefix(kind: Any) -> str:
    return str(kind.keys()[0]).removesuffix("UNSPECIFIED")


MODES: Mapping[pb.DecodeMode, ModePreference] = {
    pb.DECODE_MODE_UNSPECIFIED: ModePreference.AUTO,
    **_members_by_number(pb.DecodeMode, ModePreference),
}
WORKLOADS: Mapping[pb.WorkloadClass, WorkloadClass] = _members_by_number(pb.WorkloadClass, WorkloadClass)
DEPTH_MODES: Mapping[pb.DepthMode, DepthMode | None] = {
    pb.DEPTH_MODE_UNSPECIFIED: None,
    **_members_by_number(pb.DepthMode, DepthMode),
}
STRATEGIES: Mapping[pb.Strategy, Strategy | None] = {
    pb.STRATEGY_UNSPECIFIED: None,
    **_members_by_number(pb.Strategy, Strategy),
}
QUALITIES: Mapping[pb.QualityClass, QualityClass | None] = {
    pb.QUALITY_CLASS_UNSPECIFIED: None,
    **_members_by_number(pb.QualityClass, QualityClass),
}
DECODED: Mapping[pb.DecodeMode, DecodeMode] = _members_by_number(pb.DecodeMode, DecodeMode)
"""How an answer was decoded."""
REASONS: Mapping[pb.FinishReason, FinishReason] = _members_by_number(pb.FinishReason, FinishReason)


def duration(seconds: float | None) -> Duration | None:
    """Converts seconds; negative ones become 0."""
    if seconds is None:
        return None
    whole, nanos = divmod(max(0, round(seconds * 1e9)), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def draft_counts(counts: pb.DraftCounts, emitted: int) -> DraftCounts:
    """Returns the draft counts at an answer's end. `emitted`: its output tokens."""
    said: dict[str, Any] = {"emitted": emitted}
    for name in {field.name for field in fields(DraftCounts)} - set(said):
        if name.endswith("_seconds"):
            said[name] = getattr(counts, name.replace("_seconds", "_time")).ToNanoseconds() / 1e9
        else:
            value = getattr(counts, name if hasattr(counts, name) else f"{name}_tokens")
            said[name] = list(value) if name.endswith("_per_position") else value
    return DraftCounts(**said)


def exactness_of(message: control_pb2.Exactness) -> Exactness:
    """Converts what a daemon measured of its model's exactness."""
    return Exactness(
        exact=message.exact,
        by_token=message.by_token,
        forward=_operation_exactness(message.forward),
        operations=tuple(map(_operation_exactness, message.operations)),
        measured=message.measured,
        flips=message.flips,
        positions=message.positions,
        seconds=message.duration.ToNanoseconds() / 1e9,
    )


def _operation_exactness(message: control_pb2.OperationExactness) -> OperationExactness:
    """Converts an operation. A kind that only a newer daemon knows counts as composite."""
    values = plain(message)
    if values["kind"] not in set(OperationKind):
        values["kind"] = OperationKind.COMPOSITE
    return OperationExactness(**values | {"kind": OperationKind(values["kind"])})


def sampling_message(sampling: SamplingParams) -> pb.SamplingParams:
    """Converts sampling parameters. Values above 0 stay above 0 in float32; greedy stays greedy."""
    values = asdict(sampling) | {"logit_bias": dict(sampling.logit_bias)}
    for name in ("top_p", "repetition_penalty"):
        if values[name] > 0:
            values[name] = max(values[name], _LEAST_FLOAT32)
    if sampling.greedy:
        values["temperature"] = 0.0
    return pb.SamplingParams(**values)


def sampling_of(message: pb.SamplingParams) -> SamplingParams:
    """Converts sampling parameters; unset fields have their defaults."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():  # fields that are set, even to zero
        values[field.name] = _float32(value) if isinstance(value, float) else value
    if message.logit_bias:
        values["logit_bias"] = tuple((token, _float32(bias)) for token, bias in sorted(message.logit_bias.items()))
    return SamplingParams(**values)


def _float32(value: float) -> float:
    """Returns the value with the seven digits of a float32: 0.8 arrives as 0.800000011920929."""
    return float(f"{value:.7g}")


def logprobs_message(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    ids, values = zip(*logprobs.top, strict=True) if logprobs.top else ((), ())
    return pb.TokenLogprobs(logprob=logprobs.logprob, top_ids=ids, top_logprobs=values, rank=logprobs.rank)


def plain(message: Message) -> dict[str, Any]:
    """Returns a protobuf message in JSON values: numbers as numbers, durations in seconds, times in ISO 8601, enums by
    short name, None for unset messages and optional fields. Protobuf's own JSON writes 64-bit counts as strings, which
    filters cannot compare or add."""
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
    return enum_name(field.enum_type, value) if field.enum_type is not None else value


def enum_name(kind: Any, number: int) -> str | int:
    """Returns the short name, such as `code` for WORKLOAD_CLASS_CODE; unknown numbers stay numbers."""
    names = kind.values_by_number
    if number not in names:
        return number
    prefix = names[0].name.removesuffix("UNSPECIFIED")
    return str(names[number].name.removeprefix(prefix).lower())
