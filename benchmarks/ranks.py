"""`python -m benchmarks.ranks`: what do several ranks of one target gain, and over which network do they lose?

Measures on this machine, each rank on a core of its own: forwards of one rank, of one rank's half of the weights
without collectives, and of two ranks over the loopback ring. The models are the embedded target and one with 30 million
random weights. Measures collectives too. A result is the minimum of three lower quartiles, because other programs run
as well. The half's time plus the collectives' predicts the time of two ranks.

Then prints a table for two Macs, which is computed and not measured (ranks_model.py). `--no-measure` prints only that.
`--trip` and `--bandwidth` add a network of your own, as `draftd doctor --hostfile` measures it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ranks_model import Drafts, Link, Machine, Shape, forward, longest_collective, prefill, step

CONTEXT, WIDTHS, TRIES, PROMPT = 128, (1, 4), 30, 2048
_TIMES = 3  # repetitions of the whole measurement
_SECONDS = 240.0
#: Sizes of the measured collectives, in fp32 numbers.
SIZES = (1, 256, 512, 1024, 2048, 8192, 65_536, 1 << 20)

# Round trips between applications over TCP, as `draftd doctor --hostfile` measures them. Ethernet: assumed for a switch
# at home; exo-explore/exo#2295 reports 0.38 to 0.95 ms over a Thunderbolt bridge under load. jaccl: 27 to 31 µs a
# collective and 6.1 to 6.5 GB/s between an M3 Ultra and an M5 Max (jundot/omlx#3118).
LINKS = (
    Link("1 GbE, ring", 0.4e-3, 0.117e9, 40e-6),
    Link("10 GbE, ring", 0.25e-3, 1.1e9, 40e-6),
    Link("Thunderbolt, ring", 0.3e-3, 3.0e9, 40e-6),
    Link("Thunderbolt 5, jaccl", 0.0, 6.3e9, 29e-6),
)
# Memory bandwidth: Apple's numbers; decoding reaches about three quarters of them. Prompts: an M3 Ultra processes 91.5
# tokens/s of a 123B model (ml-explore/mlx#3094); the M4 Pro is scaled by its GPU's size. A forward of four tokens takes
# 1.14 to 1.57 times as long as one of one token on an M4 Pro (ml-explore/mlx#3839).
M4_PRO = Machine("M4 Pro", 0.75 * 273e9, 6.5e12, 1.3)
M3_ULTRA = Machine("M3 Ultra", 0.75 * 819e9, 22.5e12, 1.3)
MODELS = (
    (Shape("Qwen3-1.7B", 28, 2048, 151_936, 1.7e9, tied=True), M4_PRO),
    (Shape("Qwen3-8B", 36, 4096, 151_936, 8.2e9), M4_PRO),
    (Shape("Qwen3-32B", 64, 5120, 151_936, 32.8e9), M4_PRO),
    (Shape("Llama-3.3-70B", 80, 8192, 128_256, 70.6e9), M3_ULTRA),
    (Shape("Devstral-2-123B", 88, 12_288, 131_072, 123e9), M3_ULTRA),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--no-measure", action="store_true", help="print only the computed table")
    parser.add_argument("--trip", type=float, help="round trip between two of your machines over TCP, in milliseconds")
    parser.add_argument("--bandwidth", type=float, help="bandwidth between them, in Gbit/s")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        print(json.dumps(_rank(options.rank)), flush=True)
        return 0
    out, found = Console(), dict[str, Any]()
    if not options.no_measure:
        found = measured()
        show_measured(out, found)
    links = list(LINKS)
    if options.trip is not None and options.bandwidth is not None:
        links.append(Link("yours, ring", options.trip / 1000, options.bandwidth * 1e9 / 8, 40e-6))
    show_model(out, links)
    print(json.dumps({"measured": found, "model": [_row(*pair, link) for pair in MODELS for link in links]}))
    return 0


def measured() -> dict[str, Any]:
    """Measures one rank alone and two ranks, three times each. Returns `collectives` (seconds of each, by its size in
    fp32 numbers) and `steps` (forwards, by model and width in tokens). A step has the seconds of a forward: on one rank
    (`one`), on one rank that computes half of the weights without collectives (`part`), on two ranks (`two`), and as
    predicted for two ranks (`model`). A step's own `collectives` is the number of collectives in its forward. Raises
    RuntimeError if a rank fails."""
    found = [(_run(1)[0], _run(2)[0]) for _ in range(_TIMES)]
    alone, first = (_best(runs) for runs in zip(*found, strict=True))
    steps = {}
    for name, one in alone["steps"].items():
        two = first["steps"][name]
        for width in map(str, WIDTHS):
            numbers = int(width) * one["hidden"]
            together = _between(first["collectives"], numbers)
            told = _between(first["collectives"], int(width))
            part = alone["parts"][name][width]
            steps[f"{name}, {width} token{'s' * (width != '1')}"] = {
                "one": one[width],
                "part": part,
                "two": two[width],
                "model": part + 2 * one["layers"] * together + told,
                "collectives": 2 * one["layers"] + 1,
            }
    return {"steps": steps, "collectives": first["collectives"]}


def _best(runs: Sequence[Any]) -> Any:
    """Returns the minimum of each number over repeated measurements, key by key: other programs can only make a
    measurement slower."""
    if isinstance(runs[0], dict):
        return {key: _best([one[key] for one in runs]) for key in runs[0]}
    return min(runs)


def _between(collectives: Mapping[str, float], numbers: int) -> float:
    """Returns the seconds of a collective over so many fp32 numbers, interpolated linearly between the measured
    sizes."""
    sizes = sorted(map(int, collectives))
    low = max((size for size in sizes if size <= numbers), default=sizes[0])
    high = min((size for size in sizes if size >= numbers), default=sizes[-1])
    least, most = collectives[str(low)], collectives[str(high)]
    return least if high == low else least + (most - least) * (numbers - low) / (high - low)


def _run(ranks: int) -> list[dict[str, Any]]:
    """Runs the measurement in `ranks` processes, each with a core and one BLAS thread of its own, to stand for separate
    machines. Returns each rank's result. Raises RuntimeError if a rank fails."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        hostfile = Path(folder) / "hosts.json"
        hostfile.write_text(json.dumps([[f"127.0.0.1:{_free_port()}"] for _ in range(ranks)]))
        variables = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.ranks", "--rank"]
        started = []
        for rank in range(ranks):
            own = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)} if ranks > 1 else {}
            one = subprocess.Popen([*command, str(rank)], env=os.environ | variables | own, stdout=subprocess.PIPE)
            stack.callback(one.kill)
            started.append(one)
        answers = [one.communicate(timeout=_SECONDS)[0] for one in started]
        if any(one.returncode for one in started):
            raise RuntimeError("a rank's process failed; its error is printed above")
        return [json.loads(answer.splitlines()[-1]) for answer in answers]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def _rank(name: str) -> dict[str, Any]:
    """Measures this process as rank number `name`. Returns the seconds of forwards (`steps`), of forwards of half the
    weights (`parts`, one rank only) and of collectives (several ranks only)."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(name) % len(cores)]})
    from draftd.models.blas import load_blas

    load_blas()
    import mlx.core as mx

    several = bool(os.environ.get("MLX_HOSTFILE"))
    group = mx.distributed.init(strict=several, backend="ring" if several else "any")
    found: dict[str, Any] = {"steps": {}, "parts": {}, "collectives": {}}
    for called, model in (("embedded target", _embedded()), ("30 million weights", _random())):
        if group.size() > 1:
            model.shard(group)
        else:
            found["parts"][called] = _forwards(_part(model.args))
        found["steps"][called] = {
            "layers": model.args.num_hidden_layers,
            "hidden": model.args.hidden_size,
            **_forwards(model),
        }
    if group.size() > 1:
        found["collectives"] = {str(size): _collective(group, size) for size in SIZES}
    return found


def _embedded() -> Any:
    import mlx.core as mx

    from draftd.cli.persistent_state import paths_of
    from draftd.models.folder import ModelFolder
    from draftd.settings import ModelSettings

    model, _ = ModelFolder(paths_of(ModelSettings())[0], "model").open()
    model.apply(lambda array: array.astype(mx.float32))
    return model


def _random() -> Any:
    from mlx_lm.models import llama

    args = llama.ModelArgs(
        model_type="llama", hidden_size=512, num_hidden_layers=8, intermediate_size=1536, num_attention_heads=8,
        num_key_value_heads=4, rms_norm_eps=1e-5, vocab_size=4096,
    )  # fmt: skip
    return llama.Model(args)


def _part(args: Any) -> Any:
    """Builds a model with the half of the heads and of the MLP that one of two ranks computes."""
    from mlx_lm.models import llama

    heads = {"num_attention_heads": args.num_attention_heads // 2, "num_key_value_heads": args.num_key_value_heads // 2}
    wide = {"head_dim": args.hidden_size // args.num_attention_heads, "intermediate_size": args.intermediate_size // 2}
    return llama.Model(dataclasses.replace(args, **heads, **wide))


def _forwards(model: Any) -> dict[str, float]:
    import mlx.core as mx

    mx.eval(model.parameters())
    return {str(width): _steps(model, width) for width in WIDTHS}


def _steps(model: Any, width: int) -> float:
    """Returns the seconds of a forward of `width` tokens after 128 tokens of context: the lower quartile of 30
    repetitions, after three that do not count."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

    cache, tokens = make_prompt_cache(model), mx.ones((1, width), mx.int32)
    mx.eval(model(mx.ones((1, CONTEXT), mx.int32), cache=cache))

    def one() -> None:
        mx.eval(model(tokens, cache=cache))
        trim_prompt_cache(cache, width)

    return _quartile(one)


