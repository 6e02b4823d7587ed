"""Protobuf to the vocabulary of core and service: fields are read here, and checked by the service. What has no meaning
there, such as a number that names no member of an enumeration, is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from draftd.core import FallbackLevel, SamplingParams, WorkloadClass
from draftd.errors import InvalidRequest
from draftd.planning.plan import Wish
from draftd.protocol import DEPTH_MODES, MODES, WORKLOADS
from draftd.service.request import Chat, Message, Prompt, RawText, Request, TokenIds
from draftd.v1 import inference_pb2 as pb

LONGEST_HOLD_DAYS = 30

_DAY = 86_400
_NANOS = 1_000_000_000
_LEVELS = {level.label: level for level in sorted(FallbackLevel, reverse=True)}


def request_of(given: pb.GenerateRequest, deadline: float | None = None) -> Request:
    """`deadline` is on the monotonic clock. What cannot be expressed is the request's `problem`, the first of them."""
    problems: list[InvalidRequest] = []
    if given.WhichOneof("input") is None:
        problems.append(InvalidRequest("input", "nothing", "one of prompt, chat, tokens"))
    mode = _member(MODES, given.mode, "mode", pb.DecodeMode.keys(), problems)
    depth_mode = _member(DEPTH_MODES, given.depth_mode, "depth_mode", pb.DepthMode.keys(), problems)
    workload = _member(WORKLOADS, given.workload, "workload", pb.WorkloadClass.keys(), problems)
    cap = given.max_draft_tokens if given.HasField("max_draft_tokens") else None
    return Request(
        prompt=_prompt(given),
        max_tokens=given.max_tokens if given.HasField("max_tokens") else None,
        sampling=_sampling(given.sampling),
        stop=tuple(given.stop),
        wish=Wish(mode, cap, given.drafter or None, depth_mode),
        workload=workload,
        caller=given.caller,
        deadline=deadline,
        problem=problems[0] if problems else None,
    )


def workload_of(value: pb.WorkloadClass) -> WorkloadClass:
    """Raises InvalidRequest for a number that names no class."""
    problems: list[InvalidRequest] = []
    workload = _member(WORKLOADS, value, "workload", pb.WorkloadClass.keys(), problems)
    for problem in problems:
        raise problem
    return workload


def level_of(name: str) -> FallbackLevel:
    """Raises InvalidRequest for a name that is no level's."""
    if name not in _LEVELS:
        raise InvalidRequest("level", name, ", ".join(_LEVELS))
    return _LEVELS[name]


def hold_seconds(given: Duration) -> float:
    """Raises InvalidRequest where a hold cannot last so long."""
    nanos = given.seconds * _NANOS + given.nanos
    if not 0 < nanos <= LONGEST_HOLD_DAYS * _DAY * _NANOS:
        allowed = f"more than 0 s, at most {LONGEST_HOLD_DAYS * _DAY} s ({LONGEST_HOLD_DAYS} days); unset: no end"
        raise InvalidRequest("expires_in", f"{nanos / _NANOS:g} s", allowed)
    return nanos / _NANOS


def _prompt(given: pb.GenerateRequest) -> Prompt:
    kind = given.WhichOneof("input")
    if kind == "chat":
        return Chat(tuple(Message(message.role, message.content) for message in given.chat.messages))
    if kind == "tokens":
        return TokenIds(tuple(given.tokens.ids))
    return RawText(given.prompt)


def _sampling(p: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=_float32(p.temperature) if p.HasField("temperature") else 0.0,
        top_p=_float32(p.top_p) if p.HasField("top_p") else 1.0,
        top_k=p.top_k if p.HasField("top_k") else 0,
        min_p=_float32(p.min_p) if p.HasField("min_p") else 0.0,
        seed=p.seed if p.HasField("seed") else None,
    )


_T = TypeVar("_T", bound="Enum | None")
_E = TypeVar("_E", bound=int)


def _member(known: Mapping[_E, _T], value: _E, field: str, names: Sequence[str], problems: list[InvalidRequest]) -> _T:
    """What the number means; for one that means nothing, a problem, and what an unset field means."""
    if value not in known:
        problems.append(InvalidRequest(field, value, ", ".join(names)))
        return next(iter(known.values()))
    return known[value]


def _float32(value: float) -> float:
    """0.8 travels as 0.800000011920929: seven digits are all that a float32 was ever told."""
    return float(f"{value:.7g}")
