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


def test_stream_inter_token_time_divides_gap_among_tokens_of_chunk() -> None:
    answer = stream((1.0, 3), (1.4, 4), (1.5, 1), asked=0.25)
    assert answer.time_to_first_token == 0.75
    assert answer.inter_token() == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    assert stream((1.0, 5)).inter_token() == []
    assert stream().time_to_first_token is None


def test_stream_window_counts_tokens_arriving_inside_with_gaps_that_begin_before() -> None:
    answer = stream((1.0, 1), (2.0, 1), (3.0, 2), (5.0, 1))
    assert answer.inter_token(since=2.0, until=4.0) == pytest.approx([0.5, 0.5])
    assert tokens_within([answer, answer], 1.0, 3.0) == 6
    assert tokens_within([answer], 0.0, 0.5) == 0


def test_stream_chunk_without_whole_token_is_dropped() -> None:
    assert counted([(1.0, 1), (1.5, 0), (2.0, 2)]) == (Chunk(1.0, 1), Chunk(2.0, 2))


def test_stream_record_survives_json_round_trip_relative_to_origin() -> None:
    answer = Stream("p", 10.5, 12.0, (Chunk(11.0, 2), Chunk(12.0, 1)), 7, 3, 3, "Ünd", "")
    again = Stream.of_record(json.loads(json.dumps(answer.record(origin=10.0))))
    assert again == Stream("p", 0.5, 2.0, (Chunk(1.0, 2), Chunk(2.0, 1)), 7, 3, 3, "Ünd", "")


def test_failed_stream_raises_error_with_prompt_name_and_cause() -> None:
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
def test_chunk_token_counts_are_assigned_by_token_end_positions_in_text(texts, ends, total, expected) -> None:
    assert tokens_of(texts, ends, total) == expected


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def test_sse_parser_yields_data_of_each_event_and_skips_comments() -> None:
    said = ': keepalive 1/2\n\ndata: {"a": 1}\n\n: more\n\nevent: x\ndata:{"b": 2}\r\n\r\ndata: one\ndata:  two\n\n'
    assert list(events(lines(said))) == ['{"a": 1}', '{"b": 2}', "one\n two"]


def test_sse_parser_stops_at_done_and_drops_truncated_event() -> None:
    assert list(events(lines("data: a\n\ndata: [DONE]\n\ndata: b\n\n"))) == ["a"]
    assert list(events(lines("data: a\n\ndata: b\n"))) == ["a"]


def test_sse_parser_yields_event_without_reading_next_line() -> None:
    def endless():
        yield b"data: a\n"
        yield b"\n"
        raise AssertionError("asked for more than the event needs")

    assert next(events(endless())) == "a"
