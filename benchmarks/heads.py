"""`make bench-heads`: what does a draft head gain (about two hours; --only PART for one part)?

    pair         the embedded pair with its head: the head against the draft model, and the automatic choice of the two
    real         SmolLM2-135M-Instruct, or --model, with its head, against autoregressive decoding and prompt lookup
    useless      the same with random weights in the head, and with a random EAGLE-3 head: what does depth control lose?
    blocks       drafts of a block in one forward and token by token, both right with probability 0.8
    suffix       prompt lookup: recorded texts replayed (benchmarks.replay), and what it costs on prose
    priming      seconds to the first token of a long prompt, with the head and without
    recurrent    a random Qwen3-Next model (benchmarks.layers) whose drafts are right with probability 0.8

Engines in one process answer the same prompts one after the other; an arm is a choice of drafters, and only those
draft. The arms of a prompt follow each other in random order, so that drifts of the machine's speed cancel. A result is
a ratio of tokens per second, of `priming` of seconds: median over repetitions, lowest, highest. Ctrl-C ends a part with
the repetitions that are whole. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import layers
from benchmarks.engines import Decoded, decode, prompts_of, start
from benchmarks.exactness import first_token
from benchmarks.head_models import Script, loaded, with_head_of_kind, with_random_head, without_head
from draftd.core import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DepthMode,
    DrafterName,
    FallbackLevel,
    SamplingParams,
)
from draftd.models.blas import load_blas
from scripts.real_model import FULL as REAL

_CLASSES = ("code", "chat", "prose", "tool_call", "edit")
_PROMPTS, _TOGETHER, _DEEPEST = 6, 4, 6
_BLOCK, _RIGHT = 5, 0.8  # tokens of a block with the one before it; share of rigged drafts' tokens that are right
_NANO = files("draftd.models") / "nano"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode: by which drafters (none: autoregressively), at which temperature, how many prompts at once."""

    drafters: tuple[DrafterName, ...]
    temperature: float = 0.0
    together: int = 1

    @property
    def plan(self) -> DecodePlan:
        if not self.drafters:
            return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "benchmark")
        first, *others = self.drafters
        return DecodePlan(
            DecodeMode.SPECULATIVE, _DEEPEST, first, FallbackLevel.FULL, "on", "benchmark", DepthMode.AUTOMATIC,
            frozenset(others),
        )  # fmt: skip

    @property
    def label(self) -> str:
        """The part of a result's key that says temperature and number of prompts, such as `t08_x4`."""
        return f"{'t08' if self.temperature else 'greedy'}_x{self.together}"


AR, HEAD, DRAFT, LOOKUP = (), (DRAFT_HEAD,), (DRAFT_MODEL,), (PROMPT_LOOKUP,)
CHOICE, EVERYTHING = (DRAFT_MODEL, DRAFT_HEAD), (DRAFT_HEAD, PROMPT_LOOKUP)


@dataclass(frozen=True, slots=True)
class Row:
    """One result: the rate of an arm over that of the best of others, the mean of the classes' ratios."""

    key: str
    arm: Arm
    over: tuple[Arm, ...]
    classes: tuple[str, ...]
    wanted: float | None = None


