"""Every field of a request: what is allowed passes unchanged, what is not is named."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.core import (
    BUILT_IN_DRAFTERS,
    PROMPT_LOOKUP,
    DepthMode,
    ModelInfo,
    ModePreference,
    SamplingParams,
    WorkloadClass,
)
from draftd.errors import InvalidRequest
from draftd.fronts.grpc import reply
from draftd.fronts.grpc.convert import Chat, Limits, RawText, TokenIds, check_length, parse
from draftd.planning.plan import Wish
from draftd.protocol import DEPTH_MODES
from draftd.v1 import inference_pb2 as pb

LIMITS = Limits(context_length=100, vocab_size=50, default_max_tokens=32, chat_template=True)


def request(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"prompt": "hello"} | fields))


def sampled(**fields: Any) -> pb.GenerateRequest:
    return request(sampling=pb.SamplingParams(**fields))


def chat(*messages: tuple[str, str]) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatInput(messages=[pb.ChatMessage(role=r, content=c) for r, c in messages]))


def tokens(*ids: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(tokens=pb.TokenInput(ids=ids))


def test_a_bare_prompt_gets_the_defaults() -> None:
    parsed = parse(request(), LIMITS)
    assert parsed.prompt == RawText("hello")
    assert parsed.max_tokens == 32
    assert parsed.sampling == SamplingParams()
    assert parsed.wish == Wish()
    assert (parsed.stop, parsed.workload, parsed.caller) == ((), WorkloadClass.UNSPECIFIED, "")


def test_everything_that_is_set_arrives() -> None:
    parsed = parse(
        request(
            max_tokens=7,
            sampling=pb.SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.05, seed=2**64 - 1),
            stop=["a", "b", "a"],
            mode=pb.DECODE_MODE_SPECULATIVE,
            max_draft_tokens=3,
            drafter=PROMPT_LOOKUP,
            workload=pb.WORKLOAD_CLASS_CODE,
            caller="me",
        ),
        LIMITS,
    )
    assert parsed.sampling == SamplingParams(0.8, 0.9, 40, 0.05, 2**64 - 1)
    assert parsed.wish == Wish(ModePreference.SPECULATIVE, 3, PROMPT_LOOKUP)
    assert (parsed.max_tokens, parsed.stop, parsed.caller) == (7, ("a", "b"), "me")
    assert parsed.workload is WorkloadClass.CODE


def test_the_three_kinds_of_input() -> None:
    assert parse(chat(("system", ""), ("user", "hi")), LIMITS).prompt == Chat((("system", ""), ("user", "hi")))
    assert parse(tokens(0, 49), LIMITS).prompt == TokenIds((0, 49))


def test_a_default_longer_than_the_context_is_the_context() -> None:
    assert parse(request(), Limits(16, 50, 256, True)).max_tokens == 16


BAD = [
    (pb.GenerateRequest(), "input", "one of prompt, chat, tokens"),
    (request(prompt=""), "prompt", "not empty"),
    (chat(), "chat.messages", "at least one"),
    (chat(("user", ""), ("assistant", "")), "chat.messages", "with content"),
    (chat(("user", "x"), ("robot", "y")), "chat.messages[1].role", "system, user, assistant, tool"),
    (chat(("", "x")), "chat.messages[0].role", "system"),
    (tokens(), "tokens.ids", "at least one"),
    (tokens(1, 2, 50), "tokens.ids[2]", "0 to 49"),
    (tokens(2**32 - 1), "tokens.ids[0]", "0 to 49"),
    (request(max_tokens=0), "max_tokens", "1 to 100"),
    (request(max_tokens=-1), "max_tokens", "1 to 100"),
    (request(max_tokens=101), "max_tokens", "1 to 100"),
    (request(max_tokens=2**31 - 1), "max_tokens", "1 to 100"),
    (sampled(temperature=-0.1), "sampling.temperature", "0 to 100"),
    (sampled(temperature=math.nan), "sampling.temperature", "0 to 100"),
    (sampled(temperature=math.inf), "sampling.temperature", "0 to 100"),
    (sampled(temperature=100.1), "sampling.temperature", "0 to 100"),
    (sampled(top_p=0.0), "sampling.top_p", "above 0"),
    (sampled(top_p=1.1), "sampling.top_p", "up to 1"),
    (sampled(top_p=math.nan), "sampling.top_p", "above 0"),
    (sampled(top_k=-1), "sampling.top_k", "0 or more"),
    (sampled(min_p=-0.5), "sampling.min_p", "0 to 1"),
    (sampled(min_p=math.nan), "sampling.min_p", "0 to 1"),
    (request(stop=["x"] * 17), "stop", "at most 16"),
    (request(stop=["x", ""]), "stop[1]", "not empty"),
    (request(stop=["é" * 129]), "stop[0]", "256 bytes"),
    (request(mode=77), "mode", "DECODE_MODE_AUTO"),
    (request(drafter="eagle"), "drafter", "draft_model, light_draft_model, prompt_lookup"),
    (request(workload=-1), "workload", "WORKLOAD_CLASS_CODE"),
    (request(max_draft_tokens=-1), "max_draft_tokens", "0 or more"),
    (request(max_draft_tokens=0, mode=pb.DECODE_MODE_SPECULATIVE), "max_draft_tokens", "1 or more"),
    (request(caller="x" * 129), "caller", "128 bytes"),
]


@pytest.mark.parametrize(("bad", "field", "allowed"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_wrong_is_named_with_what_is_allowed(bad: pb.GenerateRequest, field: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(bad, LIMITS)
    assert caught.value.field == field
    assert allowed in caught.value.allowed
    assert len(caught.value.message) < 400


def test_a_model_without_a_template_takes_no_chat() -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        parse(chat(("user", "x")), Limits(100, 50, 32, chat_template=False))


@pytest.mark.parametrize("n", [0, 100, 5000])
def test_a_prompt_leaves_room_for_one_token(n: int) -> None:
    check_length(range(99), RawText(""), LIMITS)
    with pytest.raises(InvalidRequest, match="1 to 99 tokens"):
        check_length(range(n), RawText(""), LIMITS)


@given(st.binary(max_size=200))
def test_whatever_parses_is_accepted_or_refused_by_name(data: bytes) -> None:
    message = pb.GenerateRequest()
    try:
        message.ParseFromString(data)
    except Exception:
        return
    with contextlib.suppress(InvalidRequest):
        parse(message, LIMITS)


@given(st.floats(0, 100, width=32))
def test_a_float32_arrives_as_it_was_written(value: float) -> None:
    assert parse(sampled(temperature=value), LIMITS).sampling.temperature == pytest.approx(value, rel=1e-6)


def test_every_drafter_can_be_asked_for_and_told() -> None:
    for name in BUILT_IN_DRAFTERS:
        assert parse(pb.GenerateRequest(prompt="x", drafter=name), LIMITS).wish.drafter == name
    info = ModelInfo("m", "d", 100, 50, BUILT_IN_DRAFTERS, "", 9, 3, "cpu", light_draft_model="l")
    told = reply.model(
        info, default_max_tokens=1, max_draft_tokens=1, depth_mode=DepthMode.AUTOMATIC, chat_template=False
    )
    assert tuple(told.drafters) == BUILT_IN_DRAFTERS
    assert (told.light_draft_model, told.light_draft_reason) == ("l", "")


def test_every_way_to_choose_depth_can_be_asked_for_and_told() -> None:
    assert {mode for mode in DEPTH_MODES.values() if mode is not None} == set(DepthMode)
    assert set(DEPTH_MODES) == set(pb.DepthMode.values())
    info = ModelInfo("m", "d", 100, 50, BUILT_IN_DRAFTERS, "", 9, 3, "cpu")
    for number, mode in DEPTH_MODES.items():
        assert parse(pb.GenerateRequest(prompt="x", depth_mode=number), LIMITS).wish.depth_mode is mode
        if mode is not None:
            told = reply.model(info, default_max_tokens=1, max_draft_tokens=1, depth_mode=mode, chat_template=False)
            assert told.depth_mode == number
    with pytest.raises(InvalidRequest, match="depth_mode: got 9"):
        parse(pb.GenerateRequest(prompt="x", depth_mode=9), LIMITS)  # type: ignore[arg-type]
