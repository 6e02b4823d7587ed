"""`make bench-grammar`: what does a grammar cost, and what does speculation gain under one?

Decodes the held-out prompts for tool calls greedily, one request at a time. Each prompt is decoded in all
configurations (arms), in a random order. A result is the median over prompts of one arm's tokens per second divided by
another's, both after the first tokens, with a 95 % interval by bootstrap. Prompts count where both arms gave the same
text. Without a draft model the speculative arms draft by prompt lookup and by the grammar. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from benchmarks import options
from draftd.core import (
    DRAFT_MODEL,
    GRAMMAR,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    FallbackLevel,
    WorkloadClass,
)
from draftd.models import grammar
from draftd.models.blas import load_blas
from draftd.outcome import Emission, Outcome

TOKENS, DEPTH = 96, 6
_ANSWER_SECONDS = 600.0
_COMPARED = (
    ("unconstrained", "constrained"),
    ("unconstrained", "speculative, no grammar"),
    ("constrained", "speculative"),
    ("long keys", "long keys, forced tokens"),
    ("long keys", "long keys, speculative"),
)
_LONG_KEYS = {
    "customer_full_name": {"type": "string", "maxLength": 16},
    "preferred_departure_airport": {"enum": ["Miami", "Venice", "Lisbon", "Oslo"]},
    "requested_arrival_airport": {"enum": ["Miami", "Venice", "Lisbon", "Oslo"]},
    "number_of_passengers": {"type": "integer", "minimum": 1, "maximum": 9},
    "requires_wheelchair_assistance": {"type": "boolean"},
}


class Sink:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times: list[tuple[float, int]] = []
        self.ended = threading.Event()
        self.error = ""

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens
        self.times.append((time.perf_counter(), len(emission.tokens)))

    def on_finish(self, outcome: Outcome) -> None:
        self.error = outcome.error
        self.ended.set()

    @property
    def rate(self) -> float:
        """Output tokens per second from the first emission to the last, without the first one's tokens."""
        return (len(self.tokens) - self.times[0][1]) / (self.times[-1][0] - self.times[0][0])


def plan(*drafters: str, fixed: bool = False) -> DecodePlan:
    if not drafters:
        return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "benchmark")
    mode = DepthMode.FIXED if fixed else DepthMode.AUTOMATIC
    first, *others = drafters
    return DecodePlan(
        DecodeMode.SPECULATIVE, DEPTH, first, FallbackLevel.FULL, "on", "benchmark", mode, frozenset(others)
    )


def schema_of(record: Mapping[str, Any]) -> str:
    """Returns the JSON schema of a tool call for a prompt's record. The tools are those that the prompt's first message
    lists as name(argument, …). Without such a list, the only tool is that of the expected call, `record["expect"]`."""
    calls, listed = [], re.findall(r"(\w+)\(([^)]*)\)", record["messages"][0]["content"])
    for name, arguments in listed or [(record["expect"]["name"], ",".join(record["expect"]["arguments"]))]:
        keys = [key.strip() for key in arguments.split(",") if key.strip()]
        values = {key: {"type": ["string", "integer", "boolean"]} for key in keys}
        calls.append(_object({"name": {"const": name}, "arguments": _object(values)}))
    return json.dumps({"anyOf": calls})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip


def drafted(draft: str, *others: str) -> DecodePlan:
    """Returns a speculative plan with the draft model, if `draft` is not empty, and with the other drafters."""
    return plan(*([DRAFT_MODEL] if draft else []), *others)


def measured(worker: Any, ids: Sequence[int], made: DecodePlan, source: str) -> Sink:
    sink = Sink()
    name = f"{id(sink)} {time.perf_counter()}"
    asked = DecodeRequest(name, tuple(ids), TOKENS, made, time.monotonic(), workload=WorkloadClass.TOOL_CALL)
    worker.submit(replace(asked, grammar=source), sink)
    assert sink.ended.wait(_ANSWER_SECONDS)
    assert not sink.error, sink.error
    return sink


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grammar", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--prompts", type=int, default=40, help="number of prompts; a real model takes half a minute for each"
    )
    args = options.parse(parser)
    load_blas()
    from draftd.engine.handle import EngineState
    from draftd.engine.limits import Limits
    from draftd.engine.loop import EngineWorker
    from draftd.engine.pair import load_models

    nano = files("draftd.models") / "nano"
    worker = EngineWorker(
        lambda progress: load_models(args.model, args.draft_model or None, progress=progress),
        limits=Limits(max_draft_tokens=DEPTH, prefix_cache_bytes=0),
    )
    worker.start()
    while worker.state is EngineState.LOADING:
        time.sleep(0.01)
    lines = (nano / "prompts" / "tool_call.jsonl").read_text().splitlines()[: args.prompts]
    long_keys = grammar.json_schema(json.dumps(_object(_LONG_KEYS)))
    speculative = drafted(args.draft_model, PROMPT_LOOKUP, GRAMMAR)
    ratios: dict[str, list[float]] = {}
    compiled: list[float] = []
    for number, line in enumerate(lines):
        told = json.loads(line)
        ids = worker.tokenizer.render_chat(told["messages"])
        source = grammar.json_schema(schema_of(told))
        assert worker.grammars is not None
        compiled.append(worker.grammars.compile(source)[1])
        arms = {
            "unconstrained": (plan(), ""),
            "constrained": (plan(), source),
            "speculative": (speculative, source),
            "speculative, no grammar": (drafted(args.draft_model, PROMPT_LOOKUP), ""),
            "long keys": (plan(), long_keys),
            "long keys, forced tokens": (plan(GRAMMAR, fixed=True), long_keys),
            "long keys, speculative": (speculative, long_keys),
        }
        found = {}
        for arm in random.Random(number).sample(list(arms), len(arms)):
            found[arm] = measured(worker, ids, *arms[arm])
        for over, arm in _COMPARED:
            one, other = found[arm], found[over]
            streamed = min(len(one.times), len(other.times)) > 1
            if one.tokens == other.tokens and streamed and number:  # the first prompt is the warm-up
                ratios.setdefault(f"{arm} / {over}", []).append(one.rate / other.rate)
    worker.close()
    shown = {}
    for over, arm in _COMPARED:
        if f"{arm} / {over}" not in ratios:
            print(f"{arm} / {over}: left out, because no prompt has the same text in both", file=sys.stderr)
    for name, several in ratios.items():
        median, low, high = interval(several)
        print(f"{name}: {median:.3f} ({low:.3f} to {high:.3f}; {len(several)} prompts)", file=sys.stderr)
        shown[name] = round(median, 3)
    print(f"compiling a schema: {1000 * statistics.median(compiled):.1f} ms, once", file=sys.stderr)
    print(json.dumps({**shown, "compile_ms": round(1000 * statistics.median(compiled), 2)}))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MLX's remaining threads would make a normal exit fail