@dataclass
class Figures:
    """Sums over the answers of one arm in one class and repetition. `drafts`: steps that drafted; `first_accepted`:
    those of them whose first token was accepted."""

    tokens: int = 0
    seconds: float = 0.0
    drafts: int = 0
    first_accepted: int = 0

    def add(self, answers: Decoded) -> None:
        self.tokens += answers.tokens
        self.seconds += answers.seconds
        for sink in answers.sinks:
            self.drafts += sink.counts.drafts
            self.first_accepted += sum(sink.counts.accepted_per_position[:1])

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Measurements:
    """Figures by repetition, arm and class, and the ratios of one repetition's figures."""

    figures: dict[tuple[int, Arm, str], Figures] = field(default_factory=dict)

    def at(self, repetition: int, arm: Arm, workload: str) -> Figures:
        return self.figures.setdefault((repetition, arm, workload), Figures())

    def ratios(self, row: Row) -> list[float]:
        """Returns a row's ratio in each repetition."""
        return [
            statistics.mean(
                self.figures[repetition, row.arm, workload].rate
                / self.figures[repetition, self._best(row.over, workload, repetition), workload].rate
                for workload in row.classes
            )
            for repetition in self.repetitions
        ]

    def _best(self, arms: Sequence[Arm], workload: str, repetition: int) -> Arm:
        """Returns the arm that was fastest in the other repetitions: noise in this one must not choose it."""
        others = [other for other in self.repetitions if other != repetition] or self.repetitions
        return max(arms, key=lambda arm: statistics.median(self.figures[o, arm, workload].rate for o in others))

    @property
    def repetitions(self) -> list[int]:
        return sorted({repetition for repetition, *_ in self.figures})

    def first_accepted(self, arm: Arm, classes: Sequence[str]) -> list[float]:
        """Returns by repetition the share of drafts whose first token was accepted, over all classes."""
        by_repetition: dict[int, list[Figures]] = {}
        for (repetition, other, workload), figures in self.figures.items():
            if other == arm and workload in classes:
                by_repetition.setdefault(repetition, []).append(figures)
        return [sum(f.first_accepted for f in some) / sum(f.drafts for f in some) for some in by_repetition.values()]


def rows_of_pair() -> list[Row]:
    rows = []
    for temperature, together in product((0.0, 0.8), (1, _TOGETHER)):
        head, draft, choice = (Arm(drafters, temperature, together) for drafters in (HEAD, DRAFT, CHOICE))
        for workload, wanted in (("prose", 1.10), ("chat", 1.03)):
            key = f"pair_{workload}_head_over_draft_{head.label}"
            rows.append(Row(key, head, (draft,), (workload,), wanted))
        for workload in ("code", "tool_call"):
            key = f"pair_{workload}_choice_over_better_{choice.label}"
            rows.append(Row(key, choice, (head, draft), (workload,), 0.98))
    return rows


def rows_of_real() -> list[Row]:
    head, plain, every = Arm(HEAD), Arm(AR), Arm(EVERYTHING)
    rows = [
        Row(f"real_{workload}_greedy_x1", head, (plain,), (workload,), wanted)
        for workload, wanted in (("code", 1.35), ("chat", 1.25), ("prose", 1.15), ("tool_call", None), ("edit", None))
    ]
    rows.append(Row("real_edit_everything", every, (plain,), ("edit",), 1.6))
    rows.append(Row("real_edit_everything_over_lookup", every, (Arm(LOOKUP),), ("edit",), 1.05))
    for temperature, together, wanted in ((0.8, 1, 1.15), (0.0, _TOGETHER, 1.1)):
        head, plain = (Arm(drafters, temperature, together) for drafters in (HEAD, AR))
        rows.append(Row(f"real_{head.label}", head, (plain,), ("code", "chat", "prose"), wanted))
    return rows


def rows_of_useless(name: str) -> list[Row]:
    arms = [(Arm(HEAD, 0.0, together), Arm(AR, 0.0, together)) for together in (1, _TOGETHER)]
    return [Row(f"{name}_{head.label}", head, (plain,), ("code", "chat", "prose"), 0.98) for head, plain in arms]


def rows_of_suffix() -> list[Row]:
    head, every = Arm(HEAD), Arm(EVERYTHING)
    return [
        Row("suffix_prose_over_autoregressive", Arm(LOOKUP), (Arm(AR),), ("prose",), 0.98),
        Row("suffix_prose_beside_head", every, (head,), ("prose",), 0.98),
    ]


def start_engine(load: Callable[[], Any]) -> Any:
    return start(load, max_draft_tokens=_DEEPEST, max_batch=_TOGETHER)


def report(part: str, repetition: int, given: argparse.Namespace, began: float) -> None:
    seconds = time.perf_counter() - began
    print(f"{part}, {repetition} of {given.repetitions}: {seconds:.0f} s", file=sys.stderr, flush=True)


