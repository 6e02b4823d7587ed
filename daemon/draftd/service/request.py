"""Requests to the service and its events, independent of any protocol, and the checks of a request.

Errors name a field by its path here: `chat.messages[0].role`, `sampling.top_p`, `stop[1]`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from draftd.core import DecodePlan, DepthMode, ModePreference, SamplingParams, WorkloadClass
from draftd.engine.observer import PromptProgress as PromptProgress
from draftd.errors import InvalidRequest
from draftd.model_info import ModelInfo
from draftd.outcome import Emission, Outcome
from draftd.planning.planner import RequestedPlan
from draftd.planning.prices import AnswerPrice
from draftd.planning.routing import Route
from draftd.service.messages import Chat, Message, ToolCall, check_chat
from draftd.strategies import QualityClass

MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_CALLER_BYTES = 128
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
MAX_BIASED = 1024
MAX_STOP_IDS = 64
MAX_LOGPROBS = 20
MAX_CHOICES = 8
MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class RawText:
    """A prompt that is tokenised as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids, used as they are."""

    ids: tuple[int, ...]


Prompt = RawText | Chat | TokenIds


class FormatKind(enum.StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format that an answer must have. `source`: a JSON schema as JSON, a regular expression, choices as a JSON
    list, or a grammar in Lark's notation; empty for any JSON object."""

    kind: FormatKind
    source: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its front (gRPC or HTTP) read it. `max_tokens`: None is the daemon's default; more than the
    context is lowered to the context; 0 decodes no answer, only echoes the prompt or reports its log-probabilities.
    `deadline`: on the monotonic clock. `client`: the connection that the request came by. `identity`: the caller as the
    daemon knows them, by token or certificate; empty if it knows neither. `problem`: an error that the front found; the
    request is refused with it."""

    prompt: Prompt
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    wish: RequestedPlan = field(default_factory=RequestedPlan)
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    deadline: float | None = None
    client: str = ""
    identity: str = ""
    problem: InvalidRequest | None = None
    logprobs: int | None = None  # how many likeliest tokens to report besides the chosen one
    prompt_logprobs: int | None = None  # the same for each token of the prompt
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    special_tokens: bool = False  # the text includes those that the model chose
    n: int = 1
    echo: bool = False
    priority: int = 0
    response_format: ResponseFormat | None = None
    return_progress: bool = False  # sends progress while the prompt is prefilled
    skip_prefix_cache: bool = False  # computes the whole prompt, and keeps nothing for other requests

    @property
    def prompt_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are reported besides each token of the prompt; None: no token is
        reported. An echoed prompt gets at least as many as the answer."""
        echoed = self.logprobs if self.echo else None
        return max((most for most in (self.prompt_logprobs, echoed) if most is not None), default=None)


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """The request was accepted, by the engine or by another daemon."""

    request_id: str
    model: ModelInfo
    prompt_tokens: int
    plan: DecodePlan
    quality: QualityClass = QualityClass.STANDARD  # of the model that writes the text


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The weights, which were unloaded while there were no requests, are loading. `progress`: how far, as text for
    people."""

    progress: str


class TextDelta(NamedTuple):
    text: str


class ReasoningDelta(NamedTuple):
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """A tool call begins. `index` counts the calls of an answer, from 0."""

    index: int
    id: str
    name: str


class ToolCallArguments(NamedTuple):
    """A piece of the JSON arguments of the call that began last."""

    text: str


class ToolCallEnded(NamedTuple):
    """The call that began last is complete. Its `arguments` are all pieces joined."""

    call: ToolCall


Delta = TextDelta | ReasoningDelta | ToolCallBegun | ToolCallArguments | ToolCallEnded


@dataclass(frozen=True, slots=True)
class Chunk:
    """New output of one choice. `pieces`: one text for each token. `rest`: text that was held back until the end.
    `deltas`: the parts in order, text included; empty if the answer is only text. `offsets`: with log-probabilities,
    for each token the number of characters before it in the choice's text. `prompt`: the prompt's tokens, in a chunk
    with their log-probabilities; in a chunk that echoes the prompt, `offsets` are for these tokens."""

    emission: Emission
    pieces: Sequence[str]
    rest: str = ""
    deltas: Sequence[Delta] = ()
    choice: int = 0
    offsets: Sequence[int] = ()
    prompt: Sequence[int] = ()

    @property
    def text(self) -> str:
        return "".join(self.pieces) + self.rest


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The end of one choice. `stop`: the stop string that ended the text, empty if none did. `stop_token_id`: the id of
    `stop_token_ids` that did. `tool_calls`: the number of complete calls. `warning`: a fault of the answer, for the
    client. `price`: its cost and quality class."""

    outcome: Outcome
    plan: DecodePlan
    stop: str
    choice: int = 0
    stop_token_id: int | None = None
    tool_calls: int = 0
    reasoning_tokens: int = 0
    warning: str = ""
    price: AnswerPrice = field(default_factory=AnswerPrice)