def _collective(group: Any, size: int) -> float:
    import mlx.core as mx

    values = mx.zeros(size)
    mx.eval(values)
    return _quartile(lambda: mx.eval(mx.distributed.all_sum(values, group=group)))


def _quartile(one: Callable[[], None]) -> float:
    taken = []
    for _ in range(TRIES + 3):
        began = time.perf_counter()
        one()
        taken.append(time.perf_counter() - began)
    return statistics.quantiles(taken[3:], n=4)[0]


def show_measured(out: Console, found: Mapping[str, Any]) -> None:
    table = _table(
        "measured here: ms a forward, each rank on one core",
        "",
        "one rank",
        "its half",
        "two ranks",
        "predicted",
        "error",
    )
    for name, one in found["steps"].items():
        off = one["model"] / one["two"] - 1
        table.add_row(name, *(f"{1000 * one[key]:.2f}" for key in ("one", "part", "two", "model")), f"{off:+.0%}")
    out.print(table)
    table = _table("measured here: a sum over two ranks of the loopback ring", "fp32 numbers", "µs")
    for size, seconds in found["collectives"].items():
        table.add_row(f"{int(size):,}", f"{1e6 * seconds:.0f}")
    out.print(table)


def _row(shape: Shape, machine: Machine, link: Link, drafts: Drafts = Drafts()) -> dict[str, Any]:
    """Computes a line of the table. `plain`, `drafted` and `prompt` are the speed of two machines divided by one's, for
    plain decoding, decoding with drafts and prompts. Rates are [one machine, two machines] in tokens per second."""
    one, two = forward(shape, machine, 1, link), forward(shape, machine, 2, link)
    drafted = [step(shape, machine, ranks, link, drafts) for ranks in (1, 2)]
    prompt = [prefill(shape, machine, ranks, link, PROMPT) for ranks in (1, 2)]
    return {
        "model": shape.name,
        "machine": machine.name,
        "link": link.name,
        "tokens_per_second": [1 / one, 1 / two],
        "plain": one / two,
        "drafted": drafted[0] / drafted[1],
        "drafted_tokens_per_second": [drafts.emitted / seconds for seconds in drafted],
        "prompt": prompt[0] / prompt[1],
        "longest_collective": longest_collective(shape, machine, 2),
    }


def show_model(out: Console, links: Sequence[Link]) -> None:
    heads = ("model, 4 bits", "link", "tokens/s", "gain", "with drafts", "gain", "gain for prompts")
    table = _table("COMPUTED, not measured: two machines over one, tensor parallel", *heads)
    for shape, machine in MODELS:
        most = 1000 * longest_collective(shape, machine, 2)
        names = [f"{shape.name}, {machine.name}", f"pays if a collective takes less than {most:.2f} ms"]
        for number, link in enumerate(links):
            row = _row(shape, machine, link)
            table.add_row(
                names[number] if number < len(names) else "",
                link.name,
                _both(row["tokens_per_second"]),
                _gain(row["plain"]),
                _both(row["drafted_tokens_per_second"]),
                _gain(row["drafted"]),
                _gain(row["prompt"]),
            )
        table.add_section()
    out.print(table)


def _both(rates: Sequence[float]) -> str:
    return " → ".join(f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}" for rate in rates)


def _gain(value: float) -> str:
    return f"[{'green' if value > 1 else 'red'}]{value:.2f} ×[/]"


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right")
    return table


if __name__ == "__main__":
    sys.exit(main())
