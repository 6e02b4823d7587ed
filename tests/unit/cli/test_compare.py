"""A pair is two real answers; figures of answers and of pairs, as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.cli.commands.compare import Pair, by_group, run_pair, shorten_figures, summarise
from draftd.cli.commands.generate import summary as one_line
from draftd.cli.figures import both, milliseconds, size
from draftd.client.client import Ask, CallError
from draftd.client.gathering import Answer, Piece, gather, split
from draftd.client.timing import Capture, time_to_first_token
from draftd.core import DecodeMode, SamplingParams, WorkloadClass
from draftd.protocol import plain
from draftd.v1 import control_pb2 as control
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models

_ASK = Ask(prompt="hello", max_tokens=24, workload=WorkloadClass.CODE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), lambda: scripted_models(0.7)) as served:
        yield served


def test_compare_pair_runs_prompt_autoregressively_and_speculatively(served: Served) -> None:
    pair = run_pair(served.client, _ASK, "greeting", "code")
    slow, fast = pair.autoregressive, pair.speculative
    assert slow.complete
    assert fast.complete
    assert (slow.answer.mode, fast.answer.mode) == (DecodeMode.AUTOREGRESSIVE, DecodeMode.SPECULATIVE)
    assert slow.answer.counts.drafted == 0 < fast.answer.counts.accepted
    assert pair.identical is True
    assert len(fast.answer.tokens) == 24
    summary = summarise([pair])
    assert summary["speculative_tokens_per_second"] == fast.answer.finished.timings.decode_tokens_per_second > 0
    assert summary["acceptance"] == fast.answer.counts.acceptance
    assert summary["speculative_time_to_first_token"] == time_to_first_token(fast)


def test_compare_pair_of_sampled_answers_has_no_identity_verdict(served: Served) -> None:
    pair: Pair = run_pair(
        served.client, Ask(prompt="hello", max_tokens=8, sampling=SamplingParams(temperature=1.0, seed=1)), "a", ""
    )
    assert pair.identical is None


def test_compare_pair_without_speculation_available_fails_with_failed_precondition(tmp_path: Path) -> None:
    with (
        serving(tmp_path, lambda: scripted_models(0.7, with_draft=False), engine={"max_draft_tokens": 0}) as served,
        pytest.raises(CallError) as refused,
    ):
        run_pair(served.client, _ASK, "greeting", "code")
    assert refused.value.code.name == "FAILED_PRECONDITION"


def answer(tokens: tuple[int, ...], rate: float, *, drafted: int = 0, accepted: int = 0, drafts: int = 0) -> Answer:
    mode = pb.DECODE_MODE_SPECULATIVE if drafted else pb.DECODE_MODE_AUTOREGRESSIVE
    counts = pb.DraftCounts(drafted_tokens=drafted, accepted_tokens=accepted, drafts=drafts)
    timings = pb.Timings(decode_tokens_per_second=rate)
    timings.time_to_first_token.FromMilliseconds(20)
    usage = pb.Usage(output_tokens=len(tokens))
    return Answer("", tokens, (), pb.Started(), pb.Finished(mode=mode, counts=counts, timings=timings, usage=usage))


def pair(group: str, slow: float, fast: float, *, same: bool = True, greedy: bool = True) -> Pair:
    """A pair of answers at `slow` and `fast` tokens a second; two drafts, with six of eight tokens accepted."""
    counts = pb.DraftCounts(drafted_tokens=8, accepted_tokens=6, drafts=2)
    left, right = paced(slow), paced(fast, first_token=1 if same else 2, counts=counts)
    return Pair(group, group, greedy, left, right)


def paced(rate: float, *, chunks: int = 11, first_token: int = 1, counts: pb.DraftCounts | None = None) -> Capture:
    """A capture of one token a chunk, `rate` of them a second."""
    tokens = [first_token, *range(2, chunks + 1)]
    timings = pb.Timings(decode_tokens_per_second=rate if chunks > 1 else None)
    finished = pb.Finished(counts=counts, usage=pb.Usage(output_tokens=chunks), timings=timings)
    responses = [pb.GenerateResponse(chunk=pb.Chunk(token_ids=[token])) for token in tokens]
    arrivals = [0.1 + place / rate for place in range(chunks + 1)]
    return Capture(0.0, 0.0, arrivals[-1], tuple(arrivals), (*responses, pb.GenerateResponse(finished=finished)))


def test_response_chunk_is_split_into_drafted_and_target_text_by_token_lengths() -> None:
    chunk = pb.Chunk(
        text="def add(a", token_ids=[1, 2, 3, 4], from_draft=[True, True, True, False], text_lengths=[3, 4, 1, 1]
    )
    assert split(chunk) == [Piece("def add(", True), Piece("a", False)]


def test_response_chunk_text_beyond_its_token_lengths_counts_as_target_text() -> None:
    chunk = pb.Chunk(text="abc", token_ids=[1], from_draft=[True], text_lengths=[1])
    assert split(chunk) == [Piece("a", True), Piece("bc", False)]


@given(st.lists(st.tuples(st.text(max_size=3), st.booleans()), max_size=8), st.text(max_size=3))
def test_drafted_and_target_pieces_of_a_response_chunk_join_to_its_whole_text(
    tokens: list[tuple[str, bool]], rest: str
) -> None:
    chunk = pb.Chunk(
        text="".join(text for text, _ in tokens) + rest,
        token_ids=range(len(tokens)),
        from_draft=[drafted for _, drafted in tokens],
        text_lengths=[len(text) for text, _ in tokens],
    )
    assert "".join(piece.text for piece in split(chunk)) == chunk.text


def test_generate_stream_is_gathered_into_one_answer_with_text_tokens_and_mode() -> None:
    stream = [
        pb.GenerateResponse(started=pb.Started(model="m")),
        pb.GenerateResponse(chunk=pb.Chunk(text="ab", token_ids=[1, 2], from_draft=[True, False], text_lengths=[1, 1])),
        pb.GenerateResponse(chunk=pb.Chunk(text="c", token_ids=[3], from_draft=[False], text_lengths=[1])),
        pb.GenerateResponse(finished=pb.Finished(mode=pb.DECODE_MODE_SPECULATIVE)),
    ]
    heard: list[Piece] = []
    whole = gather(iter(stream), heard.extend)
    assert (whole.text, whole.tokens, whole.started.model) == ("abc", (1, 2, 3), "m")
    assert whole.mode is DecodeMode.SPECULATIVE
    assert tuple(heard) == whole.pieces


def test_compare_summary_counts_identical_pairs_and_takes_median_speedup() -> None:
    pairs = [pair("code", 100, 250), pair("code", 100, 150), pair("prose", 100, 90, same=False)]
    summary = summarise(pairs)
    assert (summary["identical"], summary["comparable"]) == (2, 3)
    assert summary["speedup"] == pytest.approx(1.5)
    assert summary["acceptance"] == pytest.approx(0.75)
    assert summary["mean_accepted_length"] == pytest.approx(4.0)
    assert {name: len(group) for name, group in by_group(pairs).items()} == {"code": 2, "prose": 1}
    assert shorten_figures(summary)["speedup"] == 1.5


def test_compare_summary_leaves_sampled_pairs_out_of_identical_and_comparable_counts() -> None:
    summary = summarise([pair("code", 100, 200, greedy=False)])
    assert (summary["identical"], summary["comparable"]) == (0, 0)


def test_compare_pair_of_single_chunk_answers_has_no_speedup() -> None:
    single = paced(100, chunks=1)
    lone_pair = Pair("x", "x", True, single, single)
    assert lone_pair.speedup is None
    assert summarise([lone_pair])["speedup"] is None


def test_figure_formatters_print_units_and_a_dash_for_a_missing_value() -> None:
    assert milliseconds(0.01234) == "12.3 ms"
    assert milliseconds(None) == "–"
    assert both(0.0123, None, 1000) == "12 → –"
    assert [size(n) for n in (5, 1500, 42_755_072, 16_000_000_000)] == ["5 B", "2 KB", "43 MB", "16.0 GB"]
    line = one_line(answer((1, 2), 123.4, drafted=8, accepted=6, drafts=2))
    assert "6 of 8 drafted accepted (75%)" in line
    assert "4.00 tokens per draft, the target's own included" in line


def test_plain_conversion_of_protobuf_yields_short_enum_names_seconds_and_none_for_unset() -> None:
    finished = pb.Finished(reason=pb.FINISH_REASON_STOP, counts=pb.DraftCounts(steps=3, accepted_per_position=[2, 1]))
    finished.timings.total.FromMilliseconds(1500)
    plain_values = plain(finished)
    assert plain_values["reason"] == "stop"
    assert plain_values["counts"]["steps"] == 3
    assert plain_values["counts"]["accepted_per_position"] == [2, 1]
    assert plain_values["timings"]["total"] == 1.5
    assert plain_values["timings"]["queue"] is None
    assert plain_values["usage"] is None


def test_plain_conversion_of_protobuf_timestamps_yields_iso_utc_text() -> None:
    change = control.Transition(subject="flag")
    assert plain(change)["at"] is None
    change.at.FromSeconds(1_767_225_600)
    assert plain(change)["at"] == "2026-01-01T00:00:00Z"
