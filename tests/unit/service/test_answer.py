"""An answer's parts, however its text is cut: as mlx-lm's parsers read whole calls, and nothing vanishes."""

from __future__ import annotations

import importlib
import itertools
import json
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm import tool_parsers

from draftd.core import DecodeMode, DecodePlan, FallbackLevel, FinishReason
from draftd.models.answer_format import HEADER, AnswerFormat, MalformedCall, ToolFormat, is_object
from draftd.outcome import Emission, Outcome, RequestStats
from draftd.service.answer import AnswerStream, ReadingOptions, reading_options, stop_matcher
from draftd.service.messages import Chat, Message, Tool, ToolMode, tool_dicts
from draftd.service.request import (
    ChoiceFinished,
    Delta,
    RawText,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from draftd.service.text import StopConditions, TextForm
from tests.scripted import ByteTokenizer

TYPES = {"city": "string", "days": "integer", "exact": "boolean", "where": "object"}
SCHEMA = json.dumps({"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}})
TOOLS = (Tool("weather", "The weather.", SCHEMA), Tool("clock"))
PLAN = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test")

# Calls as models write them: two each, the first with a text, a number and, if the format has such, an object.
ANSWERS = {
    "function_gemma": "<start_function_call>call:weather{city:<escape>São, Paulo<escape>,days:3}<end_function_call>"
    "<start_function_call>call:clock{}<end_function_call>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>São {Paulo}<|"|>,days:3,where:{a:<|"|>b<|"|>}}<tool_call|>'
    "<|tool_call>call:clock{}call:clock{}<tool_call|>",
    "glm47": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>São <Paulo></arg_value>\n<arg_key>days"
    "</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>",
    "json_tools": '<tool_call>\n{"name": "weather", "arguments": {"city": "São {\\"Paulo\\"}", "days": 3, "where": '
    '{"a": [1, {}]}}}\n</tool_call>\n<tool_call>\n{"arguments": {}, "name": "clock"}\n</tool_call>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "São Paulo", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.clock:1'
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" '
    'type="string"<|sep|>São Paulo<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>'
    'argument<|sep|><|close|>call<|sep|><|open|>call tool="clock" index="2"<|sep|><|open|>json type="object"<|sep|>{}'
    "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    "longcat": "<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>São Paulo"
    "</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n"
    '</longcat_tool_call><longcat_tool_call>{"name": "clock", "arguments": {}}</longcat_tool_call>',
    "minicpm5": '<function name="weather"><param name="city"><![CDATA[São <b>\nPaulo]]></param><param name="days">3'
    '</param></function><function name="clock"></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">São Paulo</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "São Paulo", "days": 3, "where": {"a": "}"}}'
    "[TOOL_CALLS]clock[ARGS]{}",
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">São Paulo'
    '</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n<atem:invoke name="clock">\n'
    "</atem:invoke>\n</atem:function_calls>",
    "pythonic": '<|tool_call_start|>[weather(city="São, Paulo", days=3, where={"a": true}), clock()]<|tool_call_end|>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nSão <function=x>\nPaulo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n"
    "</tool_call>",
}
ANSWERS["laguna"] = ANSWERS["glm47"]
LISTED = (
    '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "São Paulo"}, "id": "abcdefghi"}, '
    '{"name": "clock", "arguments": {}}]'
)
FAMILIES = sorted(ANSWERS)


def written(family: str, template: str = "") -> ToolFormat:
    module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{family}")
    name = module.parse_tool_call.__module__.rpartition(".")[2]
    return ToolFormat(name, module.tool_call_start, module.tool_call_end, module.parse_tool_call, template)


def reading(family: str, *, thinking: bool = False, thinks: bool = False, single: bool = False) -> ReadingOptions:
    return ReadingOptions(
        AnswerFormat(("<think>", "</think>") if thinking else None, written(family)), TOOLS, single, thinks
    )


class Told:
    """The results of one answer, read in tokens of a byte each."""

    def __init__(
        self,
        text: str,
        how: ReadingOptions | None,
        cuts: Sequence[int] = (),
        stops: Sequence[str] = (),
        reason: FinishReason = FinishReason.STOP,
    ) -> None:
        tokens, stream = text.encode(), AnswerStream(ByteTokenizer(257), StopConditions(stops), how)
        bounds = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
        outcome = Outcome(reason, RequestStats(1, 0.0))
        chunks = [stream.add(Emission(tuple(tokens[a:b]), (False,) * (b - a))) for a, b in itertools.pairwise(bounds)]
        if (last := stream.finish(outcome)) is not None:
            chunks.append(last)
        self.deltas: list[Delta] = [delta for chunk in chunks for delta in chunk.deltas]
        self.text = "".join(chunk.text for chunk in chunks)
        self.finished: ChoiceFinished = stream.finished_event(outcome, PLAN)
        self.parts = stream.parts()
        assert how is None or self.text == "".join(one.text for one in self.deltas if isinstance(one, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(one.text for one in self.deltas if isinstance(one, ReasoningDelta))

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """Returns names with arguments as objects; as text if they are none."""
        return [(one.call.name, _read(one.call.arguments)) for one in self.deltas if isinstance(one, ToolCallEnded)]


def _read(arguments: str) -> Any:
    return json.loads(arguments) if is_object(arguments) else arguments


def by_token(text: str) -> range:
    return range(len(text.encode()))


def whole(family: str, text: str) -> list[tuple[str, Any]]:
    """Returns the calls that mlx-lm's parser reads alone."""
    how, found = written(family), list[Any]()
    end = re.escape(how.end) if how.end else r"\Z"
    for inner in re.findall(f"{re.escape(how.start)}(.*?){end}", text, re.DOTALL):
        one = how.parser(inner, tool_dicts(TOOLS))
        found += one if isinstance(one, list) else [one]
    return [(one["name"], one["arguments"]) for one in found]


def well_formed(deltas: Sequence[Delta]) -> bool:
    """Checks that each call begins, has its pieces, and ends as their sum, with its own id and number."""
    begun: ToolCallBegun | None = None
    pieces, ids = "", list[str]()
    for one in deltas:
        if isinstance(one, ToolCallBegun):
            assert begun is None
            assert one.index == len(ids)
            assert re.fullmatch("call_[0-9a-f]{24}", one.id)
            begun, pieces = one, ""
            ids.append(one.id)
        elif isinstance(one, ToolCallArguments):
            pieces += one.text
        elif isinstance(one, ToolCallEnded):
            assert begun is not None
            assert one.call == (begun.id, begun.name, pieces)
            begun = None
    return begun is None and len(set(ids)) == len(ids)


def test_every_mlx_lm_tool_parser_has_a_sample_answer_under_test() -> None:
    assert {module.name for module in pkgutil.iter_modules(tool_parsers.__path__)} == set(ANSWERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_tool_calls_equal_the_calls_parsed_from_the_whole_text(family: str) -> None:
    text = f"Let me see.{ANSWERS[family]}"
    expected = whole(family, text)
    assert [name for name, _ in expected][:2] == ["weather", "clock"]
    for cuts in ((), by_token(text)):
        told = Told(text, reading(family), cuts)
        assert told.calls == expected
        assert well_formed(told.deltas)
        assert (told.text, told.finished.warning, told.finished.tool_calls) == ("Let me see.", "", len(expected))


@given(st.sampled_from(FAMILIES), st.lists(st.integers(0, 2000), max_size=12))
def test_tool_calls_and_reasoning_do_not_depend_on_chunk_boundaries(family: str, cuts: list[int]) -> None:
    text = f"<think>a\n</think>\n\nb {ANSWERS[family]}"
    told = Told(text, reading(family, thinking=True), cuts)
    assert told.calls == whole(family, text)
    assert well_formed(told.deltas)
    assert (told.reasoning, told.text) == ("a\n", "b ")


@given(st.sampled_from(FAMILIES), st.floats(0, 1), st.lists(st.integers(0, 2000), max_size=3))
def test_truncated_tool_call_comes_as_text_unless_its_arguments_had_begun(
    family: str, share: float, cuts: list[int]
) -> None:
    text = ANSWERS[family][: round(share * len(ANSWERS[family]))]
    told = Told(text, reading(family), cuts, reason=FinishReason.LENGTH)
    assert well_formed(told.deltas)
    assert text.endswith(told.text)
    last = told.calls[-1][1] if told.calls else None
    if isinstance(last, str):  # it was cut within its arguments, which are all that came of it
        assert text.endswith(last)
        assert told.text == ""
        return
    before = Told(text.removesuffix(told.text), reading(family))
    assert (before.calls, before.text) == (told.calls, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_tool_call_of_an_undeclared_tool_comes_as_text_with_a_warning(family: str) -> None:
    text = ANSWERS[family].replace("weather", "wether")
    told = Told(text, reading(family), by_token(text))
    assert not any(name != "clock" for name, _ in told.calls)  # one between marks of its own is not lost
    assert "wether" in told.text
    assert text.startswith(told.text.strip())
    assert "no tool 'wether'" in told.finished.warning or "belongs to no call" in told.finished.warning
    assert not any(isinstance(one, ToolCallBegun) and one.name != "clock" for one in told.deltas)


MALFORMED = [
    ("json_tools", '<tool_call>{"name": "weather", "arguments": ["São Paulo"]}</tool_call>'),
    ("json_tools", "<tool_call></tool_call>"),
    ("mistral", "[TOOL_CALLS]the weather"),
    ("kimi_k2", "<|tool_calls_section_begin|>hm<|tool_calls_section_end|>"),
    ("pythonic", "<|tool_call_start|>[weather(city=__import__('os'))]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>[weather('São Paulo')]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>[weather(city=São Paulo, or so)]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>well: [weather(city='x')]<|tool_call_end|>"),
    ("function_gemma", "<start_function_call>call:weather{city:<escape>a}b<escape>}<end_function_call>"),
    ("glm47", "<tool_call>weather or so</tool_call>"),
    ("glm47", "<tool_call>weather<arg_key>city</arg_key><arg_value>São Paulo</tool_call>"),
    ("longcat", "<longcat_tool_call>weather</longcat_tool_call>"),
    ("minicpm5", '<function name="weather"><param name="city">São Paulo</function>'),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>São Paulo</function></tool_call>"),
    ("longcat", '<longcat_tool_call>{"name": "weather", "arguments": {"city": "\\ud83e"}}</longcat_tool_call>'),
    ("json_tools", '<tool_call>{"name": "weather", "parameters": {"city": "x"}}</tool_call>'),
    # mlx-lm's parsers would leave out the second one
    ("gemma4", "<|tool_call>call:clock{}call:weather{city:<tool_call|>"),
    ("kimi_k3", ANSWERS["kimi_k3"].replace('tool="clock"', "")),
    ("minimax_m2", ANSWERS["minimax_m2"].replace('<invoke name="clock">', "<invoke>")),
    ("muse_spark", ANSWERS["muse_spark"].replace('name="clock"', "")),
    ("qwen3_coder", "<tool_call><function=clock></function><function=clock></function></tool_call>"),
]


@pytest.mark.parametrize(("family", "text"), MALFORMED)
def test_malformed_tool_call_comes_as_text_with_a_warning(family: str, text: str) -> None:
    for cuts in ((), by_token(text)):
        told = Told(f"{text}, I say", reading(family), cuts)
        assert (told.text, told.calls) == (f"{text}, I say", [])
        assert told.finished.warning.startswith("a tool call is malformed and is sent as text: ")
        assert told.finished.tool_calls == 0


# Their arguments were told before anything was wrong.
BEGUN = [
    ("json_tools", '<tool_call>{"name": "weather", "arguments": {"city": oops}}</tool_call>', '{"city": oops}', ""),
    ("json_tools", '<tool_call>{"name": "weather", "arguments": {"days": NaN}}</tool_call>', '{"days": NaN}', ""),
    ("json_tools", '<tool_call>{"name": "weather", "arguments": {"city": "x"}</tool_call>', {"city": "x"}, ""),
    ("json_tools", '<tool_call>{"name": "weather", "arguments": {}, hm}</tool_call>', {}, ", hm}"),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city" "x"}', '{"city" "x"}', None),
]


@pytest.mark.parametrize(("family", "text", "arguments", "rest"), BEGUN)
def test_tool_call_malformed_after_its_name_streamed_is_sent_once_with_a_warning(
    family: str, text: str, arguments: object, rest: str | None
) -> None:
    for cuts in ((), by_token(text)):
        told = Told(f"{text}, I say", reading(family), cuts)
        assert told.calls == [("weather", arguments)]
        assert told.text == (", I say" if rest is None else f"{rest}, I say")
        assert well_formed(told.deltas)
        assert "as far as it was understood" in told.finished.warning
        assert told.finished.tool_calls == 1


def test_tool_call_text_too_costly_to_parse_is_rejected_as_malformed() -> None:
    with pytest.raises(MalformedCall, match="too long to be parsed"):
        written("qwen3_coder").read("<function=weather>" + "<parameter=city>" * 20_000, tool_dicts(TOOLS))


@pytest.mark.parametrize("family", ["json_tools", "mistral", "kimi_k2"])
def test_json_tool_call_arguments_stream_in_pieces_as_written(family: str) -> None:
    text = ANSWERS[family]
    told = Told(text, reading(family), by_token(text))
    first = told.deltas.index(next(one for one in told.deltas if isinstance(one, ToolCallEnded)))
    begun, *pieces = told.deltas[:first]
    assert isinstance(begun, ToolCallBegun)
    assert len(pieces) > 20
    ended = told.deltas[first]
    assert isinstance(ended, ToolCallEnded)
    assert ended.call.arguments in text


def test_mistral_tool_call_list_streams_its_arguments_in_pieces() -> None:
    told = Told(LISTED, reading("mistral"), by_token(LISTED))
    assert told.calls == whole("mistral", LISTED) == [("weather", {"city": "São Paulo"}), ("clock", {})]
    assert sum(isinstance(one, ToolCallArguments) for one in told.deltas) > 20
    assert (told.text, well_formed(told.deltas)) == ("", True)


def test_text_after_a_tool_call_without_an_end_mark_is_sent_as_text() -> None:
    told = Told("[TOOL_CALLS]clock[ARGS]{} It is late.", reading("mistral"))
    assert (told.calls, told.text) == ([("clock", {})], " It is late.")


def test_tool_call_with_an_extra_json_key_is_sent_once() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "x"}, "type": "function"}</tool_call>'
    told = Told(text, reading("json_tools"), by_token(text))
    assert (told.calls, told.text, well_formed(told.deltas)) == ([("weather", {"city": "x"})], "", True)


EDITS = st.lists(st.floats(0, 1), min_size=1, max_size=2)


@given(st.sampled_from(sorted(set(FAMILIES) - {"kimi_k3"})), EDITS, EDITS)  # attributes of XTML are read by name
def test_word_in_damaged_tool_call_appears_in_answer_text_or_in_parsed_call(
    family: str, added: list[float], removed: list[float]
) -> None:
    parts = re.findall(r"<[^>]*>|\w+|\W", f"Yes. {ANSWERS[family]}")
    for place in removed:
        del parts[round(place * (len(parts) - 1))]
    for i, place in enumerate(added):
        parts.insert(round(place * len(parts)), f"word{i}")
    text = "".join(parts)
    told, slowly = Told(text, reading(family)), Told(text, reading(family), by_token(text))
    assert (told.text, told.calls, told.finished.warning) == (slowly.text, slowly.calls, slowly.finished.warning)
    assert all(f"word{i}" in f"{told.text}{told.calls}" for i in range(len(added)))


# thoughts


@pytest.mark.parametrize(
    ("text", "thinks", "reasoning", "shown"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm\n", "yes"),
        ("hm</think>yes", True, "hm", "yes"),
        ("hm", True, "hm", ""),
        ("hm</thin", True, "hm</thin", ""),
        ("yes <b>", False, "", "yes <b>"),
        ("a <think>b</think> c", False, "b", "a c"),
        ("I name <tool_call> here</think>yes", True, "I name <tool_call> here", "yes"),
        (f"{ANSWERS['json_tools']}", True, "", ""),
    ],
)
def test_reasoning_is_separated_from_the_answer_text(text: str, thinks: bool, reasoning: str, shown: str) -> None:
    how = reading("json_tools", thinking=True, thinks=thinks)
    for cuts in ((), by_token(text)):
        told = Told(text, how, cuts)
        assert (told.reasoning, told.text) == (reasoning, shown)
        assert told.calls == whole("json_tools", text) if "name" in text and "weather" in text else not told.calls


def test_tokens_of_reasoning_are_counted_apart() -> None:
    assert Told("<think>ab</think>yes", reading("json_tools", thinking=True)).finished.reasoning_tokens == 10
    assert Told("ab</think>yes", reading("json_tools", thinking=True, thinks=True)).finished.reasoning_tokens == 10
    assert Told("yes", reading("json_tools", thinking=True)).finished.reasoning_tokens == 0


def test_channel_headers_between_answer_parts_are_left_out_of_answer_text() -> None:
    transitions = importlib.import_module("mlx_lm.chat_templates.muse_spark").RESPONSE_FORMAT["transitions"]
    how = ReadingOptions(AnswerFormat(None, written("muse_spark"), (), transitions, HEADER), TOOLS)
    text = (
        "to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes<|eom|><|start|>assistant "
        f"to=weather<|message|>{ANSWERS['muse_spark']}"
    )
    told = Told(text, how, by_token(text))
    assert (told.reasoning, told.text) == ("hm", "yes")
    assert told.calls == whole("muse_spark", text)
    continued = Told("es<|eom|><|start|>assistant to=self<|message|>hm", replace(how, continues=True))
    assert (continued.text, continued.reasoning) == ("es", "hm")
    bare = ReadingOptions(AnswerFormat(None, written("muse_spark"), (), transitions, HEADER))
    assert Told("to=weather<|message|><atem:function_calls>x", bare).text == "<atem:function_calls>x"


MARKS = ("<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
         "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|pad|>")  # fmt: skip


class SpecialMarks(ByteTokenizer):
    """A tokenizer whose first ids are special tokens: marks, and one that means nothing."""

    def __init__(self) -> None:
        super().__init__(257)
        self.special_tokens = dict(enumerate(MARKS))
        self.answers = reading("kimi_k2", thinking=True).answer_format

    def token_bytes(self, token: int) -> bytes:
        return self.special_tokens[token].encode() if token in self.special_tokens else super().token_bytes(token)

    def marked(self, text: str) -> list[int]:
        tokens: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, MARKS))})", text):
            tokens += [MARKS.index(part)] if part in MARKS else part.encode()
        return tokens


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens_delimit_answer_parts_and_are_text_only_if_requested(special: bool) -> None:
    tokenizer = SpecialMarks()
    calls = ANSWERS["kimi_k2"].replace("São", "<|pad|>São")
    tokens = tokenizer.marked(f"<think>h<|pad|>m</think>a<|pad|>b</think>c<|tool_call_end|>d{calls}e<|pad|>")
    how = reading("kimi_k2", thinking=True)
    stream = AnswerStream(tokenizer, StopConditions(), how, form=TextForm(special=special))
    outcome = Outcome(FinishReason.STOP, RequestStats(1, 0.0))
    chunk = stream.add(Emission(tuple(tokens), (False,) * len(tokens)), outcome)
    assert chunk.text == ("a<|pad|>b</think>c<|tool_call_end|>de<|pad|>" if special else "abcde")
    thoughts = [one.text for one in chunk.deltas if isinstance(one, ReasoningDelta)]
    assert "".join(thoughts) == ("h<|pad|>m" if special else "hm")
    found = [one.call for one in chunk.deltas if isinstance(one, ToolCallEnded)]
    assert [(one.name, json.loads(one.arguments)) for one in found] == [
        ("weather", {"city": "<|pad|>São Paulo", "days": 3}),
        ("clock", {}),
    ]


