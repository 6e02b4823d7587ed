"""Loads: when clients ask, which window counts, and what is compared."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import replace

import pytest

from benchmarks.arms import Prompt
from benchmarks.peers import clients, long_prompts, open_loop, prefix
from benchmarks.peers.asking import AUTOMATIC, AUTOREGRESSIVE, PEER, PEER_DRAFT
from benchmarks.peers.load import Load, closed_loop, together
from benchmarks.peers.long_prompts import Window
from benchmarks.peers.open_loop import Arrivals, Bounds, OpenLoop, arrivals
from benchmarks.peers.part import Figure
from benchmarks.peers.prefix import DRAFTD, NO_REUSE, Turns
from benchmarks.peers.streams import Chunk, Stream

PROMPTS = [Prompt(f"p{i}", "code", (i,)) for i in range(12)]


def stream(*chunks: tuple[float, int], asked: float = 0.0, name: str = "p", **more) -> Stream:
    timed_chunks = tuple(Chunk(at, tokens) for at, tokens in chunks)
    return Stream(name, asked, chunks[-1][0] if chunks else asked, timed_chunks, **more)


def by_key(figures: list[Figure]) -> dict[str, Figure]:
    return {one.key: one for one in figures}


class Answering:
    """A server that answers at once; with `clients`, only when so many ask at the same time."""

    def __init__(self, clients: int = 1, error: str = "") -> None:
        self.barrier, self.error = threading.Barrier(clients), error
        self.lock, self.now, self.most, self.asked = threading.Lock(), 0, 0, list[str]()

    def ask(self, prompt: Prompt, max_tokens: int, until: float | None = None) -> Stream:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.asked.append(prompt.id)
        self.barrier.wait(timeout=20)
        with self.lock:
            self.now -= 1
        now = time.perf_counter()
        return Stream(prompt.id, now, now, (Chunk(now, 2),), output_tokens=2, text=prompt.id, error=self.error)


def test_closed_loop_load_asks_each_prompt_once_with_given_number_of_clients() -> None:
    asker = Answering(clients=3)
    load = closed_loop(asker, PROMPTS, 3, 8)
    assert asker.most == 3
    assert sorted(asker.asked) == sorted(p.id for p in PROMPTS)
    assert {one.prompt for one in load.streams} == set(asker.asked)
    assert load.until >= load.began


def test_closed_loop_load_raises_when_request_fails() -> None:
    with pytest.raises(RuntimeError, match="p0: full"):
        closed_loop(Answering(error="full"), PROMPTS[:1], 1, 8)


def test_load_reraises_error_of_client_thread() -> None:
    def fails() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        together([fails, lambda: None], 20)


def test_load_throughput_excludes_tokens_after_first_idle_client() -> None:
    load = Load((stream((1.0, 4), (2.0, 4)), stream((2.0, 2), (4.0, 100))), 0.0, 2.0)
    assert load.tokens_per_second == 5.0
    assert load.requests_per_second == 0.5
    assert Load.of_record(load.record()) == load


def test_client_count_benchmark_order_is_deterministic_and_groups_arms_by_client_count() -> None:
    counts = (1, 2, 4, 8, 16)
    turns = clients.turns_of(counts, 1, 7)
    assert turns == clients.turns_of(counts, 1, 7)
    assert turns != clients.turns_of(counts, 2, 7)
    groups = [list(group) for _, group in itertools.groupby(turns, key=lambda turn: turn[0])]
    assert [len({arm for _, arm in group}) for group in groups] == [4] * 5


def rates(*repetitions: dict[str, float], count: int = 4) -> dict[tuple[int, int, str], Load]:
    results = {}
    for repetition, arms in enumerate(repetitions):
        for arm, rate in arms.items():
            results[repetition, count, arm] = Load((stream((1.0, int(rate)), text="same"),), 0.0, 1.0)
    return results


def test_client_count_benchmark_ratio_pairs_arms_of_same_repetition() -> None:
    arms = {AUTOMATIC: 100, AUTOREGRESSIVE: 50, PEER: 80, PEER_DRAFT: 40}
    slow = {arm: rate / 10 for arm, rate in arms.items()} | {AUTOREGRESSIVE: 20}
    compared_figures = by_key(clients.compared(rates(arms, slow, arms), (4,)))
    own = compared_figures["4_clients_vs_own_autoregressive"]
    assert (own.value, own.low, own.high, own.wanted, own.holds) == (2.0, 0.5, 2.0, 1.0, True)
    assert compared_figures["4_clients_vs_peer_with_draft"].wanted == 1.5
    assert compared_figures["4_clients_vs_peer"].value == 1.25
    assert compared_figures["4_clients_autoregressive_vs_peer"].wanted is None


def test_client_count_benchmark_required_ratio_depends_on_number_of_clients() -> None:
    arms = {AUTOMATIC: 100, AUTOREGRESSIVE: 200, PEER: 200, PEER_DRAFT: 40}
    two = by_key(clients.compared(rates(arms, count=2), (2,)))
    assert two["2_clients_vs_own_autoregressive"].wanted is None
    assert two["2_clients_vs_peer_with_draft"].wanted is None
    assert two["2_clients_vs_peer"].holds is False
    eight = by_key(clients.compared(rates(arms, count=8), (8,)))
    assert eight["8_clients_vs_own_autoregressive"].holds is False
    with pytest.raises(ValueError, match="no repetition measured both"):
        clients.compared(rates({AUTOMATIC: 100}), (4,))


def test_client_count_benchmark_compares_greedy_texts_prompt_by_prompt() -> None:
    arms = rates({AUTOMATIC: 1, AUTOREGRESSIVE: 1, PEER: 1, PEER_DRAFT: 1})
    arms[0, 4, PEER] = Load((stream((1.0, 1), text="other"),), 0.0, 1.0)
    text_figures = by_key(clients.same_texts(arms))
    assert text_figures["same_greedy_text_automatic"].holds is True
    assert text_figures["same_greedy_text_peer"].value == 0.0
    assert text_figures["same_greedy_text_peer"].holds is None


def steady(gap: float, until: float = 10.0, name: str = "p") -> Stream:
    return stream(*((round(i * gap, 6), 1) for i in range(1, round(until / gap) + 1)), name=name)


def test_inter_token_window_counts_stall_that_lasts_until_window_end() -> None:
    stalled = replace(steady(0.1, until=5.0), ended=10.0)
    window = Window((steady(0.1), stalled), (), 2.0, 10.0)
    assert max(window.inter_token()) == pytest.approx(5.0)
    assert len(window.inter_token()) == 80 + 30 + 1
    before = replace(steady(0.1, until=1.0), ended=10.0)
    assert Window((before,), (), 2.0, 10.0).inter_token() == [pytest.approx(9.0)], "since its last token"
    after = stream((1.0, 1), (9.0, 1), (14.0, 1))
    assert Window((after,), (), 2.0, 10.0).inter_token() == [8.0, 1.0], "what came after the end is no end of a gap"
    never = replace(stream(), ended=10.0, error="timed out")
    assert Window((never,), (), 2.0, 10.0).inter_token() == [8.0], "the whole window"


def test_inter_token_window_p99_is_slowest_hundredth_of_gaps() -> None:
    slow = stream(*((round(0.1 * i, 6), 1) for i in range(1, 98)), *((9.7 + i, 1) for i in range(1, 4)))
    assert Window((slow,), (), 0.0, 12.7).p99 == pytest.approx(1.0)
    assert Window((slow,), (), 0.0, 9.7).p99 == pytest.approx(0.1)


def test_inter_token_window_refuses_stream_that_ended_before_window() -> None:
    with pytest.raises(
        RuntimeError, match="q: the stream ended before the measured window did: its answer was complete"
    ):
        _ = Window((steady(0.1), steady(0.1, until=1.0, name="q")), (), 2.0, 10.0).p99
    with pytest.raises(RuntimeError, match="refused"):
        _ = Window((stream(error="refused"),), (), 2.0, 10.0).p99


def test_inter_token_p99_ratio_pairs_runs_with_and_without_long_prompts_per_repetition() -> None:
    arm_turns = {}
    for arm in long_prompts.ARMS:
        for repetition, slowness in enumerate((1, 3, 3)):
            base = 0.1 * (1 + repetition)
            came = (stream((3.0, 1)), stream((11.0, 1)), stream())
            arm_turns[repetition, arm, False] = Window((steady(base),), (), 2.0, 10.0)
            arm_turns[repetition, arm, True] = Window((steady(base * slowness, until=12.0),), came, 2.0, 10.0)
    figures = by_key(long_prompts.compared(arm_turns))
    mine = figures["automatic_inter_token_p99"]
    assert (mine.value, mine.low, mine.high) == pytest.approx((3.0, 1.0, 3.0))
    assert mine.holds is False
    assert "3 of 9 long prompts" in mine.detail
    assert figures["peer_inter_token_p99"].holds is None
    again = Window.of_record(arm_turns[1, PEER, True].record(0.0))
    assert again == arm_turns[1, PEER, True]


def test_open_loop_arrivals_follow_poisson_process() -> None:
    times = arrivals(5.0, 2000.0, random.Random(1))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # 10,000 expected: four standard deviations are 400. Gaps of a Poisson process deviate by as much as their mean.
    assert len(times) == pytest.approx(10_000, abs=400)
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation / mean == pytest.approx(1.0, abs=0.05)
    assert 0 < times[0] < times[-1] < 2000.0
    assert arrivals(5.0, 2000.0, random.Random(1)) == times
    assert len(arrivals(1e-9, 3.0, random.Random(1))) == 1


def test_goodput_bounds_require_both_first_token_and_inter_token_time() -> None:
    bounds = Bounds(first_token=1.0, inter_token=0.1)
    good = stream((1.0, 1), *((1.0 + 0.1 * i - 0.001 * i, 1) for i in range(1, 20)))
    assert bounds.hold(good)
    assert not bounds.hold(replace(good, asked=-0.1)), "its time begins when it was to arrive"
    assert not bounds.hold(replace(good, error="cut off"))
    assert not bounds.hold(stream((0.5, 1), (1.5, 1), (1.6, 1)))
    assert not bounds.hold(stream())
    assert bounds.hold(stream((0.5, 1))), "of one token there is nothing between"
    assert Bounds.of([good, good], 10, 4) == Bounds(pytest.approx(10.0), pytest.approx(4 * 0.099))


def test_goodput_counts_failed_and_late_answers_as_missed() -> None:
    good, late, lost = stream((0.5, 1)), stream((2.0, 1)), stream(error="no answer")
    came = Arrivals((good, good, late, lost), 2.0)
    assert came.goodput(Bounds(1.0, 0.1)) == 1.0
    assert came.rate == 2.0
    assert came.first_token_p95() == float("inf")
    assert Arrivals((good,) * 20 + (late,), 2.0).first_token_p95() == pytest.approx(0.5)


def test_open_loop_request_time_starts_at_scheduled_arrival() -> None:
    asker = Answering()
    origin, streams = OpenLoop()._arrive(asker, PROMPTS[:3], [0.0, 0.01, 0.02], 0.05)
    assert sorted(one.asked - origin for one in streams) == pytest.approx([0.0, 0.01, 0.02])
    assert all(one.chunks[0].at >= one.asked for one in streams)


def test_open_loop_benchmark_reports_goodput_for_each_rate_and_arm() -> None:
    records = [
        {"kind": "capacity", "requests_per_second": 8.0, "bounds": {"first_token": 1.0, "inter_token": 0.1}},
        *(
            {"kind": "arrivals", "fraction": f, "arm": arm, "seconds": 2.0, "streams": [stream((0.5, 1)).record(0.0)]}
            for f in (0.6, 0.3)
            for arm in (PEER, AUTOMATIC)
        ),
    ]
    figures = open_loop.compared(records)
    assert [one.key for one in figures[3:]] == [
        "goodput_30_percent_automatic",
        "goodput_30_percent_peer",
        "goodput_60_percent_automatic",
        "goodput_60_percent_peer",
    ]
    assert all(one.value == 0.5 and one.holds is None for one in figures[3:])


def turns(first: float, second: float, cached: int = 900) -> Turns:
    return Turns(stream((first, 1)), stream((10 + second, 1), asked=10.0, cached_tokens=cached, prompt_tokens=1000))


def test_prefix_benchmark_first_token_ratio_of_turn_2_to_turn_1_is_median_over_chats() -> None:
    chats = {(i, arm): turns(2.0, second) for i, second in enumerate((0.2, 0.4, 1.8)) for arm in prefix.ARMS}
    figures = by_key(prefix.compared(chats))
    mine = figures["draftd_second_turn"]
    assert (mine.value, mine.low, mine.high) == pytest.approx((0.2, 0.1, 0.9))
    assert mine.holds is True
    assert figures["peer_second_turn"].holds is None
    with pytest.raises(RuntimeError, match="got no token"):
        _ = Turns(stream((1.0, 1)), stream()).ratio


def test_prefix_benchmark_detects_text_changed_by_prefix_reuse() -> None:
    def passed(arm: str, group: int, **texts: str) -> dict:
        return {"kind": "parity", "pass": "again", "group": group, "arm": arm, "texts": texts, "reused": 2}

    records = [passed(NO_REUSE, 0, a="x", b="y"), passed(DRAFTD, 0, a="x", b="z"), {"kind": "chat"}]
    records += [passed(NO_REUSE, 40, c="x", d="y"), passed(DRAFTD, 40, c="x", d="y")]
    figure = by_key(prefix.identical(records))["same_text_again"]
    assert (figure.value, figure.holds) == (0.75, False)
    assert "3 of 4 texts, 4 of them" in figure.detail
    assert by_key(prefix.identical(records[3:]))["same_text_again"].holds is True
