"""`make bench-harness`: does the acceptance harness measure the same speed as a bare client?

Sends the same prompts to one daemon, autoregressively and speculatively, in a random order each time, with three
clients (arms):

    bare      the bare client: sends requests as the other benchmarks do, without the harness
    again     the same client once more, to show how much two measurements of one thing differ here
    harness   the acceptance harness: it captures an answer, stores its measurement and samples the machine meanwhile

A result is the median ratio of a client's tokens per second to the bare client's. The harness passes if the whole 95 %
interval of its ratio lies within 1 % of 1. Raw measurements (ticks) are kept in .benchmarks/. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.arms import Draftd, Prompt, daemon, fixed_depth, fixed_drafter
from benchmarks.ratios import Tick
from benchmarks.run import load_prompts
from draftd.client.client import Ask, DraftdClient
from draftd.client.timing import capture
from draftd.core import DepthMode, DrafterName, ModePreference, WorkloadClass
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.session import ANSWER_SECONDS, Session, sampling, tick_of
from draftd_acceptance.statistics import Interval, bootstrap
from draftd_acceptance.ticks import RunPlace, Stage

BOUND = 0.01
MODES = {"ar": ModePreference.AUTOREGRESSIVE, "spec": ModePreference.SPECULATIVE}
ARMS = ("bare", "again", "harness")
_BLOCK = 2  # prompts that an arm sends in a row: long enough for the harness to sample the machine
_PAUSE_SECONDS = 0.08  # as in benchmarks.run
_SETTLE_SECONDS = 25.0

Answers = Callable[[Prompt], Tick]


@dataclass(frozen=True, slots=True)
class Harness:
    """Sends prompts as the acceptance harness's sweep does. `name` is the mode's key in MODES; `depth` is the draft
    tokens of a speculative step."""

    session: Session
    name: str
    mode: ModePreference
    depth: int
    max_tokens: int
    drafter: DrafterName | None

    def answer(self, prompt: Prompt, repetition: int) -> Tick:
        workload = WorkloadClass(prompt.workload)
        drafts = self.depth if self.mode is ModePreference.SPECULATIVE else None
        ask = Ask(
            tokens=prompt.tokens,
            max_tokens=self.max_tokens,
            mode=self.mode,
            max_draft_tokens=drafts,
            drafter=self.drafter,
            depth_mode=DepthMode.FIXED,
            workload=workload,
        )
        place = RunPlace(Stage.SWEEP, self.session.number, self.name, repetition, prompt.id, prompt.workload, workload)
        captured = capture(self.session.client, ask, timeout=ANSWER_SECONDS[Stage.SWEEP])
        tick = tick_of(captured, place, self.session.began)
        self.session.folder.keep_tick(tick)
        if tick.error:
            raise SystemExit(f"{prompt.id}: {tick.error}")
        return Tick(repetition, f"{self.name}-harness", prompt.id, prompt.workload, tick.output_tokens, tick.ended)


def main() -> int:
    args = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    prompts = load_prompts(args.model, args.prompts)
    folder = Path(".benchmarks") / f"harness-{time.strftime('%Y%m%d-%H%M%S')}"
    with daemon(args.model, args.draft_model, None, settings=fixed_depth(args.depth)) as client:
        console.print(f"one daemon on {args.model}, waiting until it settles")
        time.sleep(args.settle)
        session = Session(client, RunFolder.create(folder), 1)
        measure(session, prompts[:_BLOCK], -1, args)  # the warm-up is not kept
        ticks: list[Tick] = []
        for repetition in range(args.repetitions):
            began = time.perf_counter()
            ticks += measure(session, prompts, repetition, args)
            console.print(f"repetition {repetition + 1} of {args.repetitions}: {time.perf_counter() - began:.0f} s")
    (folder / "ticks.jsonl").write_text("".join(json.dumps(asdict(tick)) + "\n" for tick in ticks), encoding="utf-8")
    found = compared(ticks)
    report(found, console)
    console.print(f"raw measurements: {folder}")
    print(json.dumps(figures(found)))
    return 0 if holds(found) else 1


def measure(session: Session, prompts: Sequence[Prompt], repetition: int, args: argparse.Namespace) -> list[Tick]:
    """Measures all arms in both modes on each block of prompts, in a random order, with a pause before each request.
    Returns one tick (measurement) for each answer."""
    ticks, order = [], random.Random(repetition)
    for start in range(0, len(prompts), _BLOCK):
        block = prompts[start : start + _BLOCK]
        turns = [(name, arm) for name in MODES for arm in ARMS]
        for name, arm in order.sample(turns, len(turns)):
            with _asking(session, name, arm, repetition, args) as answer:
                for prompt in block:
                    time.sleep(_PAUSE_SECONDS)
                    ticks.append(answer(prompt))
    return ticks


@contextlib.contextmanager
def _asking(session: Session, name: str, arm: str, repetition: int, args: argparse.Namespace) -> Iterator[Answers]:
    if arm == "harness":
        harness = Harness(session, name, MODES[name], args.depth, args.tokens, fixed_drafter(args.draft_model))
        with sampling(replace(session, in_hand=[name]), Stage.SWEEP, session.folder.keep_sample):
            yield lambda prompt: harness.answer(prompt, repetition)
    else:
        yield lambda prompt: _bare(session.client, f"{name}-{arm}", MODES[name], prompt, repetition, args)


def _bare(
    client: DraftdClient,
    arm: str,
    mode: ModePreference,
    prompt: Prompt,
    repetition: int,
    args: argparse.Namespace,
) -> Tick:
    drafter = fixed_drafter(args.draft_model)
    found = Draftd(client, mode, args.depth, 0.0, args.tokens, drafter).answer(prompt, seed=0)
    return Tick(repetition, arm, prompt.id, prompt.workload, len(found.text), found.seconds)


def compared(ticks: Sequence[Tick]) -> dict[str, Interval]:
    """Returns ratios of tokens per second to those of the bare client, which sends requests without the acceptance
    harness. Keys are mode and arm, as in `ar_harness_vs_bare`. Each answer is compared with the bare client's to the
    same prompt in the same repetition. The estimate is the median of these ratios, with a 95 % bootstrap interval that
    resamples prompts. Raises SystemExit if the lengths of a prompt's answers differ."""
    rates = {(t.arm, t.repetition, t.prompt): t.tokens / t.seconds for t in ticks}
    tokens = {(t.arm.split("-")[0], t.prompt): t.tokens for t in ticks}
    for tick in ticks:
        if tokens[tick.arm.split("-")[0], tick.prompt] != tick.tokens:
            raise SystemExit(f"{tick.arm}: the greedy text of {tick.prompt} has another length than in the other arms")
    found = {}
    for name in MODES:
        for arm in ARMS[1:]:
            quotients: dict[str, list[float]] = {}
            for (which, repetition, prompt), rate in rates.items():
                if which == f"{name}-{arm}":
                    quotients.setdefault(prompt, []).append(rate / rates[f"{name}-bare", repetition, prompt])
            interval = bootstrap(list(quotients.values()))
            assert interval is not None
            found[f"{name}_{arm}_vs_bare"] = interval
    return found


