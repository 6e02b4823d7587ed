"""A step asks MLX once for what it computed, whoever drafts and however is sampled. (Counted are calls of `eval`: what
is read afterwards was among what they were asked for.)"""

from __future__ import annotations

import mlx.core as mx
import pytest

from draftd.core import PROMPT_LOOKUP, DecodePlan, SamplingParams
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama

PLANS = {
    "plain": autoregressive(),
    "draft model": speculative(3),
    "prompt lookup": speculative(3, PROMPT_LOOKUP),
}
WAYS = {"greedy": SamplingParams(), "seeds": SamplingParams(1.0, seed=3), "no seeds": SamplingParams(1.0, top_p=0.9)}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_decode_step_evaluates_mlx_arrays_once(
    plan: DecodePlan, way: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(pair(tiny_llama(1, scale=2.0), tiny_llama(2, scale=2.0)))
    sinks = [rig.add(request([n, 5, 2, 5, 2, 1, 5, 2], plan, max_tokens=40, sampling=way)) for n in range(3)]
    for _ in range(6):
        rig.scheduler.step()  # all have joined
    waits, evaluate = 0, mx.eval
    sent = [len(sink.chunks) for sink in sinks]

    def counted(*arrays: mx.array) -> None:
        nonlocal waits
        waits += 1
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", counted)
    for _ in range(8):
        rig.scheduler.step()
    assert waits == 8
    assert [len(sink.chunks) - before for sink, before in zip(sinks, sent, strict=True)] == [8] * 3
    assert all(sink.outcome is None for sink in sinks)
