"""POST /v1/completions: OpenAI's completions of raw prompts, texts or token ids, several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftd.core import TokenLogprobs
from draftd.errors import InvalidRequest
from draftd.fronts.http.answer import CollectedChoice, TokenBytes, bound_logprob, is_success, prompt_logprobs
from draftd.fronts.http.body import Int, parse_body, token_ids
from draftd.fronts.http.choices import FORMAT, ChoicesBody, ChoicesReply, finish, response_format
from draftd.fronts.http.errors import Names
from draftd.fronts.http.exchange import HttpExchange, ParsedBody, Scope
from draftd.fronts.http.structured_outputs import wanted_format
from draftd.service.request import (
    AnswerEvent,
    ChoiceFinished,
    Chunk,
    Prompt,
    RawText,
    Request,
    RequestStarted,
    TokenIds,
)

_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_MOST_PROMPTS = 32  # in one body: each prompt is a request


class CompletionBody(ChoicesBody):
    prompt: Any = None
    best_of: Int | None = None
    logprobs: Int | None = None
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


def parse_request(call: HttpExchange, scope: Scope) -> ParsedBody:
    """Raises InvalidRequest, which names the body's field."""
    body = parse_body(CompletionBody, call.body)
    model = scope.resolve_model(body.model)
    if body.suffix:
        raise InvalidRequest("suffix", body.suffix, "no value: draftd only continues the prompt")
    if body.add_special_tokens is False:
        raise InvalidRequest("add_special_tokens", False, "true; for a prompt without special tokens send token ids")
    if body.best_of not in (None, 1 if body.n is None else body.n):
        raise InvalidRequest("best_of", body.best_of, "the same number as n: all answers are returned")
    wanted, called = wanted_format(body, response_format(body.response_format), *FORMAT)
    shared: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "logprobs": body.logprobs,
        "echo": bool(body.echo),
        "response_format": wanted,
        **body.common_fields(call.client, call.identity),
    }
    requests = [Request(prompt=one, **shared) for one in prompts(body.prompt)]
    reply = CompletionReply(model, scope.service.token_bytes, body)
    names = Names(body.field_names({**called, "tokens.ids": "prompt"}))
    return ParsedBody(requests, reply, bool(body.stream), names, reply.progress)


def prompts(value: object) -> list[Prompt]:
    """The prompts of a body, which has a text, token ids, or a list of either. Raises InvalidRequest."""
    if isinstance(value, str):
        return [RawText(value)]
    if isinstance(value, list) and value:
        if isinstance(value[0], int):
            return [TokenIds(token_ids(value, "prompt"))]
        if len(value) > _MOST_PROMPTS:
            raise InvalidRequest("prompt", f"{len(value)} prompts", f"at most {_MOST_PROMPTS}")
        return [_prompt(one, f"prompt[{i}]") for i, one in enumerate(value)]
    raise InvalidRequest("prompt", value, "a text, token ids, or a list of texts or of token ids")


def _prompt(value: object, field: str) -> Prompt:
    if isinstance(value, str):
        return RawText(value)
    if isinstance(value, list):
        return TokenIds(token_ids(value, field))
    raise InvalidRequest(field, value, "a text or token ids")


class CompletionReply(ChoicesReply):
    """The answer to one or several prompts."""

    def __init__(self, model: str, token_bytes: TokenBytes, body: CompletionBody) -> None:
        super().__init__(model, token_bytes, body)
        self._head["object"] = "text_completion"
        self._likeliest, self._likeliest_of_prompt = body.logprobs, body.prompt_logprobs

    def take(self, event: AnswerEvent, prompt: int) -> bytes:
        if isinstance(event, RequestStarted):
            self._head["id"] = self._head["id"] or f"cmpl-{event.request_id}"
            return b""
        index = prompt * self._per_prompt + event.choice
        choice = self._choices.setdefault(index, CollectedChoice())
        if isinstance(event, ChoiceFinished):
            choice.finished = event
            return self._said(index, "", None, finish(event)) if self._stream and is_success(event) else b""
        return self._chunk(event, index, choice)

    def _choice(self, index: int, choice: CollectedChoice) -> dict[str, Any]:
        logprobs = {key: [entry for lists in choice.logprobs for entry in lists[key]] for key in _LOGPROBS}
        return {
            "index": index,
            "text": choice.text,
            "logprobs": logprobs if choice.logprobs else None,
            **finish(choice.end),
            **choice.prompt,
        }

    def _chunk(self, event: Chunk, index: int, choice: CollectedChoice) -> bytes:
        text = event.text
        logprobs = self._logprobs(event) if event.emission.logprobs or (event.prompt and event.offsets) else None
        if event.prompt and self._likeliest_of_prompt is not None:
            choice.prompt = {"prompt_logprobs": prompt_logprobs(event, self._token_bytes, self._likeliest_of_prompt)}
        if self._stream:
            return self._said(index, text, logprobs, {"finish_reason": None}) if text or logprobs else b""
        choice.texts.append(text)
        choice.logprobs += [] if logprobs is None else [logprobs]
        return b""

    def _logprobs(self, event: Chunk) -> dict[str, list[Any]]:
        """OpenAI's older shape: lists with an entry for each token. A prompt's first token has no probability."""
        lists: dict[str, list[Any]] = {key: [] for key in _LOGPROBS}
        tokens: Sequence[int] = event.emission.tokens
        logprobs: Sequence[TokenLogprobs | None] = event.emission.logprobs
        if event.prompt:
            tokens, logprobs = event.prompt, (None, *(event.emission.prompt or ()))
        for token, chosen, offset in zip(tokens, logprobs, event.offsets, strict=False):
            lists["tokens"].append(self._text(token))
            lists["token_logprobs"].append(None if chosen is None else bound_logprob(chosen.logprob))
            lists["top_logprobs"].append(None if chosen is None else self._top(chosen))
            lists["text_offset"].append(offset)
        return lists

    def _top(self, chosen: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens by text. Of several tokens with one text, such as bytes of a character, only the
        likeliest."""
        top: dict[str, float] = {}
        for token, logprob in chosen.top[: self._likeliest]:
            top.setdefault(self._text(token), bound_logprob(logprob))
        return top

    def _text(self, token: int) -> str:
        return self._token_bytes(token).decode(errors="replace")

    def _said(self, index: int, text: str, logprobs: Mapping[str, Any] | None, end: Mapping[str, Any]) -> bytes:
        return self._piece({"index": index, "text": text, "logprobs": logprobs, **end})
