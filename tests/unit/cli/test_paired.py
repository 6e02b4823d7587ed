"""A pair is two real answers, and an answer that cannot be had is an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftd.acceptance import ticks as figures
from draftd.cli.commands.compare import Pair, run_pair, summarise
from draftd.client.asking import Ask
from draftd.client.client import CallError
from draftd.core import DecodeMode, SamplingParams, WorkloadClass
from draftd.engine.scripted import scripted_models
from tests.serving import Served, serving

_ASK = Ask(prompt="hello", max_tokens=24, workload=WorkloadClass.CODE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), lambda: scripted_models(0.7)) as served:
        yield served


def test_a_prompt_is_answered_both_ways(served: Served) -> None:
    pair = run_pair(served.client, _ASK, "greeting", "code")
    slow, fast = pair.autoregressive, pair.speculative
    assert all(map(figures.usable, (slow, fast)))
    assert slow.granted is not None
    assert fast.granted is not None
    assert (slow.granted.mode, fast.granted.mode) == (DecodeMode.AUTOREGRESSIVE, DecodeMode.SPECULATIVE)
    assert (slow.place.arm, fast.place.arm, fast.place.prompt) == ("ar", "k4", "greeting")
    assert slow.counts.drafted == 0 < fast.counts.accepted
    assert pair.identical is True
    assert (pair.answer.counts, len(pair.answer.tokens)) == (fast.counts, 24)
    summary = summarise([pair])
    assert summary.speculative_tokens_per_second == figures.decode_tokens_per_second(fast)
    assert summary.acceptance == figures.acceptance(fast)
    assert summary.speculative_time_to_first_token == figures.time_to_first_token(fast)


def test_sampled_texts_promise_nothing(served: Served) -> None:
    pair: Pair = run_pair(
        served.client, Ask(prompt="hello", max_tokens=8, sampling=SamplingParams(temperature=1.0, seed=1)), "a", ""
    )
    assert pair.identical is None


def test_where_speculation_cannot_be_had_the_pair_is_an_error(tmp_path: Path) -> None:
    with (
        serving(tmp_path, lambda: scripted_models(0.7, with_draft=False), engine={"max_draft_tokens": 0}) as served,
        pytest.raises(CallError) as refused,
    ):
        run_pair(served.client, _ASK, "greeting", "code")
    assert refused.value.code.name == "FAILED_PRECONDITION"
