"""One request as it was heard becomes one tick, whole or broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from draftd.acceptance import session as module
from draftd.acceptance.session import Capture, capture
from draftd.acceptance.ticks import Chunk, Granted, Place, Served, Stage
from draftd.client.asking import Ask
from draftd.client.client import CallError
from draftd.core import DRAFT_MODEL, DecodeMode, FinishReason, WorkloadClass
from draftd.protocol import duration
from draftd.v1 import inference_pb2 as pb
from tests.ticking import place

Event = pb.GenerateResponse | float | BaseException
_ASK = Ask(prompt="hello")


class Gone(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A call that ends as a lost connection does."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"

    def trailing_metadata(self) -> tuple[()]:
        return ()


def started() -> pb.GenerateResponse:
    plan = pb.DecodePlan(
        mode=pb.DECODE_MODE_SPECULATIVE,
        max_draft_tokens=4,
        drafter=DRAFT_MODEL,
        level="full",
        variant="on",
        reason="request: speculative",
    )
    return pb.GenerateResponse(started=pb.Started(request_id="r1", model="m", prompt_tokens=7, plan=plan))


def chunk(text: str, ids: Sequence[int] = (), drafted: int = 0) -> pb.GenerateResponse:
    marks = [i < drafted for i in range(len(ids))]
    return pb.GenerateResponse(chunk=pb.Chunk(text=text, token_ids=ids, from_draft=marks, text_lengths=[1] * len(ids)))


def finished(tokens: int, degraded: str = "") -> pb.GenerateResponse:
    timings = pb.Timings(queue=duration(0.01), prefill=duration(0.02), time_to_first_token=duration(0.09))
    counts = pb.DraftCounts(
        rounds=3,
        drafts=2,
        drafted_tokens=8,
        accepted_tokens=3,
        accepted_per_position=[2, 1],
        drafted_per_position=[2, 2, 2, 2],
        rollbacks=2,
        rolled_back_tokens=5,
        draft_forwards=8,
        target_forwards=3,
        draft_time=duration(0.004),
        verify_time=duration(0.03),
        break_even_tokens=1.5,
    )
    usage = pb.Usage(input_tokens=7, output_tokens=tokens)
    return pb.GenerateResponse(
        finished=pb.Finished(
            reason=pb.FINISH_REASON_LENGTH, usage=usage, timings=timings, counts=counts, degraded=degraded
        )
    )


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Capture]:
    """A capture of events: a message arrives, a number of seconds passes, an exception ends it. No time is spent."""
    now = SimpleNamespace(seconds=100.0)
    clock = SimpleNamespace(perf_counter=lambda: now.seconds, time=lambda: 1_700_000_000.0)
    monkeypatch.setattr(module, "time", clock)

    def take(*events: Event, timeout: float = 9.0) -> Capture:
        def generate(prompt: str, **options: Any) -> Iterator[pb.GenerateResponse]:
            assert (prompt, options["timeout"]) == ("hello", timeout)
            for event in events:
                if isinstance(event, float):
                    now.seconds += event
                elif isinstance(event, BaseException):
                    raise event
                else:
                    yield event

        return capture(SimpleNamespace(generate=generate), _ASK, timeout=timeout)  # type: ignore[arg-type]

    return take


def test_a_whole_answer_is_kept_as_it_came(heard: Callable[..., Capture]) -> None:
    where = Place(Stage.SWEEP, 2, "k4", 1, "p", "chat", WorkloadClass.CHAT)
    taken = heard(
        0.05, started(), 0.05, chunk("a", [11]), 0.2, chunk("bcd", [12, 13, 14], 2), 0.1, chunk("", [15]),
        0.1, chunk("ef"), 0.02, finished(5, degraded="the cache is full"), 0.01,
    )  # fmt: skip
    tick = taken.tick(where, session_began=90.0)
    assert tick.place is where
    assert tick.elapsed == pytest.approx(10.0)
    assert tick.asked_at == 1_700_000_000.0
    assert tick.ended == pytest.approx(0.53)
    # Text without a token, held back until the end, is no chunk of tokens; a token without text is.
    assert [(c.tokens, c.from_draft) for c in tick.chunks] == [(1, 0), (3, 2), (1, 0)]
    assert [c.at for c in tick.chunks] == pytest.approx([0.1, 0.3, 0.4])
    assert (tick.error, tick.prompt_tokens, tick.output_tokens) == ("", 7, 5)
    assert tick.finish_reason is FinishReason.LENGTH
    assert tick.granted == Granted(DecodeMode.SPECULATIVE, 4, DRAFT_MODEL, "full", "on", "request: speculative")
    assert tick.degraded == "the cache is full"
    assert tick.served == Served(0.01, 0.02, 0.09, None)
    counts = tick.counts
    assert (counts.rounds, counts.drafts, counts.drafted, counts.accepted, counts.emitted) == (3, 2, 8, 3, 5)
    assert (counts.rollbacks, counts.rolled_back, counts.draft_forwards, counts.target_forwards) == (2, 5, 8, 3)
    assert (counts.draft_seconds, counts.verify_seconds, counts.break_even_tokens) == (0.004, 0.03, 1.5)
    assert (counts.drafted_per_position, counts.accepted_per_position) == ([2, 2, 2, 2], [2, 1])
    assert tick.text is None
    assert taken.tick(where, 90.0, keep_text=True).text == "abcdef"
    assert taken.answer().text == "abcdef"


def test_two_answers_have_one_digest_where_their_tokens_are_the_same(heard: Callable[..., Capture]) -> None:
    one = heard(started(), chunk("ab", [1, 2]), chunk("c", [3]), finished(3)).tick(place(), 0.0)
    same = heard(started(), chunk("a", [1]), 0.5, chunk("bc", [2, 3], 1), finished(3)).tick(place(), 0.0)
    other = heard(started(), chunk("a", [1]), chunk("bc", [3, 2]), finished(3)).tick(place(), 0.0)
    assert one.digest == same.digest != other.digest


def test_a_call_that_fails_on_its_way_keeps_what_had_come(heard: Callable[..., Capture]) -> None:
    taken = heard(started(), 0.1, chunk("a", [1]), 0.3, CallError(Gone()))
    assert isinstance(taken.failure, CallError)
    tick = taken.tick(place(), 0.0)
    assert tick.error == "UNAVAILABLE: connection reset"
    assert tick.chunks == (Chunk(pytest.approx(0.1), 1, 0),)
    assert tick.ended == pytest.approx(0.4)
    assert (tick.finish_reason, tick.served, tick.output_tokens) == (None, None, 1)


def test_a_call_that_fails_at_once_is_an_error_and_nothing_else(heard: Callable[..., Capture]) -> None:
    tick = heard(CallError(Gone())).tick(place(), 0.0)
    assert (tick.error, tick.chunks, tick.granted, tick.served) == ("UNAVAILABLE: connection reset", (), None, None)


@pytest.mark.parametrize("events", [(), (started(),), (started(), chunk("a", [1]))])
def test_a_stream_that_ends_before_its_answer_says_so(
    heard: Callable[..., Capture], events: tuple[pb.GenerateResponse, ...]
) -> None:
    tick = heard(*events).tick(place(), 0.0)
    assert tick.error == "the stream ended before its answer did"
    assert tick.finish_reason is None


def test_being_stopped_by_hand_is_not_an_answer_that_failed(heard: Callable[..., Capture]) -> None:
    with pytest.raises(KeyboardInterrupt):
        heard(started(), KeyboardInterrupt())


def test_arrivals_are_each_threads_own() -> None:
    """Several are asked at a time: what one hears is nothing to another."""

    def answers(name: int) -> Capture:
        def generate(prompt: str, **options: Any) -> Iterator[pb.GenerateResponse]:
            yield started()
            for i in range(50):
                yield chunk("x", [1000 * name + i])
            yield finished(50)

        return capture(SimpleNamespace(generate=generate), _ASK, timeout=9.0)  # type: ignore[arg-type]

    taken: dict[int, Capture] = {}
    threads = [threading.Thread(target=lambda n=n: taken.update({n: answers(n)})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {n: one.answer().tokens for n, one in taken.items()} == {
        n: tuple(1000 * n + i for i in range(50)) for n in range(4)
    }
