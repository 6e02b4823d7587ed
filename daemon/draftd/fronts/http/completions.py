"""POST /v1/completions: OpenAI's completions of raw prompts, texts or token ids, several at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from draftd.core import TokenLogprobs
from draftd.errors import DraftdError, InvalidRequest
from draftd.fronts.http import body as fields
from draftd.fronts.http.answer import (
    TokenBytes,
    added,
    bounded,
    metrics,
    prompt_logprobs,
    prompt_progress,
    succeeded,
    usage,
)
from draftd.fronts.http.body import Common, Int, MostTokens, Texts, parsed, token_ids
from draftd.fronts.http.chat import FORMAT, Format, StreamOptions, finish, response_format
from draftd.fronts.http.errors import Names, openai_error
from draftd.fronts.http.exchange import Asked, Call, Scope
from draftd.fronts.http.stream import COMMENT, DONE, data
from draftd.service.request import (
    AnswerEvent,
    Chunk,
    Finished,
    Prompt,
    PromptProgress,
    RawText,
    Request,
    Started,
    TokenIds,
)

_MOST_PROMPTS = 32  # of one question: each is a request


class CompletionBody(Common):
    prompt: Any = None
    max_tokens: MostTokens | None = None
    n: Int | None = None
    best_of: Int | None = None
    stop: Texts | None = None
    stream_options: StreamOptions | None = None
    logprobs: Int | None = None
    prompt_logprobs: Int | None = None
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    response_format: Format | None = None
    return_progress: bool | None = None


def asked(call: Call, scope: Scope) -> Asked:
    """Raises InvalidRequest, which names the body's field."""
    given = parsed(CompletionBody, call.body)
    model = scope.served(given.model)
    choices = 1 if given.n is None else given.n
    if given.suffix:
        raise InvalidRequest("suffix", given.suffix, "none: text is only added at the end")
    if given.add_special_tokens is False:
        raise InvalidRequest("add_special_tokens", False, "true; a prompt of token ids has only those")
    if given.best_of not in (None, choices):
        raise InvalidRequest("best_of", given.best_of, "n: none is left out")
    wanted, called = fields.wanted_format(given, response_format(given.response_format), *FORMAT)
    shared: dict[str, Any] = {
        "max_tokens": given.max_tokens,
        "stop": tuple(given.stop or ()),
        "logprobs": given.logprobs,
        "prompt_logprobs": fields.prompt_logprobs(given.prompt_logprobs, given.stream),
        "n": choices,
        "echo": bool(given.echo),
        "response_format": wanted,
        "return_progress": bool(given.stream and given.return_progress),
        **given.shared(call.client),
    }
    requests = [Request(prompt=one, **shared) for one in prompts(given.prompt)]
    table = {
        **fields.FIELDS,
        **fields.caller_field(given),
        **called,
        "tokens.ids": "prompt",
    }
    counted = given.stream_options is not None and bool(given.stream_options.include_usage)
    head = {"id": "", "created": int(time.time()), "model": model}
    reply = Completion(
        head,
        scope.token_bytes,
        choices,
        stream=bool(given.stream),
        counted=counted,
        measured=bool(given.include_metrics),
        likeliest=given.logprobs,
        prompts=given.prompt_logprobs,
    )
    return Asked(requests, reply, bool(given.stream), Names(table), reply.progress)


def prompts(given: object) -> list[Prompt]:
    """A text, token ids, or a list of either. Raises InvalidRequest."""
    if isinstance(given, str):
        return [RawText(given)]
    if isinstance(given, list) and given:
        if isinstance(given[0], int):
            return [TokenIds(token_ids(given, "prompt"))]
        if len(given) > _MOST_PROMPTS:
            raise InvalidRequest("prompt", f"{len(given)} prompts", f"at most {_MOST_PROMPTS}")
        return [_prompt(one, f"prompt[{i}]") for i, one in enumerate(given)]
    raise InvalidRequest("prompt", given, "a text, token ids, or a list of texts or of token ids")


def _prompt(given: object, field: str) -> Prompt:
    if isinstance(given, str):
        return RawText(given)
    if isinstance(given, list):
        return TokenIds(token_ids(given, field))
    raise InvalidRequest(field, given, "a text or token ids")


