"""Bodies of requests: reads them within limits, parses them strictly, and defines the fields that all endpoints share.

Unknown fields are ignored, because clients send fields of other servers. A known field of the wrong type is refused by
name.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from draftd import protocol
from draftd.core import DepthMode, ModePreference, SamplingParams, WorkloadClass
from draftd.errors import InvalidRequest, wrong_field
from draftd.fronts.http.errors import Timeout, TooLarge, WrongMedia
from draftd.listening import BodyTooLarge, read_whole
from draftd.planning.planner import RequestedPlan
from draftd.service.request import MAX_CALLER_BYTES
from draftd.strategies import QualityClass, Strategy

log = logging.getLogger(__name__)

BODY_SECONDS = 30.0  # for all of it
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")
B = TypeVar("B", bound="Body")


class _FailFast(FailFast):
    """pydantic's FailFast with a hash, which a union needs."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


#: Lists whose parsing stops at the first wrong item: a body has room for a million of them.
Items = Annotated[list[T], _FailFast()]
Int = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
#: The most tokens of an answer. -1, which means no limit to other servers, becomes more than any context.
MostTokens = Annotated[Int, AfterValidator(lambda most: 2**31 - 1 if most == -1 else most)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]


def _text_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def text_parts(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[Items[str], BeforeValidator(_text_list)]


class Body(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class MessagePart(Body):
    """A part of a message. The protocols differ in which `type`s are text, and in which field has the text."""

    type: str
    text: str | None = None
    refusal: str | None = None
    tool_name: str | None = None  # of a reference to a tool
    title: str | None = None  # of a document or a search result


#: A message's content: a text, or its parts.
Parts = Annotated[Items[MessagePart], BeforeValidator(text_parts)]


class DraftdFields(Body):
    """draftd's own fields: the object `draftd` of a body. Unlike other servers' fields, an unknown one is refused."""

    model_config = ConfigDict(extra="forbid")

    mode: str | None = None
    max_draft_tokens: Int | None = None
    drafter: str | None = None
    depth_mode: str | None = None
    workload: str | None = None
    caller: str | None = None
    strategy: str | None = None
    quality: str | None = None
    max_seconds: float | None = None
    max_cost: float | None = None

    def wish(self) -> RequestedPlan:
        """Raises InvalidRequest."""
        labels = {quality.label: quality for quality in QualityClass}
        return RequestedPlan(
            member(ModePreference, self.mode, "draftd.mode") or ModePreference.AUTO,
            self.max_draft_tokens,
            self.drafter or None,
            member(DepthMode, self.depth_mode, "draftd.depth_mode"),
            strategy=member(Strategy, self.strategy, "draftd.strategy"),
            quality=None if self.quality is None else protocol.member(labels, self.quality, "draftd.quality", labels),
            max_seconds=self.max_seconds,
            max_cost=self.max_cost,
        )


class UnservedFields(Body):
    """Fields of other servers that would change the text or its description. They are refused unless they are zero,
    empty or off."""

    allowed_token_ids: Any = None
    bad_words: Any = None
    chat_template: Any = None
    documents: Any = None
    dry_multiplier: Any = None
    dynatemp_range: Any = None
    ebnf: Any = None
    guided_whitespace_pattern: Any = None
    logits_processors: Any = None
    lora: Any = None
    mirostat: Any = None
    moderation: Any = None
    n_predict: Any = None
    n_probs: Any = None
    prompt_embeds: Any = None
    regex: Any = None
    repeat_penalty: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    t_max_predict_ms: Any = None
    top_n_sigma: Any = None
    truncate_prompt_tokens: Any = None
    typical_p: Any = None
    use_beam_search: Any = None
    vllm_xargs: Any = None
    xtc_probability: Any = None


_OFF: Mapping[str, object] = {"n_predict": -1, "repeat_penalty": 1, "top_n_sigma": -1, "typical_p": 1}
_INSTEAD = {
    "ebnf": "grammar",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "regex": "guided_regex",
    "repeat_penalty": "repetition_penalty",
}


#: The bodies' names for the service's fields.
_FIELDS: Mapping[str, str] = {
    "sampling.": "",
    "drafter": "draftd.drafter",
    "max_draft_tokens": "draftd.max_draft_tokens",
    "max_seconds": "draftd.max_seconds",
    "max_cost": "draftd.max_cost",
    "chat": "messages",
    "chat.messages": "messages",
    "chat.tools": "tools",
    "chat.tool_choice": "tool_choice",
    "chat.template_arguments": "chat_template_kwargs",
}


class CommonBody(UnservedFields):
    """The fields that the bodies of all protocols share, including vLLM's own fields."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    seed: Seed | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Items[Int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Int | None = None
    cache_prompt: bool | None = None
    user: str | None = None
    include_metrics: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    grammar: Any = None
    draftd: DraftdFields = Field(default_factory=DraftdFields)

    def common_fields(self, client: str, identity: str) -> dict[str, Any]:
        """The fields of `service.request.Request` that are the same in all protocols. Raises InvalidRequest."""
        for name in UnservedFields.model_fields:
            if (value := getattr(self, name)) and value != _OFF.get(name):
                instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
                raise InvalidRequest(name, value, f"no value: draftd does not support this field{instead}")
        wishes = self.draftd
        return {
            "sampling": self._sampling(),
            "wish": wishes.wish(),
            "workload": member(WorkloadClass, wishes.workload, "draftd.workload") or WorkloadClass.UNSPECIFIED,
            "caller": wishes.caller or beginning(self.user or ""),
            "client": client,
            "identity": identity,
            "min_tokens": self.min_tokens or 0,
            "ignore_eos": bool(self.ignore_eos),
            "stop_token_ids": token_ids(self.stop_token_ids or (), "stop_token_ids"),
            "include_stop": bool(self.include_stop_str_in_output),
            "special_tokens": self.skip_special_tokens is False,
            "priority": self.priority or 0,
            "skip_prefix_cache": self.cache_prompt is False,
        }

    def field_names(self, own: Mapping[str, str]) -> dict[str, str]:
        """Returns this body's names for the service's fields: the names shared by all protocols, updated with `own`,
        those of its protocol."""
        caller = "user" if self.draftd.caller is None and self.user is not None else "draftd.caller"
        return {**_FIELDS, "caller": caller, **own}

    def _sampling(self) -> SamplingParams:
        values: dict[str, Any] = {}
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            if (value := getattr(self, name)) is not None:
                values[name] = value
        if self.top_k is not None:
            values["top_k"] = 0 if self.top_k == -1 else self.top_k  # -1 turns it off in vLLM
        if self.seed is not None and self.seed != -1:  # -1 means a random seed to other servers
            values["seed"] = self.seed % 2**64
        if self.logit_bias:
            values["logit_bias"] = tuple(_biases(self.logit_bias))
        return SamplingParams(**values)


def beginning(caller: str) -> str:
    """Cuts a caller's name to the allowed length: client programs send longer names without their user's knowledge."""
    return caller.encode()[:MAX_CALLER_BYTES].decode(errors="ignore")


def leave_out(kind: str, field: str) -> None:
    """Logs that a tool is left out because the server would have to run it."""
    log.info("%s: the tool %s is not offered to the model: draftd runs no tools itself", field, kind[:80])


def continues(final_message: bool | None, generation_prompt: bool | None) -> bool:
    """vLLM's `continue_final_message` and `add_generation_prompt`. Raises InvalidRequest if both are true, or if the
    second is false and the first is not true."""
    if final_message and generation_prompt:
        raise InvalidRequest("continue_final_message", True, "false where add_generation_prompt is true")
    if generation_prompt is False and not final_message:
        raise InvalidRequest("add_generation_prompt", False, "true, unless continue_final_message is true")
    return bool(final_message)


def member(kind: Any, value: str | None, field: str) -> Any:
    """The enumeration's member with that value; None for None. Raises InvalidRequest."""
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(field, value, ", ".join(kind)) from None


def token_ids(ids: Sequence[object], field: str) -> tuple[int, ...]:
    """Checks token ids. Raises InvalidRequest for an invalid one."""
    for i, token_id in enumerate(ids):
        if type(token_id) is not int or not 0 <= token_id < 2**31:
            raise InvalidRequest(f"{field}[{i}]", token_id, "token ids, from 0")
    return tuple(ids)  # type: ignore[arg-type]


def _biases(biases: Mapping[str, object]) -> Iterable[tuple[int, float]]:
    for key, value in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise InvalidRequest(f"logit_bias.{key[:40]}", value, "token ids as keys")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e6:
            raise InvalidRequest(f"logit_bias.{key}", value, "a number")
        yield int(key), float(value)


def as_json(value: object, field: str) -> str:
    """Writes a parsed JSON value as JSON again. Raises InvalidRequest for a value that JSON cannot express."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise InvalidRequest(field, "a value that JSON does not have", f"JSON ({error})") from None


def text_of(parts: Sequence[MessagePart] | None, field: str, kinds: Mapping[str, str], *, of_tool: bool = False) -> str:
    """The text of a content's parts, joined by line breaks. `kinds`: the field that has the text, by the part's type.
    Raises InvalidRequest for other types: images, audio, files. In a tool's result (`of_tool`) a note replaces such a
    part: client programs send these without being asked, and again with each later request."""
    texts = []
    for i, part in enumerate(parts or ()):
        if part.type not in kinds and of_tool:
            kind = _NO_NAME.sub("", part.type)[:40]
            log.info("%s[%d]: %s is left out of a tool's result: only text is served", field, i, kind)
            named = f" {name[:100]!r}" if (name := part.tool_name or part.title) else ""
            texts.append(f"[{kind}{named} left out: only text can be shown]")
            continue
        if part.type not in kinds:
            raise InvalidRequest(f"{field}[{i}].type", part.type, f"{', '.join(kinds)}: only text is served")
        text = getattr(part, kinds[part.type])
        if text is None:
            raise InvalidRequest(f"{field}[{i}].{kinds[part.type]}", None, "text")
        texts.append(text)
    return "\n".join(texts)


def parse_body(kind: type[B], data: bytes) -> B:
    """Parses a body. A lone surrogate, which JavaScript leaves where it cuts a text, becomes U+FFFD. Raises
    InvalidRequest, which names the first wrong field."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid" and (whole := _without_halves(data)) is not None:
            return parse_body(kind, whole)
        field, value, allowed = wrong_field(error)
        if error.errors()[0]["type"] == "extra_forbidden":
            allowed = f"only the fields {', '.join(DraftdFields.model_fields)}"
        raise InvalidRequest(field or "body", value, allowed) from None


def _without_halves(data: bytes) -> bytes | None:
    """The same JSON with U+FFFD for each lone surrogate; None if it has none or is not JSON."""
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    whole = _LONE_SURROGATE.sub("\ufffd", text)
    return None if whole == text else whole.encode()


def checked_part(kind: type[B], part: Mapping[str, Any]) -> B:
    """Validates a part of a body that is already parsed JSON. Raises InvalidRequest."""
    try:
        return kind.model_validate(part)
    except ValidationError as error:
        raise InvalidRequest(*wrong_field(error)) from None


async def read_body(request: web.BaseRequest, most: int, seconds: float) -> bytes:
    """Reads the whole body. Raises HttpError if it is too large, too slow, or not JSON by its headers; InvalidRequest
    if the transfer breaks."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise WrongMedia("Content-Encoding: allowed: none: send the body uncompressed")
    # Browsers let pages of other origins send any other type without a preflight request.
    if request.content_type != "application/json":
        raise WrongMedia(f"Content-Type: got {request.content_type[:80]!r}; allowed: application/json")
    try:
        return await read_whole(request, most, seconds)
    except BodyTooLarge:
        raise TooLarge(f"body: allowed: at most {most} bytes (server.max_message_bytes)") from None
    except TimeoutError:
        raise Timeout(f"body: allowed: all of it within {seconds:g} s") from None
    except web.RequestPayloadError:
        raise InvalidRequest(
            "body", "a broken transfer", "chunks in the format of HTTP/1.1, ended by an empty one"
        ) from None
