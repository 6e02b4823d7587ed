"""Second turns and unusual fields: references, results that are no text, other names for one wish."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from draftd.fronts.http.body import UnservedFields
from draftd.service.messages import Chat, ToolMode
from draftd.service.request import FormatKind, ResponseFormat
from tests.http_front import Fronted, Says, call, fronted, said, thought

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "Oslo?"}
TOKEN = "abcdefgh12345678"


@pytest.fixture
async def front() -> AsyncIterator[Fronted]:
    async with fronted() as front:
        yield front


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def asked(session: aiohttp.ClientSession, front: Fronted, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a body; for an error, its fields and status."""
    front.will_say(Says(said("ok")))
    response = await session.post(front.url + path, json=body)
    answer: dict[str, Any] = await response.json()
    return answer if response.status == 200 else {"status": response.status, **answer["error"]}


def chat_of(front: Fronted) -> Chat:
    assert isinstance(front.asked.prompt, Chat)
    return front.asked.prompt


async def test_responses_api_resolves_lists_and_counts_stored_input_items(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    front.will_say(Says([*thought("hm"), *call(0, "weather", '{"city": "Oslo"}')]))
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    question = {"role": "user", "content": [{"type": "input_text", "text": "Oslo?"}]}
    first = await (await session.post(front.url + RESPONSES, json={"input": [question], "tools": [tool]})).json()
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    result = {"type": "function_call_output", "call_id": "call_0", "output": "-3"}
    whole = [question, *first["output"], result]
    await asked(session, front, RESPONSES, {"input": whole, "tools": [tool]})
    expected = chat_of(front).messages
    body = {"input": [question, *references, result], "tools": [tool]}
    second = await asked(session, front, RESPONSES, body)
    assert chat_of(front).messages == expected
    assert [answer.role for answer in expected] == ["user", "assistant", "tool"]
    items = f"{front.url}{RESPONSES}/{second['id']}/input_items"
    listed = await (await session.get(items, params={"order": "asc"})).json()
    assert [answer.get("type") for answer in listed["data"]] == [
        None,
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    latest = await (await session.get(items, params={"limit": "1"})).json()
    assert (latest["data"][0]["output"], latest["has_more"]) == ("-3", True)
    rest = await (await session.get(items, params={"after": latest["last_id"]})).json()
    assert (len(rest["data"]), rest["has_more"]) == (3, False)
    assert (await session.get(items, params={"limit": "0"})).status == 400
    counted = await (await session.post(f"{front.url}{RESPONSES}/input_tokens", json=body)).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": 7}
    assert (await session.post(f"{front.url}{RESPONSES}/compact", json=body)).status == 501
    for answer in (first, second):
        assert (await session.delete(f"{front.url}{RESPONSES}/{answer['id']}")).status == 200
    front.server._store.drop("resp_r2")  # which had the same items
    missing = await asked(session, front, RESPONSES, body)
    assert (missing["status"], missing["param"]) == (400, "input[1].id")


def _with_result(path: str, part: dict[str, Any]) -> dict[str, Any]:
    call_of = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    if path == CHAT:
        called = {"role": "assistant", "content": None, "tool_calls": [call_of]}
        text = {"type": "text", "text": "see"}
        return {"messages": [USER, called, {"role": "tool", "tool_call_id": "c", "content": [text, part]}]}
    if path == RESPONSES:
        called = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        output = [{"type": "input_text", "text": "see"}, part]
        return {"input": [USER, called, {"type": "function_call_output", "call_id": "c", "output": output}]}
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "see"}, part]}
    return {"max_tokens": 9, "messages": [USER, called, {"role": "user", "content": [result]}]}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
        (RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,AA"}),
        (RESPONSES, {"type": "input_file", "file_data": "AA"}),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}),
        (MESSAGES, {"type": "document", "source": {"type": "text", "data": "AA"}}),
        (MESSAGES, {"type": "search_result", "source": "a", "title": "b", "content": []}),
        (MESSAGES, {"type": "tool_reference", "tool_name": "a"}),
    ],
)
async def test_non_text_part_is_named_in_tool_results_and_refused_in_user_messages(
    session: aiohttp.ClientSession, front: Fronted, path: str, part: dict[str, Any]
) -> None:
    await asked(session, front, path, _with_result(path, part))
    named = {"search_result": " 'b'", "tool_reference": " 'a'"}.get(part["type"], "")
    assert chat_of(front).messages[-1].content == f"see\n[{part['type']}{named} left out: only text can be shown]"
    users = {"role": "user", "content": [part]}
    body = {"input": [users]} if path == RESPONSES else {"messages": [users], "max_tokens": 9}
    assert (await asked(session, front, path, body))["status"] == 400