class _Choice:
    """One completion."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: dict[str, list[Any]] = {}
        self.prompt: dict[str, Any] = {}
        self.finished: Finished | None = None


class Completion:
    """The answer, in pieces (`stream`) or in one."""

    keep_alive = COMMENT

    def __init__(
        self,
        head: Mapping[str, Any],
        token_bytes: TokenBytes,
        choices: int,
        *,
        stream: bool,
        counted: bool,
        measured: bool,
        likeliest: int | None = None,
        prompts: int | None = None,
    ) -> None:
        """`likeliest` of `logprobs`, and `prompts` of `prompt_logprobs`; None where these are not told."""
        self._likeliest, self._prompts = likeliest, prompts
        self._head, self._token_bytes, self._per_prompt = {**head, "object": "text_completion"}, token_bytes, choices
        self._stream, self._counted, self._measured = stream, counted, measured
        self._choices: dict[int, _Choice] = {}

    @property
    def last(self) -> bytes:
        more: dict[str, Any] = {"usage": self._usage()} if self._counted else {}
        if self._measured:
            more["metrics"] = metrics(self._finished())
        return (data({**self._head, "choices": [], **more}) if more else b"") + DONE

    def take(self, told: AnswerEvent, prompt: int) -> bytes:
        if isinstance(told, Started):
            self._head["id"] = self._head["id"] or f"cmpl-{told.request_id}"
            return b""
        index = prompt * self._per_prompt + told.choice
        choice = self._choices.setdefault(index, _Choice())
        if isinstance(told, Finished):
            choice.finished = told
            return self._said(index, "", None, finish(told)) if self._stream and succeeded(told) else b""
        return self._chunk(told, index, choice)

    def progress(self, told: PromptProgress) -> bytes:
        """What a stream says of one of the prompts before its answer begins."""
        return data({**self._head, "choices": [], **prompt_progress(told)})

    def whole(self) -> Mapping[str, Any]:
        choices = []
        for index, one in sorted(self._choices.items()):
            assert one.finished is not None
            choices.append(
                {
                    "index": index,
                    "text": "".join(one.texts),
                    "logprobs": one.logprobs or None,
                    **finish(one.finished),
                    **one.prompt,
                }
            )
        made = {**self._head, "choices": choices, "usage": self._usage()}
        return {**made, "metrics": metrics(self._finished())} if self._measured else made

    def failed(self, error: DraftdError) -> bytes:
        return data(openai_error(error))

    def _chunk(self, told: Chunk, index: int, choice: _Choice) -> bytes:
        text = told.text
        logprobs = self._logprobs(told) if told.emission.logprobs or (told.prompt and told.offsets) else None
        if told.prompt and self._prompts is not None:
            choice.prompt = {"prompt_logprobs": prompt_logprobs(told, self._token_bytes, self._prompts)}
        if self._stream:
            return self._said(index, text, logprobs, {"finish_reason": None}) if text or logprobs else b""
        choice.texts.append(text)
        for key, values in (logprobs or {}).items():
            choice.logprobs.setdefault(key, []).extend(values)
        return b""

    def _logprobs(self, told: Chunk) -> dict[str, list[Any]]:
        """OpenAI's older shape: lists that run parallel to the tokens. Nothing comes before a prompt's first token, so
        it has no probability."""
        made: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        tokens: Sequence[int] = told.emission.tokens
        logprobs: Sequence[TokenLogprobs | None] = told.emission.logprobs
        if told.prompt:
            tokens, logprobs = told.prompt, (None, *(told.emission.prompt or ()))
        for token, found, offset in zip(tokens, logprobs, told.offsets, strict=False):
            made["tokens"].append(self._text(token))
            made["token_logprobs"].append(None if found is None else bounded(found.logprob))
            made["top_logprobs"].append(None if found is None else self._top(found))
            made["text_offset"].append(offset)
        return made

    def _top(self, found: TokenLogprobs) -> dict[str, float]:
        """By text. Of several tokens with one text, such as bytes of a character, the likeliest."""
        top: dict[str, float] = {}
        for token, logprob in found.top[: self._likeliest]:
            top.setdefault(self._text(token), bounded(logprob))
        return top

    def _text(self, token: int) -> str:
        return self._token_bytes(token).decode(errors="replace")

    def _said(self, index: int, text: str, logprobs: Mapping[str, Any] | None, end: Mapping[str, Any]) -> bytes:
        made = {**self._head, "choices": [{"index": index, "text": text, "logprobs": logprobs, **end}]}
        return data({**made, "usage": None} if self._counted else made)

    def _finished(self) -> list[Finished]:
        return [one.finished for one in self._choices.values() if one.finished is not None]

    def _usage(self) -> dict[str, Any]:
        by_prompt: dict[int, list[Finished]] = {}
        for index, one in self._choices.items():
            if one.finished is not None:
                by_prompt.setdefault(index // max(1, self._per_prompt), []).append(one.finished)
        return added([usage(one) for one in by_prompt.values()])
