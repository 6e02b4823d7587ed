"""`make bench-remote`: what is gained by drafting here and verifying on another machine?

Starts daemons on both sides of a simulated network. Each prompt is answered in all configurations (arms), in a random
order:

    stream    the remote decodes without a draft and streams through the edge: the baseline
    spec      the edge drafts, and the same remote verifies
    remote    a remote decodes with its own draft: what strategy `remote` gives
    parks     the edge drafts where that is faster than the remote's own draft
    local     the edge's own model

Round trips are 1, 15, 40 and 100 ms with a tenth of jitter. A result is the median ratio of tokens per second to the
baseline, paired by prompt, with a 95 % interval. Beside it stand the speed-up that E·t_AR / (R + k·t_d + t_v) predicts
from the answers' own measurements, and the share of round trips that were hidden. Then the verifier's capacity is
measured (remote_capacity.py).

Without a draft model the edge drafts by prompt lookup, and `remote`, `parks` and the capacity are left out.

Raw measurements (ticks) are kept in .benchmarks/. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import options, remote_capacity
from benchmarks.arms import Prompt
from benchmarks.remote_daemons import Daemons, daemons
from benchmarks.run import load_prompts
from draftd.client.client import DraftdClient
from draftd.core import WorkloadClass
from draftd.protocol import number
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance.statistics import Interval, bootstrap

CLASSES = ("code", "tool_call", "chat")
ROUND_TRIPS = (0.001, 0.015, 0.040, 0.100)
JITTER = 0.1
BASE = "stream"
ARMS: Mapping[str, pb.Strategy] = {
    "stream": pb.STRATEGY_REMOTE,
    "spec": pb.STRATEGY_SPECULATIVE,
    "remote": pb.STRATEGY_REMOTE,
    "parks": pb.STRATEGY_SPECULATIVE,
    "local": pb.STRATEGY_LOCAL,
}
OWN = ("remote", "parks")
"""Arms whose verifier drafts by itself."""
_PAUSE_SECONDS = 0.08  # as in benchmarks.run
_ANSWER_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Tick:
    """One answer's measurement. `round_trip` is the network's, in seconds; `seconds` runs from the request to the last
    token. The remote's counts: `verdicts` (verification results), those whose round trip was `hidden` because the next
    proposal was already sent, and `target_seconds` of its model. The drafter's: `drafts` (blocks), `drafted` and
    `accepted` tokens, and `draft_seconds`."""

    round_trip: float
    repetition: int
    arm: str
    prompt: str
    workload: str
    tokens: int
    seconds: float
    verdicts: int = 0
    hidden: int = 0
    target_seconds: float = 0.0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def main() -> int:
    args = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    prompts = [one for one in load_prompts(args.model, args.prompts) if one.workload in args.classes]
    ticks: list[Tick] = []
    said: dict[str, object] = {}
    round_trips = args.trips
    with daemons(args.model, args.draft_model, args.edge_model or args.model, args.warm_up) as both:
        texts: dict[str, tuple[int, ...]] = {}
        for two in both:
            two.network(round_trips[0], JITTER)
        if not args.draft_model:
            console.print(f"left out without a draft model: {', '.join(OWN)}, capacity")
        measure(both, prompts[: len(CLASSES)], round_trips[0], -1, args.tokens, texts)  # the warm-up is not kept
        for repetition in range(args.repetitions):
            for round_trip in random.Random(repetition).sample(round_trips, len(round_trips)):
                began, before = time.perf_counter(), both[0].edge_metrics()
                for two in both:
                    two.network(round_trip, JITTER)
                time.sleep(args.settle)
                ticks += measure(both, prompts, round_trip, repetition, args.tokens, texts)
                said[f"bytes_per_token_{_ms(round_trip)}"] = round(bytes_per_token(before, both[0].edge_metrics()), 1)
                console.print(f"{_ms(round_trip)}, repetition {repetition + 1}: {time.perf_counter() - began:.0f} s")
        stored = store(ticks)
        report(ticks, console)
        said |= figures(ticks)
        if args.draft_model and not args.without_capacity:
            said |= remote_capacity.measure(both[0], args.model, args.draft_model, prompts, args.tokens, console)
    console.print(f"raw measurements: {stored}")
    print(json.dumps(said))
    return 0


def measure(
    both: Sequence[Daemons],
    prompts: Sequence[Prompt],
    round_trip: float,
    repetition: int,
    most: int,
    texts: dict[str, tuple[int, ...]],
) -> list[Tick]:
    """Measures all arms on each prompt, in a random order. Returns a tick for each answer. `texts` collects the token
    ids by prompt. Raises SystemExit if two arms other than `local` give different texts."""
    ticks, dice = [], random.Random(f"{repetition} {round_trip}")
    arms = [arm for arm in ARMS if len(both) > 1 or arm not in OWN]
    for prompt in prompts:
        for arm in dice.sample(arms, len(arms)):
            time.sleep(_PAUSE_SECONDS)
            tick, text = answered(both[arm in OWN].edge, arm, prompt, round_trip, repetition, most)
            if arm != "local" and texts.setdefault(prompt.id, text) != text:
                raise SystemExit(f"{arm}: the text for prompt {prompt.id} differs from the other arms'")
            ticks.append(tick)
    return ticks


def answered(
    client: DraftdClient, arm: str, prompt: Prompt, round_trip: float, repetition: int, most: int
) -> tuple[Tick, tuple[int, ...]]:
    request = pb.GenerateRequest(
        tokens=pb.TokenInput(ids=prompt.tokens),
        max_tokens=most,
        strategy=ARMS[arm],
        workload=number(pb.WorkloadClass, WorkloadClass(prompt.workload)),
    )
    text: list[int] = []
    end, started = pb.Finished(), time.perf_counter()
    for response in client.generate_raw(request, timeout=_ANSWER_SECONDS):
        text += response.chunk.token_ids
        if response.HasField("finished"):
            end = response.finished
    seconds = time.perf_counter() - started
    if end.failed_over:
        raise SystemExit(f"{arm}: prompt {prompt.id} failed over to the edge's own model: {end.failed_over}")
    remote, counts = end.remote, end.counts
    tick = Tick(
        round_trip,
        repetition,
        arm,
        prompt.id,
        prompt.workload,
        len(text),
        seconds,
        remote.verdicts,
        remote.hidden_round_trips,
        remote.target_time.ToNanoseconds() / 1e9,
        counts.drafts,
        counts.drafted_tokens,
        counts.accepted_tokens,
        counts.draft_time.ToNanoseconds() / 1e9,
    )
    return tick, tuple(text)


def paired(ticks: Sequence[Tick], arm: str, round_trip: float, workload: str | None = None) -> Interval:
    """Returns the median ratio of an arm's tokens per second to the baseline's for the same prompt in the same
    repetition, with a 95 % interval over prompts."""
    rates = {(t.arm, t.repetition, t.prompt): t.rate for t in ticks if t.round_trip == round_trip}
    quotients: dict[str, list[float]] = {}
    for tick in ticks:
        if tick.arm == arm and tick.round_trip == round_trip and workload in (None, tick.workload):
            base = rates[BASE, tick.repetition, tick.prompt]
            quotients.setdefault(tick.prompt, []).append(tick.rate / base)
    found = bootstrap(list(quotients.values()))
    assert found is not None
    return found


def formula(ticks: Sequence[Tick], round_trip: float, workload: str) -> float | None:
    """Returns the speed-up over the baseline that E·t_AR / (R + k·t_d + t_v) predicts: E tokens a step, t_AR seconds
    for a baseline token, R the round trip, k draft tokens of t_d seconds, t_v to verify. All but R are measured on
    these answers. The result is at least 1: where drafting does not pay, the edge does not draft and the remote decodes
    alone, as in the baseline. None if nothing was drafted."""
    mine = [t for t in ticks if t.round_trip == round_trip and t.workload == workload]
    spec, plain = [t for t in mine if t.arm == "spec"], [t for t in mine if t.arm == BASE]
    drafts, drafted = sum(t.drafts for t in spec), sum(t.drafted for t in spec)
    if not drafts:
        return None
    each = median(t.seconds / t.tokens for t in plain)
    tokens, depth = 1 + sum(t.accepted for t in spec) / drafts, drafted / drafts
    draft = sum(t.draft_seconds for t in spec) / drafted
    verify = sum(t.target_seconds for t in spec) / max(1, sum(t.verdicts for t in spec))
    return max(1.0, tokens * each / (round_trip + depth * draft + verify))


def hidden(ticks: Sequence[Tick], round_trip: float) -> float:
    """Returns the share of the `spec` arm's verdicts whose round trip was hidden by a proposal sent ahead."""
    spec = [t for t in ticks if t.round_trip == round_trip and t.arm == "spec"]
    return sum(t.hidden for t in spec) / max(1, sum(t.verdicts for t in spec))


