"""`make bench`: compares draftd with mlx-lm and with itself. Each prompt is answered in all configurations (arms):

    mlx_ar        mlx-lm's stream_generate, in a child process
    mlx_spec      its speculative decoding at the same depth (…_t08: at temperature 0.8)
    ar            draftd autoregressive over gRPC, telemetry on
    ar_off        the same with telemetry off (a second daemon)
    spec          draftd speculative (spec_t08: at temperature 0.8)
    ar_x4         four autoregressive streams at once

With --before FOLDER, another working copy that is set up, only draftd's arms with telemetry are measured, each also
with that copy's daemon (…_before). A result is then the median ratio of an arm's tokens per second to the same arm
before, paired by prompt, with a 95 % interval.

Without a draft model (--model alone, or --real) benchmarks.single measures instead, with its own options. With --before
as well, this benchmark measures, and its speculative arms draft by prompt lookup.

Raw measurements (ticks) are kept in .benchmarks/. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.arms import Answer, Draftd, MlxLm, Prompt, daemon, fixed_depth, fixed_drafter, helper
from benchmarks.idle import MOST_SECONDS, process_at, wait_until_idle
from benchmarks.ratios import BEFORE, CLAIMS, CLASSES, Change, Tick, changes, claims, ratio
from benchmarks.single.command import main as measure_single
from draftd.client.client import DraftdClient
from draftd.core import ModePreference
from draftd.models.blas import load_blas

_STREAMS = 4
_SETTLE_SECONDS = 25.0  # a new daemon measures its draft while it is idle
_REST_SECONDS = 10.0  # longest wait: on a noisy machine a daemon may measure again and again


def main() -> int:
    if _without_draft(sys.argv[1:]):
        return measure_single(sys.argv[1:])
    args = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    prompts = load_prompts(args.model, args.prompts)
    console.print(f"{args.model}: new processes for each repetition")
    ticks: list[Tick] = []
    greedy: dict[str, tuple[int, ...]] = {}
    for repetition in range(args.repetitions):
        began = time.perf_counter()
        with processes(args, repetition) as arms:
            time.sleep(_SETTLE_SECONDS)
            rest(arms.values(), MOST_SECONDS)
            measure(arms, prompts[: len(CLASSES)], repetition, greedy)  # the warm-up is not kept
            ticks += measure(arms, prompts, repetition, greedy)
        console.print(f"repetition {repetition + 1} of {args.repetitions}: {time.perf_counter() - began:.0f} s")
    stored = store(ticks)
    report(ticks, args, console)
    console.print(f"raw measurements: {stored}")
    said = {key: round(found.median, 3) for key, found in claims(ticks).items()}
    if args.before is not None:
        compared = changes(ticks)
        report_changes(compared, console)
        said |= {f"{key}{BEFORE}": round(found.median, 3) for key, found in compared.items()}
    print(json.dumps(said))
    return 0


@contextlib.contextmanager
def processes(args: argparse.Namespace, repetition: int) -> Iterator[dict[str, Draftd | MlxLm]]:
    """Yields the arms by name, on new processes that are started in a random order. Each repetition needs new ones: two
    processes of one program can differ by more than what is measured here."""
    with contextlib.ExitStack() as stack:
        _, sink = stack.enter_context(helper("benchmarks.otlp_sink"))
        arms: dict[str, Draftd | MlxLm] = {}
        checkouts = [("", None), (BEFORE, args.before)] if args.before else [("", None)]
        for suffix, checkout in random.Random(repetition).sample(checkouts, len(checkouts)):
            on = stack.enter_context(_settled_daemon(args, sink, checkout))
            for name, mode, temperature in (
                ("ar", ModePreference.AUTOREGRESSIVE, 0.0),
                ("spec", ModePreference.SPECULATIVE, 0.0),
                ("spec_t08", ModePreference.SPECULATIVE, 0.8),
            ):
                drafter = fixed_drafter(args.draft_model)
                arms[name + suffix] = Draftd(on, mode, args.depth, temperature, args.tokens, drafter)
        if not args.before:
            peer, _ = stack.enter_context(helper("benchmarks.mlx_lm_peer", args.model, args.draft_model))
            arms["mlx_ar"] = MlxLm(peer, 0, 0.0, args.tokens)
            if args.draft_model:
                arms["mlx_spec"] = MlxLm(peer, args.depth, 0.0, args.tokens)
                arms["mlx_spec_t08"] = MlxLm(peer, args.depth, 0.8, args.tokens)
            off = stack.enter_context(_settled_daemon(args, None, None))
            drafter = fixed_drafter(args.draft_model)
            arms["ar_off"] = Draftd(off, ModePreference.AUTOREGRESSIVE, args.depth, 0.0, args.tokens, drafter)
        yield arms


@contextlib.contextmanager
def _settled_daemon(args: argparse.Namespace, endpoint: str | None, checkout: Path | None) -> Iterator[DraftdClient]:
    """Starts a daemon and waits until it is idle before the next one starts: step costs that it measures beside another
    process would have to be measured again."""
    settings = fixed_depth(args.depth)
    with daemon(args.model, args.draft_model, endpoint, checkout, settings=settings) as client:
        wait_until_idle([process_at(client.target)])
        yield client


def measure(
    arms: dict[str, Draftd | MlxLm], prompts: list[Prompt], repetition: int, greedy: dict[str, tuple[int, ...]]
) -> list[Tick]:
    """Measures all arms on each prompt, in a random order; an arm and its `_before` counterpart follow each other. Each
    starts when all processes are idle, so that no arm's time includes another's background work. Returns a tick
    (measurement) for each answer. `greedy` collects the greedy texts by prompt."""
    ticks: list[Tick] = []
    names, order = [name for name in arms if not name.endswith(BEFORE)], random.Random(repetition)
    for i, prompt in enumerate(prompts):
        drawn = order.sample(names, len(names))
        pairs = [order.sample(pair, 2) for pair in ([name, name + BEFORE] for name in drawn)]
        for name in (name for pair in pairs for name in pair if name in arms):
            rest(arms.values())
            found = arms[name].answer(prompt, seed=1000 * (repetition + 1) + i)
            _check(greedy, name, prompt, found)
            ticks.append(_tick(repetition, name, prompt, found))
    # Streams of similar length: the claim is about four that decode, not about one that outlasts the others.
    batches = [(name.replace("ar", "ar_x4"), arm) for name, arm in arms.items() if name in ("ar", "ar" + BEFORE)]
    longest = sorted(prompts, key=lambda p: -len(greedy[p.id]))[: 2 * _STREAMS]
    for start in range(0, len(longest), _STREAMS):
        group = longest[start : start + _STREAMS]
        for name, batch in order.sample(batches, len(batches)):
            assert isinstance(batch, Draftd)
            for prompt, found in zip(group, batch.together(group, seed=repetition + 1), strict=True):
                _check(greedy, name, prompt, found)
                ticks.append(_tick(repetition, name, prompt, found, _STREAMS))
    return ticks


def rest(arms: Collection[Draftd | MlxLm], seconds: float = _REST_SECONDS) -> None:
    """Waits until the arms' processes are idle, for at most `seconds`."""
    clients = {arm.client.target for arm in arms if isinstance(arm, Draftd)}
    peers = {arm.process.pid for arm in arms if isinstance(arm, MlxLm)}
    wait_until_idle([*map(process_at, clients), *map(psutil.Process, peers)], seconds)


