"""What an answer must be, asked for over gRPC."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftd.canaries.prompts import FrozenPrompts
from draftd.client.client import CallError
from draftd.engine.pair import LoadedModels, load_models
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance import quality
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.session import Session
from draftd_acceptance.ticks import Stage
from tests.conftest import NanoPair
from tests.in_process_daemon import Answer, Served, collect, serving
from tests.synthetic_run import manifest

SCHEMA = {
    "type": "object",
    "properties": {"to": {"enum": ["Venice", "Oslo"]}, "seats": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["to", "seats"],
    "additionalProperties": False,
}


TOOLS = [
    pb.Tool(name="book", description="Books a flight.", parameters=json.dumps(SCHEMA)),
    pb.Tool(name="wait"),
]
_TEMPLATE = (
    "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}<|assistant|>"
)


def with_tools(pair: NanoPair, folder: Path) -> Callable[[], LoadedModels]:
    """The embedded draft, with a draft that is the same, and a chat template that takes tools; calls are as Qwen writes
    them. A tenth of the cost of the pair, and the same vocabulary."""
    shutil.copytree(pair.draft, folder / "target")
    told = json.loads((folder / "target" / "tokenizer_config.json").read_text())
    told |= {"chat_template": _TEMPLATE, "tool_parser_type": "json_tools"}
    (folder / "target" / "tokenizer_config.json").write_text(json.dumps(told))
    return lambda: load_models(str(folder / "target"), pair.draft, progress=lambda line: None)


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("formats")
    with serving(folder, with_tools(nano_pair, folder)) as served:
        yield served


def ask(served: Served, response_format: pb.ResponseFormat | None = None, **fields: Any) -> Answer:
    chat = {name: fields.pop(name) for name in ("tools", "tool_choice", "parallel_tool_calls") if name in fields}
    request = pb.GenerateRequest(max_tokens=96, response_format=response_format, chat=pb.ChatInput(**chat), **fields)
    request.chat.messages.add(role="user", content="Book a flight to Oslo.")
    return collect(served.client.generate_raw(request, timeout=60))


@pytest.mark.parametrize("mode", [pb.DECODE_MODE_AUTOREGRESSIVE, pb.DECODE_MODE_SPECULATIVE])
def test_grpc_answers_satisfy_their_schema_regex_choice_or_grammar(served: Served, mode: pb.DecodeMode) -> None:
    found = ask(served, pb.ResponseFormat(json_schema=json.dumps(SCHEMA)), mode=mode)
    assert found.finished.reason == pb.FINISH_REASON_STOP
    told = json.loads(found.text)
    assert told["to"] in ("Venice", "Oslo")
    assert 1 <= told["seats"] <= 9
    assert re.fullmatch("[A-F]{3}-[0-9]", ask(served, pb.ResponseFormat(regex="[A-F]{3}-[0-9]"), mode=mode).text)
    choices = pb.Choices(texts=["a flight", 'the "night" train'])
    assert ask(served, pb.ResponseFormat(choices=choices), mode=mode).text in choices.texts
    lark = 'start: "go " ("north" | "south")'
    assert ask(served, pb.ResponseFormat(grammar=lark), mode=mode).text in ("go north", "go south")
    gbnf = 'root ::= ("yes" | "no") "!"'
    assert ask(served, pb.ResponseFormat(grammar=gbnf), mode=mode).text in ("yes!", "no!")


def test_grammar_drafter_can_be_requested_and_gets_tokens_accepted(served: Served) -> None:
    found = ask(served, pb.ResponseFormat(json_schema=json.dumps(SCHEMA)), drafter="grammar")
    assert found.started.plan.drafter == "grammar"
    assert found.finished.counts.accepted_tokens > 0
    assert found.finished.counts.draft_forwards == 0


def calls_of(answer: Answer) -> list[pb.ToolCall]:
    return [delta.tool_call for chunk in answer.chunks for delta in chunk.deltas if delta.HasField("tool_call")]


def test_demanded_tool_call_satisfies_its_parameter_schema(served: Served) -> None:
    named = ask(served, tools=TOOLS, tool_choice=pb.ToolChoice(name="wait"))
    assert [(call.name, call.arguments) for call in calls_of(named)] == [("wait", "{}")]
    assert named.finished.tool_calls
    for sampling in (pb.SamplingParams(), pb.SamplingParams(temperature=1.5, seed=4)):
        any_of_them = ask(
            served,
            tools=TOOLS,
            tool_choice=pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED),
            parallel_tool_calls=False,
            sampling=sampling,
        )
        (call,) = calls_of(any_of_them)
        told = json.loads(call.arguments)
        assert told == {} if call.name == "wait" else told["to"] in ("Venice", "Oslo") and 1 <= told["seats"] <= 9
        assert not any_of_them.text
        assert not any_of_them.finished.warning


def test_demanded_tool_call_with_too_large_parameters_is_refused(served: Served) -> None:
    large = pb.Tool(name="large", parameters=json.dumps({"type": "object", "description": "x" * 300_000}))
    with pytest.raises(CallError) as refused:
        ask(served, tools=[large], tool_choice=pb.ToolChoice(name="large"))
    assert list(refused.value.fields) == ["chat.tool_choice"]


def test_answer_with_tools_and_a_format_is_a_tool_call_or_in_the_format(served: Served) -> None:
    found = ask(served, pb.ResponseFormat(choices=pb.Choices(texts=["none"])), tools=TOOLS)
    assert found.text == "none" or calls_of(found)


def test_quality_run_gets_schema_valid_json_from_constrained_answers(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = [one for one in FrozenPrompts.of_package().canaries if one.id in ("json-paint", "tool-set_timer")]
    ids = [one.id for one in canaries]
    asked = tuple(one for one in quality.quality_prompts() if one.name in ids and one.group == quality.SCHEMAS)
    monkeypatch.setattr(quality, "quality_prompts", lambda schemas: asked)
    folder = RunFolder.create(tmp_path / "run")
    session = Session(served.client, folder, folder.begin_session(manifest()))
    options = quality.QualityOptions(block_length=3, temperature=2.0, repeats=1)  # type: ignore[attr-defined]
    quality.run_quality(session, options, served.client.model(), lambda advance: None)
    assert quality.quality_complete(folder)
    result = quality.quality_result(folder, canaries)
    assert result is not None
    assert result.schemas is not None
    assert (result.schemas.answers, result.schemas.valid_share) == (8, 1.0)
    assert result.schemas.greedy.identical == 2
    drafted = [tick for tick in folder.ticks(Stage.QUALITY) if tick.place.group == quality.SCHEMAS and tick.granted]
    assert sum(tick.counts.accepted for tick in drafted if tick.place.arm == "k3") > 0


BAD = {
    "unsupported keyword": (pb.ResponseFormat(json_schema='{"not": {"type": "null"}}'), "json_schema", '"not"'),
    "no JSON": (pb.ResponseFormat(json_schema='{"type": '), "json_schema", "not JSON"),
    "no object": (pb.ResponseFormat(json_schema="[1]"), "json_schema", "must be an object"),
    "unknown type": (pb.ResponseFormat(json_schema='{"type": "text"}'), "json_schema", "text"),
    "nested too deeply": (pb.ResponseFormat(json_schema='{"a":' * 50_000), "json_schema", "deep"),
    "nothing satisfies it": (pb.ResponseFormat(json_schema='{"enum": []}'), "json_schema", "enum"),
    "bad expression": (pb.ResponseFormat(regex="(a"), "regex", "regex"),
    "unknown rule": (pb.ResponseFormat(grammar="start: nothing"), "grammar", "nothing"),
    "no choice": (pb.ResponseFormat(choices=pb.Choices()), "choices", "1 to 1024 texts"),
    "too large": (pb.ResponseFormat(regex="a" * 300_000), "regex", "262144 bytes"),
}


@pytest.mark.parametrize(("bad", "field", "said"), BAD.values(), ids=BAD)
def test_unenforceable_response_format_is_refused_naming_its_field(
    served: Served, bad: pb.ResponseFormat, field: str, said: str
) -> None:
    with pytest.raises(CallError) as refused:
        ask(served, bad)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refused.value.fields) == [f"response_format.{field}"]
    assert said in refused.value.details


def test_ignore_eos_and_min_tokens_are_refused_for_constrained_answers(served: Served) -> None:
    required = {"tools": TOOLS, "tool_choice": pb.ToolChoice(mode=pb.ToolChoice.MODE_REQUIRED)}
    for constrained in ({"response_format": pb.ResponseFormat(json_object=True)}, required):
        for fields in ({"ignore_eos": True}, {"min_tokens": 4}):
            with pytest.raises(CallError) as refused:
                ask(served, **constrained, **fields)
            assert list(refused.value.fields) == list(fields)