def bytes_per_token(before: Counter[str], after: Counter[str]) -> float:
    """Returns bytes on the network in both directions, divided by the tokens that the remote's target chose, between
    two readings of the edge's metrics."""
    tokens = after["draftd_remote_tokens"] - before["draftd_remote_tokens"]
    return (after["draftd_remote_io_bytes"] - before["draftd_remote_io_bytes"]) / max(1, tokens)


def figures(ticks: Sequence[Tick]) -> dict[str, object]:
    """Returns the values of the last line. `spec_15ms` is an arm's median ratio to the baseline at a round trip of 15
    ms, `spec_code_15ms` that for one prompt category; `formula_…` is the predicted speed-up, `hidden_…` the hidden
    share."""
    found: dict[str, object] = {}
    for round_trip in sorted({tick.round_trip for tick in ticks}):
        at = _ms(round_trip)
        for arm in _arms(ticks):
            found[f"{arm}_{at}"] = round(paired(ticks, arm, round_trip).estimate, 3)
        for workload in _classes(ticks):
            for arm in (one for one in _arms(ticks) if one in ("spec", "remote")):
                found[f"{arm}_{workload}_{at}"] = round(paired(ticks, arm, round_trip, workload).estimate, 3)
            said = formula(ticks, round_trip, workload)
            found[f"formula_{workload}_{at}"] = None if said is None else round(said, 3)
        found[f"hidden_{at}"] = round(hidden(ticks, round_trip), 3)
    return found


