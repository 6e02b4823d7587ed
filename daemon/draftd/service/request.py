"""What a front asks of the service and what it is told, in no protocol's words; and which requests are in order.

A field is named in errors by its path here: `chat.messages[0].role`, `sampling.top_p`, `stop[1]`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from draftd.core import (
    DecodePlan,
    DepthMode,
    Emission,
    ModelInfo,
    ModePreference,
    Outcome,
    SamplingParams,
    WorkloadClass,
)
from draftd.errors import InvalidRequest
from draftd.planning.planner import Wish

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_CALLER_BYTES = 128
MAX_TEMPERATURE = 100.0
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class RawText:
    """A prompt that is tokenised as it is."""

    text: str


class Message(NamedTuple):
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages for the model's chat template."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids, used as they are."""

    ids: tuple[int, ...]


Prompt = RawText | Chat | TokenIds


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its front read it. `max_tokens` None is the daemon's default; `deadline` is on the monotonic
    clock. `problem`: what the front could not express here; the request is refused with it."""

    prompt: Prompt
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    wish: Wish = field(default_factory=Wish)
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    deadline: float | None = None
    problem: InvalidRequest | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The engine has taken the request."""

    request_id: str
    model: ModelInfo
    prompt_tokens: int
    plan: DecodePlan


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came since the last one. `pieces`, texts, run parallel to the tokens; `rest` is text that was held back
    until the end."""

    emission: Emission
    pieces: Sequence[str]
    rest: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces) + self.rest


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `stop` is the stop string that ended the text, where one did."""

    outcome: Outcome
    plan: DecodePlan
    stop: str


Event = Started | Chunk | Finished
Send = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is served, and the daemon's defaults for requests to it."""

    info: ModelInfo
    default_max_tokens: int
    max_draft_tokens: int
    depth_mode: DepthMode
    chat_template: bool


def checked(request: Request, model: ServedModel) -> Request:
    """The request with every field in order and its defaults filled in. A prompt's length is not known before it is
    tokenised. Raises InvalidRequest, which names the first field that is wrong."""
    if request.problem is not None:
        raise request.problem
    _check_prompt(request.prompt, model)
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = min(model.default_max_tokens, model.info.context_length)
    elif not 1 <= max_tokens <= model.info.context_length:
        raise InvalidRequest("max_tokens", max_tokens, f"1 to {model.info.context_length}, the model's context")
    sampling = _checked_sampling(request.sampling)
    _check_stop(request.stop)
    _check_wish(request.wish, model)
    check_caller(request.caller)
    return replace(request, max_tokens=max_tokens, sampling=sampling, stop=tuple(dict.fromkeys(request.stop)))


def check_length(ids: Sequence[int], prompt: Prompt, model: ServedModel) -> None:
    """A prompt leaves room for at least one token. Raises InvalidRequest."""
    if not 0 < len(ids) < model.info.context_length:
        name = "chat" if isinstance(prompt, Chat) else "prompt" if isinstance(prompt, RawText) else "tokens.ids"
        allowed = f"1 to {model.info.context_length - 1} tokens, one less than the model's context"
        raise InvalidRequest(name, f"{len(ids)} tokens", allowed)


def check_caller(name: str) -> None:
    """Raises InvalidRequest for a name that is too long."""
    if len(name.encode()) > MAX_CALLER_BYTES:
        raise InvalidRequest("caller", name, f"at most {MAX_CALLER_BYTES} bytes")


def _check_prompt(prompt: Prompt, model: ServedModel) -> None:
    if isinstance(prompt, RawText):
        if not prompt.text:
            raise InvalidRequest("prompt", "", "text that is not empty")
    elif isinstance(prompt, TokenIds):
        if not prompt.ids:
            raise InvalidRequest("tokens.ids", "no ids", "at least one token id")
        if max(prompt.ids) >= model.info.vocab_size:
            i = next(i for i, token in enumerate(prompt.ids) if token >= model.info.vocab_size)
            raise InvalidRequest(f"tokens.ids[{i}]", prompt.ids[i], f"token ids from 0 to {model.info.vocab_size - 1}")
    else:
        _check_chat(prompt.messages, model)


def _check_chat(messages: Sequence[Message], model: ServedModel) -> None:
    if not model.chat_template:
        raise InvalidRequest("chat", "messages", "prompt or tokens: this model has no chat template")
    if not messages:
        raise InvalidRequest("chat.messages", "no messages", "at least one message")
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequest(f"chat.messages[{i}].role", message.role, ", ".join(ROLES))
    if not any(message.content for message in messages):
        raise InvalidRequest("chat.messages", "only empty contents", "at least one message with content")


def _checked_sampling(p: SamplingParams) -> SamplingParams:
    if not (math.isfinite(p.temperature) and 0 <= p.temperature <= MAX_TEMPERATURE):
        raise InvalidRequest("sampling.temperature", p.temperature, f"0 to {MAX_TEMPERATURE:g}; 0 is greedy")
    if not 0 < p.top_p <= 1:
        raise InvalidRequest("sampling.top_p", p.top_p, "above 0, up to 1; 1 is off")
    if p.top_k < 0:
        raise InvalidRequest("sampling.top_k", p.top_k, "0 or more; 0 is off")
    if not 0 <= p.min_p <= 1:
        raise InvalidRequest("sampling.min_p", p.min_p, "0 to 1; 0 is off")
    # -0.0 would be greedy too, and look strange on a span.
    return replace(p, temperature=p.temperature + 0.0, min_p=p.min_p + 0.0)


def _check_stop(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest("stop", f"{len(stops)} strings", f"at most {MAX_STOPS} strings")
    for i, stop in enumerate(stops):
        if not stop:
            raise InvalidRequest(f"stop[{i}]", "", "text that is not empty")
        if len(stop.encode()) > MAX_STOP_BYTES:
            raise InvalidRequest(f"stop[{i}]", stop, f"at most {MAX_STOP_BYTES} bytes")


def _check_wish(wish: Wish, model: ServedModel) -> None:
    if wish.drafter is not None and wish.drafter not in model.info.registered_drafters:
        raise InvalidRequest("drafter", wish.drafter, ", ".join(model.info.registered_drafters))
    cap = wish.max_draft_tokens
    if cap is not None and cap < 0:
        raise InvalidRequest("max_draft_tokens", cap, "0 or more; 0 means autoregressive")
    if cap == 0 and wish.preference is ModePreference.SPECULATIVE:
        raise InvalidRequest("max_draft_tokens", cap, "1 or more where the mode is speculative")
