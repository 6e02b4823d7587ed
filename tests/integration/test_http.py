"""Both fronts, one service: every question over both is answered alike, counted alike, refused alike."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import AsyncOpenAI, BadRequestError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from draftd.client.client import CallError
from draftd.core import ModePreference, SamplingParams
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels, load_models
from draftd.errors import NotServing
from draftd.telemetry.pipeline import build
from draftd.telemetry.setup import Sources, Telemetry
from draftd.v1 import inference_pb2 as pb
from tests.certificates import Authority
from tests.conftest import NanoPair
from tests.in_process_daemon import Served, serving
from tests.integration.test_formats import SCHEMA, TOOLS, with_tools
from tests.wait_until import until

TOKEN = "a-token-of-a-length"
LIMIT = 12  # tokens of an answer


def told(worker: Callable[[], EngineWorker]) -> Telemetry:
    """What a daemon has where nothing is exported, and metrics are scraped."""

    def info() -> Any:
        try:
            return worker().info
        except NotServing:
            return None

    telemetry = Telemetry(build(scraped=True))
    telemetry.observe(Sources(info=info, status=lambda: worker().status()))
    return telemetry


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("http")
    models = with_tools(nano_pair, folder)
    with serving(folder, models, server={"http_port": 0}, telemetry=told, engine={"queue_capacity": 64}) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        yield client


SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7}
HELLO = [("user", "Write a function that adds two numbers.")]
BEGUN = [*HELLO, ("assistant", "def add(a, b):")]
_BIASED = SamplingParams(
    0.8, seed=3, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5, logit_bias=((300, 4.0),)
)
BIASED = {
    "temperature": 0.8, "seed": 3, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5,
    "logit_bias": {"300": 4},
}  # fmt: skip
BOOK = {"name": "book", "description": "Books a flight.", "parameters": SCHEMA}
OFFERED = [{"type": "function", "function": BOOK}, {"type": "function", "function": {"name": "wait"}}]
REQUIRED = pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED)
WAIT = {"type": "function", "function": {"name": "wait"}}


def in_format(**wanted: Any) -> dict[str, Any]:
    return {"messages": HELLO, "response_format": pb.ResponseFormat(**wanted), "max_tokens": 32}


def trip(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}}}


def tools(choice: Any, **more: Any) -> dict[str, Any]:
    return {"messages": HELLO, "tools": TOOLS, "tool_choice": choice, "max_tokens": 48} | more


def offered(choice: Any, **more: Any) -> dict[str, Any]:
    return {"tools": OFFERED, "tool_choice": choice} | more


DRAWN = SamplingParams(0.8, 0.9, 40, seed=7)
ALONE, NO_DRAFTS = ModePreference.AUTOREGRESSIVE, {"draftd": {"mode": "autoregressive"}}
# Each as gRPC's client asks it, and as HTTP's does.
QUESTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"messages": HELLO}, {}),
    ({"messages": HELLO, "mode": ALONE}, NO_DRAFTS),
    ({"messages": HELLO, "sampling": DRAWN}, SAMPLED),
    ({"messages": [("system", "Be brief."), *HELLO, ("assistant", "def"), ("user", "Go on.")]}, {}),
    ({"messages": HELLO, "stop": ["\n"]}, {"stop": "\n"}),
    ({"messages": HELLO, "stop": ["e"], "include_stop": True}, {"stop": ["e"], "include_stop_str_in_output": True}),
    ({"messages": BEGUN, "continue_final_message": True}, {"continue_final_message": True}),
    ({"prompt": "def add(a, b):"}, {}),
    ({"prompt": "Once upon a time", "stop": ["e", "the"]}, {"stop": ["e", "the"]}),
    ({"prompt": "Once upon a time", "logprobs": 2, "echo": True}, {"logprobs": 2, "echo": True}),
    ({"tokens": [5, 6, 7, 8]}, {}),
    ({"tokens": [300, 301, 302], "logprobs": 1, "echo": True, "n": 2}, {"logprobs": 1, "echo": True, "n": 2}),
    ({"prompt": "Once", "max_tokens": 0, "logprobs": 0, "echo": True}, {"logprobs": 0, "echo": True}),
    ({"messages": HELLO, "logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ({"messages": HELLO, "logprobs": 0, "sampling": DRAWN}, {"logprobs": True, **SAMPLED}),
    ({"messages": HELLO, "sampling": DRAWN, "n": 3, "mode": ALONE}, {**SAMPLED, "n": 3, **NO_DRAFTS}),
    ({"prompt": "def", "sampling": DRAWN, "n": 2, "mode": ALONE}, {**SAMPLED, "n": 2, **NO_DRAFTS}),
    ({"messages": HELLO, "sampling": _BIASED}, BIASED),
    ({"messages": HELLO, "min_tokens": 5, "ignore_eos": True}, {"min_tokens": 5, "ignore_eos": True}),
    ({"messages": HELLO, "stop_token_ids": [271, 300, 301]}, {"stop_token_ids": [271, 300, 301]}),
    (in_format(json_object=True), {"response_format": {"type": "json_object"}}),
    (in_format(json_schema=json.dumps(SCHEMA)), trip(SCHEMA)),
    (in_format(regex="[a-d]{7}"), {"structured_outputs": {"regex": "[a-d]{7}"}}),
    (in_format(choices=pb.Choices(texts=["a b", "c"])), {"structured_outputs": {"choice": ["a b", "c"]}}),
    (tools(None), offered("auto")),
    (tools(REQUIRED), offered("required")),
    (tools(REQUIRED), offered("required")),  # the other of whole and stream
    (tools(pb.ToolChoice(name="wait"), logprobs=0), offered(WAIT, logprobs=True)),
]
DEPTH = "max_draft_tokens"
NOT = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
NOT_JSON = json.dumps(NOT, separators=(",", ":"))
UNABLE = [{"type": "function", "function": {"name": "f", "parameters": NOT}}]
UNNAMED = [{"type": "function", "function": {"name": "a b"}}]
OWN = "response_format.json_schema"
# Besides, what either calls the field.
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"messages": HELLO, "sampling": SamplingParams(-1.0)}, {"temperature": -1}, "sampling.temperature", "temperature"),
    ({"messages": [("user", "x"), ("wizard", "y")]}, {}, "chat.messages[1].role", "messages[1].role"),
    ({"prompt": "x", "stop": ["a", "b" * 257]}, {"stop": ["a", "b" * 257]}, "stop[1]", "stop[1]"),
    ({"tokens": [1, 1 << 30]}, {}, "tokens.ids[1]", "prompt[1]"),
    ({"messages": HELLO, "drafter": "eagle"}, {"draftd": {"drafter": "eagle"}}, "drafter", "draftd.drafter"),
    ({"prompt": "x", "max_draft_tokens": -1}, {"draftd": {"max_draft_tokens": -1}}, DEPTH, f"draftd.{DEPTH}"),
    ({"messages": [("user", "word " * 9000)]}, {}, "chat", "messages"),
    ({"prompt": "word " * 9000}, {}, "prompt", "prompt"),
    ({"messages": HELLO, "logprobs": 21}, {"logprobs": True, "top_logprobs": 21}, "logprobs", "top_logprobs"),
    ({"messages": HELLO, "n": 9}, {"n": 9}, "n", "n"),
    ({"messages": HELLO, "prompt_logprobs": -1}, {"prompt_logprobs": -1}, "prompt_logprobs", "prompt_logprobs"),
    ({"prompt": "x", "max_tokens": 0}, {}, "max_tokens", "max_tokens"),
    (in_format(json_schema=NOT_JSON), trip(NOT), OWN, f"{OWN}.schema"),
    (in_format(json_schema=NOT_JSON), {"structured_outputs": {"json": NOT}}, OWN, "structured_outputs.json"),
    (
        in_format(choices=pb.Choices(texts=[""])),
        {"structured_outputs": {"choice": [""]}},
        "response_format.choices",
        "structured_outputs.choice",
    ),
    (
        tools(None, tools=[pb.Tool(name="a b")]),
        offered("auto", tools=UNNAMED),
        "chat.tools[0].name",
        "tools[0].function.name",
    ),
    (
        tools(pb.ToolChoice(name="x")),
        offered({"type": "function", "function": {"name": "x"}}),
        "chat.tool_choice",
        "tool_choice",
    ),
    (
        tools(REQUIRED, tools=[pb.Tool(name="f", parameters=NOT_JSON)]),
        offered("required", tools=UNABLE),
        "chat.tools[0].parameters",
        "tools[0].function.parameters",
    ),
]


@dataclass
class Choice:
    """What came of one choice; `logprobs` has each token's bytes, its log-probability, and those of the likeliest."""

    text: str = ""
    reason: str | None = None
    calls: list[list[str]] = field(default_factory=list)
    logprobs: list[tuple[bytes, float, list[tuple[bytes, float]]]] = field(default_factory=list)


