"""What a front asks of the service and what it is told, in no protocol's words; and which requests are in order.

A field is named in errors by its path here: `chat.messages[0].role`, `sampling.top_p`, `stop[1]`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from draftd.core import DecodePlan, DepthMode, Emission, ModePreference, Outcome, SamplingParams, WorkloadClass
from draftd.engine.observer import PromptProgress as PromptProgress
from draftd.errors import InvalidRequest
from draftd.model_info import ModelInfo
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
    """What the answer must be. `source`: a JSON schema as JSON, a regular expression, choices as a JSON list, a grammar
    in Lark's notation; nothing for any JSON object."""

    kind: FormatKind
    source: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its front read it. `max_tokens` None is the daemon's default, and more than the context is what
    the context has; `deadline` is on the monotonic
    clock; `client` is the connection that it came by. `problem`: what the front could not express here; the request is
    refused with it. `max_tokens` 0 has no answer, where something is told of the prompt."""

    prompt: Prompt
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    wish: RequestedPlan = field(default_factory=RequestedPlan)
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    deadline: float | None = None
    client: str = ""
    problem: InvalidRequest | None = None
    logprobs: int | None = None  # of so many of the likeliest tokens besides the chosen one
    prompt_logprobs: int | None = None  # likewise besides each of the prompt's
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    special_tokens: bool = False  # the text has those that the model chose
    n: int = 1
    echo: bool = False
    priority: int = 0
    response_format: ResponseFormat | None = None
    return_progress: bool = False  # of the prompt, while it is prefilled
    skip_prefix_cache: bool = False  # the prompt is computed, and nothing is kept for other requests

    @property
    def prompt_top_logprobs(self) -> int | None:
        """Of so many of the likeliest tokens besides each of the prompt's: an echoed prompt has what the answer has."""
        echoed = self.logprobs if self.echo else None
        return max((most for most in (self.prompt_logprobs, echoed) if most is not None), default=None)


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """The engine has taken the request."""

    request_id: str
    model: ModelInfo
    prompt_tokens: int
    plan: DecodePlan
    quality: QualityClass = QualityClass.STANDARD  # of the model whose text it will be


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The weights were let go for want of requests, and are read again: how far that is, for people."""

    progress: str


class TextDelta(NamedTuple):
    text: str


class ReasoningDelta(NamedTuple):
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegun:
    """`index` counts the calls of an answer, from 0."""

    index: int
    id: str
    name: str


class ToolCallArguments(NamedTuple):
    """A piece of the JSON of the call that was begun last."""

    text: str


class ToolCallEnded(NamedTuple):
    """The call that was begun last, whole: `arguments` is what its pieces add up to."""

    call: ToolCall


Delta = TextDelta | ReasoningDelta | ToolCallBegun | ToolCallArguments | ToolCallEnded


@dataclass(frozen=True, slots=True)
class Chunk:
    """What came since the last one, of one choice. `pieces`, texts, run parallel to the tokens; `rest` is text that was
    held back until the end. `deltas`: the answer's parts in order, its text among them, where it has others. `offsets`,
    where there are log-probabilities: for each token, how many characters of the text precede the one that it begins.
    `prompt`: where the emission has those of the prompt, all of its tokens, whose `offsets` these are if it is echoed.
    """

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
    """The end of one choice. `stop` is the stop string that ended the text, where one did, and `stop_token_id` the id
    of `stop_token_ids`. `tool_calls`: how many are complete. `warning`: what a client should know of the answer.
    `price`: what it cost and what it is good for."""

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
    """What is served, and the daemon's defaults for requests to it."""

    info: ModelInfo
    default_max_tokens: int
    max_draft_tokens: int
    depth_mode: DepthMode
    chat_template: bool
    quality: QualityClass = QualityClass.STANDARD
    generic_tools: bool = False  # the chat template takes no tools, and they are offered as text


