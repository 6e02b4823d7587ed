"""Tools for models whose chat template has none, in the Hermes format that many models know: tools are described in the
system message, calls and results stand between marks in the text.

Source: https://github.com/NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

CALL = "<tool_call>", "</tool_call>"
_RESULT = "<tool_response>", "</tool_response>"
_TOLD = """You may call these tools where they help to answer the user. Each is described by a JSON object:
<tools>
{tools}
</tools>
For each call, write a JSON object with the name of the tool and its arguments between these marks, and end your \
message after the last one:
{call}
The user's next message then has the results, each between {begin} and {end}."""


def describe_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with the tools, in OpenAI's format, at the end of the first system message, or in a new one
    at the start."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = call_text({"name": "name of the tool", "arguments": {"name of the argument": "value"}})
    text = _TOLD.format(tools=listed, call=example, begin=_RESULT[0], end=_RESULT[1])
    shaped_messages = [dict(message) for message in messages]
    first = shaped_messages[0] if shaped_messages and shaped_messages[0]["role"] in ("system", "developer") else None
    if first is None:
        return [{"role": "system", "content": text}, *shaped_messages]
    first["content"] = "\n\n".join(filter(None, (first["content"], text)))
    return shaped_messages


def call_text(function: Mapping[str, Any]) -> str:
    """Returns a call as text. `function`: its name and arguments."""
    return f"{CALL[0]}\n{json.dumps(function, ensure_ascii=False)}\n{CALL[1]}"


def result_text(content: str) -> str:
    return f"{_RESULT[0]}\n{content}\n{_RESULT[1]}"