AnswerEvent = RequestStarted | Chunk | ChoiceFinished
Event = AnswerEvent | LoadProgress | PromptProgress
Send = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, and the daemon's defaults for requests to it."""

    info: ModelInfo
    default_max_tokens: int
    max_draft_tokens: int
    depth_mode: DepthMode
    chat_template: bool
    quality: QualityClass = QualityClass.STANDARD
    generic_tools: bool = False  # tools are offered as text, because the chat template takes none


def validate_request(request: Request, model: ServedModel) -> Request:
    """Returns the request with its defaults filled in. Raises InvalidRequest for the first field that is wrong. The
    prompt's length is checked after it is tokenised, by `check_length`."""
    if request.problem is not None:
        raise request.problem
    _check_prompt(request.prompt, model)
    most = model.info.context_length
    max_tokens = model.default_max_tokens if request.max_tokens is None else request.max_tokens
    allowed = f"1 or more; the model's context has {most}; 0 only with echo or prompt_logprobs"
    least = 0 if request.echo or request.prompt_logprobs is not None else 1
    _check(max_tokens >= least, "max_tokens", max_tokens, allowed)
    max_tokens = min(max_tokens, most)  # clients ask for as much as the largest models can answer
    p, vocabulary = request.sampling, model.info.vocab_size
    _check_sampling(p)
    _check_penalties(p, vocabulary)
    _check_stop(request.stop)
    _check_choices(request)
    _check_ends(request, max_tokens, vocabulary)
    _check_wish(request.wish, model.info)
    check_caller(request.caller)
    # -0.0 becomes 0.0, which looks better on a span.
    sampling = replace(p, temperature=p.temperature + 0.0, min_p=p.min_p + 0.0)
    stop = tuple(dict.fromkeys(filter(None, request.stop)))  # some clients send empty ones
    wish = replace(request.wish, local_only=_local_only_reason(request), token_ids_only=_token_id_reason(request))
    return replace(request, max_tokens=max_tokens, sampling=sampling, stop=stop, wish=wish)


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The route that a request would get. `expected_tokens`: of the answer."""

    route: Route
    prompt_tokens: int
    expected_tokens: int
    currency: str


def _token_id_reason(request: Request) -> str:
    """Returns why a daemon with another tokenizer cannot answer the request: the fields with token ids, as text for
    people. Empty if the request uses no token ids."""
    has = {
        "tokens": isinstance(request.prompt, TokenIds),
        "logprobs": request.logprobs is not None,
        "prompt_logprobs": request.prompt_logprobs is not None,
        "stop_token_ids": bool(request.stop_token_ids),
        "sampling.logit_bias": bool(request.sampling.logit_bias),
    }
    named = ", ".join(name for name, given in has.items() if given)
    return f"{named}: token ids of this model, and the remote has another tokenizer" if named else ""


def _local_only_reason(request: Request) -> str:
    """Returns why only this daemon's own model can answer the request, as text for people; empty if another daemon can
    answer it too."""
    if request.prompt_top_logprobs is not None:
        field = "prompt_logprobs" if request.prompt_logprobs is not None else "logprobs with echo"
        return f"{field}: log-probabilities of a prompt come from this daemon's own model"
    return "max_tokens 0: there is no answer to decode" if request.max_tokens == 0 else ""


def check_length(ids: Sequence[int], prompt: Prompt, model: ServedModel) -> None:
    """Raises InvalidRequest for an empty prompt, or one that leaves no room for a token."""
    name = "chat" if isinstance(prompt, Chat) else "prompt" if isinstance(prompt, RawText) else "tokens.ids"
    most = model.info.context_length - 1
    allowed = f"1 to {most} tokens, one less than the model's context"
    _check(1 <= len(ids) <= most, name, f"{len(ids)} tokens", allowed)


def default_max_tokens(prompt_tokens: int, model: ServedModel) -> int:
    """Returns the limit of an answer whose request sets none: the daemon's default, or less if the context, or the
    memory for it, has less room."""
    room = (model.info.largest_context or model.info.context_length) - prompt_tokens
    return max(1, min(model.default_max_tokens, room))


def check_caller(name: str) -> None:
    """Raises InvalidRequest for a name that is too long."""
    _check(len(name.encode()) <= MAX_CALLER_BYTES, "caller", name, f"at most {MAX_CALLER_BYTES} bytes")


def template_refusal(messages: Sequence[Message], wanted: str) -> InvalidRequest:
    """The error for messages that the template does not handle as `wanted`. Templates raise errors of their own: for
    roles out of order, for a system message, …"""
    roles = ", ".join(message.role for message in messages)
    return InvalidRequest("chat.messages", roles, f"messages that the model's template {wanted}")


def _check(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidRequest(field, value, allowed)


def _check_prompt(prompt: Prompt, model: ServedModel) -> None:
    if isinstance(prompt, RawText):
        _check(prompt.text != "", "prompt", "", "text that is not empty")
    elif isinstance(prompt, TokenIds):
        _check(len(prompt.ids) > 0, "tokens.ids", "no ids", "at least one token id")
        last = model.info.vocab_size - 1
        if max(prompt.ids) > last:
            i = next(i for i, token in enumerate(prompt.ids) if token > last)
            raise InvalidRequest(f"tokens.ids[{i}]", prompt.ids[i], f"token ids from 0 to {last}")
    else:
        allowed = "prompt or tokens: this model has no chat template"
        _check(model.chat_template, "chat", "messages", allowed)
        check_chat(prompt)
        if prompt.shown_tools:
            allowed = "none: the model's chat template takes no tools"
            allowed += ", and they are not offered as text (model.generic_tools)"
            _check(model.info.tools or model.generic_tools, "chat.tools", f"{len(prompt.tools)} tools", allowed)


def _check_sampling(p: SamplingParams) -> None:
    # No comparison holds for a value that is not a number.
    allowed = f"0 to {MAX_TEMPERATURE:g}; 0 is greedy"
    _check(0 <= p.temperature <= MAX_TEMPERATURE, "sampling.temperature", p.temperature, allowed)
    _check(0 <= p.top_p <= 1, "sampling.top_p", p.top_p, "0 to 1; 0 is the likeliest token, 1 is off")
    _check(p.top_k >= 0, "sampling.top_k", p.top_k, "0 or more; 0 is off")
    _check(0 <= p.min_p <= 1, "sampling.min_p", p.min_p, "0 to 1; 0 is off")


def _check_stop(stops: Sequence[str]) -> None:
    _check(len(stops) <= MAX_STOPS, "stop", f"{len(stops)} strings", f"at most {MAX_STOPS} strings")
    for i, stop in enumerate(stops):
        _check(len(stop.encode()) <= MAX_STOP_BYTES, f"stop[{i}]", stop, f"at most {MAX_STOP_BYTES} bytes")


def _check_penalties(p: SamplingParams, vocabulary: int) -> None:
    allowed = f"above 0, up to {MAX_REPETITION_PENALTY:g}; 1 is off"
    repetition = p.repetition_penalty
    _check(0 < repetition <= MAX_REPETITION_PENALTY, "sampling.repetition_penalty", repetition, allowed)
    allowed = f"-{MAX_PENALTY:g} to {MAX_PENALTY:g}; 0 is off"
    for name, value in (("presence", p.presence_penalty), ("frequency", p.frequency_penalty)):
        _check(-MAX_PENALTY <= value <= MAX_PENALTY, f"sampling.{name}_penalty", value, allowed)
    biased = len(p.logit_bias)
    _check(biased <= MAX_BIASED, "sampling.logit_bias", f"{biased} ids", f"at most {MAX_BIASED} ids")
    for token, bias in p.logit_bias:
        _check(0 <= token < vocabulary, "sampling.logit_bias", token, f"token ids from 0 to {vocabulary - 1}")
        allowed = f"-{MAX_BIAS:g} to {MAX_BIAS:g}"
        _check(-MAX_BIAS <= bias <= MAX_BIAS, f"sampling.logit_bias[{token}]", bias, allowed)


def _check_choices(request: Request) -> None:
    most, priority = MAX_CHOICES, request.priority
    _check(1 <= request.n <= most, "n", request.n, f"1 to {most}")
    for name, number in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        _check(number is None or 0 <= number <= MAX_LOGPROBS, name, number, f"0 to {MAX_LOGPROBS}")
    _check(-MAX_PRIORITY <= priority <= MAX_PRIORITY, "priority", priority, f"-{MAX_PRIORITY} to {MAX_PRIORITY}")
    chat = isinstance(request.prompt, Chat)
    _check(not (chat and request.echo), "echo", request.echo, "false, unless the prompt is raw text or token ids")


def _check_ends(request: Request, max_tokens: int, vocabulary: int) -> None:
    least, ids = request.min_tokens, request.stop_token_ids
    _check(0 <= least <= max_tokens, "min_tokens", least, f"0 to {max_tokens}, which is max_tokens")
    _check(len(ids) <= MAX_STOP_IDS, "stop_token_ids", f"{len(ids)} ids", f"at most {MAX_STOP_IDS} ids")
    for i, token in enumerate(ids):
        _check(0 <= token < vocabulary, f"stop_token_ids[{i}]", token, f"token ids from 0 to {vocabulary - 1}")


def _check_wish(wish: RequestedPlan, info: ModelInfo) -> None:
    drafters, cap = info.registered_drafters, wish.max_draft_tokens
    _check(wish.drafter is None or wish.drafter in drafters, "drafter", wish.drafter, ", ".join(drafters))
    _check(cap is None or cap >= 0, "max_draft_tokens", cap, "0 or more; 0 means autoregressive")
    for name, most in (("max_seconds", wish.max_seconds), ("max_cost", wish.max_cost)):
        _check(most is None or 0 < most < math.inf, name, most, "above 0")
    demanded = wish.preference is ModePreference.SPECULATIVE
    _check(not (cap == 0 and demanded), "max_draft_tokens", cap, "1 or more where the mode is speculative")
