"""Figures from streams: times between tokens, windows, tokens per chunk of text, server-sent events."""

from __future__ import annotations

import json

import pytest

from benchmarks.peers.codec import tokens_of
from benchmarks.peers.sse import events
from benchmarks.peers.streams import Chunk, Stream, counted, failed, tokens_within


def stream(*chunks: tuple[float, int], asked: float = 0.0, name: str = "p", **more) -> Stream:
    timed_chunks = tuple(Chunk(at, tokens) for at, tokens in chunks)
    return Stream(
        name, asked, chunks[-1][0] if chunks else asked, timed_chunks, output_tokens=sum(n for _, n in chunks), **more
    )


def test_tokens_that_come_together_share_the_gap_before_them() -> None:
    answer = stream((1.0, 3), (1.4, 4), (1.5, 1), asked=0.25)
    assert answer.time_to_first_token == 0.75
    assert answer.inter_token() == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    assert stream((1.0, 5)).inter_token() == []
    assert stream().time_to_first_token is None


def test_only_what_came_in_a_window_counts_but_a_gap_may_begin_before_it() -> None:
    answer = stream((1.0, 1), (2.0, 1), (3.0, 2), (5.0, 1))
    assert answer.inter_token(since=2.0, until=4.0) == pytest.approx([0.5, 0.5])
    assert tokens_within([answer, answer], 1.0, 3.0) == 6
    assert tokens_within([answer], 0.0, 0.5) == 0


def test_a_chunk_without_a_whole_token_is_part_of_the_wait_for_the_next() -> None:
    assert counted([(1.0, 1), (1.5, 0), (2.0, 2)]) == (Chunk(1.0, 1), Chunk(2.0, 2))


def test_a_stream_that_is_stored_is_the_same_when_it_is_read() -> None:
    answer = Stream("p", 10.5, 12.0, (Chunk(11.0, 2), Chunk(12.0, 1)), 7, 3, 3, "Ünd", "")
    again = Stream.of_record(json.loads(json.dumps(answer.record(origin=10.0))))
    assert again == Stream("p", 0.5, 2.0, (Chunk(1.0, 2), Chunk(2.0, 1)), 7, 3, 3, "Ünd", "")


def test_unanswered_stream_is_named_with_its_error() -> None:
    with pytest.raises(RuntimeError, match="q: too late"):
        failed([stream((1.0, 1)), stream(name="q", error="too late")])


@pytest.mark.parametrize(
    ("texts", "ends", "total", "expected"),
    [
        (["ab", "c", "def"], [2, 3, 6], 3, [1, 1, 1]),
        (["ab", "", "cdef"], [2, 3, 6], 3, [1, 0, 2]),  # what was held back comes with the next
        (["a", "bc"], [2, 3], 2, [0, 2]),  # the middle of a token is no token yet
        (["ab", "c"], [2, 3], 3, [1, 2]),  # a token without text, such as the last
        (["ab", "c"], [1, 2, 3], 2, [2, 0]),  # tokenising the whole text again would give more
        ([], [], 0, []),
    ],
)
def test_tokens_are_counted_by_the_text_that_they_came_with(texts, ends, total, expected) -> None:
    assert tokens_of(texts, ends, total) == expected


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def test_events_are_given_one_by_one_and_comments_are_left_out() -> None:
    said = ': keepalive 1/2\n\ndata: {"a": 1}\n\n: more\n\nevent: x\ndata:{"b": 2}\r\n\r\ndata: one\ndata:  two\n\n'
    assert list(events(lines(said))) == ['{"a": 1}', '{"b": 2}', "one\n two"]


def test_sse_events_end_at_done_and_skip_cut_ones() -> None:
    assert list(events(lines("data: a\n\ndata: [DONE]\n\ndata: b\n\n"))) == ["a"]
    assert list(events(lines("data: a\n\ndata: b\n"))) == ["a"]


def test_an_event_is_given_before_the_next_line_is_there() -> None:
    def endless():
        yield b"data: a\n"
        yield b"\n"
        raise AssertionError("asked for more than the event needs")

    assert next(events(endless())) == "a"
