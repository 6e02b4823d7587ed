"""Engines in the benchmark's own process, and what they are asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.layers import Sink
from draftd.client.prompts import held_out
from draftd.core import DecodePlan, DecodeRequest, SamplingParams, WorkloadClass

_SETTLED_SECONDS = 600.0  # the longest wait for an engine's calibration


class Decoded(NamedTuple):
    """Texts that were decoded at once: `tokens` that came after every text had its first one, and the `seconds` from
    then until the last."""

    tokens: int
    seconds: float
    sinks: Sequence[Sink]


def start(load: Callable[[], Any], **limits: Any) -> Any:
    """Starts an engine with the models that `load` returns; waits until it has measured the costs of its steps."""
    from draftd.engine.handle import EngineState
    from draftd.engine.limits import Limits
    from draftd.engine.loop import EngineWorker

    worker = EngineWorker(lambda progress: load(), limits=Limits(**limits))
    worker.start()
    while worker.state is EngineState.LOADING:
        time.sleep(0.01)
    assert worker.state is EngineState.READY, worker.error
    assert worker._engine is not None
    until = time.monotonic() + _SETTLED_SECONDS
    while worker._engine.calibration.pending:
        assert time.monotonic() < until, f"calibration did not end in {_SETTLED_SECONDS:.0f} s"
        time.sleep(0.1)
    return worker


def decode(
    worker: Any,
    prompts: Sequence[Sequence[int]],
    asked: DecodePlan,
    tokens: int,
    workload: str,
    sampling: SamplingParams | None = None,
) -> Decoded:
    """Decodes all prompts at once, greedily if `sampling` says nothing else."""
    sinks = [Sink() for _ in prompts]
    for prompt, sink in zip(prompts, sinks, strict=True):
        name, kind = f"{id(sink)} {time.perf_counter()}", WorkloadClass(workload)
        params = sampling or SamplingParams()
        worker.submit(DecodeRequest(name, tuple(prompt), tokens, asked, time.monotonic(), params, workload=kind), sink)
    for sink in sinks:
        assert sink.ended.wait(300)
    began, ended = max(sink.times[0][0] for sink in sinks), max(sink.times[-1][0] for sink in sinks)
    return Decoded(sum(n for sink in sinks for at, n in sink.times if at > began), ended - began, sinks)


def prompts_of(worker: Any, classes: Iterable[str], each: int) -> dict[str, list[list[int]]]:
    """Returns the first `each` held-out prompts of each category (class), as token ids."""
    return {
        name: [
            worker.tokenizer.render_chat([{"role": role, "content": content} for role, content in prompt.messages])
            for prompt in held_out(WorkloadClass(name))[:each]
        ]
        for name in classes
    }
