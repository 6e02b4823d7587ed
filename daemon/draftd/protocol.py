"""How the contract spells the core's vocabulary: for whoever speaks it, daemon and client alike."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration

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
from draftd.strategies import QualityClass, Strategy, Verifier
from draftd.v1 import inference_pb2 as pb

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M", bound=enum.Enum)

_LEAST_FLOAT32 = 2.0**-126  # above 0, with all of its digits

MESSAGE_SLACK = 4
"""How many times `server.max_message_bytes` gRPC lets through: of such a message the daemon can still say what is wrong
with it; what is larger gRPC refuses, as RESOURCE_EXHAUSTED."""

DETAILS_KEY = "grpc-status-details-bin"
"""Where gRPC carries a google.rpc.Status."""


def _named(kind: Any, members: type[M]) -> dict[Any, M]:
    """The contract's numbers, with what the core calls the same: DECODE_MODE_AUTO of `DecodeMode` is AUTO there."""
    named = {number: members.__members__.get(name.removeprefix(_prefix(kind))) for name, number in kind.items()}
    return {number: member for number, member in named.items() if member is not None}


def member(known: Mapping[K, V], value: K, field: str, names: Iterable[str]) -> V:
    """What `value` means. Raises InvalidRequest where it means nothing; `names` are what is allowed."""
    if value not in known:
        raise InvalidRequest(field, value, ", ".join(names))
    return known[value]


def number(kind: Any, member: enum.Enum | None) -> Any:
    """The contract's member of the same name; None, for a field that stays unset, of none."""
    return None if member is None else kind.Value(_prefix(kind) + member.name)


def _prefix(kind: Any) -> str:
    return str(kind.keys()[0]).removesuffix("UNSPECIFIED")


MODES: Mapping[pb.DecodeMode, ModePreference] = {
    pb.DECODE_MODE_UNSPECIFIED: ModePreference.AUTO,
    **_named(pb.DecodeMode, ModePreference),
}
WORKLOADS: Mapping[pb.WorkloadClass, WorkloadClass] = _named(pb.WorkloadClass, WorkloadClass)
DEPTH_MODES: Mapping[pb.DepthMode, DepthMode | None] = {
    pb.DEPTH_MODE_UNSPECIFIED: None,
    **_named(pb.DepthMode, DepthMode),
}
STRATEGIES: Mapping[pb.Strategy, Strategy | None] = {pb.STRATEGY_UNSPECIFIED: None, **_named(pb.Strategy, Strategy)}
QUALITIES: Mapping[pb.QualityClass, QualityClass | None] = {
    pb.QUALITY_CLASS_UNSPECIFIED: None,
    **_named(pb.QualityClass, QualityClass),
}
VERIFIERS: Mapping[pb.Verifier, Verifier] = {
    pb.VERIFIER_UNSPECIFIED: Verifier.LOCAL,
    **_named(pb.Verifier, Verifier),
}
DECODED: Mapping[pb.DecodeMode, DecodeMode] = _named(pb.DecodeMode, DecodeMode)
"""How an answer was decoded."""
REASONS: Mapping[pb.FinishReason, FinishReason] = _named(pb.FinishReason, FinishReason)


def duration(seconds: float | None) -> Duration | None:
    """Negative ones are nought."""
    if seconds is None:
        return None
    whole, nanos = divmod(max(0, round(seconds * 1e9)), 1_000_000_000)
    return Duration(seconds=whole, nanos=nanos)


def draft_counts(counts: pb.DraftCounts, emitted: int) -> DraftCounts:
    """What one answer's end says of its drafts. `emitted`: its output tokens."""
    said: dict[str, Any] = {"emitted": emitted}
    for name in {field.name for field in fields(DraftCounts)} - set(said):
        if name.endswith("_seconds"):
            said[name] = getattr(counts, name.replace("_seconds", "_time")).ToNanoseconds() / 1e9
        else:
            value = getattr(counts, name if hasattr(counts, name) else f"{name}_tokens")
            said[name] = list(value) if name.endswith("_per_position") else value
    return DraftCounts(**said)


def sampling_message(sampling: SamplingParams) -> pb.SamplingParams:
    """What is above 0 stays so, also where it would be 0 in float32; what is greedy stays greedy."""
    told = asdict(sampling) | {"logit_bias": dict(sampling.logit_bias)}
    for name in ("top_p", "repetition_penalty"):
        if told[name] > 0:
            told[name] = max(told[name], _LEAST_FLOAT32)
    if sampling.greedy:
        told["temperature"] = 0.0
    return pb.SamplingParams(**told)


def sampling_of(given: pb.SamplingParams) -> SamplingParams:
    """What is not set has its default."""
    told: dict[str, Any] = {}
    for field, value in given.ListFields():  # those that are set, be it to zero
        told[field.name] = _float32(value) if isinstance(value, float) else value
    if given.logit_bias:
        told["logit_bias"] = tuple((token, _float32(bias)) for token, bias in sorted(given.logit_bias.items()))
    return SamplingParams(**told)


def _float32(value: float) -> float:
    """0.8 travels as 0.800000011920929: seven digits are all that a float32 was ever told."""
    return float(f"{value:.7g}")


def logprobs_message(told: TokenLogprobs) -> pb.TokenLogprobs:
    ids, values = zip(*told.top, strict=True) if told.top else ((), ())
    return pb.TokenLogprobs(logprob=told.logprob, top_ids=ids, top_logprobs=values, rank=told.rank)
