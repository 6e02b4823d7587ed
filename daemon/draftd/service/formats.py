"""What an answer must be, as a grammar."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Executor

from draftd.errors import InvalidRequest
from draftd.models import grammar as grammars
from draftd.models.grammar import Grammars
from draftd.service.request import FormatKind, Request, ResponseFormat

MAX_FORMAT_BYTES = 256 * 1024
MAX_CHOICES = 1024


async def grammar_of(request: Request, compiler: Grammars | None, executor: Executor) -> tuple[str, float]:
    """The grammar of the answer, compiled, and the seconds that took, 0 where it was known; empty where the answer may
    be anything. Raises InvalidRequest with what the format has that is not supported."""
    found = request.response_format
    if found is None:
        return "", 0.0
    _check(request, found)
    if compiler is None:
        raise InvalidRequest(_field(found), "a format", "none: this model's tokenizer has no grammars")
    try:
        grammar = _source(found)
        took = await asyncio.get_running_loop().run_in_executor(executor, compiler.compile, grammar)
    except ValueError as error:
        raise InvalidRequest(_field(found), _shown(found), f"what can be enforced: {error}") from None
    return grammar, took


def _check(request: Request, found: ResponseFormat) -> None:
    """A format is not too large, and goes with what else was asked for."""
    size = len(found.source.encode())
    if size > MAX_FORMAT_BYTES:
        raise InvalidRequest(_field(found), f"{size} bytes", f"at most {MAX_FORMAT_BYTES} bytes")
    if request.ignore_eos:
        raise InvalidRequest("ignore_eos", True, "false where there is a response_format: the answer ends with it")
    if request.min_tokens:
        raise InvalidRequest("min_tokens", request.min_tokens, "0 where there is a response_format: it says how much")


def _source(found: ResponseFormat) -> str:
    if found.kind is FormatKind.JSON_OBJECT:
        return grammars.json_object()
    if found.kind is FormatKind.CHOICE:
        return grammars.choice(_choices(found))
    makers = {
        FormatKind.JSON_SCHEMA: grammars.json_schema,
        FormatKind.REGEX: grammars.regex,
        FormatKind.GRAMMAR: grammars.lark,
    }
    return makers[found.kind](found.source)


def _choices(found: ResponseFormat) -> list[str]:
    texts = json.loads(found.source)
    if not 1 <= len(texts) <= MAX_CHOICES or not all(texts):
        raise InvalidRequest(_field(found), f"{len(texts)} texts", f"1 to {MAX_CHOICES} texts, none empty")
    return list(texts)


def _field(found: ResponseFormat) -> str:
    return "response_format.choices" if found.kind is FormatKind.CHOICE else f"response_format.{found.kind.value}"


def _shown(found: ResponseFormat) -> str:
    return found.source if len(found.source) <= 80 else f"{found.source[:77]}..."
