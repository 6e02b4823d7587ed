"""Valid chats are accepted; a fault is named by its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftd.errors import InvalidRequest
from draftd.service.messages import (
    Chat,
    Message,
    Tool,
    ToolCall,
    ToolMode,
    check_chat,
    json_object,
    message_dict,
    message_parts,
)

SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
CALL = ToolCall("c1", "weather", '{"city": "Bern"}')
CHAT = Chat(
    (
        Message("system", "Be brief."),
        Message("developer", "In French."),
        Message("user", "Weather?", name="ann"),
        Message("assistant", "", (CALL, CALL._replace(id="c2")), reasoning="Hm."),
        Message("tool", "sun", tool_call_id="c1", name="weather"),
        Message("tool", "rain", tool_call_id="c2"),
    ),
    (Tool("weather", "The weather.", SCHEMA), Tool("clock")),
    "clock",
    False,
    {"enable_thinking": False, "depth": {"a": [1]}},
)


def with_message(role: str, **fields: Any) -> Chat:
    return replace(CHAT, messages=(*CHAT.messages, Message(role, fields.pop("content", "x"), **fields)))


def with_call(**fields: str) -> Chat:
    return with_message("assistant", tool_calls=(CALL._replace(**fields),))


def with_tool(**fields: str) -> Chat:
    return replace(CHAT, tools=(*CHAT.tools, Tool("next", "", "")._replace(**fields)))


def test_valid_chat_passes_the_check_with_every_tool_choice() -> None:
    check_chat(CHAT)
    for choice in (*ToolMode, "weather"):
        check_chat(replace(CHAT, tool_choice=choice))
    check_chat(replace(CHAT, tools=tuple(Tool(f"t{i}") for i in range(128)), tool_choice=ToolMode.REQUIRED))


BAD = [
    (with_message("robot"), "chat.messages[6].role", "system, developer, user, assistant, tool"),
    (
        with_message("user", tool_calls=(CALL,)),
        "chat.messages[6].tool_calls",
        "only in a message of the role assistant",
    ),
    (with_message("user", reasoning="Hm."), "chat.messages[6].reasoning", "only in a message of the role assistant"),
    (with_message("tool"), "chat.messages[6].tool_call_id", "the id of an earlier tool call"),
    (with_message("tool", tool_call_id="c3"), "chat.messages[6].tool_call_id", "the id of an earlier tool call"),
    (with_message("user", tool_call_id="c1"), "chat.messages[6].tool_call_id", "only in a message of the role tool"),
    (with_call(id=""), "chat.messages[6].tool_calls[0].id", "an id"),
    (with_call(name="the weather"), "chat.messages[6].tool_calls[0].name", "1 to 256 letters"),
    (replace(CHAT, continues=True), "chat.messages[5].role", "assistant"),
    (replace(with_call(), continues=True), "chat.messages[6].tool_calls", "none in a last message"),
    (with_tool(name=""), "chat.tools[2].name", "1 to 256 letters"),
    (with_tool(name="x" * 257), "chat.tools[2].name", "1 to 256 letters"),
    (with_tool(name="wetter_für_heute"), "chat.tools[2].name", "letters, digits, underscores, dashes and dots"),
    (with_tool(name="clock"), "chat.tools[2].name", "a name that no other tool has"),
    (with_tool(parameters="{"), "chat.tools[2].parameters", "a JSON object"),
    (with_tool(parameters='{"type": "string"}'), "chat.tools[2].parameters", "a schema of type object"),
    (replace(CHAT, tools=tuple(Tool(f"t{i}") for i in range(1025))), "chat.tools", "at most 1024"),
    (replace(CHAT, tool_choice="wether"), "chat.tool_choice", "clock, weather"),
    (replace(CHAT, tools=(), tool_choice=ToolMode.REQUIRED), "chat.tool_choice", "none or auto"),
    (replace(CHAT, tools=()), "chat.tool_choice", "none or auto"),
    (replace(CHAT, template_arguments={"tools": []}), "chat.template_arguments", "does not set itself"),
    (replace(CHAT, template_arguments={"messages": 1}), "chat.template_arguments", "does not set itself"),
    (replace(CHAT, template_arguments={"add_generation_prompt": 0}), "chat.template_arguments", "does not set itself"),
    (replace(CHAT, template_arguments={"chat_template": ""}), "chat.template_arguments", "does not set itself"),
    (replace(CHAT, template_arguments={"a b": ""}), "chat.template_arguments", "does not set itself"),
]


@pytest.mark.parametrize(("chat", "field", "allowed"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_invalid_chat_is_refused_by_field_and_allowed_values(chat: Chat, field: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_chat(chat)
    assert caught.value.field == field
    assert allowed in caught.value.allowed
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("name", ["auto", "none", "required"])
def test_tool_named_like_a_tool_choice_mode_is_accepted(name: str) -> None:
    chat = replace(CHAT, tools=(Tool(name),), tool_choice=name)
    check_chat(chat)
    assert chat.demands_call
    assert chat.shown_tools


def test_json_field_that_is_not_an_object_is_refused_by_name() -> None:
    assert json_object('{"a": {"b": []}}', "x") == {"a": {"b": []}}
    with pytest.raises(InvalidRequest, match=r"x: got '\[\]'; allowed: a JSON object"):
        json_object("[]", "x")


def test_telemetry_splits_messages_into_reasoning_and_tool_call_parts() -> None:
    assert message_parts(CHAT.messages[3]) == (
        "assistant",
        (
            {"type": "reasoning", "content": "Hm."},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
            {"type": "tool_call", "id": "c2", "name": "weather", "arguments": '{"city": "Bern"}'},
        ),
    )
    assert message_parts(CHAT.messages[4]) == (
        "tool",
        ({"type": "tool_call_response", "id": "c1", "response": "sun"},),
    )


@pytest.mark.parametrize(
    "arguments",
    ["", "[1]", '{"a": NaN}', '{"a": ' * 65 + "1" + "}" * 65, '{"a": "\\ud83e"}', '{"a": ' * 99_999, '{"a": 1'],
)
def test_malformed_arguments_of_a_past_tool_call_are_wrapped_in_an_object(arguments: str) -> None:
    chat = with_call(arguments=arguments)
    check_chat(chat)
    shown = message_dict(chat.messages[6])["tool_calls"][0]["function"]["arguments"]
    assert shown == {"arguments": arguments}
