"""Choices of one request, endings, log-probabilities and echo, through the service over the real engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import FinishReason, SamplingParams
from draftd.engine.pair import LoadedModels
from draftd.errors import EngineFailure, InvalidRequest, QueueFull
from draftd.planning.planner import RequestedPlan
from draftd.service.messages import Chat, Message
from draftd.service.request import ChoiceFinished, Chunk, Event, TokenIds
from tests.unit.service.test_front import (
    AUTOREGRESSIVE,
    SPECULATIVE,
    Told,
    check_counts,
    eventually,
    fronting,
    models,
    request,
    slow,
)

SAMPLED = SamplingParams(temperature=20.0, seed=2**64 - 2)


def of(told: Told, choice: int) -> Told:
    """Returns the events of one choice."""
    events = [e for e in told.events if not isinstance(e, Chunk | ChoiceFinished) or e.choice == choice]
    return Told(events)


@pytest.mark.parametrize(("letters", "cached"), [(5, [0, 0, 0]), (200, [0, 199, 199])])
async def test_each_choice_equals_a_lone_request_with_the_seed_plus_its_index(letters: int, cached: list[int]) -> None:
    """A long prompt is prefilled once: what the others read of it was kept when the first had it."""
    async with fronting(prefix_cache_bytes=1 << 26) as front:
        told = await front.ask("x" * letters, 24, sampling=SAMPLED, n=3, ignore_eos=True, wish=SPECULATIVE)
        for choice in range(3):
            seed = (SAMPLED.seed + choice) % 2**64 if SAMPLED.seed is not None else None
            own = replace(SAMPLED, seed=seed)
            alone = await front.ask("x" * letters, 24, sampling=own, ignore_eos=True, wish=AUTOREGRESSIVE)
            one = of(told, choice)
            assert (one.tokens, one.text) == (alone.tokens, alone.text)
            check_counts(one)
            assert one.finished.outcome.stats.cached_tokens == cached[choice]
        assert sum(isinstance(event, ChoiceFinished) for event in told.events) == 3
        choices = [heard.start for heard in front.telemetry.heard[:3]]
        assert [(one.choice, one.choices, one.request_id) for one in choices] == [
            (i, 3, told.started.request_id) for i in range(3)
        ]
        assert front.outcomes == [FinishReason.LENGTH] * 6
        assert front.worker.status().finished[FinishReason.LENGTH] == 6


async def test_choices_beyond_the_batch_or_queue_limit_are_refused_together() -> None:
    async with fronting(slow, max_batch=1, queue_capacity=4) as front:
        with pytest.raises(InvalidRequest, match="n: got 5; allowed: 1 to 4"):
            await front.ask("x", n=5)
        _, running = front.begin("x", 60)
        await eventually(lambda: front.worker.status().active == 1)
        _, waiting = front.begin("x", 5, n=2)
        await eventually(lambda: front.worker.status().queued == 2)
        with pytest.raises(QueueFull, match="2 requests are waiting, and 3 more came; at most 4 may"):
            await front.ask("x", n=3)
        assert front.worker.status().queued == 2
        assert (front.refusals, front.service.refused) == ([InvalidRequest, QueueFull], 2)
        await asyncio.gather(running, waiting)


async def test_cancelling_a_request_ends_all_its_choices() -> None:
    async with fronting(slow) as front:
        told, running = front.begin("x", 4000, n=3)
        await eventually(lambda: len({chunk.choice for chunk in told.chunks}) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: len(front.outcomes) == 3)
        assert front.outcomes == [FinishReason.CANCELLED] * 3
        assert front.service.open_requests == 0
        assert front.worker.status().active == 0


async def test_engine_error_ends_every_choice_with_an_error() -> None:
    def failing() -> LoadedModels:
        loaded = models()
        loaded.target.fail_on_token = 1
        return loaded

    async with fronting(failing) as front:
        told = await front.ask("poison \x01!", n=2)
        assert isinstance(told.error, EngineFailure)
        assert [event.choice for event in told.events if isinstance(event, ChoiceFinished)] == [0, 1]
        assert front.outcomes == [FinishReason.ERROR] * 2


@pytest.mark.parametrize("wish", [SPECULATIVE, AUTOREGRESSIVE])
async def test_stop_condition_text_is_included_only_with_include_stop(wish: RequestedPlan) -> None:
    async with fronting(lambda: models(eos_after=60)) as front:
        whole = await front.ask("stop here", 80, wish=wish)
        ignoring = await front.ask("stop here", 80, ignore_eos=True, wish=wish)
        assert (len(whole.tokens), len(ignoring.tokens)) == (whole.tokens.index(255) + 1, 80)
        assert ignoring.reason is FinishReason.LENGTH
        at = max(i for i, token in enumerate(whole.tokens) if token < 128 and token not in whole.tokens[:i])
        assert at > 2
        token, text = whole.tokens[at], chr(whole.tokens[at])
        for fields, by in ({"stop": (text,)}, (text, None)), ({"stop_token_ids": (9, token)}, ("", token)):
            for include in (False, True):
                told = await front.ask("stop here", 80, include_stop=include, wish=wish, **fields)  # type: ignore[arg-type]
                assert told.tokens == whole.tokens[: at + 1]
                assert (told.reason, (told.finished.stop, told.finished.stop_token_id)) == (FinishReason.STOP, by)
                before = await front.ask("stop here", at, wish=wish)
                assert told.text == before.text + text * include
        longer = await front.ask("stop here", 80, stop_token_ids=(token,), min_tokens=at + 2, wish=wish)
        assert len(longer.tokens) > at + 1
        assert token not in longer.tokens[: at + 2]


async def test_merged_chunk_keeps_the_logprobs_of_every_token() -> None:
    """Also where a slow client gets several chunks as one, and where a step's last tokens are cut."""
    async with fronting() as front:
        told, gate = Told(), asyncio.Event()

        async def take(event: Event) -> None:
            if not told.events:
                await gate.wait()
            await told.take(event)

        asked = request("x", 50, logprobs=2, wish=SPECULATIVE)
        running = asyncio.create_task(front.service.generate(asked, take))
        await eventually(lambda: front.worker.status().finished)
        gate.set()
        await running
        (chunk,) = told.chunks
        assert len(chunk.emission.logprobs) == len(told.tokens) == 50
        for token, one in zip(told.tokens, chunk.emission.logprobs, strict=True):
            assert one.top[0] == (token, one.logprob)
            assert len(one.top) == 2
        assert not any(chunk.emission.logprobs for chunk in (await front.ask("x")).chunks)