def validate_request(request: Request, model: ServedModel) -> Request:
    """The request with every field in order and its defaults filled in. A prompt's length is not known before it is
    tokenised. Raises InvalidRequest, which names the first field that is wrong."""
    if request.problem is not None:
        raise request.problem
    _check_prompt(request.prompt, model)
    most = model.info.context_length
    max_tokens = model.default_max_tokens if request.max_tokens is None else request.max_tokens
    allowed = f"1 or more; the model's context has {most}; 0 only with echo or prompt_logprobs"
    least = 0 if request.echo or request.prompt_logprobs is not None else 1
    _check(max_tokens >= least, "max_tokens", max_tokens, allowed)
    max_tokens = min(max_tokens, most)  # clients ask for what the largest of models could answer
    p, vocabulary = request.sampling, model.info.vocab_size
    _check_sampling(p)
    _check_penalties(p, vocabulary)
    _check_stop(request.stop)
    _check_choices(request)
    _check_ends(request, max_tokens, vocabulary)
    _check_wish(request.wish, model.info)
    check_caller(request.caller)
    # -0.0 would be greedy too, and look strange on a span.
    sampling = replace(p, temperature=p.temperature + 0.0, min_p=p.min_p + 0.0)
    stop = tuple(dict.fromkeys(filter(None, request.stop)))  # an empty one, which some clients send, is none
    wish = replace(request.wish, local_only=_local_only_reason(request), token_ids_only=_token_id_reason(request))
    return replace(request, max_tokens=max_tokens, sampling=sampling, stop=stop, wish=wish)


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """Which way a request would go. `expected_tokens` of the answer."""

    route: Route
    prompt_tokens: int
    expected_tokens: int
    currency: str


def _token_id_reason(request: Request) -> str:
    """What of the request has meaning only with this model's token ids, for people; empty where nothing has."""
    has = {
        "tokens": isinstance(request.prompt, TokenIds),
        "logprobs": request.logprobs is not None,
        "prompt_logprobs": request.prompt_logprobs is not None,
        "stop_token_ids": bool(request.stop_token_ids),
        "sampling.logit_bias": bool(request.sampling.logit_bias),
    }
    named = ", ".join(name for name, given in has.items() if given)
    return f"{named} of this model's token ids, and the remote has another tokenizer" if named else ""


def _local_only_reason(request: Request) -> str:
    """What of the request only this daemon's own target answers, for people; empty where nothing is."""
    if request.prompt_top_logprobs is not None:
        field = "prompt_logprobs" if request.prompt_logprobs is not None else "logprobs with echo"
        return f"{field}: log-probabilities of a prompt are those of this daemon's own model"
    return "max_tokens 0: there is no answer to decode" if request.max_tokens == 0 else ""


def check_length(ids: Sequence[int], prompt: Prompt, model: ServedModel) -> None:
    """A prompt leaves room for at least one token. Raises InvalidRequest."""
    name = "chat" if isinstance(prompt, Chat) else "prompt" if isinstance(prompt, RawText) else "tokens.ids"
    most = model.info.context_length - 1
    allowed = f"1 to {most} tokens, one less than the model's context"
    _check(1 <= len(ids) <= most, name, f"{len(ids)} tokens", allowed)


def default_max_tokens(prompt_tokens: int, model: ServedModel) -> int:
    """Of an answer where the request does not say: fewer than the daemon's default where the context, or the memory for
    it, has room for fewer."""
    room = (model.info.largest_context or model.info.context_length) - prompt_tokens
    return max(1, min(model.default_max_tokens, room))


def check_caller(name: str) -> None:
    """Raises InvalidRequest for a name that is too long."""
    _check(len(name.encode()) <= MAX_CALLER_BYTES, "caller", name, f"at most {MAX_CALLER_BYTES} bytes")


def template_refusal(messages: Sequence[Message], wanted: str) -> InvalidRequest:
    """What the template makes of messages is not `wanted`. Templates raise on what they do not take, each in its own
    way: roles out of order, no system message, …"""
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