Choices = dict[int, Choice]


def over_grpc(served: Served, asked: dict[str, Any]) -> tuple[Choices, int, int]:
    """The choices, input tokens and output tokens."""
    given, found, used = {"max_tokens": LIMIT, **asked}, Choices(), [0, 0]
    token_bytes = served.worker.tokenizer.token_bytes
    for event in served.client.generate(given.pop("prompt", None), **given):
        if event.HasField("chunk"):
            chunk, one = event.chunk, found.setdefault(event.chunk.choice, Choice())
            one.text += "" if chunk.deltas else chunk.text
            for delta in chunk.deltas:
                one.text += delta.text
                if delta.HasField("tool_call"):
                    one.calls.append([delta.tool_call.name, delta.tool_call.arguments])
            of_prompt = [pb.TokenLogprobs(), *chunk.prompt_logprobs] if asked.get("echo") and chunk.prompt_ids else []
            tokens, logprobs = [*chunk.prompt_ids, *chunk.token_ids], [*of_prompt, *chunk.logprobs]
            for token, told in zip(tokens, logprobs, strict=False):
                top = [(token_bytes(i), p) for i, p in zip(told.top_ids, told.top_logprobs, strict=True)]
                one.logprobs.append((token_bytes(token), told.logprob, top))
        elif event.HasField("finished"):
            ended, one = event.finished, found.setdefault(event.finished.choice, Choice())
            one.reason = "length" if ended.reason == pb.FINISH_REASON_LENGTH else "stop"
            if ended.tool_calls and one.reason == "stop":
                one.reason = "tool_calls"
            used = [ended.usage.input_tokens, used[1] + ended.usage.output_tokens]
    return found, used[0], used[1]


