"""Requests as known clients send them, shaped after their sources: what each asks is understood, what else is sent is
ignored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode
from draftd.service.request import FormatKind, RawText, Request, ResponseFormat
from tests.http_front import Fronted, Says, call, fronted, said

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION: dict[str, Any] = {"name": "read_file", "description": "Reads", "parameters": SCHEMA}
TOOL = Tool("read_file", "Reads", json.dumps(SCHEMA, separators=(",", ":")))
CALL = ToolCall("call_1", "read_file", '{"path":"a"}')
CALLED: dict[str, Any] = {
    "id": CALL.id,
    "type": "function",
    "function": {"name": CALL.name, "arguments": CALL.arguments},
}


@pytest.fixture
async def front() -> AsyncIterator[Fronted]:
    async with fronted(Says(said("Done."))) as front:
        yield front


async def post(front: Fronted, path: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """Returns the events of the stream, or the whole answer as one."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(front.url + path, json=body, headers=headers) as response,
    ):
        text = await response.text()
        assert response.status == 200, text
        if not body.get("stream"):
            return [json.loads(text)]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(request: Request) -> Chat:
    assert isinstance(request.prompt, Chat)
    return request.prompt


async def test_open_webui_requests_reach_the_service_with_their_fields(front: Fronted) -> None:
    body = {
        "stream": True,
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        ],
        "temperature": 0.7,
        "min_p": 0.1,
        "max_tokens": 300,
        "stop": ["###"],
        "seed": 3,
        "stream_options": {"include_usage": True},
        "logit_bias": {"50": -100},
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {**FUNCTION, "type": "function"}}],
    }
    events = await post(front, "/v1/chat/completions", body)
    service_request = front.asked
    assert chat(service_request).messages == (Message("system", "You are helpful."), Message("user", "Hello"))
    assert chat(service_request).template_arguments == {"reasoning_effort": "low"}
    assert (service_request.max_tokens, service_request.stop, service_request.sampling.temperature) == (
        300,
        ("###",),
        0.7,
    )
    assert (service_request.sampling.logit_bias, service_request.sampling.min_p, service_request.sampling.seed) == (
        ((50, -100.0),),
        0.1,
        3,
    )
    assert (service_request.response_format, chat(service_request).tools) == (
        ResponseFormat(FormatKind.JSON_OBJECT),
        (TOOL,),
    )
    assert events[-1]["usage"]["total_tokens"] == 11
    assert events[-1]["choices"] == []
    # Its loop over tools sends calls back as the stream had them; a title has its limit by the newer name.
    call = {**CALLED, "index": 0}
    front.will_say(Says(said("A title")))
    again = {
        "model": "scripted",
        "messages": [
            {"role": "user", "content": "Read a"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": CALL.id, "content": "text"},
        ],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    await post(front, "/v1/chat/completions", again)
    assert chat(front.asked).messages[1] == Message("assistant", "", (CALL,), reasoning="hm")
    assert front.asked.max_tokens == 1000


async def test_continue_editor_requests_reach_the_service_with_their_fields(front: Fronted) -> None:
    body = {
        "messages": [
            {"role": "user", "content": "Read a"},
            {"role": "assistant", "content": " ", "tool_calls": [CALLED], "reasoning_content": "hm"},
            {"role": "tool", "content": "text", "tool_call_id": "call_1"},
        ],
        "model": "scripted",
        "max_tokens": 4096,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {**FUNCTION, "strict": False}}],
        "parallel_tool_calls": False,
    }
    await post(front, "/v1/chat/completions", body, **{"x-api-key": "k", "Authorization": "Bearer k"})
    assert chat(front.asked).messages == (
        Message("user", "Read a"),
        Message("assistant", " ", (CALL,), reasoning="hm"),
        Message("tool", "text", tool_call_id="call_1"),
    )
    assert (chat(front.asked).tools, chat(front.asked).parallel_tool_calls) == ((TOOL,), False)
    front.will_say(Says(text=["Done."]))
    completion = {"prompt": "def f(", "model": "scripted", "max_tokens": 64, "stop": ["\n\n"], "stream": True}
    events = await post(front, "/v1/completions", completion)
    assert front.asked.prompt == RawText("def f(")
    assert "".join(one["text"] for event in events for one in event["choices"]) == "Done."


async def test_zed_editor_requests_reach_the_service_with_their_fields(front: Fronted) -> None:
    body = {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Assist."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "content": [{"type": "text", "text": "text"}], "tool_call_id": "call_1"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 500,
        "stop": [],
        "temperature": 1.0,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "function": FUNCTION}],
        "prompt_cache_key": "thread",
    }
    await post(front, "/v1/chat/completions", body)
    assert [message.content for message in chat(front.asked).messages] == ["Assist.", "a\nb", "", "text"]
    assert (front.asked.max_tokens, front.asked.stop, chat(front.asked).tool_choice) == (500, (), ToolMode.AUTO)


async def test_aider_requests_reach_the_service_with_their_fields(front: Fronted) -> None:
    body = {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Edit.", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "Fix it"},
            {"role": "assistant", "content": "Ok."},
            {"role": "user", "content": "Go on"},
        ],
        "temperature": 0,
        "stream": True,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "read_file"}},
        "top_k": 20,
        "min_p": 0.0,
        "reasoning": {"effort": "low"},
    }
    await post(front, "/v1/chat/completions", body, **{"User-Agent": "litellm/1.0"})
    assert chat(front.asked).tool_choice == "read_file"
    assert [message.content for message in chat(front.asked).messages] == ["Edit.", "Fix it", "Ok.", "Go on"]
    assert front.asked.sampling.top_k == 20


