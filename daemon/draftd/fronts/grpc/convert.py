"""Protobuf to the core's vocabulary: every field of a request is checked here, and what is wrong is named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from draftd.core import BUILT_IN_DRAFTERS, DrafterName, ModePreference, SamplingParams, WorkloadClass
from draftd.errors import InvalidRequest
from draftd.planning.plan import Wish
from draftd.protocol import DEPTH_MODES, MODES, WORKLOADS
from draftd.v1 import inference_pb2 as pb

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_CALLER_BYTES = 128
MAX_TEMPERATURE = 100.0
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask of the loaded model."""

    context_length: int
    vocab_size: int
    default_max_tokens: int
    chat_template: bool
    drafters: tuple[DrafterName, ...] = BUILT_IN_DRAFTERS  # that are registered, whether they can be had now or not


@dataclass(frozen=True, slots=True)
class RawText:
    """A prompt that is tokenised as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages (role, content) for the model's chat template."""

    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids, used as they are."""

    ids: tuple[int, ...]


Prompt = RawText | Chat | TokenIds


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request whose every field is in order. The prompt's length is not known before it is tokenised."""

    prompt: Prompt
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    wish: Wish
    workload: WorkloadClass
    caller: str


def parse(request: pb.GenerateRequest, limits: Limits) -> Parsed:
    """Raises InvalidRequest, which names the first field that is wrong."""
    return Parsed(
        prompt=_prompt(request, limits),
        max_tokens=_max_tokens(request, limits),
        sampling=_sampling(request.sampling),
        stop=_stop(request.stop),
        wish=_wish(request, limits),
        workload=_member(WORKLOADS, request.workload, "workload", pb.WorkloadClass.keys()),
        caller=caller(request.caller),
    )


def workload(value: pb.WorkloadClass) -> WorkloadClass:
    """Raises InvalidRequest for a number that names no class."""
    return _member(WORKLOADS, value, "workload", pb.WorkloadClass.keys())


def caller(name: str) -> str:
    """Raises InvalidRequest for a name that is too long."""
    if len(name.encode()) > MAX_CALLER_BYTES:
        raise InvalidRequest("caller", name, f"at most {MAX_CALLER_BYTES} bytes")
    return name


def check_length(ids: Sequence[int], prompt: Prompt, limits: Limits) -> None:
    """A prompt leaves room for at least one token. Raises InvalidRequest."""
    if not 0 < len(ids) < limits.context_length:
        field = "chat" if isinstance(prompt, Chat) else "prompt" if isinstance(prompt, RawText) else "tokens.ids"
        allowed = f"1 to {limits.context_length - 1} tokens, one less than the model's context"
        raise InvalidRequest(field, f"{len(ids)} tokens", allowed)


def _prompt(request: pb.GenerateRequest, limits: Limits) -> Prompt:
    kind = request.WhichOneof("input")
    if kind == "prompt":
        if not request.prompt:
            raise InvalidRequest("prompt", "", "text that is not empty")
        return RawText(request.prompt)
    if kind == "chat":
        return _chat(request.chat, limits)
    if kind == "tokens":
        ids = tuple(request.tokens.ids)
        if not ids:
            raise InvalidRequest("tokens.ids", "no ids", "at least one token id")
        if max(ids) >= limits.vocab_size:
            i = next(i for i, token in enumerate(ids) if token >= limits.vocab_size)
            raise InvalidRequest(f"tokens.ids[{i}]", ids[i], f"token ids from 0 to {limits.vocab_size - 1}")
        return TokenIds(ids)
    raise InvalidRequest("input", "nothing", "one of prompt, chat, tokens")


def _chat(chat: pb.ChatInput, limits: Limits) -> Chat:
    if not limits.chat_template:
        raise InvalidRequest("chat", "messages", "prompt or tokens: this model has no chat template")
    if not chat.messages:
        raise InvalidRequest("chat.messages", "no messages", "at least one message")
    for i, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidRequest(f"chat.messages[{i}].role", message.role, ", ".join(ROLES))
    if not any(message.content for message in chat.messages):
        raise InvalidRequest("chat.messages", "only empty contents", "at least one message with content")
    return Chat(tuple((message.role, message.content) for message in chat.messages))


def _max_tokens(request: pb.GenerateRequest, limits: Limits) -> int:
    if not request.HasField("max_tokens"):
        return min(limits.default_max_tokens, limits.context_length)
    if not 1 <= request.max_tokens <= limits.context_length:
        allowed = f"1 to {limits.context_length}, the model's context"
        raise InvalidRequest("max_tokens", request.max_tokens, allowed)
    return request.max_tokens


def _sampling(p: pb.SamplingParams) -> SamplingParams:
    temperature = _float32(p.temperature) if p.HasField("temperature") else 0.0
    if not (math.isfinite(temperature) and 0 <= temperature <= MAX_TEMPERATURE):
        raise InvalidRequest("sampling.temperature", temperature, f"0 to {MAX_TEMPERATURE:g}; 0 is greedy")
    top_p = _float32(p.top_p) if p.HasField("top_p") else 1.0
    if not 0 < top_p <= 1:
        raise InvalidRequest("sampling.top_p", top_p, "above 0, up to 1; 1 is off")
    top_k = p.top_k if p.HasField("top_k") else 0
    if top_k < 0:
        raise InvalidRequest("sampling.top_k", top_k, "0 or more; 0 is off")
    min_p = _float32(p.min_p) if p.HasField("min_p") else 0.0
    if not 0 <= min_p <= 1:
        raise InvalidRequest("sampling.min_p", min_p, "0 to 1; 0 is off")
    # -0.0 would be greedy too, and look strange on a span.
    return SamplingParams(temperature + 0.0, top_p, top_k, min_p + 0.0, p.seed if p.HasField("seed") else None)


def _stop(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest("stop", f"{len(stops)} strings", f"at most {MAX_STOPS} strings")
    for i, stop in enumerate(stops):
        if not stop:
            raise InvalidRequest(f"stop[{i}]", "", "text that is not empty")
        if len(stop.encode()) > MAX_STOP_BYTES:
            raise InvalidRequest(f"stop[{i}]", stop, f"at most {MAX_STOP_BYTES} bytes")
    return tuple(dict.fromkeys(stops))


def _wish(request: pb.GenerateRequest, limits: Limits) -> Wish:
    preference = _member(MODES, request.mode, "mode", pb.DecodeMode.keys())
    drafter = request.drafter or None
    if drafter is not None and drafter not in limits.drafters:
        raise InvalidRequest("drafter", drafter, ", ".join(limits.drafters))
    cap = request.max_draft_tokens if request.HasField("max_draft_tokens") else None
    if cap is not None and cap < 0:
        raise InvalidRequest("max_draft_tokens", cap, "0 or more; 0 means autoregressive")
    if cap == 0 and preference is ModePreference.SPECULATIVE:
        raise InvalidRequest("max_draft_tokens", cap, "1 or more where mode is DECODE_MODE_SPECULATIVE")
    depth_mode = _member(DEPTH_MODES, request.depth_mode, "depth_mode", pb.DepthMode.keys())
    return Wish(preference, cap, drafter, depth_mode)


_T = TypeVar("_T", bound="Enum | None")
_E = TypeVar("_E", bound=int)


def _member(known: Mapping[_E, _T], value: _E, field: str, names: Sequence[str]) -> _T:
    if value not in known:
        raise InvalidRequest(field, value, ", ".join(names))
    return known[value]


def _float32(value: float) -> float:
    """0.8 travels as 0.800000011920929: seven digits are all that a float32 was ever told."""
    return float(f"{value:.7g}")
