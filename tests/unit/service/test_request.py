"""Every field of a request: allowed values pass unchanged, others are named."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.core import DepthMode, ModePreference, SamplingParams
from draftd.errors import InvalidRequest
from draftd.model_info import ModelInfo
from draftd.planning.planner import RequestedPlan
from draftd.service.messages import Chat, Message, Tool
from draftd.service.request import (
    RawText,
    Request,
    ServedModel,
    TokenIds,
    check_length,
    default_max_tokens,
    validate_request,
)


def served(context_length: int, vocab_size: int, default_max_tokens: int, *, chat_template: bool = True) -> ServedModel:
    info = ModelInfo("m", None, context_length, vocab_size, (), 0, 0, "cpu")
    return ServedModel(info, default_max_tokens, 4, DepthMode.FIXED, chat_template)


MODEL = served(100, 50, 32)


def request(**fields: Any) -> Request:
    return Request(**({"prompt": RawText("hello")} | fields))


def sampled(**fields: Any) -> Request:
    return request(sampling=SamplingParams(**fields))


def chat(*messages: tuple[str, str]) -> Request:
    return Request(Chat(tuple(Message(*message) for message in messages)))


def test_valid_request_passes_the_check_unchanged() -> None:
    full = request(
        max_tokens=7,
        sampling=SamplingParams(0.8, 0.9, 40, 0.05, 2**64 - 1, ((0, -100.0), (49, 100.0)), 10.0, -2.0, 2.0),
        stop=("a", "b"),
        wish=RequestedPlan(ModePreference.SPECULATIVE, 3),
        caller="me",
        deadline=5.0,
        logprobs=20,
        prompt_logprobs=0,
        min_tokens=7,
        ignore_eos=True,
        stop_token_ids=(0, 49),
        include_stop=True,
        n=8,
        echo=True,
        priority=-100,
    )
    passed = validate_request(full, MODEL)
    assert replace(passed, wish=full.wish) == full
    assert (passed.wish.local_only[:15], passed.wish.token_ids_only[:8]) == ("prompt_logprobs", "logprobs")
    for prompt in (Chat((Message("system", ""), Message("user", "hi"))), TokenIds((0, 49))):
        assert validate_request(Request(prompt, max_tokens=1), MODEL).prompt == prompt


def test_missing_request_fields_get_their_default_values() -> None:
    valid = validate_request(request(stop=("a", "b", "", "a")), MODEL)
    assert (valid.max_tokens, valid.stop) == (32, ("a", "b"))
    assert validate_request(request(), served(16, 50, 256)).max_tokens == 16
    assert validate_request(request(max_tokens=2**31 - 1), MODEL).max_tokens == 100
    assert [
        validate_request(request(max_tokens=0, **told), MODEL).max_tokens for told in (ECHO, {"prompt_logprobs": 0})
    ] == [
        0,
        0,
    ]
    negative = validate_request(sampled(temperature=-0.0, min_p=-0.0), MODEL).sampling
    assert math.copysign(1, negative.temperature) == math.copysign(1, negative.min_p) == 1


def test_default_max_tokens_fits_the_context_after_the_prompt() -> None:
    tight = replace(MODEL, info=replace(MODEL.info, largest_context=60))
    assert [default_max_tokens(prompt, MODEL) for prompt in (10, 90)] == [32, 10]
    assert [default_max_tokens(prompt, tight) for prompt in (10, 40, 70)] == [32, 20, 1]


ECHO = {"echo": True}
BAD = [
    (request(prompt=RawText("")), "prompt", "not empty"),
    (chat(), "chat.messages", "at least one"),
    (chat(("user", ""), ("assistant", "")), "chat.messages", "with content"),
    (chat(("user", "x"), ("robot", "y")), "chat.messages[1].role", "system, developer, user, assistant, tool"),
    (chat(("", "x")), "chat.messages[0].role", "system"),
    (Request(TokenIds(())), "tokens.ids", "at least one"),
    (Request(TokenIds((1, 2, 50))), "tokens.ids[2]", "0 to 49"),
    (Request(TokenIds((2**32 - 1,))), "tokens.ids[0]", "0 to 49"),
    (request(max_tokens=0), "max_tokens", "1 or more"),
    (request(max_tokens=0, logprobs=1), "max_tokens", "0 only with echo or prompt_logprobs"),
    (request(max_tokens=0, echo=True, min_tokens=1), "min_tokens", "0 to 0"),
    (request(max_tokens=-1), "max_tokens", "1 or more"),
    (sampled(temperature=-0.1), "sampling.temperature", "0 to 100"),
    (sampled(temperature=math.nan), "sampling.temperature", "0 to 100"),
    (sampled(temperature=math.inf), "sampling.temperature", "0 to 100"),
    (sampled(temperature=100.1), "sampling.temperature", "0 to 100"),
    (sampled(top_p=-0.1), "sampling.top_p", "0 to 1"),
    (sampled(top_p=1.1), "sampling.top_p", "0 to 1"),
    (sampled(top_p=math.nan), "sampling.top_p", "0 to 1"),
    (sampled(top_k=-1), "sampling.top_k", "0 or more"),
    (sampled(min_p=-0.5), "sampling.min_p", "0 to 1"),
    (sampled(min_p=2.0), "sampling.min_p", "0 to 1"),
    (sampled(min_p=math.nan), "sampling.min_p", "0 to 1"),
    (sampled(repetition_penalty=0.0), "sampling.repetition_penalty", "above 0, up to 10"),
    (sampled(repetition_penalty=math.nan), "sampling.repetition_penalty", "above 0, up to 10"),
    (sampled(presence_penalty=2.1), "sampling.presence_penalty", "-2 to 2"),
    (sampled(frequency_penalty=-math.inf), "sampling.frequency_penalty", "-2 to 2"),
    (sampled(logit_bias=((50, 1.0),)), "sampling.logit_bias", "0 to 49"),
    (sampled(logit_bias=((7, 100.5),)), "sampling.logit_bias[7]", "-100 to 100"),
    (sampled(logit_bias=((7, math.nan),)), "sampling.logit_bias[7]", "-100 to 100"),
    (sampled(logit_bias=((7, 1.0),) * 1025), "sampling.logit_bias", "at most 1024"),
    (request(logprobs=21), "logprobs", "0 to 20"),
    (request(logprobs=-1), "logprobs", "0 to 20"),
    (request(prompt_logprobs=21), "prompt_logprobs", "0 to 20"),
    (request(prompt_logprobs=-1), "prompt_logprobs", "0 to 20"),
    (request(min_tokens=8, max_tokens=7), "min_tokens", "0 to 7"),
    (request(min_tokens=-1), "min_tokens", "0 to 32"),
    (request(stop_token_ids=(1, 50)), "stop_token_ids[1]", "0 to 49"),
    (request(stop_token_ids=(1,) * 65), "stop_token_ids", "at most 64"),
    (request(n=0), "n", "1 to 8"),
    (request(n=9), "n", "1 to 8"),
    (request(priority=101), "priority", "-100 to 100"),
    (Request(Chat((Message("user", "hi"),)), echo=True), "echo", "raw text or token ids"),
    (request(stop=("x",) * 17), "stop", "at most 16"),
    (request(stop=("é" * 129,)), "stop[0]", "256 bytes"),
    (
        request(wish=RequestedPlan(drafter="eagle")),
        "drafter",
        "draft_model, draft_head, light_draft_model, prompt_lookup",
    ),
    (request(wish=RequestedPlan(max_draft_tokens=-1)), "max_draft_tokens", "0 or more"),
    (request(wish=RequestedPlan(ModePreference.SPECULATIVE, 0)), "max_draft_tokens", "1 or more"),
    (request(caller="x" * 129), "caller", "128 bytes"),
    (request(problem=InvalidRequest("mode", 77, "any"), max_tokens=0), "mode", "any"),
]


@pytest.mark.parametrize(("bad", "field", "allowed"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_invalid_request_field_is_refused_with_the_allowed_values(bad: Request, field: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate_request(bad, MODEL)
    assert caught.value.field == field
    assert allowed in caught.value.allowed
    assert len(caught.value.message) < 400


def test_chat_is_refused_for_a_model_without_a_chat_template() -> None:
    with pytest.raises(InvalidRequest, match="prompt or tokens: this model has no chat template"):
        validate_request(chat(("user", "x")), served(100, 50, 32, chat_template=False))


def test_tools_are_refused_if_template_lacks_them_and_generic_tools_setting_is_off() -> None:
    asked = Request(Chat((Message("user", "x"),), (Tool("wait"),)))
    with pytest.raises(InvalidRequest, match=r"chat\.tools: got '1 tools'; allowed: none: .*model\.generic_tools"):
        validate_request(asked, MODEL)
    assert validate_request(asked, replace(MODEL, generic_tools=True)).prompt == asked.prompt


@pytest.mark.parametrize("n", [0, 100, 5000])
def test_prompt_that_is_empty_or_fills_the_context_is_refused(n: int) -> None:
    check_length(range(99), RawText(""), MODEL)
    with pytest.raises(InvalidRequest, match="1 to 99 tokens"):
        check_length(range(n), RawText(""), MODEL)


@given(st.floats(), st.floats(), st.integers(), st.floats())
def test_sampling_values_out_of_range_are_refused_by_field(
    temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    asked = sampled(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    if 0 <= temperature <= 100 and 0 <= top_p <= 1 and top_k >= 0 and 0 <= min_p <= 1:
        assert validate_request(asked, MODEL).sampling == asked.sampling
    else:
        with pytest.raises(InvalidRequest, match=r"sampling\."):
            validate_request(asked, MODEL)
