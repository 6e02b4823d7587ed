"""Every field that the clients' packages can send is served, refused by name, or demands nothing: a new one shows here.

What demands nothing are hints: for caches, prices and queues, names of users, and what to do where a request is refused
anyway, such as one with a prompt that is too long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as BetaMessages
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsStreaming as Messages
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Chats
from openai.types.completion_create_params import CompletionCreateParamsStreaming as Completions
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as Responses
from pydantic import BaseModel

from draftd.fronts.http.body import UnservedFields
from draftd.fronts.http.chat import ChatBody
from draftd.fronts.http.completions import CompletionBody
from draftd.fronts.http.messages import MessageBody
from draftd.fronts.http.responses import ResponseBody
from tests.http_front import Fronted, fronted
from tests.http_mutations import CHAT, COMPLETIONS, MESSAGES, RESPONSES

USER = {"role": "user", "content": "a"}


@dataclass(frozen=True)
class Protocol:
    """`packages`: the types of the clients' parameters. `refused`: a value for each field that is; `hints` likewise of
    those that are ignored. The rest must be fields of `body`, which are served."""

    path: str
    body: type[BaseModel]
    question: Mapping[str, Any]
    packages: tuple[Any, ...]
    refused: Mapping[str, Any]
    hints: Mapping[str, Any] = field(default_factory=dict)

    def fields(self) -> set[str]:
        return {name for kind in self.packages for name in kind.__annotations__}


CACHE = {"prompt_cache_key": "a", "prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h"}
PROTOCOLS = [
    Protocol(
        CHAT,
        ChatBody,
        {"messages": [USER]},
        (Chats,),
        refused={
            "audio": {"voice": "alloy", "format": "wav"},
            "function_call": "auto",
            "functions": [{"name": "f"}],
            "modalities": ["text", "audio"],
            "moderation": {"model": "m", "policy": {"output": {"mode": "block"}}},
            "web_search_options": {},
        },
        hints={
            **CACHE,
            "metadata": {"a": "b"},
            "prediction": {"type": "content", "content": "a"},
            "safety_identifier": "a",
            "service_tier": "flex",
            "store": True,
            "verbosity": "low",
        },
    ),
    Protocol(COMPLETIONS, CompletionBody, {"prompt": "a"}, (Completions,), refused={"best_of": 2, "suffix": "a"}),
    Protocol(
        RESPONSES,
        ResponseBody,
        {"input": "a"},
        (Responses, InputTokenCountParams),
        refused={
            "background": True,
            "conversation": "conv_1",
            "moderation": {"model": "m"},
            "prompt": {"id": "pmpt_1"},
        },
        hints={
            **CACHE,
            "access_programs": {"cyber": "standard"},
            "background_options": {"completion_window": "2h"},  # demands something with `background`
            "context_management": [{"type": "compaction"}],  # a prompt that is too long is refused
            "image": {"context_compression": "auto"},
            "max_tool_calls": 1,  # of tools that the server runs
            "personality": "friendly",
            "safety_identifier": "a",
            "service_tier": "flex",
            "stream_options": {"include_obfuscation": False},
            "truncation": "auto",
        },
    ),
    Protocol(
        MESSAGES,
        MessageBody,
        {"messages": [USER], "max_tokens": 9},
        (Messages, MessageCountTokensParams, BetaMessages),
        refused={
            "compaction": {"type": "enabled"},
            "container": "container_1",
            "mcp_servers": [{"type": "url", "url": "https://example.org", "name": "a"}],
            "thread": {"type": "create"},
        },
        hints={
            "betas": ["a"],
            "billing_policy": {"type": "a"},
            "cache_control": {"type": "ephemeral"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "diagnostics": {"previous_message_id": "a"},
            "fallback_credit_token": "a",
            "fallbacks": "default",  # where the model declines
            "inference_geo": "eu",
            "service_tier": "auto",
            "speed": "fast",
            "user_profile_id": "a",
            "workspace_id": "a",
        },
    ),
]
#: Fields of vLLM, llama.cpp and SGLang, each with a value that demands something and one that does not.
OTHERS: Mapping[str, tuple[Any, Any]] = {
    **{name: ([1], None) for name in UnservedFields.model_fields},
    "n_predict": (5, -1),
    "repeat_penalty": (1.1, 1.0),
    "return_token_ids": (True, False),
    "top_n_sigma": (1.0, -1),
    "typical_p": (0.9, 1),
    "structured_outputs": ({"structural_tag": "{}"}, {"disable_fallback": True}),
}


@pytest.fixture
async def front() -> AsyncIterator[Fronted]:
    async with fronted() as front:
        front.service.obliging = True
        yield front


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def refusal(session: aiohttp.ClientSession, front: Fronted, path: str, body: Mapping[str, Any]) -> str:
    """Returns the field that a refusal names; empty if the body was served."""
    response = await session.post(front.url + path, json=body)
    answer = await response.json()
    assert response.status in (200, 400), answer
    return "" if response.status == 200 else str(answer["error"]["message"]).partition(":")[0]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.path)
def test_every_request_field_of_client_libraries_is_served_refused_or_listed_as_ignored(protocol: Protocol) -> None:
    fields_served = set(protocol.body.model_fields)
    assert set(protocol.refused) <= fields_served
    assert not set(protocol.hints) & set(protocol.refused)
    assert set(protocol.hints) | set(protocol.refused) <= protocol.fields(), "gone from the package"
    assert protocol.fields() - set(protocol.hints) <= fields_served, "new in the package"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.path)
async def test_http_refuses_unserved_fields_by_name_and_ignores_fields_listed_as_ignored(
    session: aiohttp.ClientSession, front: Fronted, protocol: Protocol
) -> None:
    for name, value in protocol.refused.items():
        assert await refusal(session, front, protocol.path, {**protocol.question, name: value}) == name
        assert await refusal(session, front, protocol.path, {**protocol.question, name: None}) == ""
    for name, value in protocol.hints.items():
        assert await refusal(session, front, protocol.path, {**protocol.question, name: value}) == "", name


@pytest.mark.parametrize("name", OTHERS)
async def test_vllm_or_llama_cpp_request_field_is_refused_by_name_unless_at_its_off_value(
    session: aiohttp.ClientSession, front: Fronted, name: str
) -> None:
    demands, off = OTHERS[name]
    for protocol in PROTOCOLS:
        named = await refusal(session, front, protocol.path, {**protocol.question, name: demands})
        assert named.startswith(name), protocol.path
        assert await refusal(session, front, protocol.path, {**protocol.question, name: off}) == ""


async def test_http_refuses_echo_in_chat_and_special_token_switch_in_completions(
    session: aiohttp.ClientSession, front: Fronted
) -> None:
    assert await refusal(session, front, CHAT, {"messages": [USER], "echo": True}) == "echo"
    assert await refusal(session, front, CHAT, {"messages": [USER], "echo": False}) == ""
    assert await refusal(session, front, COMPLETIONS, {"prompt": "a", "add_special_tokens": False}) == (
        "add_special_tokens"
    )
    assert await refusal(session, front, COMPLETIONS, {"prompt": "a", "add_special_tokens": True}) == ""
