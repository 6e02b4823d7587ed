"""The format of a model's answers: the marks around thoughts and tool calls, and the parsing of calls.

The marks are mlx-lm's (`TokenizerWrapper`), and complete calls are parsed by its parsers (`mlx_lm.tool_parsers`). Those
skip unreadable parts; here a call that is not wholly parsed is malformed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from draftd.models.generic_tools import CALL

# The kinds of stretches of an answer, in mlx-lm's names; a model's own format may have more.
NORMAL, REASONING, TOOL, HEADER = "normal", "reasoning", "tool", "header"
GENERIC = "generic"  # the family of `generic_tools`
_PATIENCE = 2 * 10**7  # characters to search in for one call; about a second
_HEADER_END = "<|message|>"  # end of the header of a message to an unlisted recipient


class MalformedCall(ValueError):
    """The error for a call that cannot be parsed as a whole."""


class FoundCall(NamedTuple):
    """A parsed call. `arguments`: a JSON object."""

    name: str
    arguments: str


class CallFormat(NamedTuple):
    """The required form of one tool's call: `start`, `before`, a JSON object allowed by the tool's parameters, `after`,
    `end`. Several calls may stand between `start` and `end`. Marks in these texts are special tokens in most
    vocabularies."""

    start: str
    before: str
    after: str
    end: str


class JsonStyle(NamedTuple):
    """A format with arguments in JSON. `header`, with the group `name`, precedes the arguments, `footer` completes the
    call after them, `closing` may follow the last call. `forced`: header and footer as a model writes them, with `NAME`
    for the name."""

    header: re.Pattern[str]
    footer: re.Pattern[str]
    forced: tuple[str, str]
    closing: re.Pattern[str] = re.compile(r"\s*")


_OBJECT = r'\{\s*"name"\s*:\s*"(?P<name>[\w.-]+)"\s*,\s*"arguments"\s*:\s*(?=\{)'
_HERMES = JsonStyle(re.compile(rf"\s*{_OBJECT}"), re.compile(r"\s*\}"), ('\n{"name": "NAME", "arguments": ', "}\n"))
_JSON_STYLES = {
    "json_tools": (_HERMES,),
    GENERIC: (_HERMES,),
    "mistral": (
        JsonStyle(
            re.compile(r"\s*(?:\[TOOL_CALLS\]\s*)?(?P<name>[\w.-]+)\s*\[ARGS\]\s*(?=\{)"),
            re.compile(""),
            ("NAME[ARGS]", ""),
        ),
        JsonStyle(
            re.compile(rf"\s*[\[,]\s*{_OBJECT}"),
            re.compile(r'\s*(?:,\s*"id"\s*:\s*"[^"\\]*"\s*)?\}'),
            ('[{"name": "NAME", "arguments": ', "}]"),
            re.compile(r"\s*\]\s*"),
        ),
    ),
    "kimi_k2": (
        JsonStyle(
            re.compile(
                r"\s*<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+):\d+"
                r"\s*<\|tool_call_argument_begin\|>\s*(?=\{)"
            ),
            re.compile(r"\s*<\|tool_call_end\|>"),
            ("<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
    ),
}


class _Shape(NamedTuple):
    """A format without JSON. `opener`: the beginning of an argument. `argument`: a pattern for one argument. `call`: a
    pattern for one call in which each argument is replaced by a line break. `several`: whether a text may have several
    calls. `counted`: whether the parser returns one argument for each match of `argument`. A text that consists of such
    calls is wholly parsed."""

    opener: str
    argument: str
    call: str
    several: bool = True
    counted: bool = True


def _nested_braces(levels: int = 8) -> str:
    """Returns a pattern for nested braces with any content."""
    return rf"\{{(?:[^{{}}]{'|' + _nested_braces(levels - 1) if levels else ''})*\}}"


_GLM = r"<{0}arg_key>(?:(?!<{0}arg_).)*</{0}arg_key>(?:\\n|\s)*<{0}arg_value>.*?</{0}arg_value>"
_XTML = r'<\|open\|>{0}(?:\s+\w+="[^"]*")*\s*<\|sep\|>'
_SHAPES = {
    "function_gemma": _Shape(
        "<escape>",
        "<escape>.*?<escape>",
        r"call:\w+\{(?:\w+:(?:\n|[^{},<\n]+)(?:,|(?=\})))*\}",
        several=False,
        counted=False,
    ),
    "gemma4": _Shape("call:", r'<\|"\|>.*?<\|"\|>', rf"call:[\w-]+{_nested_braces()}", counted=False),
    "glm47": _Shape("<arg_key>", _GLM.format(""), r"[^\s<]+", several=False),
    "kimi_k2": _Shape(
        "<|tool_call_begin|>",
        "(?!)",
        r"<\|tool_call_begin\|>(?:(?!<\|tool_call_(?:begin|end)\|>).)*<\|tool_call_end\|>",
        counted=False,
    ),
    "kimi_k3": _Shape(
        "<|open|>",
        rf"{_XTML.format('(argument|json)')}.*?<\|close\|>\1<\|sep\|>",
        rf"{_XTML.format('call')}\s*<\|close\|>call<\|sep\|>",
        counted=False,
    ),
    "longcat": _Shape("<longcat_arg_key>", _GLM.format("longcat_"), r"[^\s<]+", several=False),
    "minicpm5": _Shape(
        "<param", r"<param\s+name\s*=[^>]*>.*?</param>", r"""("[^"]*"|'[^']*'|[^\s"'<>]+)\s*>""", several=False
    ),
    "minimax_m2": _Shape("<parameter ", r"<parameter name=[^>]+>.*?</parameter>", r"<invoke name=[^>]+>\s*</invoke>"),
    "muse_spark": _Shape(
        "<atem:parameter",
        r"<atem:parameter\b[^>]*>.*?</atem:parameter>",
        r"<atem:invoke\b[^>]*>\s*(?:</atem:invoke>|\Z)",
    ),
    "qwen3_coder": _Shape(
        "<parameter=", r"<parameter=[^\s<>]+>?.*?</parameter>", r"<function=[^\s<>]+>?\s*</function>", several=False
    ),
}


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How tool calls are written, by the name of mlx-lm's parser. They stand between `start` and `end`; with an empty
    `end` they continue to the answer's end."""

    family: str
    start: str
    end: str
    parser: Callable[[str, Sequence[Mapping[str, Any]]], Any]
    template: str = ""  # the chat template, for families with several formats

    @property
    def styles(self) -> Sequence[JsonStyle]:
        """Returns the styles in which arguments can be streamed; none for formats that must be parsed as a whole."""
        return _JSON_STYLES.get(self.family, ())

    @property
    def repeats(self) -> bool:
        """Whether a required call may be followed by another call between marks of its own. Only in the family
        `json_tools`: a model that was not taught tools might never stop."""
        return self.family == "json_tools"

    def call_format(self, name: str) -> CallFormat | None:
        """Returns the required form of a call of the tool `name` if its arguments are JSON, else None."""
        if not self.styles:
            return None
        last = self.family == "mistral" and "[ARGS]" not in self.template  # versions before 11
        before, after = self.styles[-1 if last else 0].forced
        return CallFormat(self.start, before.replace("NAME", name), after, self.end)

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[FoundCall]:
        """Returns the calls in a text between `start` and `end`; `tools` as in OpenAI's API. Raises MalformedCall if
        any of it is not a call of these tools."""
        text, shape = text.strip(), _SHAPES.get(self.family)
        # Regular expressions search for an argument's end from each beginning.
        if shape is not None and text.count(shape.opener) * len(text) > _PATIENCE:
            raise MalformedCall(f"{self.family}: the calls' text is too long to be parsed")
        try:
            parsed_calls = self.parser(text, tools)
        except Exception as error:  # each parser raises errors of its own
            raise MalformedCall(f"{self.family}: {error}") from None
        listed = parsed_calls if isinstance(parsed_calls, list) else [parsed_calls]
        if not listed or not self._whole(text, listed):
            raise MalformedCall(f"{self.family}: some of the text belongs to no call")
        names = {tool["function"]["name"] for tool in tools}
        return [_check_call(one, names) for one in listed]

    def _whole(self, text: str, parsed_calls: Sequence[Any]) -> bool:
        """Whether the parser skipped nothing."""
        if self.family == "mistral":  # in text that is not JSON it finds calls anywhere
            return _is_json(text)
        if self.family == "glm47" and "<arg_key>" not in text:  # its result for texts that it does not understand
            return not text.startswith("[") and all(list(call["arguments"]) != ["raw"] for call in parsed_calls)
        if self.family == "pythonic":
            return _python_whole(text, parsed_calls)
        shape = _SHAPES.get(self.family)
        if shape is None or (self.family == "longcat" and text.startswith("{")):
            return True
        calls, count = re.subn(shape.argument, "\n", text, flags=re.DOTALL)
        if shape.counted and count != sum(len(call["arguments"]) for call in parsed_calls):
            return False
        found_calls = re.findall(shape.call, calls, re.DOTALL)
        pattern = rf"(?:{shape.call}\s*)+" if shape.several else rf"{shape.call}\s*"
        return len(found_calls) == len(parsed_calls) and re.fullmatch(pattern, calls.strip(), re.DOTALL) is not None


