"""Whole requests through the service by a front of the test's own: no protocol, the real engine, a scripted pair."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DepthMode,
    FinishReason,
    ModePreference,
    SamplingParams,
    WorkloadClass,
)
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels
from draftd.errors import (
    ClientStalled,
    DeadlineExceeded,
    DraftdError,
    EngineFailure,
    InvalidRequest,
    NotServing,
    QueueFull,
)
from draftd.fallback.ladder import Ladder, configured_ladder
from draftd.planning.planner import Planner, RequestedPlan
from draftd.service.inference import InferenceService
from draftd.service.messages import Chat, Message, text_part
from draftd.service.request import ChoiceFinished, Chunk, Event, Prompt, RawText, Request, RequestStarted, TokenIds
from draftd.settings import EngineSettings, ServerSettings, Settings
from tests.fake_fallback import FixedFlag
from tests.recording_telemetry import RecordingTelemetry
from tests.scripted import scripted_models
from tests.wait_until import loaded

SPECULATIVE, AUTOREGRESSIVE = RequestedPlan(ModePreference.SPECULATIVE), RequestedPlan(ModePreference.AUTOREGRESSIVE)


def models(**options: Any) -> LoadedModels:
    return scripted_models(0.7, **options)


def slow() -> LoadedModels:
    return models(step_seconds=0.01)


@dataclass
class Told:
    """The events that a front received for one request."""

    events: list[Event] = field(default_factory=list)
    error: DraftdError | None = None

    async def take(self, event: Event) -> None:
        self.events.append(event)

    @property
    def started(self) -> RequestStarted:
        assert isinstance(self.events[0], RequestStarted)
        return self.events[0]

    @property
    def chunks(self) -> list[Chunk]:
        return [event for event in self.events if isinstance(event, Chunk)]

    @property
    def finished(self) -> ChoiceFinished:
        assert isinstance(self.events[-1], ChoiceFinished)
        return self.events[-1]

    @property
    def reason(self) -> FinishReason:
        return self.finished.outcome.reason

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.emission.tokens]


class Front:
    """A service over an engine of its own, and the simplest front there can be."""

    def __init__(self, load: Callable[[], LoadedModels], *, limit: int = 64, stall: float = 0.0, **engine: Any) -> None:
        settings = Settings(
            engine=EngineSettings(**{"depth_mode": DepthMode.FIXED, "prefix_cache_bytes": 0, **engine}),
            server=ServerSettings(write_stall_seconds=stall),
        )
        self.telemetry = RecordingTelemetry()
        self.worker = EngineWorker(
            lambda progress: load(), observers=(self.telemetry.observer,), limits=settings.engine.limits()
        )
        self.flag = FixedFlag()
        self.planner = Planner(self.flag, Ladder(configured_ladder(settings)), depth_mode=settings.engine.depth_mode)
        self.service = InferenceService(self.worker, self.planner, self.telemetry.begin_inference, settings)
        self.service.limit = limit

    async def ask(self, prompt: Prompt | str, max_tokens: int | None = 20, **fields: Any) -> Told:
        """Runs one request; raises its refusal, and stores an error after its start with its events."""
        told = Told()
        try:
            await self.service.generate(request(prompt, max_tokens, **fields), told.take)
        except DraftdError as error:
            if not told.events:
                raise
            told.error = error
        return told

    def begin(self, prompt: str, max_tokens: int, **fields: Any) -> tuple[Told, asyncio.Task[None]]:
        """Begins a request that runs while the test goes on."""
        told = Told()
        return told, asyncio.create_task(self.service.generate(request(prompt, max_tokens, **fields), told.take))

    @property
    def outcomes(self) -> list[FinishReason]:
        return [outcome.reason for heard in self.telemetry.heard for outcome in heard.outcomes]

    @property
    def refusals(self) -> list[type[DraftdError]]:
        return [type(error) for heard in self.telemetry.heard for error in heard.refusals]


def request(prompt: Prompt | str, max_tokens: int | None, **fields: Any) -> Request:
    return Request(RawText(prompt) if isinstance(prompt, str) else prompt, max_tokens, **fields)


@contextlib.asynccontextmanager
async def fronting(load: Callable[[], LoadedModels] = models, **options: Any) -> AsyncIterator[Front]:
    front = Front(load, **options)
    front.worker.start()
    try:
        await asyncio.to_thread(loaded, front.worker, 30)
        yield front
    finally:
        await asyncio.to_thread(front.worker.close)
        assert await front.service.wait_idle(10), "every request came to an end"
        front.service.close()


async def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the engine's thread says nothing when it moves on
            await asyncio.sleep(0.005)


def check_counts(told: Told) -> None:
    """Checks that the chunks and the end give the same counts."""
    counts = told.finished.outcome.stats.counts
    drafted = [flag for chunk in told.chunks for flag in chunk.emission.from_draft]
    assert len(drafted) == len(told.tokens) == counts.emitted
    assert counts.emitted == counts.accepted + counts.steps - counts.cut
    assert sum(drafted) == counts.accepted - max(0, counts.cut - 1), "of what was cut, one was not drafted"
    assert counts.accepted == sum(counts.accepted_per_position)
    assert counts.drafted == counts.accepted + counts.rolled_back
    assert all(len(chunk.pieces) == len(chunk.emission.tokens) for chunk in told.chunks)


async def test_speculative_and_autoregressive_modes_give_the_same_tokens() -> None:
    async with fronting() as front:
        speculative = await front.ask("hello", 60, wish=SPECULATIVE)
        plain = await front.ask("hello", 60, wish=AUTOREGRESSIVE)
    assert speculative.tokens == plain.tokens
    assert speculative.text == plain.text != ""
    for told in (speculative, plain):
        check_counts(told)
        assert (told.reason, told.started.prompt_tokens) == (FinishReason.LENGTH, 5)
    plan = speculative.started.plan
    assert (plan.mode, plan.max_draft_tokens, plan.drafter) == (DecodeMode.SPECULATIVE, 4, DRAFT_MODEL)
    assert speculative.finished.outcome.stats.counts.accepted > 0
    assert plain.started.plan.reason == "request: autoregressive"
    assert plain.finished.outcome.stats.counts.drafted == 0


async def test_chat_and_its_rendered_token_ids_give_the_same_answer() -> None:
    async with fronting() as front:
        rendered = front.worker.tokenizer.render_chat([{"role": "user", "content": "hi"}])
        chat = await front.ask(Chat((Message("user", "hi"),)))
        ids = await front.ask(TokenIds(tuple(rendered)))
    assert chat.tokens == ids.tokens
    assert chat.started.prompt_tokens == len(rendered)


async def test_stop_string_ends_the_answer_and_is_left_out_of_the_text() -> None:
    async with fronting() as front:
        whole = await front.ask("stop here", 60)
        stop = next(whole.text[i : i + 3] for i in range(20, 57) if "\ufffd" not in whole.text[i : i + 3])
        for wish in (SPECULATIVE, AUTOREGRESSIVE):
            told = await front.ask("stop here", 60, stop=(stop, "never"), wish=wish)
            assert (told.reason, told.finished.stop) == (FinishReason.STOP, stop)
            assert told.text == whole.text[: whole.text.index(stop)]
            assert told.tokens == whole.tokens[: len(told.tokens)]
            check_counts(told)


async def test_end_of_text_token_stops_the_answer_as_its_last_token() -> None:
    async with fronting(lambda: models(eos_after=20)) as front:
        told = await front.ask("abc", None)
    assert (told.reason, told.finished.stop, told.tokens[-1]) == (FinishReason.STOP, "", 255)
    check_counts(told)


async def test_answer_that_fills_the_context_finishes_with_length() -> None:
    async with fronting(lambda: models(context_length=64)) as front:
        told = await front.ask("x" * 40, 64)
    assert (told.reason, len(told.tokens)) == (FinishReason.LENGTH, 24)


async def test_equal_seeds_repeat_a_sampled_answer() -> None:
    async with fronting() as front:
        sampled = [SamplingParams(temperature=20.0, seed=seed) for seed in (7, 7, 8)]
        first, second, other = [(await front.ask("x", 30, sampling=sampling)).tokens for sampling in sampled]
    assert first == second != other


async def test_request_that_fails_by_an_internal_exception_counts_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **more: object) -> None:
        raise LookupError("a bug")

    async with fronting() as front:
        monkeypatch.setattr(front.planner, "plan", broken)
        with pytest.raises(LookupError):
            await front.ask("x")
        assert front.service.refused == 1
        assert front.refusals == [EngineFailure]


async def test_decode_plan_tells_how_requested_depth_and_drafter_were_applied() -> None:
    async with fronting() as front:
        plan = (await front.ask("x", 4, wish=RequestedPlan(max_draft_tokens=15))).started.plan
        assert plan.max_draft_tokens == 4
        assert "max_draft_tokens 15 lowered to the daemon's 4" in plan.reason
        assert (
            await front.ask("x", 4, wish=RequestedPlan(max_draft_tokens=0))
        ).started.plan.mode is DecodeMode.AUTOREGRESSIVE
        plan = (await front.ask("x", 4, wish=RequestedPlan(drafter=PROMPT_LOOKUP))).started.plan
        assert plan.drafter == PROMPT_LOOKUP


async def test_telemetry_gets_each_requests_start_and_text_and_outcome_exactly_once() -> None:
    async with fronting() as front:
        chat = Chat((Message("user", "hi"),))
        told = await front.ask(chat, 9, stop=("zz",), workload=WorkloadClass.CHAT, caller="me")
        (heard,) = front.telemetry.heard
        assert front.outcomes == [FinishReason.LENGTH]
        start = heard.start
        assert (start.operation, start.max_tokens) == ("chat", 9)
        assert (start.stop, start.workload, start.messages) == (
            ("zz",),
            WorkloadClass.CHAT,
            (("user", (text_part("hi"),)),),
        )
        assert (start.request_id, start.prompt_tokens) == (told.started.request_id, told.started.prompt_tokens)
        assert heard.text == told.text


async def test_telemetry_gets_the_outcome_before_the_client_gets_the_last_event() -> None:
    async with fronting() as front:
        known: list[bool] = []

        async def take(event: Event) -> None:
            known.append(bool(front.outcomes))

        await front.service.generate(request("x", 5), take)
        assert known == [False] * (len(known) - 1) + [True]


@pytest.mark.parametrize(
    ("prompt", "fields", "name"),
    [
        (RawText("x"), {"max_tokens": 0}, "max_tokens"),
        (RawText("x" * 4096), {}, "prompt"),
        (Chat((Message("user", "x" * 4096),)), {}, "chat"),
        (TokenIds((1,) * 4096), {}, "tokens.ids"),
        (RawText(""), {"problem": InvalidRequest("mode", 9, "DECODE_MODE_AUTO")}, "mode"),
    ],
)
async def test_invalid_request_is_refused_by_field_and_counted(
    prompt: Prompt, fields: dict[str, Any], name: str
) -> None:
    async with fronting() as front:
        with pytest.raises(InvalidRequest) as refused:
            await front.ask(prompt, **{"max_tokens": 5, **fields})
        assert refused.value.field == name
        assert front.refusals == [InvalidRequest]
        assert (front.service.refused, front.service.open_requests) == (1, 0)


async def test_messages_rejected_by_the_chat_template_are_an_invalid_request() -> None:
    def refuse(messages: object, *more: object) -> list[int]:
        raise ValueError("roles must alternate")

    async with fronting() as front:
        front.worker.tokenizer.render_chat = refuse  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest, match="roles must alternate"):
            await front.ask(Chat((Message("user", "a"), Message("user", "b"))))


async def test_full_queue_refuses_a_request_with_a_retry_delay() -> None:
    async with fronting(slow, max_batch=1, queue_capacity=2) as front:
        _, running = front.begin("x", 60)
        await eventually(lambda: front.worker.status().active == 1)
        waiting = [front.begin("x", 60) for _ in range(2)]
        await eventually(lambda: front.worker.status().queued == 2)
        with pytest.raises(QueueFull, match="2 requests are waiting; at most 2 may") as refused:
            await front.ask("x")
        assert refused.value.retry_after is not None
        assert 0.1 <= refused.value.retry_after <= 30
        await asyncio.gather(running, *(task for _, task in waiting))
        assert [len(told.tokens) for told, _ in waiting] == [60, 60]
        assert front.service.refused == 1


async def test_request_over_the_active_limit_is_refused_with_queue_full() -> None:
    async with fronting(slow, limit=2) as front:
        running = [front.begin("x", 50) for _ in range(2)]
        await eventually(lambda: all(told.events for told, _ in running))
        with pytest.raises(QueueFull, match="2 requests are active") as refused:
            await front.ask("x")
        assert refused.value.retry_after == 1.0
        await asyncio.gather(*(task for _, task in running))
        assert (await front.ask("x")).error is None


async def test_draining_service_refuses_new_requests_and_finishes_running_ones() -> None:
    async with fronting(slow) as front:
        told, running = front.begin("x", 30)
        await eventually(lambda: told.events)
        front.service.draining = True
        with pytest.raises(NotServing, match="draining") as refused:
            await front.ask("y")
        assert refused.value.retry_after == 1.0
        assert not await front.service.wait_idle(0.0)
        await running
        assert (len(told.tokens), front.refusals) == (30, [NotServing])
        assert await front.service.wait_idle(1.0)


async def test_closing_the_worker_ends_a_running_request_with_not_serving() -> None:
    async with fronting(slow) as front:
        told, running = front.begin("x", 4000)
        await eventually(lambda: told.chunks)
        await asyncio.to_thread(front.worker.close)
        with pytest.raises(NotServing, match="the daemon is stopping; the answer ended after"):
            await running
        assert told.reason is FinishReason.CANCELLED
        check_counts(told)


async def test_engine_error_finishes_the_answer_with_reason_error() -> None:
    def failing() -> LoadedModels:
        loaded = models()
        loaded.target.fail_on_token = 1
        return loaded

    async with fronting(failing) as front:
        told = await front.ask("poison \x01!")
        assert isinstance(told.error, EngineFailure)
        assert told.reason is FinishReason.ERROR
        assert front.outcomes == [FinishReason.ERROR]


async def test_cancelled_task_cancels_its_request_in_the_engine() -> None:
    async with fronting(slow) as front:
        told, running = front.begin("x", 4000)
        await eventually(lambda: len(told.chunks) > 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: front.outcomes)
        assert front.outcomes == [FinishReason.CANCELLED]
        assert front.worker.status().active == 0
        assert await front.service.wait_idle(5)


@pytest.mark.parametrize(("seconds", "reason"), [(60.0, FinishReason.CANCELLED), (0.01, FinishReason.DEADLINE)])
async def test_request_cancelled_while_tokenising_is_counted_by_reason(seconds: float, reason: FinishReason) -> None:
    async with fronting() as front:
        begun, go_on = threading.Event(), threading.Event()
        encode = front.worker.tokenizer.encode

        def slowly(text: str) -> list[int]:
            begun.set()
            assert go_on.wait(30)
            return encode(text)

        front.worker.tokenizer.encode = slowly  # type: ignore[method-assign]
        told, asking = front.begin("x" * 5000, 10, deadline=time.monotonic() + seconds)
        assert await asyncio.to_thread(begun.wait, 30)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        go_on.set()
        (heard,) = front.telemetry.heard
        assert (heard.departures, heard.outcomes, heard.refusals) == ([reason], [], [])
        assert front.service.ended_without_engine == {reason: 1}
        assert (told.events, front.service.open_requests) == ([], 0)


async def test_deadline_ends_queued_and_running_requests() -> None:
    async with fronting(slow, max_batch=1) as front:
        told, running = front.begin("x", 4000, deadline=time.monotonic() + 0.6)
        await eventually(lambda: told.events)
        waiting = await front.ask("y", deadline=time.monotonic() + 0.2)
        with pytest.raises(DeadlineExceeded, match=r"after \d+ tokens"):
            await running
        assert isinstance(waiting.error, DeadlineExceeded)
        assert (waiting.tokens, front.outcomes) == ([], [FinishReason.DEADLINE] * 2)


async def test_request_with_a_passed_deadline_is_refused() -> None:
    async with fronting() as front:
        with pytest.raises(DeadlineExceeded, match="before the request reached the engine"):
            await front.ask("x", deadline=time.monotonic() - 1)
        assert front.refusals == [DeadlineExceeded]


async def test_client_cancelling_at_its_deadline_counts_as_deadline() -> None:
    async with fronting(slow) as front:
        told, running = front.begin("x", 4000, deadline=(end := time.monotonic() + 60))
        await eventually(lambda: told.events)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("draftd.service.inference.time.monotonic", lambda: end - 0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        await eventually(lambda: front.outcomes)
        assert front.outcomes == [FinishReason.DEADLINE]


async def test_client_that_reads_nothing_is_cancelled_after_the_stall_time(caplog: pytest.LogCaptureFixture) -> None:
    async def stuck(event: Event) -> None:
        await asyncio.Event().wait()

    async with fronting(slow, stall=0.05) as front:
        with (
            pytest.raises(ClientStalled, match=r"the client read nothing for 0\.05 s"),
            caplog.at_level(logging.WARNING),
        ):
            await front.service.generate(request("x", 4000), stuck)
        assert "the client read nothing" in caplog.text
        await eventually(lambda: front.outcomes)
        assert front.outcomes == [FinishReason.CANCELLED]


async def test_slow_client_gets_every_token_merged_into_fewer_chunks() -> None:
    async with fronting() as front:
        fast = await front.ask("x", 400)
        told, gate = Told(), asyncio.Event()

        async def take(event: Event) -> None:
            if not told.events:
                await gate.wait()
            await told.take(event)

        running = asyncio.create_task(front.service.generate(request("x", 400), take))
        await eventually(lambda: front.worker.status().finished[FinishReason.LENGTH] == 2)
        assert front.service.open_requests == 1  # the engine does not wait for the client
        gate.set()
        await running
        assert (told.tokens, told.text) == (fast.tokens, fast.text)
        assert len(told.chunks) == 1 < len(fast.chunks)


async def test_requests_are_refused_before_the_model_is_loaded() -> None:
    front = Front(models)
    with pytest.raises(NotServing):
        await front.ask("x")
    with pytest.raises(NotServing):
        front.service.model()
    front.service.close()


async def test_model_description_gives_names_context_length_and_defaults() -> None:
    async with fronting() as front:
        model = front.service.model()
    assert (model.info.model, model.info.draft_model, model.info.context_length) == ("scripted", "scripted-draft", 4096)
    assert (model.default_max_tokens, model.max_draft_tokens) == (4096, 4)
    assert (model.depth_mode, model.chat_template) == (DepthMode.FIXED, True)


async def test_unset_max_tokens_takes_the_rest_of_the_context() -> None:
    def small() -> LoadedModels:
        return scripted_models(0.7, context_length=100)

    async with fronting(small) as front:
        told = await front.ask("x" * 60, None)
    assert (told.reason, len(told.tokens), front.telemetry.heard[0].start.max_tokens) == (FinishReason.LENGTH, 40, 40)