def measure(worker: Any, rows: Sequence[Row], given: argparse.Namespace, name: str) -> Measurements:
    """Answers every prompt with all arms of the rows; the first repetition teaches automatic depth, and is dropped. An
    interrupt ends it with the repetitions that are whole."""
    arms: dict[str, list[Arm]] = {}
    for row in rows:
        for workload, arm in product(row.classes, (row.arm, *row.over)):
            if arm not in arms.setdefault(workload, []):
                arms[workload].append(arm)
    prompts, measured = prompts_of(worker, arms, _PROMPTS), Measurements()
    whole = 0  # repetitions that were ended
    with contextlib.suppress(KeyboardInterrupt):
        for repetition in range(given.repetitions + 1):
            began = time.perf_counter()
            for workload, some in arms.items():
                for arm, group in _turns(some, prompts[workload], repetition):
                    sampling = SamplingParams(temperature=arm.temperature)
                    answers = decode(worker, group, arm.plan, given.tokens, workload, sampling)
                    measured.at(repetition, arm, workload).add(answers)
            whole = repetition
            report(name, repetition, given, began)
    if not whole:
        raise SystemExit(f"{name}: interrupted before the first repetition that counts had ended")
    measured.figures = {key: figures for key, figures in measured.figures.items() if 0 < key[0] <= whole}
    return measured


def _turns(
    arms: Sequence[Arm], prompts: Sequence[list[int]], repetition: int
) -> Iterator[tuple[Arm, Sequence[list[int]]]]:
    """Yields an arm and the prompts that it answers together, one after the other: all arms of the same prompts follow
    each other in random order."""
    for together in sorted({arm.together for arm in arms}):
        of_size = [arm for arm in arms if arm.together == together]
        for start_at in range(0, len(prompts), together):
            for arm in random.Random(f"{repetition} {start_at}").sample(of_size, len(of_size)):
                yield arm, prompts[start_at : start_at + together]


Results = dict[str, tuple[float | None, list[float]]]
"""The ratio that is wanted (None: any), and the ratio of each repetition, by the result's key."""


def results_of(measured: Measurements, rows: Sequence[Row]) -> Results:
    return {row.key: (row.wanted, measured.ratios(row)) for row in rows}


def examine_pair(given: argparse.Namespace) -> Results:
    worker = start_engine(loaded(str(_NANO / "target"), str(_NANO / "draft"), lookup=False))
    rows = rows_of_pair()
    measured = measure(worker, rows, given, "pair")
    worker.close()
    return results_of(measured, rows)


def examine_real(given: argparse.Namespace) -> Results:
    worker = start_engine(loaded(given.model))
    rows = rows_of_real()
    measured = measure(worker, rows, given, "real")
    worker.close()
    first = measured.first_accepted(Arm(HEAD), _CLASSES)
    return results_of(measured, rows) | {"real_accepted_at_position_0": (0.5, first)}


def examine_useless(given: argparse.Namespace) -> Results:
    results: Results = {}
    loads = {"useless": with_random_head(given.model), "useless_eagle3": with_head_of_kind(given.model, "eagle")}
    for name, load in loads.items():
        worker, rows = start_engine(load), rows_of_useless(name)
        results |= results_of(measure(worker, rows, given, name), rows)
        worker.close()
    return results


