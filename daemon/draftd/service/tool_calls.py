"""Parses the tool calls of one answer as their text arrives.

If a format writes arguments as JSON, a call begins as soon as its name is known and its arguments have begun. The
arguments are then sent piece by piece. All other calls are sent at once when they are complete.

A call that is malformed, or that the answer ends within, is sent as text. If it had begun before, it ends with the
arguments that were sent, and the words after them are sent as text: nothing is sent twice.
"""

from __future__ import annotations

import json
import re
import secrets

from draftd.models.answer_format import FoundCall, JsonStyle, MalformedCall, ToolFormat, is_object
from draftd.service.messages import Tool, ToolCall, tool_dicts
from draftd.service.request import Delta, TextDelta, ToolCallArguments, ToolCallBegun, ToolCallEnded

_LONGEST = 512  # characters before the arguments of a call, and after them


class CallReader:
    """Call `begin` after the format's first mark, `feed` with the text up to its last mark, then `end`. The result does
    not depend on how the text is cut."""

    def __init__(self, tool_format: ToolFormat, tools: tuple[Tool, ...], *, single: bool) -> None:
        """`single`: the answer has at most one call."""
        self._format, self._tools, self._single = tool_format, tool_dicts(tools), single
        self._names = {tool.name for tool in tools}
        self._begun = 0
        self.complete: list[ToolCall] = []
        self.warning = ""
        self.begin()

    @property
    def done(self) -> bool:
        return self._single and bool(self.complete)

    def begin(self) -> None:
        """Begins a section of calls, after its first mark."""
        self._raw = ""  # text since the last complete call
        self._deferred = not self._format.styles  # the call is parsed when the section has ended
        self._last_style: JsonStyle | None = None  # of the last complete call between these marks
        self._open: _OpenCall | None = None

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        self._raw += text
        while not self._deferred and not self.done and self._step(deltas):
            pass
        return deltas

    def end(self, mark: str, *, cut: bool) -> list[Delta]:
        """Ends the section at `mark`, or (`cut`) before its last mark."""
        raw, before, call = self._raw, self._last_style, self._open
        if self.done or (call is None and before is not None and before.closing.fullmatch(raw)):
            return []
        try:
            if cut:
                raise MalformedCall("the answer ends before the tool call is complete")
            calls = self._format.read(raw, self._tools)
            if call is None:
                return self._emit_calls(calls)
            # The call has begun, and an unexpected text follows its arguments.
            if not call.matches(calls):
                raise MalformedCall("the complete tool call differs from its part that was already sent")
            return [self._end_call(call)]
        except MalformedCall as error:
            if call is not None:
                self._warn(f"a tool call is malformed and is sent as far as it was understood: {str(error)[:200]}")
                rest = raw[call.at :]
                deltas: list[Delta] = [self._end_call(call)]
                return [*deltas, TextDelta(rest)] if re.search(r"\w", rest) else deltas
            self._warn(f"a tool call is malformed and is sent as text: {str(error)[:200]}")
        return [TextDelta(raw if before is not None else f"{self._format.start}{raw}{mark}")]

    def _step(self, deltas: list[Delta]) -> bool:
        """Reads to the arguments of a call, or to its end. Returns False if more text is needed."""
        if self._open is None:
            for style in self._format.styles:
                if (header := style.header.match(self._raw)) and header.end() <= _LONGEST:
                    self._deferred = header["name"] not in self._names
                    if not self._deferred:
                        self._open = _OpenCall(style, self._begin(header["name"], deltas), header.end())
                    return not self._deferred
            self._deferred = len(self._raw) > _LONGEST
            return False
        call = self._open
        if piece := call.take_arguments(self._raw):
            deltas.append(ToolCallArguments(piece))
        if not call.closed:
            return False
        if not (footer := call.style.footer.match(self._raw, call.at)):
            self._deferred = len(self._raw) - call.at > _LONGEST
            return False
        if not is_object(call.arguments):
            self._deferred = True
            return False
        deltas.append(self._end_call(call))
        self._raw = self._raw[footer.end() :]
        return True

    def _begin(self, name: str, deltas: list[Delta]) -> ToolCallBegun:
        call = ToolCallBegun(self._begun, f"call_{secrets.token_hex(12)}", name)
        self._begun += 1
        deltas.append(call)
        return call

    def _end_call(self, call: _OpenCall) -> ToolCallEnded:
        self._open, self._last_style = None, call.style
        self.complete.append(ToolCall(call.begun.id, call.begun.name, call.arguments))
        return ToolCallEnded(self.complete[-1])

    def _emit_calls(self, calls: list[FoundCall]) -> list[Delta]:
        if self._single and len(calls) > 1:
            self._warn(f"of {len(calls)} tool calls only the first is sent: parallel calls are off")
            del calls[1:]
        deltas: list[Delta] = []
        for found_call in calls:
            begun = self._begin(found_call.name, deltas)
            self.complete.append(ToolCall(begun.id, found_call.name, found_call.arguments))
            deltas += ToolCallArguments(found_call.arguments), ToolCallEnded(self.complete[-1])
        return deltas

    def _warn(self, text: str) -> None:
        self.warning = self.warning or text


class _OpenCall:
    """A call whose arguments, a JSON object, are arriving. `at`: how much of the text was read."""

    def __init__(self, style: JsonStyle, begun: ToolCallBegun, at: int) -> None:
        self.style, self.begun, self.at = style, begun, at
        self.arguments = ""
        self.closed = False
        self._depth, self._string, self._escaped = 0, False, False

    def take_arguments(self, text: str) -> str:
        """Reads on, and returns the new piece of the arguments."""
        end = self.at
        while end < len(text) and not self.closed:
            self._read(text[end])
            end += 1
        piece, self.at = text[self.at : end], end
        self.arguments += piece
        return piece

    def matches(self, calls: list[FoundCall]) -> bool:
        """Whether `calls` is this call alone."""
        if not self.closed or len(calls) != 1 or calls[0].name != self.begun.name or not is_object(self.arguments):
            return False
        return bool(json.loads(calls[0].arguments) == json.loads(self.arguments))

    def _read(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._string:
            self._escaped, self._string = character == "\\", character != '"'
        elif character == '"':
            self._string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.closed = self._depth == 0