def over_http(client: OpenAI, asked: dict[str, Any], body: dict[str, Any], *, stream: bool) -> tuple[Choices, int, int]:
    shared: dict[str, Any] = {"model": "", "max_tokens": asked.get("max_tokens", LIMIT), "extra_body": body}
    if stream:
        shared |= {"stream": True, "stream_options": {"include_usage": True}}
    if "messages" in asked:
        messages: Any = [{"role": role, "content": content} for role, content in asked["messages"]]
        made: Any = client.chat.completions.create(messages=messages, **shared)
    else:
        made = client.completions.create(prompt=asked.get("prompt", asked.get("tokens")), **shared)
    found, pieces = Choices(), list(made) if stream else [made]
    for told in (told for piece in pieces for told in piece.choices):
        one = found.setdefault(told.index, Choice())
        one.reason = told.finish_reason or one.reason
        if "messages" not in asked:
            one.text += told.text
            if told.logprobs is not None:
                # Nothing comes before a prompt's first token.
                tops = [[(t.encode(), p) for t, p in (top or {}).items()] for top in told.logprobs.top_logprobs]
                tokens = map(str.encode, told.logprobs.tokens)
                one.logprobs += zip(tokens, [p or 0.0 for p in told.logprobs.token_logprobs], tops, strict=True)
            continue
        message = told.delta if stream else told.message
        one.text += message.content or ""
        for call in message.tool_calls or ():
            if call.function.name is not None:
                one.calls.append([call.function.name, ""])
            one.calls[-1][1] += call.function.arguments or ""
        for token in (told.logprobs and told.logprobs.content) or ():
            top = [(bytes(t.bytes), t.logprob) for t in token.top_logprobs]
            one.logprobs.append((bytes(token.bytes), token.logprob, top))
    usage = pieces[-1].usage
    return found, usage.prompt_tokens, usage.completion_tokens