async def test_tool_call_with_truncated_json_arguments_can_be_sent_back(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    whole = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1'}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [whole]}, USER]
    await asked(session, front, CHAT, {"messages": messages})
    assert chat_of(front).messages[1].tool_calls[0].arguments == '{"a": 1'


TOOL = {"type": "function", "function": {"name": "look"}}
OTHER = {"type": "function", "function": {"name": "mcp.server.read"}}
ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]}


@pytest.mark.parametrize(
    ("given", "choice", "offered"),
    [
        ({"type": "auto"}, ToolMode.AUTO, ["look", "mcp.server.read"]),
        ("any", ToolMode.REQUIRED, ["look", "mcp.server.read"]),
        ({"type": "required"}, ToolMode.REQUIRED, ["look", "mcp.server.read"]),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, ToolMode.REQUIRED, ["look"]),
        ({"type": "allowed_tools", **ALLOWED}, ToolMode.REQUIRED, ["look"]),
        ({"type": "function", "name": "look"}, "look", ["look", "mcp.server.read"]),
    ],
)
async def test_tool_choice_is_accepted_in_every_protocol_form(
    session: aiohttp.ClientSession, front: Fronted, given: object, choice: object, offered: list[str]
) -> None:
    hosted = [{"type": "web_search"}, {"type": "code_execution_20250825", "name": "code"}]
    await asked(session, front, CHAT, {"messages": [USER], "tools": [TOOL, *hosted, OTHER], "tool_choice": given})
    assert (chat_of(front).tool_choice, [tool.name for tool in chat_of(front).tools]) == (choice, offered)


@pytest.mark.parametrize(
    "given",
    [
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto"},
        {"type": "allowed_tools", "mode": {}, "tools": [{"name": "look"}]},
        {"type": "function"},
        3,
        "some",
    ],
)
async def test_unsatisfiable_tool_choice_is_refused_naming_tool_choice(
    session: aiohttp.ClientSession, front: Fronted, given: object
) -> None:
    refused = await asked(session, front, CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": given})
    assert (refused["status"], refused["param"]) == (400, "tool_choice")


async def test_undeclared_tool_in_allowed_tools_is_refused_by_its_name(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "look"}, {"type": "function", "name": "run"}]}
    own = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    for path, body in ((CHAT, {"messages": [USER], "tools": [TOOL]}), (RESPONSES, {"input": "a", "tools": [own]})):
        refused = await asked(session, front, path, {**body, "tool_choice": choice})
        assert (refused["status"], refused["param"]) == (400, "tool_choice")
        assert "got 'run'; allowed: look" in refused["message"]