def _check(greedy: dict[str, tuple[int, ...]], arm: str, prompt: Prompt, found: Answer) -> None:
    """Raises SystemExit if a greedy arm's text for the prompt differs from the first greedy one: speeds could not be
    compared."""
    if "_t08" in arm:
        return
    first = greedy.setdefault(prompt.id, found.text)
    if found.text != first:
        raise SystemExit(f"{arm}: the greedy text for prompt {prompt.id} differs from the other arms'")


def _tick(repetition: int, arm: str, prompt: Prompt, found: Answer, group: int = 1) -> Tick:
    return Tick(repetition, arm, prompt.id, prompt.workload, len(found.text), found.seconds, group)


def load_prompts(model: str, per_class: int) -> list[Prompt]:
    """Returns the first `per_class` held-out prompts of each category (class), interleaved by category, and rendered
    with the model's chat template."""
    load_blas()
    from draftd.engine.pair import load_tokenizer

    tokenizer = load_tokenizer(model)
    folder = files("draftd.models.nano") / "prompts"
    by_class: list[list[Prompt]] = []
    for name in CLASSES:
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:per_class]
        parsed = [json.loads(line) for line in lines]
        by_class.append([Prompt(p["id"], name, tuple(tokenizer.render_chat(p["messages"]))) for p in parsed])
    return [prompt for together in zip(*by_class, strict=True) for prompt in together]


def store(ticks: list[Tick]) -> Path:
    folder = Path(".benchmarks")
    folder.mkdir(exist_ok=True)
    path = folder / f"ticks-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    path.write_text("".join(json.dumps(asdict(tick)) + "\n" for tick in ticks), encoding="utf-8")
    return path


def report(ticks: list[Tick], args: argparse.Namespace, console: Console) -> None:
    table = Table(title=f"paired ratios, {args.repetitions} repetitions, depth {args.depth}, medians (lowest–highest)")
    for heading in ("claim", "ratio", "range", "tokens/s", "against"):
        table.add_column(heading, justify="left" if heading == "claim" else "right")
    found = claims(ticks)
    for key, text, *_ in CLAIMS:
        if key not in found:
            table.add_row(text, "", "", "", "needs a draft model")
            continue
        r = found[key]
        spread = f"{r.lowest:.2f}–{r.highest:.2f}"
        table.add_row(text, f"{r.median:.3f}", spread, f"{r.rate:.0f}", f"{r.base_rate:.0f}")
    table.add_section()
    measured = {t.arm for t in ticks}
    for arm, base in (("ar", "mlx_ar"), ("spec", "mlx_spec"), ("spec_t08", "mlx_spec_t08")):
        for name in CLASSES if base in measured else ():
            r = ratio(ticks, arm, base, lambda t, w=name: t.workload == w)  # type: ignore[misc]
            spread = f"{r.lowest:.2f}–{r.highest:.2f}"
            table.add_row(
                f"{arm} against {base}, {name}", f"{r.median:.3f}", spread, f"{r.rate:.0f}", f"{r.base_rate:.0f}"
            )
    console.print(table)


def report_changes(found: dict[str, Change], console: Console) -> None:
    table = Table(title="tokens/s ÷ those of the other working copy, paired by prompt")
    for heading in ("arm", "median", "95 %"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for key, change in found.items():
        table.add_row(key, f"{change.median:.3f}", f"{change.low:.3f}–{change.high:.3f}")
    console.print(table)


def _without_draft(arguments: Sequence[str]) -> bool:
    """Returns True if the options choose a model without a draft, and no other working copy."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_model_options(parser)
    parser.add_argument("--before")
    args, _ = parser.parse_known_args(arguments)
    return bool(args.real or args.model) and args.draft_model is None and args.before is None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=7, help="draft tokens a step in all speculative arms")
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each category (class)")
    parser.add_argument("--tokens", type=int, default=128, help="maximum tokens of an answer")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--before", type=Path, help="another working copy, set up, to compare this one with")
    return options.parse(parser)


if __name__ == "__main__":
    sys.exit(main())