async def test_echo_prepends_the_prompt_to_the_text_of_each_choice() -> None:
    async with fronting() as front:
        plain = await front.ask("hello", 9)
        told = await front.ask("hello", 9, echo=True, n=2)
        for choice in range(2):
            assert of(told, choice).text == "hello" + plain.text
            assert of(told, choice).tokens == plain.tokens
        assert (await front.ask(TokenIds(tuple(b"hello")), 9, echo=True)).text == "hello" + plain.text
        for prompt in ("hello", TokenIds(tuple(b"hello"))):
            alone = await front.ask(prompt, 0, echo=True)
            assert (alone.text, alone.tokens, alone.reason) == ("hello", [], FinishReason.LENGTH)
        with pytest.raises(InvalidRequest, match="echo"):
            await front.ask(Chat((Message("user", "x"),)), 9, echo=True)


@pytest.mark.parametrize("letters", [0, 200])
@pytest.mark.parametrize("kind", [str, TokenIds])
async def test_echoed_prompt_has_logprobs_in_every_choice(kind: Any, letters: int) -> None:
    """Which one of them is told for all. Also where a slow client gets several chunks as one."""
    text, n = "é" + "x" * letters, 3 if letters else 1
    prompt = text if kind is str else TokenIds(tuple(text.encode()))
    async with fronting(prefix_cache_bytes=1 << 26) as front:
        told, gate = Told(), asyncio.Event()

        async def take(event: Event) -> None:
            if not told.events:
                await gate.wait()
            await told.take(event)

        asked = request(prompt, 5, logprobs=2, echo=True, n=n, ignore_eos=True)
        running = asyncio.create_task(front.service.generate(asked, take))
        await eventually(lambda: front.worker.status().finished)
        gate.set()
        await running
        for choice in range(n):
            first, *rest = of(told, choice).chunks
            assert (first.text, first.prompt, first.emission.tokens) == (text, tuple(text.encode()), ())
            assert list(first.offsets) == [0, 0, *range(1, len(text))]
            assert first.emission.prompt is not None
            assert len(first.emission.prompt) == len(first.prompt) - 1
            assert all(len(one.top) == 2 and one.rank for one in first.emission.prompt)
            assert next(offset for chunk in rest for offset in chunk.offsets) == len(text)
            assert sum(len(chunk.emission.logprobs) for chunk in rest) == 5
        ends = [event.outcome.stats for event in told.events if isinstance(event, ChoiceFinished)]
        assert sorted(one.cached_tokens for one in ends) == [0, *[len(text)] * (n - 1)]
        hidden = await front.ask(prompt, 0, prompt_logprobs=0, logprobs=1)
        assert (hidden.text, hidden.tokens, hidden.chunks[0].offsets) == ("", [], ())
        assert hidden.chunks[0].prompt == tuple(text.encode())
        short = await front.ask("x", 2, prompt_logprobs=0)
        assert (short.chunks[0].prompt, short.chunks[0].emission.prompt) == (tuple(b"x"), ())
        assert len(short.tokens) == 2


async def test_token_text_offsets_are_equal_with_and_without_speculation() -> None:
    async with fronting() as front:
        found = []
        for wish in (SPECULATIVE, AUTOREGRESSIVE):
            told = await front.ask("hé", 60, echo=True, logprobs=0, wish=wish, stop=("\x00\x00",))
            offsets = [offset for chunk in told.chunks for offset in chunk.offsets]
            assert (offsets[:4], len(offsets)) == ([0, 1, 1, 2], 63)
            bytes_ = [*"hé".encode(), *told.tokens]
            assert all(told.text[at] == chr(byte) for at, byte in zip(offsets, bytes_, strict=True) if byte < 128)
            found.append(offsets)
    assert found[0] == found[1]


async def test_detokenizer_treats_all_but_a_fresh_chat_answer_as_a_continuation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others go on from their prompts, and some chats' from a message: no space that they begin with is dropped."""
    async with fronting() as front:
        tokenizer, noted = front.worker.tokenizer, list[bool]()
        made = tokenizer.detokenizer
        monkeypatch.setattr(tokenizer, "detokenizer", lambda *, continues: noted.append(continues) or made())
        continued = Chat((Message("user", "x"), Message("assistant", "y")), continues=True)
        for prompt in ("x", TokenIds((1, 2)), continued, Chat((Message("user", "x"),))):
            await front.ask(prompt, 2, stop=("stop",))
    assert noted == [True, True, True, True, True, True, False, False]  # what is sent, and what finds stop strings


async def test_request_without_max_tokens_gets_the_rest_of_the_context() -> None:
    def small() -> LoadedModels:
        return models(context_length=100)

    async with fronting(small) as front:
        told = await front.ask("x" * 60, None)
    assert (told.reason, len(told.tokens), front.telemetry.heard[0].start.max_tokens) == (FinishReason.LENGTH, 40, 40)
