"""The grammar that an answer must follow: its response format, or a demanded tool call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from draftd.errors import InvalidRequest
from draftd.models import grammar as grammars
from draftd.models.answer_format import CallFormat
from draftd.models.grammar import CompiledGrammar, Grammars
from draftd.service.answer import ReadingOptions
from draftd.service.messages import Chat, Tool, ToolMode
from draftd.service.request import FormatKind, Prompt, Request, ResponseFormat

MAX_FORMAT_BYTES = 256 * 1024
MAX_CHOICES = 1024


class Constraint(NamedTuple):
    """The grammar of an answer, empty if the answer is free. `kind`: the grammar's name for telemetry. `seconds`: how
    long compiling took, 0 if it was compiled already. `compiled` keeps the grammar compiled while this object
    exists."""

    grammar: str = ""
    kind: str = ""
    seconds: float = 0.0
    compiled: CompiledGrammar | None = None


async def constraint_of(
    request: Request, reading: ReadingOptions | None, compiler: Grammars | None, executor: Executor
) -> Constraint:
    """Returns the constraint of the response format, or of a demanded tool call. Raises InvalidRequest if it cannot be
    enforced."""
    response_format, prompt = request.response_format, request.prompt
    demanded = isinstance(prompt, Chat) and prompt.demands_call
    if response_format is None and not demanded:
        return Constraint()
    if response_format is None:
        field, shown, kind = "chat.tool_choice", "a call", "tool_call"
    else:
        field, shown, kind = _field(response_format), response_format.source, response_format.kind.value
    _check(request, field, () if reading is None else reading.tools)
    if compiler is None:
        raise InvalidRequest(field, shown, "no value: this model's tokenizer does not support grammars")
    run = asyncio.get_running_loop().run_in_executor
    try:
        grammar = await run(executor, _grammar, response_format, prompt, reading, compiler)
        compiled, seconds = await run(executor, compiler.compile, grammar)
    except ValueError as error:
        tools = prompt.tools if isinstance(prompt, Chat) and demanded else ()
        wrong = await run(executor, _wrong_tool, tools, compiler)
        field, shown, why = wrong or (field, shown, str(error))
        raise InvalidRequest(field, shown, f"a grammar that can be enforced: {why}") from None
    return Constraint(grammar, kind, seconds, compiled)


def _grammar(
    response_format: ResponseFormat | None, prompt: Prompt, reading: ReadingOptions | None, compiler: Grammars
) -> str:
    """Returns the grammar of the answer. Raises ValueError if it cannot be enforced."""
    demanded = isinstance(prompt, Chat) and prompt.demands_call
    body = "" if response_format is None or demanded else _source(response_format)
    if reading is None:
        return body
    answer_format, calls = reading.answer_format, list[tuple[CallFormat, str]]()
    if answer_format.transitions:
        raise ValueError("this model writes headers into its answers, and draftd has no grammar for these")
    tool_choice = prompt.tool_choice if isinstance(prompt, Chat) else ToolMode.AUTO
    for tool in reading.tools:
        if isinstance(tool_choice, ToolMode) or tool.name == tool_choice:
            call_format = None if answer_format.tools is None else answer_format.tools.call_format(tool.name)
            if call_format is None:
                raise ValueError("this model does not write the arguments of its calls as JSON")
            calls.append((call_format, tool.parameters))
    several = (
        not reading.single
        and answer_format.tools is not None
        and answer_format.tools.repeats
        and isinstance(tool_choice, ToolMode)
    )
    return compiler.answer(body, calls, several=several, thought=answer_format.thinking, begun=reading.thinks)


def _wrong_tool(tools: Sequence[Tool], compiler: Grammars) -> tuple[str, str, str] | None:
    """Compiles each tool's parameters by themselves. Returns field, schema and reason for the first tool whose
    parameters do not compile; None if all do."""
    for i, tool in enumerate(tools):
        try:
            compiler.compile(grammars.arguments(tool.parameters))
        except ValueError as error:
            return f"chat.tools[{i}].parameters", tool.parameters, str(error)
    return None


def _check(request: Request, field: str, tools: Sequence[Tool]) -> None:
    """Raises InvalidRequest for a format that is too large, or for other fields that contradict it."""
    source = "" if request.response_format is None else request.response_format.source
    size = len(source.encode()) + sum(len(tool.parameters.encode()) for tool in tools)
    if size > MAX_FORMAT_BYTES:
        raise InvalidRequest(
            field, f"{size} bytes", f"at most {MAX_FORMAT_BYTES} bytes, including the parameters of tools"
        )
    why = "there is a response_format" if request.response_format is not None else "a call is demanded"
    if request.ignore_eos:
        raise InvalidRequest("ignore_eos", True, f"false if {why}: the answer ends where its grammar ends")
    if request.min_tokens:
        raise InvalidRequest("min_tokens", request.min_tokens, f"0 if {why}: its grammar sets the length")


def _source(response_format: ResponseFormat) -> str:
    if response_format.kind is FormatKind.JSON_OBJECT:
        return grammars.json_object()
    if response_format.kind is FormatKind.CHOICE:
        return grammars.choice(_choices(response_format))
    makers = {
        FormatKind.JSON_SCHEMA: grammars.json_schema,
        FormatKind.REGEX: grammars.regex,
        FormatKind.GRAMMAR: grammars.lark,
    }
    return makers[response_format.kind](response_format.source)


def _choices(response_format: ResponseFormat) -> list[str]:
    texts = json.loads(response_format.source)
    if not 1 <= len(texts) <= MAX_CHOICES or not all(texts):
        raise InvalidRequest(_field(response_format), f"{len(texts)} texts", f"1 to {MAX_CHOICES} texts, none empty")
    return list(texts)


def _field(response_format: ResponseFormat) -> str:
    return (
        "response_format.choices"
        if response_format.kind is FormatKind.CHOICE
        else f"response_format.{response_format.kind.value}"
    )