def report(ticks: Sequence[Tick], console: Console) -> None:
    table = Table(title="tokens per second ÷ those of the remote's own streaming, medians with 95 % intervals")
    for heading in ("round trip", "arm", "class", "ratio", "interval", "formula", "hidden"):
        table.add_column(heading, justify="left" if heading in ("arm", "class") else "right")
    for round_trip in sorted({tick.round_trip for tick in ticks}):
        for arm in _arms(ticks):
            for workload in (*_classes(ticks), None):
                one = paired(ticks, arm, round_trip, workload)
                said = formula(ticks, round_trip, workload) if arm == "spec" and workload is not None else None
                share = f"{hidden(ticks, round_trip):.0%}" if arm == "spec" and workload is None else ""
                interval = f"{one.low:.3f}–{one.high:.3f}"
                shown = "" if said is None else f"{said:.2f}"
                table.add_row(_ms(round_trip), arm, workload or "all", f"{one.estimate:.3f}", interval, shown, share)
        table.add_section()
    console.print(table)


def _arms(ticks: Sequence[Tick]) -> list[str]:
    """Returns the measured arms except the baseline."""
    return [one for one in ARMS if one != BASE and any(tick.arm == one for tick in ticks)]


def _classes(ticks: Sequence[Tick]) -> list[str]:
    return [one for one in CLASSES if any(tick.workload == one for tick in ticks)]


def store(ticks: Sequence[Tick]) -> Path:
    path = Path(".benchmarks") / f"remote-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(asdict(tick)) + "\n" for tick in ticks), encoding="utf-8")
    return path


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}ms"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edge-model", default="", help="the edge's own model; default: the remote's")
    parser.add_argument("--classes", nargs="+", default=CLASSES, choices=CLASSES)
    parser.add_argument("--trips", type=float, nargs="+", default=ROUND_TRIPS, help="round trips in seconds")
    parser.add_argument("--prompts", type=int, default=6, help="prompts of each category (class)")
    parser.add_argument("--tokens", type=int, default=96, help="maximum tokens of an answer")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=25.0, help="seconds for new daemons to measure their drafts")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds to wait after each change of the network")
    parser.add_argument("--without-capacity", action="store_true")
    return options.parse(parser)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MLX may abort a normal exit after two engines have been in the process
