"""A real model serves the clients' own HTTP libraries: a chat over each protocol, a schema, a prefix over two turns,
and streamed emoji and CJK.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from openai import OpenAI

from draftd.core import DepthMode, SamplingParams
from draftd.engine.pair import LoadedModels
from tests.in_process_daemon import Served, serving
from tests.real import parity

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

TOKENS = 12
CAPITAL: Any = [{"role": "user", "content": "What is the capital of Canada?"}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 1000, "maximum": 99_999_999},
    },
    "required": ["city", "country", "population"],
    "additionalProperties": False,
}
# Most of these characters are several tokens, and the astronaut is three characters.
GREETING = "你好，世界！🙂🚀 こんにちは 👩‍🚀"
LINE = "东京の空 🌸✨\n"


@dataclass(frozen=True)
class Clients:
    openai: OpenAI
    anthropic: Anthropic


@pytest.fixture(scope="module")
def served(models: LoadedModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = {"depth_mode": DepthMode.AUTOMATIC, "prefix_cache_bytes": 1 << 28}
    with serving(tmp_path_factory.mktemp("real"), lambda: models, server={"http_port": 0}, engine=engine) as served:
        yield served


@pytest.fixture
def clients(served: Served) -> Iterator[Clients]:
    url = served.daemon.url
    with (
        OpenAI(base_url=url, api_key="none", max_retries=0) as openai,
        Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0) as anthropic,
    ):
        yield Clients(openai, anthropic)


def mlx_lm_text(models: LoadedModels, prompt: list[int], tokens: int) -> str:
    """Returns the greedy text of mlx-lm's own loop, without the token that ends it."""
    text = parity.write_alone_with_mlx_lm(models, parity.Question("", prompt, SamplingParams()), tokens)
    return models.tokenizer.decode([token for token in text if token not in models.tokenizer.eos_ids])


# Each of these returns a greedy answer over one protocol: a single text, or with `stream` the texts of the stream.
def ask_chat_completions(clients: Clients, messages: Any, *, stream: bool, tokens: int, **fields: Any) -> list[str]:
    answer: Any = clients.openai.chat.completions.create(
        model="", messages=messages, temperature=0, max_tokens=tokens, stream=stream, extra_body=fields
    )
    if not stream:
        return [answer.choices[0].message.content]
    return [choice.delta.content or "" for chunk in answer for choice in chunk.choices]


def ask_responses(clients: Clients, messages: Any, *, stream: bool, tokens: int, **fields: Any) -> list[str]:
    answer: Any = clients.openai.responses.create(
        model="", input=messages, temperature=0, max_output_tokens=tokens, stream=stream, extra_body=fields
    )
    if not stream:
        return [answer.output_text]
    return [event.delta for event in answer if event.type == "response.output_text.delta"]


def ask_messages(clients: Clients, messages: Any, *, stream: bool, tokens: int, **fields: Any) -> list[str]:
    body: Any = {"model": "", "messages": messages, "max_tokens": tokens, "extra_body": {"temperature": 0, **fields}}
    if not stream:
        return [block.text for block in clients.anthropic.messages.create(**body).content]
    with clients.anthropic.messages.stream(**body) as events:
        return list(events.text_stream)


PROTOCOLS: dict[str, Callable[..., list[str]]] = {
    "chat completions": ask_chat_completions,
    "responses": ask_responses,
    "messages": ask_messages,
}


@pytest.fixture(scope="module")
def capital(models: LoadedModels) -> str:
    text = mlx_lm_text(models, models.tokenizer.render_chat(CAPITAL), TOKENS)
    assert "Ottawa" in text
    return text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_chat_over_http_equals_mlx_lms_text_whole_and_streamed(clients, capital, protocol):
    assert PROTOCOLS[protocol](clients, CAPITAL, stream=False, tokens=TOKENS) == [capital]
    pieces = PROTOCOLS[protocol](clients, CAPITAL, stream=True, tokens=TOKENS)
    assert len(pieces) > 2
    assert "".join(pieces) == capital


def test_completion_over_http_equals_mlx_lms_text_whole_and_streamed(models, clients):
    prompt, tokens = "The days of the week are Monday, Tuesday,", 8
    expected = mlx_lm_text(models, models.tokenizer.encode(prompt), tokens)
    assert "Wednesday" in expected
    body: dict[str, Any] = {"model": "", "prompt": prompt, "temperature": 0, "max_tokens": tokens}
    assert clients.openai.completions.create(**body).choices[0].text == expected
    stream = clients.openai.completions.create(**body, stream=True)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == expected


def test_json_schema_answer_over_http_is_valid_and_stops_by_itself(clients):
    question: Any = [{"role": "user", "content": "Describe the capital of France as JSON."}]
    answer = clients.openai.chat.completions.create(
        model="",
        messages=question,
        temperature=0,
        max_tokens=96,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    )
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), CITY)


def test_second_chat_turn_over_http_reuses_cached_prefix_with_mlx_lms_text(models, clients):
    first: Any = [{"role": "user", "content": "My cat is called Pixel. Please say hello to him."}]
    body: dict[str, Any] = {"model": "", "temperature": 0, "max_tokens": 8}
    answer = clients.openai.chat.completions.create(messages=first, **body)
    reply = {"role": "assistant", "content": answer.choices[0].message.content}
    second: Any = [*first, reply, {"role": "user", "content": "What is the name of my cat?"}]
    next_answer = clients.openai.chat.completions.create(messages=second, **body)
    assert next_answer.usage.prompt_tokens_details.cached_tokens > answer.usage.prompt_tokens
    expected = mlx_lm_text(models, models.tokenizer.render_chat(second), 8)
    assert "Pixel" in expected
    assert next_answer.choices[0].message.content == expected


def check_pieces(pieces: list[str], text: str) -> None:
    """Checks that the stream cuts its text only between characters."""
    assert "".join(pieces) == text
    assert len(pieces) > 3
    for piece in pieces:
        assert "\ufffd" not in piece
        piece.encode()  # half of a surrogate pair cannot be encoded


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_http_stream_splits_emoji_and_cjk_only_between_characters(models, clients, protocol):
    assert len(models.tokenizer.encode(GREETING)) > len(GREETING)
    question: Any = [{"role": "user", "content": "Greet the world."}]
    choice = {"choice": [GREETING]}
    pieces = PROTOCOLS[protocol](clients, question, stream=True, tokens=64, structured_outputs=choice)
    check_pieces(pieces, GREETING)


def test_http_stream_of_drafted_emoji_and_cjk_splits_only_between_characters(models, clients):
    """The model repeats a line, and prompt lookup drafts its bytes: a step may end within a character."""
    tokens = len(models.tokenizer.encode(LINE * 2))
    assert tokens > len(LINE * 2)
    drafting = {"mode": "speculative", "drafter": "prompt_lookup", "depth_mode": "fixed", "max_draft_tokens": 4}
    body = {"draftd": drafting, "include_metrics": True}
    *chunks, last = clients.openai.completions.create(
        model="", prompt=LINE * 3, temperature=0, max_tokens=tokens, stream=True, extra_body=body
    )
    check_pieces([choice.text for chunk in chunks for choice in chunk.choices], LINE * 2)
    assert last.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > tokens // 2