def generic_format() -> ToolFormat:
    """Returns the format of calls that `generic_tools` asks a model for."""
    return ToolFormat(GENERIC, *CALL, lambda text, tools: json.loads(text))


_BARE = r"""\w+=(?:"[^"]*"|'[^']*'|[^,"'][^,]*)"""
_BARE_CALL = re.compile(rf"\[[\w.]+\((?:{_BARE},\s*)*{_BARE}\)\]", re.DOTALL)


def _python_whole(text: str, parsed_calls: Sequence[Any]) -> bool:
    """Whether each argument was parsed. A text that is not Python may still be one call with bare values."""
    try:
        listed = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _BARE_CALL.fullmatch(text) is not None
    calls = listed.elts if isinstance(listed, ast.List) else []
    return len(calls) == len(parsed_calls) and all(
        isinstance(call, ast.Call)
        and not call.args
        and [keyword.arg for keyword in call.keywords] == list(parsed_call["arguments"])
        and not any(isinstance(part, ast.Call) for keyword in call.keywords for part in ast.walk(keyword))
        for call, parsed_call in zip(calls, parsed_calls, strict=True)
    )


def is_object(text: str) -> bool:
    """Whether the text is a JSON object, without values that only Python accepts."""
    return _is_json(text) and text.lstrip().startswith("{")


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_call(value: Any, names: set[str]) -> FoundCall:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in names:
        raise MalformedCall(f"the request has no tool {name!r}")
    if others := set(value) - {"name", "arguments", "id", "type"}:
        raise MalformedCall(f"the call of {name} has unknown keys: {', '.join(sorted(map(str, others)))}")
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise MalformedCall(f"the arguments of {name} are not an object")
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        written.encode()  # half of a surrogate pair is not a character
        return FoundCall(name, written)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedCall(f"the arguments of {name} are not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of answers. `thinking`: the marks around a thought. `structural`: marks without meaning.
    `transitions`, for formats with a header before each part: by kind of stretch, pairs of a mark that ends it and the
    kind that follows. `initial`: the kind of the first stretch."""

    thinking: tuple[str, str] | None = None
    tools: ToolFormat | None = None
    structural: Sequence[str] = ()
    transitions: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    initial: str = NORMAL

    @property
    def has_parts(self) -> bool:
        """Whether an answer may have more than text, even without tools."""
        return self.thinking is not None or bool(self.structural) or bool(self.transitions)

    def marks(self, with_tools: bool) -> dict[str, dict[str, str]]:
        """Returns, by kind of stretch, the marks that end it and the kind that follows."""
        table: dict[str, dict[str, str]] = {NORMAL: dict.fromkeys(self.structural, NORMAL), REASONING: {}, TOOL: {}}
        if self.thinking is not None:
            begin, end = self.thinking
            table[NORMAL][begin], table[REASONING][end] = REASONING, NORMAL
            table[TOOL][end] = NORMAL  # an unfinished call inside a thought
        for source, edges in self.transitions.items():
            table.setdefault(source, {}).update((mark, to) for mark, to in edges if to != TOOL)
        if HEADER in table:
            table[HEADER].setdefault(_HEADER_END, NORMAL)
        if self.tools is not None and with_tools:
            for source in set(table) - {TOOL}:
                table[source][self.tools.start] = TOOL
            if self.tools.end:
                table[TOOL][self.tools.end] = NORMAL
        return table