def test_stop_string_matches_a_special_token_in_text_and_not_in_reasoning() -> None:
    tokenizer = SpecialMarks()
    tokens = tokenizer.marked("<think>hm<|pad|></think>a<|tool_call_end|>b<|pad|>c")
    ends, how = StopConditions(["<|pad|>"]), reading("kimi_k2", thinking=True)
    stream, matcher = AnswerStream(tokenizer, ends, how), stop_matcher(tokenizer, ends, how)
    assert matcher is not None
    assert matcher.feed(tokens) == len(tokens) - 1
    chunk = stream.add(Emission(tuple(tokens), (False,) * len(tokens)))
    assert (chunk.text, chunk.deltas[0]) == ("ab", ReasoningDelta("hm"))


# the end of an answer


def test_stop_string_in_reasoning_or_tool_calls_does_not_end_the_answer() -> None:
    text = f"<think>END</think>a{ANSWERS['json_tools'].replace('Paulo', 'END')}b END c"
    how = reading("json_tools", thinking=True)
    told = Told(text, how, by_token(text), stops=["END"])
    assert (told.text, told.finished.stop, told.reasoning, len(told.calls)) == ("ab ", "END", "END", 2)
    matcher = stop_matcher(ByteTokenizer(257), StopConditions(["END"]), how)
    assert matcher is not None
    assert matcher.feed(tuple(text.encode())) == len(text.encode()) - 2


