"""A message's fields as the service's request, and what has no meaning there."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from draftd.core import (
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DepthMode,
    FallbackLevel,
    FinishReason,
    ModePreference,
    SamplingParams,
    TokenLogprobs,
    WorkloadClass,
)
from draftd.errors import InvalidRequest
from draftd.fronts.grpc.control import LEVELS, hold_seconds
from draftd.fronts.grpc.inference import message_of, request_of
from draftd.fronts.http.answer import metrics
from draftd.fronts.http.body import DraftdFields
from draftd.model_info import ModelInfo
from draftd.outcome import Emission, Outcome, RequestStats
from draftd.planning.planner import RequestedPlan
from draftd.planning.prices import AnswerPrice
from draftd.protocol import DEPTH_MODES, WORKLOADS, member, sampling_message, sampling_of
from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode
from draftd.service.request import ChoiceFinished, Chunk, RawText, Request, RequestStarted, TokenIds
from draftd.strategies import QualityClass, RemoteCounts, RemoteLevel, Strategy, Verifier
from draftd.v1 import inference_pb2 as pb


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"prompt": "hello"} | fields))


def test_grpc_request_with_only_a_prompt_parses_to_request_defaults() -> None:
    assert request_of(request()) == Request(RawText("hello"))


def test_every_set_grpc_field_reaches_the_service_request() -> None:
    sampling = pb.SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.05, seed=2**64 - 1)
    sampling.logit_bias.update({9: -0.3, 4: 100})
    sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty = 1.1, -0.7, 0.2
    parsed = request_of(
        request(
            max_tokens=7,
            sampling=sampling,
            stop=["a", "b", "a"],
            mode=pb.DECODE_MODE_SPECULATIVE,
            max_draft_tokens=3,
            drafter=PROMPT_LOOKUP,
            depth_mode=pb.DEPTH_MODE_FIXED,
            workload=pb.WORKLOAD_CLASS_CODE,
            caller="me",
            logprobs=0,
            prompt_logprobs=0,
            min_tokens=3,
            ignore_eos=True,
            stop_token_ids=[8, 2],
            include_stop=True,
            special_tokens=True,
            n=4,
            echo=True,
            priority=-5,
        ),
        deadline=4.5,
    )
    assert parsed == Request(
        RawText("hello"),
        7,
        SamplingParams(0.8, 0.9, 40, 0.05, 2**64 - 1, ((4, 100.0), (9, -0.3)), 1.1, -0.7, 0.2),
        ("a", "b", "a"),
        RequestedPlan(ModePreference.SPECULATIVE, 3, PROMPT_LOOKUP, DepthMode.FIXED),
        WorkloadClass.CODE,
        "me",
        4.5,
        logprobs=0,
        prompt_logprobs=0,
        min_tokens=3,
        ignore_eos=True,
        stop_token_ids=(8, 2),
        include_stop=True,
        special_tokens=True,
        n=4,
        echo=True,
        priority=-5,
    )


def test_grpc_answer_carries_choice_index_logprobs_and_stop_token_id() -> None:
    logprobs = (TokenLogprobs(-0.25, ((7, -0.25), (9, -2.0))), TokenLogprobs(-3.0))
    chunk = message_of(Chunk(Emission((7, 8), (True, False), logprobs), ("a", "b"), choice=2)).chunk
    assert chunk.choice == 2
    assert [(one.logprob, dict(zip(one.top_ids, one.top_logprobs, strict=True))) for one in chunk.logprobs] == [
        (-0.25, {7: -0.25, 9: -2.0}),
        (-3.0, {}),
    ]
    of_prompt = Emission((), (), prompt=(TokenLogprobs(-0.5, (), 3),))
    chunk = message_of(Chunk(of_prompt, (), "ab", prompt=(4, 5), offsets=(0, 1))).chunk
    assert (chunk.text, list(chunk.prompt_ids), list(chunk.token_ids)) == ("ab", [4, 5], [])
    assert [(one.logprob, one.rank) for one in chunk.prompt_logprobs] == [(-0.5, 3)]
    plan = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test")
    end = Outcome(FinishReason.STOP, RequestStats(prompt_tokens=1, arrival=0.0))
    for stop_id in (0, None):
        finished = message_of(ChoiceFinished(end, plan, "", choice=2, stop_token_id=stop_id)).finished
        assert finished.choice == 2
        assert (finished.stop_token_id if finished.HasField("stop_token_id") else None) == stop_id


def test_answers_carry_strategy_quality_cost_and_remote_statistics() -> None:
    routed = request(strategy=pb.STRATEGY_AUTO, quality=pb.QUALITY_CLASS_DRAFT, max_seconds=2, max_cost=0.5)
    wish = request_of(routed).wish
    assert (wish.strategy, wish.quality, wish.max_seconds, wish.max_cost) == (Strategy.AUTO, QualityClass.DRAFT, 2, 0.5)
    assert message_of(Chunk(Emission((7,), (True,), (), Verifier.REMOTE), ("a",))).chunk.verifier == pb.VERIFIER_REMOTE
    plan = DecodePlan(
        DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test", strategy=Strategy.SPECULATIVE
    )
    started = message_of(
        RequestStarted("r", ModelInfo("m", None, 9, 9, (), 0, 0, "cpu"), 1, plan, QualityClass.PROFESSIONAL)
    )
    assert started.started.plan.strategy == pb.STRATEGY_SPECULATIVE
    assert started.started.plan.quality == pb.QUALITY_CLASS_PROFESSIONAL
    stats = RequestStats(prompt_tokens=1, arrival=0.0)
    stats.remote = RemoteCounts(steps=3, proposed=9, verdicts=2, tokens=5, wasted=1, hidden=1, round_trips=2)
    stats.remote.round_trip_seconds, stats.remote.target_seconds = 0.5, 0.75
    end = Outcome(FinishReason.STOP, stats, failed_over="gone")
    price = AnswerPrice({Verifier.LOCAL: 0.25, Verifier.REMOTE: 0.5}, "$", QualityClass.STANDARD)
    finished = message_of(ChoiceFinished(end, plan, "", price=price)).finished
    assert (finished.cost, finished.currency, finished.quality) == (0.75, "$", pb.QUALITY_CLASS_STANDARD)
    assert (finished.failed_over, finished.remote.proposed_tokens, finished.remote.hidden_round_trips) == ("gone", 9, 1)
    assert (finished.remote.round_trip.ToMilliseconds(), finished.remote.target_time.ToMilliseconds()) == (250, 750)
    assert not message_of(ChoiceFinished(end, plan, "")).finished.HasField("cost")
    over_http = metrics([ChoiceFinished(end, plan, "", price=price), ChoiceFinished(end, plan, "", 1, price=price)])[
        "draftd"
    ]
    assert (over_http["strategy"], over_http["quality"], over_http["cost"]) == ("speculative", "standard", 1.5)
    assert (over_http["failed_over"], over_http["remote"]["proposed"]) == ("gone", 18)
    assert DraftdFields(strategy="auto", quality="draft", max_seconds=2.0, max_cost=0.5).wish() == wish
    for field, value in (("strategy", "fast"), ("quality", "good")):
        with pytest.raises(InvalidRequest, match=f"draftd.{field}: got '{value}'"):
            DraftdFields(**{field: value}).wish()


def test_explicit_zero_grpc_fields_are_not_taken_for_unset() -> None:
    sampling = pb.SamplingParams(temperature=0, top_p=0, top_k=0, min_p=0, seed=0)
    parsed = request_of(request(max_tokens=0, max_draft_tokens=0, sampling=sampling))
    assert (parsed.max_tokens, parsed.wish.max_draft_tokens) == (0, 0)
    assert parsed.sampling == SamplingParams(0.0, 0.0, 0, 0.0, 0)


def test_sampling_values_too_small_for_float32_stay_nonzero_on_the_wire() -> None:
    """A tiny value above 0 stays above 0, since 0 would be refused; greedy requests need no seed."""
    for name in ("top_p", "repetition_penalty"):
        assert 0 < getattr(sampling_of(sampling_message(SamplingParams(**{name: 1e-46}))), name) < 1e-37
        assert getattr(sampling_of(sampling_message(SamplingParams(**{name: 0.0}))), name) == 0
    for temperature in (1e-46, 9.999999999e-10):
        assert sampling_of(sampling_message(SamplingParams(temperature))).greedy
    assert sampling_of(sampling_message(SamplingParams(-1.0))).temperature == -1.0


def test_grpc_chat_and_token_inputs_become_the_request_prompt() -> None:
    messages = [pb.ChatMessage(role="system"), pb.ChatMessage(role="user", content="hi")]
    chat = request_of(pb.GenerateRequest(chat=pb.ChatInput(messages=messages)))
    assert chat.prompt == Chat((Message("system", ""), Message("user", "hi")))
    assert request_of(pb.GenerateRequest(tokens=pb.TokenInput(ids=[0, 49]))).prompt == TokenIds((0, 49))


def test_grpc_chat_input_keeps_tools_calls_parts_and_tool_choice() -> None:
    call = pb.ToolCall(id="c1", name="clock", arguments="{}")
    messages = [
        pb.ChatMessage(role="user", content="a", parts=[pb.ContentPart(text="b"), pb.ContentPart(text="c")]),
        pb.ChatMessage(role="assistant", tool_calls=[call], reasoning="hm"),
        pb.ChatMessage(role="tool", content="noon", tool_call_id="c1", name="clock"),
    ]
    chat_input = pb.ChatInput(
        messages=messages,
        tools=[pb.Tool(name="clock", description="The time.", parameters="{}")],
        tool_choice=pb.ToolChoice(name="clock"),
        parallel_tool_calls=False,
        template_arguments='{"enable_thinking": false}',
        continue_final_message=True,
    )
    assert request_of(pb.GenerateRequest(chat=chat_input)).prompt == Chat(
        (
            Message("user", "abc"),
            Message("assistant", "", (ToolCall("c1", "clock", "{}"),), reasoning="hm"),
            Message("tool", "noon", (), "c1", "clock"),
        ),
        (Tool("clock", "The time.", "{}"),),
        "clock",
        False,
        {"enable_thinking": False},
        continues=True,
    )
    for number, mode in zip(pb.ToolChoice.Mode.values(), ("auto", "none", "auto", "required"), strict=True):
        chosen = request_of(pb.GenerateRequest(chat=pb.ChatInput(tool_choice=pb.ToolChoice(mode=number)))).prompt
        assert isinstance(chosen, Chat)
        assert chosen.tool_choice is ToolMode(mode)


def chatting(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatInput(**fields))


@pytest.mark.parametrize(
    ("given", "field", "allowed"),
    [
        (chatting(messages=[pb.ChatMessage(parts=[pb.ContentPart()])]), "chat.messages[0].parts[0]", "text"),
        (chatting(tool_choice=pb.ToolChoice(mode=9)), "chat.tool_choice.mode", "MODE_REQUIRED"),
        (chatting(template_arguments="{"), "chat.template_arguments", "a JSON object"),
        (pb.GenerateRequest(), "input", "one of prompt, chat, tokens"),
        (request(mode=77), "mode", "DECODE_MODE_AUTO"),
        (request(depth_mode=9), "depth_mode", "DEPTH_MODE_FIXED"),
        (request(workload=-1), "workload", "WORKLOAD_CLASS_CODE"),
        (request(mode=77, workload=-1), "mode", "DECODE_MODE_AUTO"),
    ],
)
def test_invalid_grpc_field_is_recorded_as_the_request_problem(
    given: pb.GenerateRequest, field: str, allowed: str
) -> None:
    problem = request_of(given).problem
    assert problem is not None
    assert problem.field == field
    assert allowed in problem.allowed


def test_grpc_request_accepts_any_drafter_label_and_every_depth_mode() -> None:
    assert request_of(request(drafter="eagle")).wish.drafter == "eagle"  # the service knows the labels
    for number, mode in DEPTH_MODES.items():
        assert request_of(request(depth_mode=number)).wish.depth_mode is mode
    assert set(DEPTH_MODES) == set(pb.DepthMode.values())
    assert set(DEPTH_MODES.values()) == {None, *DepthMode}


@given(st.binary(max_size=200))
def test_any_parseable_generate_message_converts_without_an_exception(data: bytes) -> None:
    message = pb.GenerateRequest()
    try:
        message.ParseFromString(data)
    except Exception:
        return
    request_of(message)


@given(st.floats(0, 100, width=32))
def test_float32_temperature_arrives_with_the_value_sent(value: float) -> None:
    sampling = request_of(request(sampling=pb.SamplingParams(temperature=value))).sampling
    assert sampling.temperature == pytest.approx(value, rel=1e-6)


def test_unknown_workload_number_is_refused() -> None:
    names = pb.WorkloadClass.keys()
    assert member(WORKLOADS, pb.WORKLOAD_CLASS_CODE, "workload", names) is WorkloadClass.CODE
    assert set(WORKLOADS.values()) == set(WorkloadClass)
    with pytest.raises(InvalidRequest, match="workload: got 9"):
        member(WORKLOADS, 9, "workload", names)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["", "FULL", "short block", "short_block 3", "off", "LEVEL_FULL", "3"])
def test_unknown_ladder_level_name_is_refused_with_the_allowed_names(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        member(LEVELS, name, "level", LEVELS)
    allowed = "full, short_block, light_draft, autoregressive, speculative, streaming, local"
    assert refused.value.message == f"level: got {name!r}; allowed: {allowed}"
    assert list(LEVELS.values()) == [*sorted(FallbackLevel, reverse=True), *sorted(RemoteLevel, reverse=True)]
    assert len(LEVELS) == len(FallbackLevel) + len(RemoteLevel), "no label names two"


@pytest.mark.parametrize(
    "given",
    [Duration(), Duration(seconds=-1), Duration(seconds=1, nanos=-1_000_000_001), Duration(seconds=2_592_000, nanos=1),
     Duration(seconds=2**63 - 1), Duration(seconds=-(2**63)), Duration(nanos=-1)],
)  # fmt: skip
def test_hold_duration_not_above_zero_or_over_thirty_days_is_refused(given: Duration) -> None:
    with pytest.raises(InvalidRequest) as refused:
        hold_seconds(given)
    assert refused.value.field == "expires_in"
    assert "at most 2592000 s" in refused.value.message


def test_hold_duration_may_be_a_millisecond_to_thirty_days() -> None:
    assert hold_seconds(Duration(nanos=1_000_000)) == 0.001
    assert hold_seconds(Duration(seconds=2_592_000)) == 2_592_000
