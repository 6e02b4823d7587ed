"""Splits one answer's tokens into its parts: text, reasoning and tool calls.

The marks around thoughts and calls are set by the model's format (`models.answer_format`) and are not part of the text.
White space right after a mark belongs to the mark. Stop strings apply only to the text, not to reasoning or calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.core import DecodePlan, FinishReason, StopMatcher
from draftd.models.answer_format import NORMAL, REASONING, TOOL, AnswerFormat
from draftd.models.tokenizer import Tokenizer
from draftd.outcome import Emission, Outcome
from draftd.service.messages import Chat, Tool, call_part, text_part
from draftd.service.request import (
    ChoiceFinished,
    Chunk,
    Delta,
    Prompt,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
)
from draftd.service.text import StopConditions, StopScanner, TextForm, TextStream, occurs_in
from draftd.service.tool_calls import CallReader

_TAIL = 16  # last tokens of a prompt, enough to contain a mark at its end


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How to parse one answer. `tools`: the tools whose calls are parsed; without tools, calls stay text. `single`: the
    answer ends after one call. `thinks`: the answer begins inside a thought, because the prompt ends in one.
    `continues`: the answer continues a message, so it begins after any header."""

    answer_format: AnswerFormat
    tools: tuple[Tool, ...] = ()
    single: bool = False
    thinks: bool = False
    continues: bool = False


def reading_options(prompt: Prompt, tokenizer: Tokenizer, ids: Sequence[int]) -> ReadingOptions | None:
    """Returns how to parse the answer to `prompt`; None if the answer is only text. `ids`: the prompt's tokens."""
    if not isinstance(prompt, Chat):
        return None
    answer_format, tools = tokenizer.answers, prompt.shown_tools
    if not tools and not answer_format.has_parts:
        return None
    thinks = False
    if answer_format.thinking is not None:
        thinks = _within_thought(prompt, tokenizer, ids, *answer_format.thinking)
    return ReadingOptions(answer_format, tools, not prompt.parallel_tool_calls, thinks, prompt.continues)


def _within_thought(prompt: Chat, tokenizer: Tokenizer, ids: Sequence[int], begin: str, end: str) -> bool:
    """Whether the prompt ends inside a thought, opened by the template or by the message that the answer continues."""
    content = prompt.messages[-1].content.lstrip() if prompt.continues else ""
    if begin in content or end in content:
        return content.rfind(begin) > content.rfind(end)
    tail = tokenizer.decode(ids[-_TAIL - len(content.encode()) :])
    return tail.removesuffix(content).rstrip().endswith(begin)


def stop_matcher(
    tokenizer: Tokenizer, ends: StopConditions, reading: ReadingOptions | None, form: TextForm = TextForm()
) -> StopMatcher | None:
    """Returns the matcher that ends the answer on the engine thread; None if no text can end the answer."""
    single = reading is not None and reading.single and bool(reading.tools)
    return _AnswerEnd(tokenizer, ends, reading, form) if ends.strings or single else None


