"""`make bench-exactness`: what does `engine.exact` cost, and what does speculation gain under it (ten minutes)?

Two engines in one process decode the same prompts in turns, with and without `engine.exact`. Arms: no drafts, automatic
depth; one text, four at once. Results are ratios of tokens per second (more is better), and for the first token of a
500-token prompt of seconds (less is better): median, lowest, highest. The last line is JSON.

A model without a draft model drafts by prompt lookup.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.engines import decode, prompts_of, start
from benchmarks.layers import Sink
from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    FallbackLevel,
    SamplingParams,
)
from draftd.models.blas import load_blas

_DEEPEST, _TOGETHER, _LONG = 4, 4, 500
_CLASSES = ("code", "tool_call", "chat", "prose")
Arm = tuple[str, int]  # plan, texts at once


def start_engine(model: str, draft: str, *, exact: bool) -> Any:
    """Starts an engine, with `engine.exact` or without."""
    from draftd.engine.pair import load_models

    def load() -> Any:
        return load_models(model, draft or None, progress=lambda line: None)

    worker = start(load, max_draft_tokens=_DEEPEST, max_batch=_TOGETHER, exact=exact)
    # It would measure again, beside the other engine, as that changes the machine's speed.
    worker._engine.calibration._began = -math.inf
    return worker


def plan(name: str, drafter: str) -> DecodePlan:
    """Returns the plan of an arm."""
    if name == "plain":
        return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "benchmark")
    return DecodePlan(
        DecodeMode.SPECULATIVE, _DEEPEST, drafter, FallbackLevel.FULL, "on", "benchmark", DepthMode.AUTOMATIC
    )  # fmt: skip


def first_token(worker: Any, vocabulary: int, repetition: int, asked: DecodePlan) -> float:
    """Returns the seconds from a long prompt of random tokens to the first token of its answer."""
    dice = random.Random(repetition)
    sink, began = Sink(), time.perf_counter()
    prompt = tuple(dice.randrange(4, vocabulary) for _ in range(_LONG))
    worker.submit(DecodeRequest(f"long {began}", prompt, 1, asked, time.monotonic(), SamplingParams()), sink)
    assert sink.ended.wait(300)
    return sink.times[0][0] - began


def measure(workers: dict[str, Any], repetitions: int, tokens: int, drafter: str) -> dict[str, list[float]]:
    """Returns the ratios of each repetition, by name."""
    prompts, ratios = prompts_of(workers["usual"], _CLASSES, _TOGETHER), dict[str, list[float]]()
    arms: list[Arm] = [(name, together) for name in ("plain", "automatic") for together in (1, _TOGETHER)]
    for repetition in range(repetitions + 1):  # the first teaches automatic depth, and is dropped
        rates: dict[tuple[str, Arm], float] = {}
        for arm in random.Random(repetition).sample(arms, len(arms)):
            name, together = arm
            for engine in random.Random(f"{repetition} {arm}").sample(sorted(workers), len(workers)):
                began = time.perf_counter()
                each = [
                    decode(workers[engine], group, plan(name, drafter), tokens, workload)
                    for workload, some in prompts.items()
                    for group in ([some] if together > 1 else [[prompt] for prompt in some[:2]])
                ]
                rates[engine, arm] = sum(one.tokens for one in each) / sum(one.seconds for one in each)
                line = f"{engine}, {name}, {together}: {rates[engine, arm]:.1f} tokens/s"
                print(f"{repetition} of {repetitions}: {line}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
        seconds = {name: first_token(worker, 2000, repetition, plan("plain", "")) for name, worker in workers.items()}
        if not repetition:
            continue
        for name, together in arms:
            texts = "one text" if together == 1 else f"{together} at once"
            exact, usual = rates["exact", (name, together)], rates["usual", (name, together)]
            ratios.setdefault(f"exact over usual, {name}, {texts}", []).append(exact / usual)
            if name == "automatic":
                for engine in workers:
                    gain = rates[engine, (name, together)] / rates[engine, ("plain", together)]
                    ratios.setdefault(f"automatic over plain, {engine}, {texts}", []).append(gain)
        name = f"exact over usual, seconds to the first token of {_LONG}"
        ratios.setdefault(name, []).append(seconds["exact"] / seconds["usual"])
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--repetitions", type=int, default=5, help="how often every arm is measured (5)")
    parser.add_argument("--tokens", type=int, default=96, help="of each text (96)")
    given = options.parse(parser)
    load_blas()
    workers = {name: start_engine(given.model, given.draft_model, exact=name == "exact") for name in ("usual", "exact")}
    ratios = measure(workers, given.repetitions, given.tokens, DRAFT_MODEL if given.draft_model else PROMPT_LOOKUP)
    table = Table("ratio", "median", "lowest–highest")
    for name, values in ratios.items():
        table.add_row(name, f"{statistics.median(values):.3f}", f"{min(values):.3f}–{max(values):.3f}")
    Console(stderr=True).print(table)
    for worker in workers.values():
        worker.close()
    print(json.dumps({name: [round(value, 3) for value in values] for name, values in ratios.items()}))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MLX's remaining threads would make a normal exit fail