def test_grpc_and_http_refusals_name_the_field_each_client_sent(served: Served, client: OpenAI) -> None:
    for asked, body, field_, called in REFUSED:
        with pytest.raises(CallError) as over_one:
            over_grpc(served, asked)
        with pytest.raises(BadRequestError) as over_other:
            over_http(client, asked, body, stream=False)
        assert (list(over_one.value.fields), over_other.value.param) == ([field_], called)
        said = over_one.value.details.removeprefix(field_)
        assert over_other.value.message.endswith(called + said)


def test_every_http_protocol_continues_the_last_assistant_message(served: Served, client: OpenAI) -> None:
    messages: Any = [{"role": role, "content": content} for role, content in BEGUN]
    ids = served.worker.tokenizer.render_chat(messages, continues=True)
    assert served.worker.tokenizer.decode(ids).endswith("<|assistant|>def add(a, b):")
    raw = client.completions.create(model="", prompt=ids, max_tokens=LIMIT)
    chat = client.chat.completions.create(
        model="", messages=messages, max_tokens=LIMIT, extra_body={"continue_final_message": True}
    )
    response = client.responses.create(
        model="", input=messages, max_output_tokens=LIMIT, extra_body={"continue_final_message": True}
    )
    with Anthropic(base_url=served.daemon.url.removesuffix("/v1"), api_key="none", max_retries=0) as anthropic:
        message = anthropic.messages.create(model="", messages=messages, max_tokens=LIMIT)
        counted = anthropic.messages.count_tokens(model="", messages=messages)
    assert chat.usage is not None
    assert response.usage is not None
    texts = (chat.choices[0].message.content, response.output_text, message.content[0].text)  # type: ignore[union-attr]
    assert texts == (raw.choices[0].text,) * 3
    inputs = (chat.usage.prompt_tokens, response.usage.input_tokens, message.usage.input_tokens, counted.input_tokens)
    assert inputs == (len(ids),) * 4


