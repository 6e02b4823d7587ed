"""`python -m benchmarks.layers`: does speculation pay on models whose layers keep a recurrent state or a sliding
window?

The models have about 30 million random weights and are made on the spot. A scripted drafter knows the target's text and
proposes each token correctly with a given probability. Drafting costs nothing, so that only verification, rollback and
replay are measured. Each repetition measures all configurations (arms) in a random order. A result is the median over
repetitions of one arm's tokens per second divided by another's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from draftd.core import (
    DRAFT_MODEL,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    FallbackLevel,
    SamplingParams,
    WorkloadClass,
)
from draftd.counts import DraftCounts
from draftd.models.blas import load_blas
from draftd.outcome import Emission, Outcome

TOKENS, PROMPT, DEEPEST = 128, 24, 8
DEPTHS = (1, 2, 3, 4, 6)  # fixed depths, besides 0, that automatic depth is compared with
_COMMON = {"vocab_size": 4096, "hidden_size": 512, "max_position_embeddings": 4096}
_ATTENTION = {"num_attention_heads": 8, "num_key_value_heads": 2}
_SHAPES: dict[str, dict[str, Any]] = {
    "lfm2": {
        **_COMMON, **_ATTENTION, "num_hidden_layers": 9, "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3,
        "block_dim": 512, "block_ff_dim": 1536, "block_multiple_of": 64, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False, "full_attn_idxs": [2, 5, 8],
    },
    "mamba2": {
        **_COMMON, "num_hidden_layers": 16, "num_heads": 16, "head_dim": 64, "intermediate_size": 1024,
        "state_size": 64, "layer_norm_epsilon": 1e-5, "conv_kernel": 4, "n_groups": 1, "use_bias": False,
        "use_conv_bias": True, "tie_word_embeddings": True, "time_step_limit": [0.0, 100.0], "time_step_rank": 32,
    },
    "gemma3_text": {
        **_COMMON, **_ATTENTION, "num_hidden_layers": 8, "head_dim": 64, "intermediate_size": 2048,
        "query_pre_attn_scalar": 64, "sliding_window": 32, "sliding_window_pattern": 4,
    },
    "qwen3_next": {
        **_COMMON, **_ATTENTION, "num_hidden_layers": 8, "head_dim": 64, "intermediate_size": 1536,
        "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "num_experts": 0, "num_experts_per_tok": 1,
        "decoder_sparse_step": 1, "shared_expert_intermediate_size": 64, "mlp_only_layers": [],
        "moe_intermediate_size": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
KINDS = {"lfm2": "short convolutions", "mamba2": "Mamba-2", "gemma3_text": "window", "qwen3_next": "gated delta"}


def plan(depth: int | None) -> DecodePlan:
    """Returns the decode plan for `depth` draft tokens a step: 0 decodes autoregressively, None chooses the depth
    automatically."""
    if depth == 0:
        return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "benchmark")
    mode = DepthMode.AUTOMATIC if depth is None else DepthMode.FIXED
    most = DEEPEST if depth is None else depth
    return DecodePlan(DecodeMode.SPECULATIVE, most, DRAFT_MODEL, FallbackLevel.FULL, "on", "benchmark", mode)


class Sink:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times: list[tuple[float, int]] = []  # when tokens came, and how many
        self.counts = DraftCounts()
        self.ended = threading.Event()

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens
        self.times.append((time.perf_counter(), len(emission.tokens)))

    def on_finish(self, outcome: Outcome) -> None:
        assert not outcome.degraded, outcome
        self.counts = outcome.stats.counts
        self.ended.set()


def started(kind: str) -> tuple[Any, dict[str, Any]]:
    """Starts an engine on a thread, with a random model of type `kind` and a drafter that follows a script. Returns the
    engine and the script: `texts` (by prompt, the token ids to draft), `right` (the probability that a drafted token is
    taken from them unchanged) and `seed`. The caller may change the script."""
    import mlx.core as mx

    from draftd.engine.drafters.base import DraftSequence, TextDrafter
    from draftd.engine.drafters.registry import DrafterNeeds, DrafterRegistry
    from draftd.engine.handle import EngineState
    from draftd.engine.limits import Limits
    from draftd.engine.loop import EngineWorker
    from draftd.engine.pair import LoadedModels, assemble, load_tokenizer
    from draftd.models.mlx_lm import model_classes

    script: dict[str, Any] = {"texts": {}, "right": 0.8, "seed": 0}

    class Scripted(TextDrafter):
        def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
            text, at = script["texts"].get(tuple(sequence.tokens[:PROMPT]), ()), len(sequence.tokens) - PROMPT
            dice = random.Random(f"{script['seed']} {at} {sequence.tokens[:PROMPT]}")  # different for each sequence
            said = [token if dice.random() < script["right"] else token ^ 1 for token in text[at : at + depth]]
            return said or [1] * depth  # calibration has no scripted text

    def load(progress: Any) -> LoadedModels:
        config = {"model_type": kind, "rms_norm_eps": 1e-6} | _SHAPES[kind]
        model_class, args_class = model_classes(config)
        mx.random.seed(5)
        model, draft = (model_class(args_class.from_dict(dict(config))) for _ in range(2))
        for one in (model, draft):
            one.set_dtype(mx.float32)
            one.eval()
            mx.eval(one.parameters())
        registry = DrafterRegistry()
        registry.register(DRAFT_MODEL, lambda provided: Scripted(), DrafterNeeds.MODEL)
        tokenizer = load_tokenizer(str(files("draftd.models") / "nano" / "target"))
        tokenizer.eos_ids = frozenset()
        return assemble(
            model, draft, tokenizer, model=kind, draft_model="scripted", context_length=4096,
            backend="", prompt_lookup=False, registry=registry,
        )  # fmt: skip

    limits = Limits(max_draft_tokens=DEEPEST, max_batch=4)
    worker = EngineWorker(load, limits=limits)
    worker.start()
    while worker.state is EngineState.LOADING:
        time.sleep(0.01)
    return worker, script


def measured(
    worker: Any, prompts: Sequence[tuple[int, ...]], depth: int | None, workload: WorkloadClass = WorkloadClass.CODE
) -> tuple[float, list[list[int]]]:
    """Decodes all prompts at once. Returns their total tokens per second while all of them decode, and their token
    ids."""
    sinks = [Sink() for _ in prompts]
    for prompt, sink in zip(prompts, sinks, strict=True):
        name = f"{id(sink)} {time.perf_counter()}"
        asked = DecodeRequest(name, prompt, TOKENS, plan(depth), time.monotonic(), SamplingParams(), workload=workload)
        worker.submit(asked, sink)
    for sink in sinks:
        assert sink.ended.wait(300)
    began, ended = max(sink.times[0][0] for sink in sinks), min(sink.times[-1][0] for sink in sinks)
    count = sum(n for sink in sinks for at, n in sink.times if began < at <= ended)
    return count / (ended - began), [sink.tokens for sink in sinks]


def ratios_of(kind: str, repetitions: int) -> dict[str, list[float]]:
    """Returns ratios of tokens per second by repetition, with keys such as `depth 3, 1`: the last number is the
    concurrent requests."""
    worker, script = started(kind)
    dice = random.Random(3)
    prompts = [tuple(dice.randrange(4, 4096) for _ in range(PROMPT)) for _ in range(4)]
    for prompt in prompts:
        script["texts"][prompt] = measured(worker, [prompt], 0)[1][0]
    rates: list[dict[tuple[int, float, int | None], float]] = []  # by repetition
    arms: list[tuple[int, float, int | None]] = [(n, 0.8, depth) for n, depth in product((1, 4), (0, *DEPTHS, None))]
    arms += [(n, 0.0, None) for n in (1, 4)]
    for repetition in range(repetitions):
        rates.append({})
        script["seed"] = repetition
        for arm in random.Random(repetition).sample(arms, len(arms)):
            batch, script["right"], depth = arm
            # Each kind of draft has a prompt category (class) of its own, whose first answers teach automatic depth.
            workload = WorkloadClass.CODE if script["right"] else WorkloadClass.PROSE
            together = [prompts] if batch > 1 else [[prompt] for prompt in prompts]
            if depth is None:
                measured(worker, together[0], depth, workload)
            answers = [measured(worker, some, depth, workload) for some in together]
            rates[-1][arm] = statistics.mean(rate for rate, _ in answers)
            assert [text for _, texts in answers for text in texts] == [
                script["texts"][prompt] for some in together for prompt in some
            ], arm
    worker.close()
    ratios: dict[str, list[float]] = {}
    for (i, rate), n in product(enumerate(rates), (1, 4)):
        plain = rate[n, 0.8, 0]
        found = {f"depth {k}": rate[n, 0.8, k] / plain for k in DEPTHS}
        found["automatic"] = rate[n, 0.8, None] / plain
        found["automatic over the best depth"] = rate[n, 0.8, None] / rate[n, 0.8, _best(rates, i, n)]
        found["automatic, useless draft"] = rate[n, 0.0, None] / plain
        for name, ratio in found.items():
            ratios.setdefault(f"{name}, {n}", []).append(ratio)
    return ratios


def examined(kind: str, repetitions: int, console: Console) -> dict[str, float]:
    """Measures a model of type `kind` and shows the results. Returns the median ratios."""
    ratios = ratios_of(kind, repetitions)
    table = Table("tokens/s ÷ autoregressive", "1 request", "4 requests", title=f"{KINDS[kind]} ({kind})")
    for name in dict.fromkeys(key.rpartition(", ")[0] for key in ratios):
        several = [ratios[f"{name}, {n}"] for n in (1, 4)]
        cells = [f"{statistics.median(found):.2f} ({min(found):.2f}–{max(found):.2f})" for found in several]
        table.add_row(name, *cells)
    console.print(table)
    return {name: round(statistics.median(found), 3) for name, found in ratios.items()}


def _best(rates: Sequence[Mapping[tuple[int, float, int | None], float]], repetition: int, n: int) -> int:
    """Returns the fixed depth that was fastest in the other repetitions, for `n` concurrent requests: noise in this
    repetition must not choose it."""
    others = [one for i, one in enumerate(rates) if i != repetition] or rates
    return max((0, *DEPTHS), key=lambda depth: statistics.median(one[n, 0.8, depth] for one in others))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", choices=_SHAPES)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    load_blas()
    console = Console(stderr=True)
    found = {kind: examined(kind, args.repetitions, console) for kind in args.only or _SHAPES}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MLX's remaining threads would make a normal exit fail
