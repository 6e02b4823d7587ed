"""A daemon with another tokenizer answers in text: requests and answers are the same on both sides of the wire."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from draftd.core import FinishReason, SamplingParams, WorkloadClass
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.errors import DeadlineExceeded, InvalidRequest, NotServing, RemoteDown, RemoteUnavailable
from draftd.fallback.ladder import Ladder, configured_ladder
from draftd.fronts.grpc import inference
from draftd.fronts.grpc.relay import GrpcAnswers, event_of, message_of
from draftd.outcome import Emission
from draftd.planning.planner import Planner, RequestedPlan
from draftd.planning.router import Router
from draftd.service.inference import InferenceService
from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode
from draftd.service.request import (
    ChoiceFinished,
    Chunk,
    FormatKind,
    RawText,
    ReasoningDelta,
    Request,
    ResponseFormat,
    Send,
    TextDelta,
    TokenIds,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from draftd.service.text_relay import RelayFinished, RelayStarted
from draftd.settings import CostSettings, RemoteSettings, Settings
from draftd.strategies import QualityClass, Strategy, Verifier
from tests.fake_fallback import FixedFlag
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models
from tests.unit.service.test_front import Front, Told, eventually, fronting

TOKEN = "0123456789abcdef"
CHAT = Chat(
    (Message("user", "time?"), Message("assistant", "", (ToolCall("c1", "clock", "{}"),), reasoning="hm")),
    (Tool("clock", "The time.", "{}"),),
    "clock",
    False,
    {"enable_thinking": False},
)
CONTINUED = replace(CHAT, messages=(Message("user", "count"), Message("assistant", "one")), continues=True)


@pytest.mark.parametrize(
    "prompt",
    [RawText("hello"), CHAT, CONTINUED, replace(CHAT, tools=(), tool_choice=ToolMode.NONE, parallel_tool_calls=True)],
)
def test_relayed_request_survives_encoding_and_refuses_token_ids(prompt: RawText | Chat) -> None:
    sent = Request(
        prompt,
        20,
        SamplingParams(0.8, 0.9, 5, 0.1, 7, (), 1.5, 0.5, 0.25),
        ("x", "y"),
        RequestedPlan(strategy=Strategy.LOCAL),
        WorkloadClass.CODE,
        "ann",
        min_tokens=2,
        include_stop=True,
        special_tokens=True,
        n=3,
        echo=True,
        priority=-5,
        response_format=ResponseFormat(FormatKind.REGEX, "a+"),
    )
    assert inference.request_of(message_of(sent)) == sent
    with pytest.raises(RemoteUnavailable):
        message_of(replace(sent, prompt=TokenIds((1, 2))))


def test_relayed_answer_chunk_survives_encoding_marked_as_remote() -> None:
    call = ToolCall("c", "clock", "{}")
    deltas = [TextDelta("a"), ReasoningDelta("b"), ToolCallBegun(0, "c", "clock"), ToolCallArguments("{}")]
    chunk = Chunk(Emission((7, 8), (True, False)), ["ab", "c"], "rest", [*deltas, ToolCallEnded(call)], 2)
    assert event_of(inference.message_of(chunk)) == replace(
        chunk, emission=chunk.emission._replace(verifier=Verifier.REMOTE)
    )


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("remote")
    models, server = lambda: scripted_models(0.7, step_seconds=0.004), {"drain_seconds": 0}
    with serving(folder, models, token=TOKEN, server=server) as served:
        yield served


@contextlib.asynccontextmanager
async def edge(target: str, flag: FixedFlag | None = None) -> AsyncIterator[tuple[Front, InferenceService]]:
    """A daemon whose remote has another tokenizer: `router` says so, without a link."""
    model = RemoteModel("big", "f", 9999, 256, 8, False, "token 7 differs", QualityClass.PROFESSIONAL, 0.004)
    settings = RemoteSettings(enabled=True, target=target, token=SecretStr(TOKEN))
    router = Router(settings, CostSettings(remote_per_token=0.5), link=lambda: LinkState(up=True, model=model))
    answers = GrpcAnswers(settings)
    async with fronting(lambda: scripted_models(0.7, context_length=9999)) as front:
        planner = Planner(flag or FixedFlag(), Ladder(configured_ladder(Settings())), router=router)
        service = InferenceService(front.worker, planner, front.telemetry.begin_inference, Settings(), answers)
        try:
            yield front, service
            assert await service.wait_idle(10)
        finally:
            service.close()
            await answers.close()


def asking(max_tokens: int = 20, **more: Any) -> Request:
    return Request(RawText("hello"), max_tokens, **{"wish": RequestedPlan(strategy=Strategy.REMOTE), **more})


async def test_prompt_scoring_request_decodes_locally_and_fails_if_it_demands_strategy_remote(remote: Served) -> None:
    async with edge(remote.target, FixedFlag(strategy=Strategy.REMOTE)) as (_, service):
        for named, more in (
            ("prompt_logprobs", {"prompt_logprobs": 0}),
            ("logprobs with echo", {"echo": True, "logprobs": 0}),
            ("max_tokens 0", {"max_tokens": 0, "echo": True}),
        ):
            with pytest.raises(RemoteUnavailable, match=f"strategy remote, which is not available: {named}"):
                await service.generate(asking(**more), Told().take)
            await service.generate(asking(**more, wish=RequestedPlan()), (told := Told()).take)
            assert told.started.plan.strategy is Strategy.LOCAL
            assert told.reason is FinishReason.LENGTH


async def test_relayed_answer_has_the_remote_text_price_and_statistics(remote: Served) -> None:
    own = "".join(one.chunk.text for one in remote.client.generate("hello", max_tokens=20))
    async with edge(remote.target) as (front, service):
        await service.generate(asking(n=2), (told := Told()).take)
        assert ["".join(one.text for one in told.chunks if one.choice == i) for i in range(2)] == [own, own]
        assert {chunk.emission.verifier for chunk in told.chunks} == {Verifier.REMOTE}
        ends = [event for event in told.events if isinstance(event, ChoiceFinished)]
        assert sorted((end.choice, end.outcome.stats.counts.emitted) for end in ends) == [(0, 20), (1, 20)]
        assert told.started.quality is told.finished.price.quality is QualityClass.PROFESSIONAL
        assert told.finished.price.cost == pytest.approx(10.0)
        stats = told.finished.outcome.stats
        assert stats.remote is not None
        assert (stats.remote.tokens, stats.remote.target_seconds > 0) == (20, True)
        assert stats.time_to_first_token is not None
        assert front.outcomes == [FinishReason.LENGTH] * 2
        assert service.ended_without_engine == {FinishReason.LENGTH: 2}
        assert not front.worker.status().finished


async def test_relay_passes_cancellation_and_deadline_to_the_remote_daemon(remote: Served) -> None:
    remote.settle()
    before = len(remote.telemetry.heard)
    async with edge(remote.target) as (front, service):
        leaving = asyncio.create_task(service.generate(asking(3000), (told := Told()).take))
        await eventually(lambda: told.chunks)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await eventually(lambda: remote.telemetry.heard[before].outcomes)
        assert remote.telemetry.heard[before].outcomes[0].reason is FinishReason.CANCELLED
        with pytest.raises(DeadlineExceeded):
            await service.generate(asking(3000, deadline=time.monotonic() + 0.3), (late := Told()).take)
        assert (late.reason, bool(late.text)) == (FinishReason.DEADLINE, True)
        assert front.outcomes == [FinishReason.CANCELLED, FinishReason.DEADLINE]


async def test_drain_end_cancels_answers_still_relayed_from_the_remote(remote: Served) -> None:
    async with edge(remote.target) as (_, service):
        answer = asyncio.create_task(service.generate(asking(4000), (told := Told()).take))
        await eventually(lambda: told.tokens != [])
        assert service.relaying
        service.end_relays()
        with pytest.raises(NotServing, match="the daemon is stopping"):
            await answer
        assert told.reason is FinishReason.CANCELLED
        assert service.ended_without_engine == {FinishReason.CANCELLED: 1}
        assert not service.relaying
        await eventually(lambda: remote.worker.status().active == 0)


async def test_reloaded_remote_credentials_apply_to_new_calls_only(remote: Served) -> None:
    right, wrong = (
        RemoteSettings(enabled=True, target=remote.target, token=SecretStr(token)) for token in (TOKEN, f"not-{TOKEN}")
    )
    answers = GrpcAnswers(right)
    running = answers.answer(asking(300), "")
    assert isinstance(await anext(running), RelayStarted)
    answers.reload(wrong)
    with pytest.raises(RemoteUnavailable, match="bearer token"):
        await anext(answers.answer(asking(), ""))
    assert isinstance([event async for event in running][-1], RelayFinished), "what had begun goes on"
    answers.reload(right)
    assert isinstance([event async for event in answers.answer(asking(), "")][-1], RelayFinished)
    await answers.close()


async def test_relayed_request_has_no_identity_at_the_remote(remote: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """All callers of this daemon show the remote the same token."""
    identities, generate = list[str](), remote.daemon.service.generate

    async def noted(request: Request, send: Send) -> None:
        identities.append(request.identity)
        await generate(request, send)

    monkeypatch.setattr(remote.daemon.service, "generate", noted)
    answers = GrpcAnswers(RemoteSettings(enabled=True, target=remote.target, token=SecretStr(TOKEN)))
    assert [event async for event in answers.answer(asking(), "")]
    await answers.close()
    assert await asyncio.to_thread(list, remote.client.generate("x", max_tokens=2))
    relayed, own = identities
    assert relayed == ""
    assert own


async def test_remote_daemon_refusal_is_passed_on_with_its_message(remote: Served) -> None:
    async with edge(remote.target) as (front, service):
        with pytest.raises(RemoteUnavailable, match="the remote daemon: prompt: got '5000 tokens'"):
            await service.generate(replace(asking(), prompt=RawText("x" * 5000)), Told().take)
        assert front.refusals == [RemoteUnavailable]


async def test_unreachable_remote_fails_only_requests_that_demand_strategy_remote() -> None:
    async with edge("127.0.0.1:1", FixedFlag(strategy=Strategy.REMOTE)) as (front, service):
        with pytest.raises(RemoteDown) as refused:
            await service.generate(asking(), Told().take)
        assert refused.value.retry_after
        flagged = asking(wish=RequestedPlan())
        await service.generate(flagged, (told := Told()).take)
        assert (told.started.plan.strategy, told.reason) == (Strategy.LOCAL, FinishReason.LENGTH)
        assert "decoded here instead" in told.started.plan.reason
        with pytest.raises(InvalidRequest):
            await service.generate(replace(flagged, max_tokens=0), Told().take)
        assert front.refusals == [RemoteDown, InvalidRequest]


async def test_loss_of_remote_mid_answer_ends_only_requests_that_demand_strategy_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = serving(tmp_path, lambda: scripted_models(0.7, step_seconds=0.01), server={"drain_seconds": 0})
    with slow as going:
        async with edge(going.target, FixedFlag(strategy=Strategy.REMOTE)) as (front, service):
            demanded, free, noted = Told(), Told(), list[bool]()
            tokenizer, made = front.worker.tokenizer, front.worker.tokenizer.detokenizer
            monkeypatch.setattr(tokenizer, "detokenizer", lambda *, continues: noted.append(continues) or made())
            running = asyncio.create_task(service.generate(asking(500), demanded.take))
            chat = replace(asking(500, wish=RequestedPlan()), prompt=Chat((Message("user", "hello"),)))
            other = asyncio.create_task(service.generate(chat, free.take))
            await eventually(lambda: demanded.chunks and free.chunks)
            going.stop()
            with pytest.raises(RemoteDown) as failure:
                await running
            assert failure.value.retry_after
            assert demanded.reason is FinishReason.ERROR
            assert demanded.finished.outcome.unavailable is not None
            assert demanded.text
            await other  # goes on here, from what was said
            assert (sorted(noted[:2]), noted[2:]) == ([False, True], [True])  # raw text and a chat; what goes on
            assert free.reason is FinishReason.LENGTH
            stats, by = free.finished.outcome.stats, [chunk.emission.verifier for chunk in free.chunks if chunk.text]
            assert stats.counts.emitted == len(free.tokens) == 500
            assert stats.remote is not None
            assert 0 < stats.remote.tokens < 500
            assert by == sorted(by, key=(Verifier.REMOTE, Verifier.LOCAL).index)
            assert free.finished.outcome.failed_over
            assert free.finished.price.quality is QualityClass.STANDARD
            assert free.finished.price.cost == pytest.approx(0.5 * stats.remote.tokens)
            assert sorted(front.outcomes) == [FinishReason.ERROR, FinishReason.LENGTH]