async def test_responses_and_messages_requests_drop_hosted_tools(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    own = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    hosted = [{"type": kind} for kind in ("web_search_2025_08_26", "mcp", "local_shell", "computer_use_preview")]
    await asked(session, front, RESPONSES, {"input": "a", "tools": [*hosted, own]})
    assert [tool.name for tool in chat_of(front).tools] == ["look"]
    own = {"name": "look", "input_schema": {"type": "object"}}
    hosted = [{"type": kind, "name": "x"} for kind in ("bash_20250124", "web_search_20260101", "memory_20250818")]
    await asked(session, front, MESSAGES, {"messages": [USER], "max_tokens": 9, "tools": [*hosted, own]})
    assert [tool.name for tool in chat_of(front).tools] == ["look"]


async def test_http_accepts_max_tokens_minus_one_and_truncates_user_field_to_64_characters(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    body = {"messages": [USER], "user": "é" * 100, "max_tokens": -1, "top_p": 0, "stop": ""}
    await asked(session, front, CHAT, body)
    assert front.asked.caller == "é" * 64
    assert front.asked.max_tokens == 2**31 - 1
    for path, more in ((RESPONSES, {"input": "a", "max_output_tokens": -1}), (MESSAGES, body), ("/v1/completions", {})):
        await asked(session, front, path, {**body, "prompt": "a", "max_tokens": -1, **more})
        assert front.asked.max_tokens == 2**31 - 1, path


async def test_lone_surrogate_in_a_message_becomes_the_replacement_character(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    front.will_say(Says(said("ok")))
    body = '{"messages": [{"role": "user", "content": "a \\ud83d b \\ud83d\\ude00"}]}'
    response = await session.post(front.url + CHAT, data=body, headers={"Content-Type": "application/json"})
    assert response.status == 200
    assert chat_of(front).messages[0].content == "a \ufffd b 😀"


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
JSON_SCHEMA = ResponseFormat(FormatKind.JSON_SCHEMA, json.dumps(SCHEMA, separators=(",", ":")))
OPENAI = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("path", "given", "expected"),
    [
        (RESPONSES, {"response_format": OPENAI}, JSON_SCHEMA),
        (RESPONSES, {"text": {"format": {"type": "json_object", "schema": SCHEMA}}}, JSON_SCHEMA),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": SCHEMA}}, JSON_SCHEMA),
        (CHAT, {"response_format": {"type": "json_object", "schema": SCHEMA}}, JSON_SCHEMA),
        (CHAT, {"response_format": {"type": "json_schema", "schema": SCHEMA}}, JSON_SCHEMA),
        (CHAT, {"guided_json": SCHEMA}, JSON_SCHEMA),
        (CHAT, {"json_schema": SCHEMA}, JSON_SCHEMA),
        (CHAT, {"guided_regex": "a+"}, ResponseFormat(FormatKind.REGEX, "a+")),
        (CHAT, {"guided_choice": ["a", "b"]}, ResponseFormat(FormatKind.CHOICE, '["a","b"]')),
        (CHAT, {"grammar": 'root ::= "a"'}, ResponseFormat(FormatKind.GRAMMAR, 'root ::= "a"')),
        (CHAT, {"response_format": {"type": "text"}, "guided_json": SCHEMA}, JSON_SCHEMA),
    ],
)
async def test_response_format_is_accepted_under_every_field_name(
    session: aiohttp.ClientSession, front: Fronted, path: str, given: dict[str, Any], expected: ResponseFormat
) -> None:
    question: dict[str, Any] = {"input": "a"} if path == RESPONSES else {"messages": [USER], "max_tokens": 9}
    answer = await asked(session, front, path, {**question, **given})
    assert "status" not in answer or answer["status"] == "completed", answer
    assert front.asked.response_format == expected


@pytest.mark.parametrize(
    ("path", "given", "field"),
    [
        (CHAT, {"response_format": OPENAI, "guided_json": SCHEMA}, "guided_json"),
        (CHAT, {"structured_outputs": {"regex": "a"}, "guided_json": SCHEMA}, "structured_outputs.regex"),
        (CHAT, {"guided_regex": 3}, "guided_regex"),
        (CHAT, {"guided_choice": "a"}, "guided_choice"),
        (RESPONSES, {"response_format": OPENAI, "text": {"format": {"type": "json_object"}}}, "response_format"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (MESSAGES, {"output_format": {"type": "xml"}}, "output_format.type"),
    ],
)
async def test_conflicting_or_invalid_response_formats_are_refused_by_field(
    session: aiohttp.ClientSession, front: Fronted, path: str, given: dict[str, Any], field: str
) -> None:
    question: dict[str, Any] = {"input": "a"} if path == RESPONSES else {"messages": [USER], "max_tokens": 9}
    refused = await asked(session, front, path, {**question, **given})
    assert refused["status"] == 400
    assert field in (refused.get("param"), refused["message"].split(":")[0])


@pytest.mark.parametrize("field", UnservedFields.model_fields)
async def test_http_field_that_would_change_the_text_is_refused_if_unserved(
    session: aiohttp.ClientSession, front: Fronted, field: str
) -> None:
    body: dict[str, Any] = {"messages": [USER], "max_tokens": 9}
    for path in (CHAT, RESPONSES, MESSAGES, "/v1/completions"):
        prompt = {RESPONSES: {"input": "a"}, "/v1/completions": {"prompt": "a"}}.get(path, body)
        refused = await asked(session, front, path, {**prompt, field: [1]})
        assert (refused["status"], refused["message"].split(":")[0]) == (400, field)
        assert "status" not in await asked(session, front, CHAT, {**body, field: 0})


@pytest.mark.parametrize("header", [f"bearer {TOKEN}", f"BEARER   {TOKEN}", f"Bearer {TOKEN} "])
async def test_bearer_scheme_matches_in_any_case_and_spacing(session: aiohttp.ClientSession, header: str) -> None:
    async with fronted(token=TOKEN) as front:
        assert (await session.get(f"{front.url}/v1/models", headers={"Authorization": header})).status == 200
        for wrong in (TOKEN, f"Basic {TOKEN}", f"Bearer{TOKEN}"):
            assert (await session.get(f"{front.url}/v1/models", headers={"Authorization": wrong})).status == 401


async def test_http_model_alias_with_wildcard_matches_model_names(session: aiohttp.ClientSession) -> None:
    async with fronted(http_aliases="claude-*,gpt-4o") as front:
        for name in ("claude-opus-4-8", "gpt-4o", "scripted"):
            answer = await asked(session, front, CHAT, {"messages": [USER], "model": name})
            assert answer["model"] == "org/scripted"
        assert (await asked(session, front, CHAT, {"messages": [USER], "model": "gpt-4o-mini"}))["status"] == 404
        listed = await (await session.get(f"{front.url}/v1/models")).json()
        assert [one["id"] for one in listed["data"]] == ["org/scripted", "scripted", "gpt-4o"]


async def test_unserved_http_endpoints_tell_clients_not_to_retry(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    for path in ("/v1/embeddings", "/v1/audio/speech", f"{RESPONSES}/compact"):
        assert (await session.post(front.url + path, json={})).headers["X-Should-Retry"] == "false", path
    message = await session.post(front.url + MESSAGES, json={"messages": []})
    assert message.headers["Request-Id"] == message.headers["X-Request-Id"]


async def test_chat_completion_sends_reasoning_under_both_field_names(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    front.will_say(Says([*thought("hm"), *said("ok")]), Says([*thought("hm"), *said("ok")]))
    whole = await (await session.post(front.url + CHAT, json={"messages": [USER]})).json()
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["reasoning"]) == ("hm", "hm")
    stream = await (await session.post(front.url + CHAT, json={"messages": [USER], "stream": True})).text()
    assert '"reasoning_content":"hm","reasoning":"hm"' in stream


async def test_http_stream_keep_alive_comments_end_without_a_blank_line(session: aiohttp.ClientSession) -> None:
    async with fronted(Says(said("late"), pause=0.3), keep_alive_seconds=0.05) as front:
        text = await (await session.post(front.url + CHAT, json={"messages": [USER], "stream": True})).text()
        assert re.search(r": keep-alive\n(: keep-alive\n)*data: ", text)
        assert ": keep-alive\n\n" not in text


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_half_closes_its_socket_still_gets_the_answer(stream: bool) -> None:
    async with fronted(Says(said("late"), pause=0.5)) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.server.port)
        body = json.dumps({"messages": [USER], "stream": stream}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        writer.write_eof()
        async with asyncio.timeout(10):
            said_to_it = await reader.read()
        writer.close()
        assert b"HTTP/1.1 200 OK" in said_to_it
        assert b"late" in said_to_it