def examine_blocks(given: argparse.Namespace) -> Results:
    """Compares a DFlash head of three layers with a block of five, and an MTP head, on the same prompts."""
    script = Script(_RIGHT)
    kinds = {"block": "dflash", "chain": "mtp"}
    workers = {
        name: start_engine(with_head_of_kind(given.model, kind, script.drafter(kind))) for name, kind in kinds.items()
    }
    by_class = prompts_of(workers["chain"], ("code", "chat", "prose"), _PROMPTS // 3)
    prompts = [(workload, prompt) for workload, some in by_class.items() for prompt in some]
    answers = {}
    for workload, prompt in prompts:
        (sink,) = decode(workers["chain"], [prompt], Arm(AR).plan, given.tokens, workload).sinks
        answers[tuple(prompt)] = sink.tokens
    script.tell(answers)
    fixed = replace(Arm(HEAD).plan, max_draft_tokens=_BLOCK - 1, depth_mode=DepthMode.FIXED)
    arms = {"block": ("block", fixed), "chain": ("chain", fixed), "autoregressive": ("chain", Arm(AR).plan)}
    rates: list[dict[str, float]] = []
    for repetition in range(given.repetitions + 1):
        sums, began = {arm: Figures() for arm in arms}, time.perf_counter()
        for i, (workload, prompt) in enumerate(prompts):
            for arm in random.Random(f"{repetition} {i}").sample(sorted(arms), len(arms)):
                name, plan = arms[arm]
                sums[arm].add(decode(workers[name], [prompt], plan, given.tokens, workload))
        assert all(sums[arm].drafts for arm in ("block", "chain")), "the head missed a prompt's hidden states"
        rates.append({arm: figures.rate for arm, figures in sums.items()})
        report("blocks", repetition, given, began)
    for worker in workers.values():
        worker.close()
    pairs = (("block", "chain"), ("block", "autoregressive"), ("chain", "autoregressive"))
    return {f"blocks_{a}_over_{b}": (None, [rate[a] / rate[b] for rate in rates[1:]]) for a, b in pairs}


def examine_suffix(given: argparse.Namespace) -> Results:
    from benchmarks import replay  # imports MLX

    worker, rows = start_engine(loaded(given.model)), rows_of_suffix()
    results = results_of(measure(worker, rows, given, "suffix"), rows)
    replayed = replay.measure(worker.tokenizer)
    worker.close()
    for texts, depth, kind in product(("sessions", "edits"), replay.DEPTHS, ("text", "earlier")):
        ratio = (
            replayed[f"{texts} {kind} {depth}"].accepted_per_step
            / replayed[f"{texts} ngrams {depth}"].accepted_per_step
        )
        results[f"suffix_{texts}_{kind}_depth_{depth}"] = (1.3 if kind == "earlier" else None, [ratio])
    slow = replayed[f"sessions earlier {max(replay.DEPTHS)}"]
    results["suffix_microseconds_median"] = (30.0, [slow.microseconds(0.5)])
    results["suffix_microseconds_p99"] = (100.0, [slow.microseconds(0.99)])
    return results


def examine_priming(given: argparse.Namespace) -> Results:
    workers = {"with": start_engine(loaded(given.model)), "without": start_engine(without_head(given.model))}
    ratios = []
    for repetition in range(2 * given.repetitions + 1):
        order = random.Random(repetition).sample(sorted(workers), 2)
        plans = {"with": Arm(HEAD).plan, "without": Arm(AR).plan}
        seconds = {
            name: first_token(workers[name], workers[name].info.vocab_size, repetition, plans[name]) for name in order
        }
        ratios.append(seconds["with"] / seconds["without"])
    for worker in workers.values():
        worker.close()
    return {"priming": (1.04, ratios[1:])}


def examine_recurrent(given: argparse.Namespace) -> Results:
    ratios = layers.ratios_of("qwen3_next", given.repetitions)
    wanted = {"depth 3": (1.7, 1.3), "automatic over the best depth": (0.95, 0.95)}
    names = {"depth 3": "recurrent_depth_3", "automatic over the best depth": "recurrent_automatic"}
    return {
        f"{names[name]}_x{n}": (value, ratios[f"{name}, {n}"])
        for name, values in wanted.items()
        for n, value in zip((1, _TOGETHER), values, strict=True)
    }


PARTS: Mapping[str, Callable[[argparse.Namespace], Results]] = {
    "pair": examine_pair,
    "real": examine_real,
    "useless": examine_useless,
    "blocks": examine_blocks,
    "suffix": examine_suffix,
    "priming": examine_priming,
    "recurrent": examine_recurrent,
}


def show(results: Results) -> None:
    table = Table("result", "median", "lowest–highest", "wanted")
    for key, (wanted, values) in results.items():
        span = f"{min(values):.3f}–{max(values):.3f}"
        table.add_row(key, f"{statistics.median(values):.3f}", span, "" if wanted is None else f"{wanted:.2f}")
    Console(stderr=True, width=110).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part; may be repeated")
    parser.add_argument(
        "--model", default=str(REAL), help="folder of a model with a draft head (SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--repetitions", type=int, default=7, help="how often every arm is measured (7)")
    parser.add_argument("--tokens", type=int, default=96, help="of each text (96)")
    given = parser.parse_args()
    load_blas()
    results: Results = {}
    for part in given.only or PARTS:
        results |= PARTS[part](given)
    show(results)
    print(json.dumps({key: [round(value, 3) for value in values] for key, (_, values) in results.items()}))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MLX's remaining threads would make a normal exit fail
