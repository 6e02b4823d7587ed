"""Both fronts, one service: every question over both is answered alike, counted alike, refused alike."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from draftd.client.client import CallError
from draftd.core import ModePreference, SamplingParams
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels, load_models
from draftd.errors import NotServing
from draftd.telemetry.pipeline import build
from draftd.telemetry.setup import Sources, Telemetry
from tests.conftest import NanoPair
from tests.integration.test_service_transport import Authority
from tests.serving import Answer, Served, collect, serving
from tests.waiting import until

TOKEN = "a-token-of-a-length"


def told(worker: Callable[[], EngineWorker]) -> Telemetry:
    """What a daemon has where nothing is exported, and metrics are scraped."""

    def info() -> Any:
        try:
            return worker().info
        except NotServing:
            return None

    return Telemetry(build(scraped=True), Sources(info=info, status=lambda: worker().status()))


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def models() -> LoadedModels:
        return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)

    folder = tmp_path_factory.mktemp("http")
    with serving(folder, models, server={"http_port": 0}, telemetry=told, engine={"queue_capacity": 64}) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        yield client


SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7}
HELLO = [("user", "Write a function that adds two numbers.")]
# Each as gRPC's client asks it, and as HTTP's does.
QUESTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"messages": HELLO}, {}),
    ({"messages": HELLO, "mode": ModePreference.AUTOREGRESSIVE}, {"draftd": {"mode": "autoregressive"}}),
    ({"messages": HELLO, "sampling": SamplingParams(0.8, 0.9, 40, seed=7)}, SAMPLED),
    ({"messages": [("system", "Be brief."), *HELLO, ("assistant", "def"), ("user", "Go on.")]}, {}),
    ({"messages": HELLO, "stop": ["\n"]}, {"stop": "\n"}),
    ({"prompt": "def add(a, b):"}, {}),
    ({"prompt": "Once upon a time", "stop": ["e", "the"]}, {"stop": ["e", "the"]}),
    ({"tokens": [5, 6, 7, 8]}, {}),
]  # fmt: skip
DEPTH = "max_draft_tokens"
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"messages": HELLO, "sampling": SamplingParams(-1.0)}, {"temperature": -1}, "sampling.temperature", "temperature"),
    ({"messages": [("user", "x"), ("wizard", "y")]}, {}, "chat.messages[1].role", "messages[1].role"),
    ({"prompt": "x", "stop": ["a", ""]}, {"stop": ["a", ""]}, "stop[1]", "stop[1]"),
    ({"tokens": [1, 1 << 30]}, {}, "tokens.ids[1]", "prompt[1]"),
    ({"messages": HELLO, "drafter": "eagle"}, {"draftd": {"drafter": "eagle"}}, "drafter", "draftd.drafter"),
    ({"prompt": "x", "max_draft_tokens": -1}, {"draftd": {"max_draft_tokens": -1}}, DEPTH, f"draftd.{DEPTH}"),
    ({"messages": [("user", "word " * 9000)]}, {}, "chat", "messages"),
    ({"prompt": "word " * 9000}, {}, "prompt", "prompt"),
]  # fmt: skip


def over_grpc(served: Served, asked: dict[str, Any], limit: int = 12) -> Answer:
    given = dict(asked)
    prompt = given.pop("prompt", None)
    return collect(served.client.generate(prompt, max_tokens=limit, **given))


def over_http(client: OpenAI, asked: dict[str, Any], body: dict[str, Any], *, stream: bool, limit: int = 12) -> Any:
    """Text, finish reason and usage."""
    shared: dict[str, Any] = {"model": "", "max_tokens": limit, "extra_body": body}
    if stream:
        shared |= {"stream": True, "stream_options": {"include_usage": True}}
    if "messages" in asked:
        messages: Any = [{"role": role, "content": content} for role, content in asked["messages"]]
        made: Any = client.chat.completions.create(messages=messages, **shared)
    else:
        made = client.completions.create(prompt=asked.get("prompt", asked.get("tokens")), **shared)
    pieces = list(made) if stream else [made]
    text, reason = "", None
    for piece in pieces:
        for choice in piece.choices:
            if "messages" in asked:
                text += (choice.delta if stream else choice.message).content or ""
            else:
                text += choice.text
            reason = choice.finish_reason or reason
    return text, reason, pieces[-1].usage


def test_every_question_has_one_answer(served: Served, client: OpenAI) -> None:
    for i, (asked, body) in enumerate(QUESTIONS):
        grpc = over_grpc(served, asked)
        assert grpc.finished is not None
        text, reason, usage = over_http(client, asked, body, stream=i % 2 == 1)
        assert text == grpc.text, asked
        assert reason == ("stop" if grpc.finished.reason == 1 else "length")
        assert usage.prompt_tokens == grpc.finished.usage.input_tokens
        assert usage.completion_tokens == grpc.finished.usage.output_tokens
    for asked, body, field, called in REFUSED:
        with pytest.raises(CallError) as over_one:
            over_grpc(served, asked)
        with pytest.raises(BadRequestError) as over_other:
            over_http(client, asked, body, stream=False)
        assert (list(over_one.value.fields), over_other.value.param) == ([field], called)
        said = over_one.value.details.removeprefix(field)
        assert over_other.value.message.endswith(called + said)


def scraped(served: Served) -> Counter[tuple[Any, ...]]:
    """Every counter of requests, tokens and drafts by its labels; times left out."""
    root = served.daemon.url.removesuffix("/v1")
    text = urllib.request.urlopen(f"{root}/metrics").read().decode()
    found: Counter[tuple[Any, ...]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            timed = ("seconds_total", "break_even_tokens_total")
            counted = sample.name.endswith(("_total", "_count")) and not sample.name.endswith(timed)
            if counted and sample.name.startswith(("draftd_spec", "draftd_tokens", "draftd_requests", "gen_ai")):
                labels = {k: v for k, v in sample.labels.items() if k not in ("server_address", "server_port")}
                found[sample.name, *sorted(labels.items())] = int(sample.value)
    return found


def test_both_are_counted_alike(served: Served, client: OpenAI) -> None:
    sums: list[Counter[tuple[Any, ...]]] = []
    tokens = 0
    for over in ("grpc", "http"):
        before = scraped(served)
        for asked, body in QUESTIONS:
            if over == "grpc":
                over_grpc(served, asked)
            else:
                tokens += over_http(client, asked, body, stream=True)[2].completion_tokens
        for asked, body, _, _ in REFUSED[:2]:
            with pytest.raises((CallError, BadRequestError)):
                over_grpc(served, asked) if over == "grpc" else over_http(client, asked, body, stream=True)
        until(lambda: served.daemon.service.in_hand == 0)
        after = scraped(served)
        after.subtract(before)
        sums.append(after)
    # What a step drafts does not depend on who asks: depth is fixed here.
    assert {k: v for k, v in sums[0].items() if v} == {k: v for k, v in sums[1].items() if v}
    output = [v for k, v in sums[1].items() if k[0] == "draftd_tokens_total" and ("gen_ai_token_type", "output") in k]
    assert sum(output) == tokens > 0


async def test_fifty_at_once_are_all_answered(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "Count."}]
    async with AsyncOpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model="", messages=messages, max_tokens=8, extra_body={"user": str(i)})
                for i in range(50)
            )
        )
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert len({answer.id for answer in answers}) == 50


async def test_a_client_that_leaves_frees_its_sequence(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "Write a long story about a dog."}]
    async with AsyncOpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="", messages=messages, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await asyncio.to_thread(until, lambda: served.worker.status().active == 1)
        await stream.close()
        await asyncio.to_thread(until, lambda: served.worker.status().active == 0)


def test_speculative_figures_come_where_they_are_asked_for(served: Served, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
    plain = client.chat.completions.create(model="", messages=messages, max_tokens=32)
    assert "metrics" not in (plain.model_extra or {})
    assert plain.usage is not None
    details = plain.usage.completion_tokens_details
    assert details is None or details.accepted_prediction_tokens is None
    done = client.chat.completions.create(
        model="", messages=messages, max_tokens=32, extra_body={"include_metrics": True}
    )
    found = (done.model_extra or {})["metrics"]["speculative_decoding"]
    accepted, drafted = found["accepted_per_position"], found["drafted_per_position"]
    assert (sum(accepted), sum(drafted)) == (found["num_accepted_draft_tokens"], found["num_draft_tokens"])
    histogram = found["acceptance_histogram"]
    assert sum(histogram) == found["num_spec_steps"]
    assert sum(j * steps for j, steps in enumerate(histogram)) == found["num_accepted_draft_tokens"] > 0


def test_tls_and_token_guard_http_as_well(tmp_path: Path, nano_pair: NanoPair) -> None:
    authority = Authority(tmp_path, "ca")
    server, friend = authority.issue("server"), authority.issue("friend")
    tls = {"tls_cert": server.cert, "tls_key": server.key, "tls_client_ca": authority.file, "http_port": 0}
    own = {"tls_ca": authority.file, "tls_cert": friend.cert, "tls_key": friend.key}

    def models() -> LoadedModels:
        return load_models(nano_pair.target, None, progress=lambda line: None)

    with serving(tmp_path, models, server=tls, token=TOKEN, client=own) as served:
        trusting = ssl.create_default_context(cafile=str(authority.file))
        request = urllib.request.Request(f"{served.daemon.url}/models", headers={"Authorization": f"Bearer {TOKEN}"})
        with pytest.raises((OSError, ssl.SSLError)):
            urllib.request.urlopen(request, context=trusting).read()
        trusting.load_cert_chain(friend.cert, friend.key)
        with urllib.request.urlopen(request, context=trusting) as answer:
            assert json.loads(answer.read())["data"]
        with pytest.raises(OSError, match="401"):
            urllib.request.urlopen(f"{served.daemon.url}/models", context=trusting)
