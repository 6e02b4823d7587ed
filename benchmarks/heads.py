"""`make bench-heads`: what does a draft head gain (about two hours; --only PART for one part)?

    pair         the embedded pair with its head: the head against the draft model, and the automatic choice of the two
    real         SmolLM2-135M-Instruct, or --model, with its head, against autoregressive decoding and prompt lookup
    useless      the same with random weights in the head: what does automatic depth lose?
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
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from benchmarks import layers
from benchmarks.engines import Decoded, decode, prompts_of, start
from benchmarks.exactness import first_token
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


def rows_of_useless() -> list[Row]:
    arms = [(Arm(HEAD, 0.0, together), Arm(AR, 0.0, together)) for together in (1, _TOGETHER)]
    return [Row(f"useless_{head.label}", head, (plain,), ("code", "chat", "prose"), 0.98) for head, plain in arms]


def start_engine(load: Callable[[], Any]) -> Any:
    return start(load, max_draft_tokens=_DEEPEST, max_batch=_TOGETHER)


def loaded(model: str, draft: str | None = None, *, lookup: bool = True) -> Callable[[], Any]:
    def load() -> Any:
        from draftd.engine.pair import load_models

        return load_models(model, draft, prompt_lookup=lookup, progress=lambda line: None)

    return load


def with_random_head(model: str) -> Callable[[], Any]:
    """Loads a model with its head, and draws the head's weights anew after the trial of forms has accepted it."""

    def load() -> Any:
        import mlx.core as mx
        from mlx.utils import tree_map

        models = loaded(model)()
        assert models.head is not None, models.info.head
        mx.random.seed(7)
        models.head.update(tree_map(lambda w: mx.random.normal(w.shape) * 0.02, models.head.trainable_parameters()))
        mx.eval(models.head.parameters())
        return models

    return load


def without_head(model: str) -> Callable[[], Any]:
    """Loads a model as if it had no head."""

    def load() -> Any:
        from draftd.engine import pair
        from draftd.engine.drafters.sources import NO_HEAD

        with patch.object(pair, "_load_head", lambda *given: NO_HEAD):
            return loaded(model)()

    return load


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
            seconds = time.perf_counter() - began
            print(f"{name}, {repetition} of {given.repetitions}: {seconds:.0f} s", file=sys.stderr, flush=True)
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
    worker = start_engine(with_random_head(given.model))
    rows = rows_of_useless()
    measured = measure(worker, rows, given, "useless")
    worker.close()
    return results_of(measured, rows)


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