CODEX: dict[str, Any] = {
    "model": "scripted",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1", "status": None},
        {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs", "strict": False, "parameters": SCHEMA},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Patches",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
        },
        {"type": "namespace", "name": "mcp", "description": "", "tools": [{"type": "function", "name": "look"}]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "low"},
}


async def test_codex_responses_request_is_parsed_and_gets_custom_tool_calls() -> None:
    patch = json.dumps({"input": "*** Begin Patch"})
    async with fronted(Says([*said("Ok."), *call(0, "apply_patch", patch), *call(1, "look", "{}")])) as front:
        events = await post(front, "/v1/responses", CODEX)
        service_chat = chat(front.asked)
    assert service_chat.messages == (
        Message("system", "You are a coding agent."),
        Message("developer", "<permissions>"),
        Message("user", "Fix it"),
        Message("assistant", "", (ToolCall("c1", "shell", '{"command":["ls"]}'),), reasoning="hm"),
        Message("tool", "a.py", tool_call_id="c1", name="shell"),
        Message("assistant", "", (ToolCall("c2", "apply_patch", '{"input":"*** Begin"}'),)),
        Message("tool", "ok", tool_call_id="c2", name="apply_patch"),
    )
    assert [tool.name for tool in service_chat.tools] == ["shell", "apply_patch", "look"]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in items] == ["message", "custom_tool_call", "function_call"]
    assert (items[1]["input"], items[1]["call_id"], items[2]["namespace"]) == ("*** Begin Patch", "call_0", "mcp")
    assert events[-1]["type"] == "response.completed"
    assert {"input_tokens", "output_tokens", "total_tokens"} <= set(events[-1]["response"]["usage"])
    assert len(front.server._store) == 0, "store: false"


async def test_claude_code_requests_reach_the_service_with_their_fields(front: Fronted) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {
        "model": "scripted",
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {
                "type": "text",
                "text": "x-anthropic-billing-header: cc_version=2.1.145; cch=1b164;",
            },
            {"type": "text", "text": "You are", **cached},
            {"type": "text", "text": "Claude.", **cached},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", **cached}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"p": 1}}]},
            {
                "role": "user",
                "content": [{"tool_use_id": "t1", "type": "tool_result", "content": "x", "is_error": False, **cached}],
            },
        ],
        "tools": [
            {"name": "Read", "description": "Reads", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
        "anthropic-dangerous-direct-browser-access": "true",
        "User-Agent": "claude-cli/2.1.145 (external, cli)",
        "x-app": "cli",
        "X-Stainless-Retry-Count": "0",
    }
    events = await post(front, "/v1/messages?beta=true", body, **headers)
    assert chat(front.asked).messages == (
        Message("system", "You are\nClaude."),
        Message("user", "Hi"),
        Message("assistant", "", (ToolCall("t1", "Read", '{"p":1}'),)),
        Message("tool", "x", tool_call_id="t1", name="Read"),
    )
    assert [tool.name for tool in chat(front.asked).tools] == ["Read"]
    assert chat(front.asked).template_arguments == {"enable_thinking": True, "reasoning_effort": "medium"}
    assert (front.asked.caller, front.asked.max_tokens) == (body["metadata"]["user_id"], 32000)
    front.will_say(Says(said("Done.")))
    await post(front, "/v1/messages", {**body, "metadata": {"user_id": "u" * 300}, "stream": False})
    assert front.asked.caller == "u" * 128
    assert events[-1]["type"] == "message_stop"


async def test_chat_completion_sampling_and_extension_fields_reach_the_service(front: Fronted) -> None:
    body = {
        "model": "org/scripted",
        "messages": [{"role": "user", "content": "x", "name": "ann"}],
        "top_p": 0.9,
        "seed": -2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "priority": -3,
        "user": "me",
        "chat_template_kwargs": {"enable_thinking": False},
        "draftd": {"mode": "autoregressive", "max_draft_tokens": 2, "depth_mode": "fixed", "workload": "code"},
    }
    await post(front, "/v1/chat/completions", body)
    service_request = front.asked
    p = service_request.sampling
    assert (p.top_p, p.seed, p.presence_penalty, p.frequency_penalty) == (0.9, 2**64 - 2, 0.5, -0.5)
    assert (
        p.repetition_penalty,
        service_request.min_tokens,
        service_request.ignore_eos,
        service_request.stop_token_ids,
    ) == (1.1, 2, True, (3,))
    assert service_request.special_tokens
    assert (
        service_request.include_stop,
        service_request.priority,
        service_request.caller,
        service_request.workload.value,
    ) == (True, -3, "me", "code")
    wish = service_request.wish
    assert (wish.preference.value, wish.max_draft_tokens, wish.depth_mode) == ("autoregressive", 2, "fixed")
    assert (chat(service_request).messages[0].name, chat(service_request).template_arguments) == (
        "ann",
        {"enable_thinking": False},
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8}),
    ],
)
async def test_http_seed_of_minus_one_means_a_random_seed(path: str, body: dict[str, Any]) -> None:
    async with fronted(*(Says(said("-")) for _ in range(3))) as front:
        found = []
        for seed in (-1, -2, 2**64 - 1):
            await post(front, path, {"model": "scripted", **body, "seed": seed})
            found.append(front.asked.sampling.seed)
    assert found == [None, 2**64 - 2, 2**64 - 1]