def holds(found: dict[str, Interval]) -> bool:
    """Returns True if the 95 % interval of each of the harness's ratios lies within BOUND of 1."""
    ours = [interval for name, interval in found.items() if "harness" in name]
    return all(one.low >= 1 - BOUND and one.high <= 1 + BOUND for one in ours)


def figures(found: dict[str, Interval]) -> dict[str, object]:
    """Returns the values of the last line: each ratio, its interval as [low, high], and `within_one_percent`."""
    shown: dict[str, object] = {}
    for name, one in found.items():
        shown[name] = round(one.estimate, 4)
        shown[f"{name}_interval"] = [round(one.low, 4), round(one.high, 4)]
    return shown | {"within_one_percent": holds(found)}


def report(found: dict[str, Interval], console: Console) -> None:
    table = Table(title="tokens per second ÷ the bare client's, median of paired answers, 95 % interval over prompts")
    for heading in ("claim", "ratio", "interval", "pairs"):
        table.add_column(heading, justify="left" if heading == "claim" else "right")
    for name, one in found.items():
        table.add_row(name.replace("_", " "), f"{one.estimate:.4f}", f"{one.low:.4f}–{one.high:.4f}", str(one.samples))
    console.print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=4, help="draft tokens a step in speculative mode")
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each category (class)")
    parser.add_argument("--tokens", type=int, default=96, help="maximum tokens of an answer")
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument(
        "--settle", type=float, default=_SETTLE_SECONDS, help="seconds to wait after the daemon's start"
    )
    return options.parse(parser)


if __name__ == "__main__":
    sys.exit(main())