class AnswerStream:
    """Parses one answer as its tokens arrive. `choice`: the answer's index among the request's choices, from 0."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        ends: StopConditions,
        reading: ReadingOptions | None,
        choice: int = 0,
        form: TextForm = TextForm(),
    ) -> None:
        self._ends, self._choice, self._plain = ends, choice, reading is None
        self._verbatim = self._plain and not ends.strings  # no marks or stop strings to look for
        self._parts = _Parts(reading, ends)
        self._text = TextStream(tokenizer, ends, form, self._parts.reads)
        self._last: int | None = None  # token id
        self._emitted: list[str] = []  # texts sent so far
        self._thoughts: list[str] = []
        self._reasoning_tokens = 0

    def add(self, emission: Emission, outcome: Outcome | None = None) -> Chunk:
        """Returns the chunk for these tokens. `outcome`: given if they are the last ones."""
        self._last = emission.tokens[-1]
        pieces, offsets, deltas = list[str](), list[int](), list[Delta]()
        for token in emission.tokens:
            if emission.logprobs:
                offsets.append(self._text.offset(token))
            self._reasoning_tokens += self._parts.kind == REASONING
            text = self._text.add(token)
            if not self._verbatim:
                more = self._parts.feed(text)
                text = _text_of(more)
                deltas += more
            pieces.append(text)
        last = [] if outcome is None else self._finish(outcome)
        return self._chunk(emission, pieces, deltas, last, offsets)

    def finish(self, outcome: Outcome) -> Chunk | None:
        """Returns a chunk with the text that was held back. None if there is none, as when `add` already had the
        outcome."""
        last = self._finish(outcome)
        return self._chunk(Emission((), ()), (), [], last) if last else None

    def finished_event(self, outcome: Outcome, plan: DecodePlan) -> ChoiceFinished:
        stop, calls = self._parts.stop, self._parts.calls
        by_id = outcome.reason is FinishReason.STOP and not stop and self._last in self._ends.ids
        return ChoiceFinished(
            outcome,
            plan,
            stop,
            self._choice,
            self._last if by_id else None,
            tool_calls=0 if calls is None else len(calls.complete),
            reasoning_tokens=self._reasoning_tokens,
            warning="" if calls is None else calls.warning,
        )

    def parts(self) -> list[dict[str, str]]:
        """Returns the whole answer as message parts in the GenAI conventions, for telemetry."""
        thought = "".join(self._thoughts)
        calls = [] if self._parts.calls is None else self._parts.calls.complete
        parts = [{"type": "reasoning", "content": thought}] if thought else []
        if (text := "".join(self._emitted)) or not calls:
            parts.append(text_part(text))
        return [*parts, *map(call_part, calls)]

    def _finish(self, outcome: Outcome) -> list[Delta]:
        return self._parts.feed(self._text.finish()) + self._parts.finish(cut=outcome.reason is not FinishReason.STOP)

    def _chunk(
        self,
        emission: Emission,
        pieces: Sequence[str],
        deltas_before: list[Delta],
        last: list[Delta],
        offsets: Sequence[int] = (),
    ) -> Chunk:
        self._emitted += *pieces, (rest := _text_of(last))
        deltas = [] if self._plain else _merge_neighbours([*deltas_before, *last])
        self._thoughts += [one.text for one in deltas if isinstance(one, ReasoningDelta)]
        return Chunk(emission, pieces, rest, deltas, self._choice, offsets)


class _AnswerEnd:
    """A `core.StopMatcher`. It parses the answer a second time, on the engine thread, where the decision to stop is
    made. Pickling drops its progress: the copy in another process starts from the beginning."""

    def __init__(
        self, tokenizer: Tokenizer, ends: StopConditions, reading: ReadingOptions | None, form: TextForm
    ) -> None:
        self._arguments = tokenizer, ends, reading, form
        self._parts = _Parts(reading, ends)
        self._text = TextStream(tokenizer, ends, form, self._parts.reads)

    def __reduce__(self) -> tuple[Any, ...]:
        tokenizer, ends, reading, form = self._arguments  # the format cannot be pickled: the copy takes its tokenizer's
        how = None if reading is None else (reading.tools, reading.single, reading.thinks, reading.continues)
        return _answer_end, (tokenizer, ends, how, form)

    def feed(self, tokens: Sequence[int]) -> int | None:
        for i, token in enumerate(tokens):
            self._parts.feed(self._text.add(token))
            if self._parts.over:
                return i + 1
        return None


def _answer_end(
    tokenizer: Tokenizer, ends: StopConditions, how: tuple[tuple[Tool, ...], bool, bool, bool] | None, form: TextForm
) -> _AnswerEnd:
    return _AnswerEnd(tokenizer, ends, None if how is None else ReadingOptions(tokenizer.answers, *how), form)


class _Parts:
    """Splits a text that arrives in pieces into its parts."""

    def __init__(self, reading: ReadingOptions | None, ends: StopConditions) -> None:
        """`reading` None: the answer is only text."""
        reading = reading or ReadingOptions(AnswerFormat())
        answer_format = reading.answer_format
        self.kind = REASONING if reading.thinks else NORMAL if reading.continues else answer_format.initial
        self.calls: CallReader | None = None
        if reading.tools:
            assert answer_format.tools is not None
            self.calls = CallReader(answer_format.tools, reading.tools, single=reading.single)
        self._end_of_calls = "" if answer_format.tools is None else answer_format.tools.end
        self._table = answer_format.marks(with_tools=bool(reading.tools))
        self._marks = StopScanner(tuple(self._table[self.kind]))
        self._stop_strings = ends.strings
        self._stops = StopScanner(ends.strings, include=ends.include)
        self._outer = NORMAL  # the part that surrounds the calls
        self._fresh = False  # right after a mark

    def reads(self, special: str) -> bool:
        """Whether the text of a special token may be part of a mark, a call or a stop string at this point."""
        stops = self._stop_strings if self.kind == NORMAL else ()
        return self.kind == TOOL or occurs_in((*self._table[self.kind], *stops), special)

    @property
    def stop(self) -> str:
        return self._stops.matched

    @property
    def over(self) -> bool:
        return bool(self.stop) or (self.calls is not None and self.calls.done)

    @property
    def _open_calls(self) -> CallReader:
        """The reader of calls, while the part is TOOL."""
        assert self.calls is not None
        return self.calls

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        while text and not self.over:
            self._take(self._marks.feed(text), deltas)
            text = self._marks.after
            if self._marks.matched and not self.over:
                self._pass(self._marks.matched, deltas)
        return deltas

    def finish(self, *, cut: bool) -> list[Delta]:
        """`cut`: the answer ended before the model ended it."""
        deltas: list[Delta] = []
        if not self.over:
            self._take(self._marks.finish(), deltas)
            self._flush(deltas)
            if self.kind == TOOL and self.calls is not None:
                deltas += self.calls.end("", cut=cut)
                self.kind = NORMAL
        return deltas

    def _take(self, text: str, deltas: list[Delta]) -> None:
        if self._fresh and self.kind != TOOL:
            text = text.lstrip()
        if not text:
            return
        self._fresh = False
        if self.kind == NORMAL:
            self._say(text, deltas)
        elif self.kind == REASONING:
            deltas.append(ReasoningDelta(text))
        elif self.kind == TOOL:
            deltas += self._open_calls.feed(text)

    def _pass(self, mark: str, deltas: list[Delta]) -> None:
        """Ends the current part at `mark` and begins the next part."""
        to, self._fresh = self._table[self.kind][mark], True
        if self.kind == TOOL:
            self._end_calls(mark, deltas)
        elif to != NORMAL:
            self._flush(deltas)
        if to == TOOL and self.calls is not None:
            self._outer = self.kind
            self.calls.begin()
        self.kind, self._marks = to, StopScanner(tuple(self._table[to]))

    def _end_calls(self, mark: str, deltas: list[Delta]) -> None:
        whole = mark == self._end_of_calls
        for delta in self._open_calls.end(mark if whole else "", cut=not whole):
            if not isinstance(delta, TextDelta):
                deltas.append(delta)
                continue
            self._fresh = False
            if not whole and self._outer == REASONING:  # the thought ended; it had only mentioned the mark
                deltas.append(ReasoningDelta(delta.text))
            else:
                self._say(delta.text, deltas)

    def _say(self, text: str, deltas: list[Delta]) -> None:
        if sure := self._stops.feed(text):
            deltas.append(TextDelta(sure))

    def _flush(self, deltas: list[Delta]) -> None:
        """Releases text that was held back as the beginning of a stop string: no stop string spans two parts."""
        if beginning := self._stops.finish():
            deltas.append(TextDelta(beginning))


def _text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def _merge_neighbours(deltas: Iterable[Delta]) -> list[Delta]:
    """Merges adjacent deltas of the same kind."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, TextDelta | ReasoningDelta | ToolCallArguments) and type(delta) is type(last):
            merged[-1] = type(delta)(last.text + delta.text)
        else:
            merged.append(delta)
    return merged