@pytest.mark.parametrize("family", FAMILIES)
def test_answer_without_parallel_tool_calls_ends_after_the_first_call(family: str) -> None:
    text = f"{ANSWERS[family]} and more"
    how = reading(family, single=True)
    told = Told(text, how, by_token(text))
    assert told.calls == whole(family, ANSWERS[family])[:1]
    assert (told.text, told.finished.tool_calls) == ("", 1)
    matcher = stop_matcher(ByteTokenizer(257), StopConditions(), how)
    assert matcher is not None
    end = matcher.feed(tuple(text.encode()))
    assert end is not None
    assert Told(text.encode()[:end].decode(), how).calls == told.calls
    assert matcher is not stop_matcher(ByteTokenizer(257), StopConditions(), reading(family))


# answers with and without parts


class Model(ByteTokenizer):
    def __init__(self, answers: AnswerFormat) -> None:
        super().__init__(257)
        self.answers = answers


def asked(**fields: Any) -> Chat:
    return Chat((Message("user", "hi"),), **fields)


def test_answer_without_tools_or_reasoning_is_streamed_as_plain_text() -> None:
    tools, thinking = written("json_tools"), ("<think>", "</think>")
    assert reading_options(asked(), Model(AnswerFormat(None, tools)), [65]) is None
    assert (
        reading_options(asked(tools=TOOLS, tool_choice=ToolMode.NONE), Model(AnswerFormat(None, tools)), [65]) is None
    )
    assert reading_options(RawText("<think>"), Model(AnswerFormat(thinking)), b"<think>") is None
    assert stop_matcher(ByteTokenizer(257), StopConditions(), None) is None
    told = Told("a<tool_call>", None)
    assert (told.text, told.deltas, told.parts) == ("a<tool_call>", [], [{"type": "text", "content": "a<tool_call>"}])


