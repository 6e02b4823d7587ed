"""Chats and completions: the fields of both bodies, and the replies with their choices."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from draftd.errors import DraftdError, InvalidRequest
from draftd.fronts.http.answer import CollectedChoice, TokenBytes, metrics, sum_usages, usage
from draftd.fronts.http.body import Body, CommonBody, Int, MostTokens, Texts, as_json
from draftd.fronts.http.errors import openai_error
from draftd.fronts.http.stream import COMMENT, DONE, data
from draftd.service.request import ChoiceFinished, FormatKind, PromptProgress, ResponseFormat

FORMAT = ("response_format", "json_schema.schema")


class JsonSchema(Body):
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class Format(Body):
    type: str
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")  # llama.cpp's place for it


class StreamOptions(Body):
    include_usage: bool | None = None


class ChoicesBody(CommonBody):
    """The fields that the bodies of chats and completions share."""

    max_tokens: MostTokens | None = None
    n: Int | None = None
    stop: Texts | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Int | None = None
    response_format: Format | None = None
    return_progress: bool | None = None

    def common_fields(self, client: str, identity: str) -> dict[str, Any]:
        """Adds the fields that chats and completions share. Raises InvalidRequest, also for `prompt_logprobs` in a
        stream, as vLLM does."""
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs", self.prompt_logprobs, "no value if stream is true")
        return {
            "stop": tuple(self.stop or ()),
            "prompt_logprobs": self.prompt_logprobs,
            "n": 1 if self.n is None else self.n,
            "return_progress": bool(self.stream and self.return_progress),
            **super().common_fields(client, identity),
        }


def response_format(wanted: Format | None, field: str = "response_format") -> ResponseFormat | None:
    """Converts the body's format; None for text. Raises InvalidRequest."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type not in ("json_object", "json_schema"):
        raise InvalidRequest(f"{field}.type", wanted.type, "text, json_object, json_schema")
    if wanted.json_schema is None and wanted.schema_ is not None:
        return ResponseFormat(FormatKind.JSON_SCHEMA, as_json(wanted.schema_, f"{field}.schema"))
    if wanted.type == "json_object":
        return ResponseFormat(FormatKind.JSON_OBJECT)
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise InvalidRequest(f"{field}.json_schema.schema", None, "a JSON schema")
    return ResponseFormat(FormatKind.JSON_SCHEMA, as_json(wanted.json_schema.schema_, f"{field}.json_schema.schema"))


def finish(end: ChoiceFinished) -> dict[str, Any]:
    """The end of a choice. `stop_reason` is vLLM's: the stop string or stop token that ended it."""
    reason = end.outcome.reason.value
    return {
        "finish_reason": "tool_calls" if end.tool_calls and reason == "stop" else reason,
        "stop_reason": end.stop or end.stop_token_id,
    }


class ChoicesReply:
    """The answer as a stream or in one piece, as the body asks. Each protocol writes its own choices."""

    keep_alive = COMMENT

    def __init__(self, model: str, token_bytes: TokenBytes, body: ChoicesBody) -> None:
        self._head: dict[str, Any] = {"id": "", "object": "", "created": int(time.time()), "model": model}
        self._token_bytes, self._stream, self._per_prompt = token_bytes, bool(body.stream), body.n or 1
        self._counted = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._measured = bool(body.include_metrics)
        self._choices: dict[int, CollectedChoice] = {}  # over all prompts

    @property
    def last(self) -> bytes:
        figures = self._figures(counted=self._counted)
        return (data({**self._head, "choices": [], **figures}) if figures else b"") + DONE

    def progress(self, event: PromptProgress) -> bytes:
        """Writes llama.cpp's progress of a prompt: all tokens, cached tokens, processed tokens and elapsed time."""
        far = {
            "total": event.prompt_tokens,
            "cache": event.cached_tokens,
            "processed": event.processed_tokens,
            "time_ms": round(1000 * (time.monotonic() - event.began)),
        }
        return data({**self._head, "choices": [], "prompt_progress": far})

    def whole(self) -> Mapping[str, Any]:
        choices = [self._choice(index, choice) for index, choice in sorted(self._choices.items())]
        return {**self._head, "choices": choices, **self._figures(counted=True)}

    def failure_event(self, error: DraftdError) -> bytes:
        return data(openai_error(error))

    def _choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        """The choice as it stands in an answer in one piece."""
        raise NotImplementedError

    def _piece(self, choice: Mapping[str, Any]) -> bytes:
        piece = {**self._head, "choices": [choice]}
        return data({**piece, "usage": None} if self._counted else piece)

    def _figures(self, *, counted: bool) -> dict[str, Any]:
        """The usage if `counted`, and the figures of drafting if the body asks for them."""
        figures: dict[str, Any] = {}
        if counted:
            by_prompt = defaultdict[int, list[ChoiceFinished]](list)
            for index, choice in self._choices.items():
                by_prompt[index // self._per_prompt].append(choice.end)
            figures["usage"] = sum_usages([usage(choices) for choices in by_prompt.values()])
        if self._measured:
            figures["metrics"] = metrics([choice.end for choice in self._choices.values()])
        return figures