def scraped(served: Served) -> Counter[tuple[Any, ...]]:
    """Every counter of requests, tokens and drafts by its labels; times left out."""
    root = served.daemon.url.removesuffix("/v1")
    text = urllib.request.urlopen(f"{root}/metrics").read().decode()
    found: Counter[tuple[Any, ...]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            timed = ("seconds_total", "break_even_tokens_total", "unpriced_drafts_total")
            counted = sample.name.endswith(("_total", "_count")) and not sample.name.endswith(timed)
            if counted and sample.name.startswith(("draftd_spec", "draftd_tokens", "draftd_requests", "gen_ai")):
                # A label is empty where only others of its name have it.
                labels = {k: v for k, v in sample.labels.items() if v and k not in ("server_address", "server_port")}
                found[sample.name, *sorted(labels.items())] += int(sample.value)
    return found


def test_grpc_and_http_give_equal_answers_and_metric_counts(served: Served, client: OpenAI) -> None:
    answers: list[list[tuple[Choices, int, int]]] = []
    sums: list[Counter[tuple[Any, ...]]] = []
    for over in ("grpc", "http"):
        before = scraped(served)
        if over == "grpc":
            answers.append([over_grpc(served, asked) for asked, _ in QUESTIONS])
        else:
            questions = enumerate(QUESTIONS)
            answers.append([over_http(client, asked, body, stream=i % 2 == 1) for i, (asked, body) in questions])
        for asked, body, _, _ in REFUSED[:2]:
            with pytest.raises((CallError, BadRequestError)):
                over_grpc(served, asked) if over == "grpc" else over_http(client, asked, body, stream=True)
        until(lambda: served.daemon.service.open_requests == 0)
        after = scraped(served)
        after.subtract(before)
        sums.append(after)
    for (asked, _), one, other in zip(QUESTIONS, *answers, strict=True):
        assert one[1:] == other[1:], asked
        assert {i: alike(choice) for i, choice in one[0].items()} == {i: alike(c) for i, c in other[0].items()}, asked
        for index, choice in one[0].items():
            assert probabilities(choice) == pytest.approx(probabilities(other[0][index]), abs=1e-4), asked
    one, other = ({k: v for k, v in found.items() if v and "spec" not in k[0]} for found in sums)
    assert one == other
    output = [v for k, v in sums[1].items() if k[0] == "draftd_tokens_total" and ("gen_ai_token_type", "output") in k]
    assert sum(output) == sum(used for _, _, used in answers[1]) > 0
    found = [choice for choices, _, _ in answers[1] for choice in choices.values()]
    assert {choice.reason for choice in found} == {"stop", "length", "tool_calls"}


def alike(one: Choice) -> tuple[Any, ...]:
    return one.text, one.reason, one.calls, [(token, [t for t, _ in top]) for token, _, top in one.logprobs]


def probabilities(one: Choice) -> list[float]:
    return [p for _, chosen, top in one.logprobs for p in (chosen, *(likely for _, likely in top))]


async def test_fifty_concurrent_http_requests_are_all_answered(served: Served) -> None:
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


async def test_http_client_that_leaves_frees_all_its_choice_sequences(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "Write a long story about a dog."}]
    async with AsyncOpenAI(base_url=served.daemon.url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="", messages=messages, max_tokens=900, n=2, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await asyncio.to_thread(until, lambda: served.worker.status().active == 2)
        await stream.close()
        await asyncio.to_thread(until, lambda: served.worker.status().active == 0)


def test_http_answer_has_speculation_metrics_only_on_request(served: Served, client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
    plain = client.chat.completions.create(model="", messages=messages, max_tokens=32)
    assert "metrics" not in (plain.model_extra or {})
    assert plain.usage is not None
    details = plain.usage.completion_tokens_details
    assert details is None or details.accepted_prediction_tokens is None
    before = scraped(served)
    done = client.chat.completions.create(
        model="", messages=messages, max_tokens=32, extra_body={"include_metrics": True}
    )
    counted = scraped(served)
    counted.subtract(before)
    found = (done.model_extra or {})["metrics"]["speculative_decoding"]
    accepted, drafted = found["accepted_per_position"], found["drafted_per_position"]
    assert (sum(accepted), sum(drafted)) == (found["num_accepted_draft_tokens"], found["num_draft_tokens"])
    histogram = found["acceptance_histogram"]
    assert sum(histogram) == found["num_spec_steps"]
    assert sum(j * steps for j, steps in enumerate(histogram)) == found["num_accepted_draft_tokens"] > 0
    totals = Counter[str]()
    for (name, *_), value in counted.items():
        totals[name] += value
    assert totals["draftd_spec_decode_draft_tokens_total"] == found["num_draft_tokens"]
    assert totals["draftd_spec_decode_accepted_tokens_total"] == found["num_accepted_draft_tokens"]


def test_http_requires_the_client_certificate_and_token(tmp_path: Path, nano_pair: NanoPair) -> None:
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