def test_answer_begins_as_reasoning_if_the_prompt_ends_in_open_reasoning() -> None:
    model = Model(AnswerFormat(("<think>", "</think>")))
    for prompt, thinks in (("<a><think>\n", True), ("<think></think>\n", False), ("what is <think>?<a>", False)):
        how = reading_options(asked(), model, prompt.encode())
        assert how is not None
        assert how.thinks is thinks


@pytest.mark.parametrize(
    ("content", "prompt", "thinks"),
    [
        ("<think>\nI should", "<a><think>\nI should", True),
        ("<think>hm</think>So", "<a><think>hm</think>So", False),
        ("So", "<a><think></think>So", False),
        ("I should", "<a><think>\nI should", True),
        (" So", "what is <think>?<a>So", False),
        ("", "<a><think>\n", True),
    ],
)
def test_continued_message_ending_in_open_reasoning_resumes_as_reasoning(
    content: str, prompt: str, thinks: bool
) -> None:
    chat = Chat((Message("user", "what is <think>?"), Message("assistant", content)), continues=True)
    how = reading_options(chat, Model(AnswerFormat(("<think>", "</think>"))), prompt.encode())
    assert how is not None
    assert how.thinks is thinks
    told = Told(" go</think> on", how)
    assert (told.reasoning, told.text) == ((" go", "on") if thinks else ("", " go</think> on"))


@pytest.mark.parametrize(
    ("family", "template"), [("json_tools", ""), ("mistral", ""), ("mistral", "{{ '[ARGS]' }}"), ("kimi_k2", "")]
)
def test_forced_tool_call_template_is_parsed_back_as_that_call(family: str, template: str) -> None:
    forced = written(family, template).call_format("weather")
    assert forced is not None
    text = f'{forced.start}{forced.before}{{"days": 3}}{forced.after}{forced.end}'
    assert Told(text, reading(family)).calls == whole(family, text) == [("weather", {"days": 3})]
    assert written("pythonic").call_format("weather") is None


def test_telemetry_gets_reasoning_text_and_tool_call_parts_of_an_answer() -> None:
    told = Told(f"<think>hm</think>yes{ANSWERS['mistral']}", reading("mistral", thinking=True))
    assert [part["type"] for part in told.parts] == ["reasoning", "text", "tool_call", "tool_call"]
    assert told.parts[2]["name"] == "weather"
