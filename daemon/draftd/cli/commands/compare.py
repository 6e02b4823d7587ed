"""`draftd compare`, `draftd demo`: decode the same prompts with and without drafts, and compare speed and text.

The order is A B B A, so that other load on the machine affects both alike, and no request reads the prefix cache. For a
thorough measurement use `draftd sweep`. The demo starts a daemon of its own, by default with the embedded pair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from draftd import __version__
from draftd.cli import options, output
from draftd.cli import strategies as by_strategy
from draftd.cli.figures import NOTHING, both, length, percent, rate, times
from draftd.cli.own_daemon import own_daemon
from draftd.cli.ranks import rows as ranks_of
from draftd.client import prompts
from draftd.client.child import Serving
from draftd.client.client import Ask, DraftdClient
from draftd.client.timing import (
    Capture,
    capture,
    inter_chunk,
    quantile,
    time_to_first_token,
)
from draftd.core import GRAMMAR, ModePreference, SamplingParams, WorkloadClass
from draftd.counts import total
from draftd.model_info import name_drafts
from draftd.v1 import control_pb2

_ANSWER_SECONDS = 600.0
_SHOWN_PAIRS = 24  # more are shown by group only
_FIGURES: Mapping[str, Callable[[Capture], float | None]] = {
    "tokens_per_second": lambda side: side.answer.tokens_per_second,  # the daemon's: a client may receive late
    "time_to_first_token": time_to_first_token,
    "inter_chunk_p95": lambda side: quantile(inter_chunk(side), 0.95),
}
_COLUMNS = (
    *("prompt", "first token\nms", "tokens/s", "gap p95\nms", "speed-up"),
    *("drafts\naccepted", "tokens\nper draft", "same\ntext"),
)
_BOTH = "two figures: autoregressive → speculative"
_SUMMED_UP = """A row of several prompts has medians, each of its own column (speed-up: of the prompts' ratios). \
Acceptance and tokens per draft (accepted tokens + 1 of the target's own) are over all steps that drafted."""
_DEMO: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "pairs": ("prompts", str),
    "autoregressive_tokens_per_second": ("autoregressive\ntokens/s", rate),
    "speculative_tokens_per_second": ("speculative\ntokens/s", rate),
    "speedup": ("speed-up", times),
    "acceptance": ("drafts\naccepted", percent),
    "mean_accepted_length": ("tokens\nper draft", length),
    "identical": ("texts\nidentical", str),
}
"""The figures of a summary that the demo shows: for each name in JSON, the heading and the formatter of the table."""


@options.with_options(
    "draftd compare",
    "draftd compare -w code --each 10 --max-draft-tokens 6",
    'draftd compare "Tell me a story." "List three fruits." --repeat 3',
    "draftd compare --file prompts.jsonl --json | jq .summary.speedup",
    "draftd compare --strategies local,remote,speculative",
)
def compare(
    daemon: options.DaemonOptions,
    drafting: options.DraftOptions,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts. Unset: held-out prompts of draftd.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with prompts, one per line; .jsonl: one chat per line.")
    ] = None,
    each: Annotated[
        int, typer.Option("--each", min=1, help="Held-out prompts of each workload class, if you give no prompts.")
    ] = 3,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="How often each prompt is decoded in both ways.")] = 1,
    strategies: Annotated[
        str | None,
        typer.Option("--strategies", metavar="LIST", help="Compare these strategies, as in local,remote,speculative."),
    ] = None,
    workload: options.Workload = WorkloadClass.UNSPECIFIED,
    max_tokens: options.MaxTokensEach = None,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    json: options.Json = False,
) -> None:
    """Decode the same prompts with and without drafts, and compare. Exits 1 if a greedy pair of texts differs.

    A pair of figures is autoregressive → speculative. "Gap p95" is the 95th percentile of the time between chunks.
    With --strategies, each strategy decodes the prompts instead, and seconds, quality class and cost of the answers are
    compared. The embedded pair was not trained to edit: it gets prompts of class edit only with --workload edit.
    """
    ways = None if strategies is None else by_strategy.chosen_ways(strategies)
    own = prompts.from_texts(prompt or []) + (prompts.from_file(file) if file is not None else [])
    sampling = SamplingParams(temperature=temperature, seed=seed)
    base = Ask(max_tokens=max_tokens, sampling=sampling, workload=workload, **asdict(drafting))
    with daemon.connect() as client:
        chosen = own or _held_out(client.model().model, each, workload)
        if ways is not None:
            asks = [(p.name, ask) for p, ask in _asks(client, base, chosen)] * repeat
            _show_ways(list(by_strategy.run_ways(client, asks, ways)), json=json)
            return
        pairs = [pair for _, pair in run_pairs(client, base, chosen, repeat)]
    _show_pairs(pairs, summary := summarise(pairs), json=json)
    if differ := summary["comparable"] - summary["identical"]:
        output.complain(f"{differ} greedy pairs differ")
        raise typer.Exit(1)


def _show_pairs(pairs: Sequence[Pair], summary: Mapping[str, Any], *, json: bool) -> None:
    if json:
        groups = {name: shorten_figures(summarise(group)) for name, group in by_group(pairs).items()}
        each_pair = [{"prompt": p.name, "workload": p.group} | shorten_figures(summarise([p])) for p in pairs]
        output.print_json({"summary": shorten_figures(summary), "groups": groups, "pairs": each_pair})
    else:
        output.print_table(_COLUMNS, _rows(pairs, summary))
        output.stderr().print(f"{_BOTH}. {_SUMMED_UP}", style="dim")


def _show_ways(answers: Sequence[Mapping[str, Any]], *, json: bool) -> None:
    summaries = by_strategy.summarise(answers)
    if json:
        output.print_json({"strategies": {way: shorten_figures(s) for way, s in summaries.items()}, "answers": answers})
    else:
        output.print_table(by_strategy.COLUMNS, by_strategy.rows(summaries))


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, answered both ways."""

    name: str
    group: str
    greedy: bool
    autoregressive: Capture
    speculative: Capture

    @property
    def identical(self) -> bool | None:
        """Whether both answers have the same token ids; None for a sampled pair, whose texts may differ."""
        if not self.greedy:
            return None
        return self.autoregressive.answer.tokens == self.speculative.answer.tokens

    @property
    def speedup(self) -> float | None:
        slow, fast = self.autoregressive.answer.tokens_per_second, self.speculative.answer.tokens_per_second
        return fast / slow if slow and fast else None


def run_pair(client: DraftdClient, ask: Ask, name: str, group: str, *, speculative_first: bool = False) -> Pair:
    """Decodes a prompt both ways, one after the other; neither reads the prefix cache. Raises CallError if speculation
    is unavailable."""

    order = [ModePreference.AUTOREGRESSIVE, ModePreference.SPECULATIVE]
    captures = dict[ModePreference, Capture]()
    for mode in reversed(order) if speculative_first else order:
        captured = capture(client, replace(ask, mode=mode, skip_prefix_cache=True), timeout=_ANSWER_SECONDS)
        captures[mode] = captured.raise_failure()
    return Pair(name, group, ask.sampling.greedy, *(captures[mode] for mode in order))


def run_pairs(
    client: DraftdClient,
    base: Ask,
    chosen: Sequence[prompts.Prompt],
    repeat: int = 1,
    console: Console | None = None,
) -> Iterator[tuple[prompts.Prompt, Pair]]:
    """Yields each prompt with its pair, going through all prompts `repeat` times. `base`: the requests' other fields.
    `console`: draws the progress bar, below other output; None: on stderr."""
    asks = _asks(client, base, chosen)
    # A warm-up: the first request of each mode is slower than later ones.
    run_pair(client, replace(asks[0][1], max_tokens=8), "", "")
    for i, (p, ask) in enumerate(output.track_items(asks * repeat, console)):
        yield p, run_pair(client, ask, p.name, ask.workload, speculative_first=i % 2 == 1)


def _asks(client: DraftdClient, base: Ask, chosen: Sequence[prompts.Prompt]) -> list[tuple[prompts.Prompt, Ask]]:
    chat = client.model().chat_template
    return [
        (
            p,
            replace(
                base,
                messages=p.messages if chat else None,
                prompt=None if chat else p.messages[-1][1],
                max_tokens=base.max_tokens or p.max_tokens,
                workload=base.workload if p.workload is WorkloadClass.UNSPECIFIED else p.workload,
            ),
        )
        for p in chosen
    ]


def summarise(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Summarises pairs, under the names of the JSON output. Rates and times are medians; acceptance is over all
    tokens."""
    sides = {"autoregressive": [p.autoregressive for p in pairs], "speculative": [p.speculative for p in pairs]}
    counts = total(side.answer.counts for side in sides["speculative"])
    medians = {
        f"{way}_{name}": _median(map(figure, captures))
        for name, figure in _FIGURES.items()
        for way, captures in sides.items()
    }
    return {
        "pairs": len(pairs),
        **medians,
        "speedup": _median(p.speedup for p in pairs),
        "acceptance": counts.acceptance,
        "mean_accepted_length": counts.mean_accepted_length,
        "identical": sum(p.identical is True for p in pairs),
        "comparable": sum(p.identical is not None for p in pairs),
    }


def shorten_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Shortens floats to four significant digits for JSON; the measurements are less precise than that."""
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in summary.items()}


def by_group(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    return {name: [p for p in pairs if p.group == name] for name in dict.fromkeys(p.group for p in pairs)}


def _median(values: Iterable[float | None]) -> float | None:
    return quantile([value for value in values if value is not None], 0.5)


def _held_out(model: str, each: int, workload: WorkloadClass = WorkloadClass.UNSPECIFIED) -> list[prompts.Prompt]:
    """Returns held-out prompts of the package, `each` being the number for a workload class: of the class `workload`,
    or of every class that suits the model if it is UNSPECIFIED."""
    classes = prompts.suited_classes(model) if workload is WorkloadClass.UNSPECIFIED else (workload,)
    return [p for one in classes for p in prompts.spread(prompts.held_out(one), each)]


def _rows(pairs: Sequence[Pair], summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    groups = by_group(pairs)
    rows = [_row(pair.name, summarise([pair])) for pair in pairs] if len(pairs) <= _SHOWN_PAIRS else []
    if 1 < len(groups) < len(pairs):
        rows += [_row(f"{name} ({len(group)})", summarise(group)) for name, group in groups.items()]
    if len(pairs) > 1:
        rows.append(_row(f"all ({len(pairs)})", summary))
    return rows


def _row(name: str, s: Mapping[str, Any]) -> tuple[str, ...]:
    identical, comparable = s["identical"], s["comparable"]
    same = NOTHING if not comparable else "yes" if identical == comparable else f"{identical}/{comparable}"
    if s["pairs"] == 1 and identical < comparable:
        same = "NO"

    def way(figure: str, factor: float = 1.0) -> str:
        return both(s[f"autoregressive_{figure}"], s[f"speculative_{figure}"], factor)

    return (
        name,
        way("time_to_first_token", 1000),
        way("tokens_per_second"),
        way("inter_chunk_p95", 1000),
        times(s["speedup"]),
        percent(s["acceptance"]),
        length(s["mean_accepted_length"]),
        same,
    )


@options.with_options(
    "draftd demo",
    "draftd demo --each 8 --max-draft-tokens 6",
    "draftd demo --ranks 2",
    "draftd demo | tail -1 | jq .speedup",
)
def demo(
    each: Annotated[
        int | None, typer.Option("--each", min=1, help="Prompts of each workload class. Unset: 6, or 1 with --ranks.")
    ] = None,
    max_tokens: options.MaxTokensEach = None,
    max_draft_tokens: Annotated[
        int | None,
        typer.Option("--max-draft-tokens", min=1, help="Most tokens drafted in one step. Unset: the default."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Folder or hub id. Unset: the embedded pair.")] = None,
    draft_model: Annotated[
        str | None, typer.Option("--draft-model", help="Draft of --model: folder or hub id.")
    ] = None,
    ranks: Annotated[int, typer.Option("--ranks", min=1, max=8, help="Processes that share the target.")] = 1,
    save: options.Picture = None,
) -> None:
    """Start a daemon with the embedded pair of models, and show answers with and without drafts.

    Takes about half a minute. Ends with one line of JSON; exits 1 if any pair of texts differs. With --ranks above 1, a
    daemon with a single process decodes the prompts first, and both daemons must give the same texts. The embedded pair
    was not trained to edit: only a model given by --model gets prompts of the class edit.
    """
    each = each or (6 if ranks == 1 else 1)
    began = time.monotonic()
    out = output.recording() if save is not None else output.stdout()
    named = [f"{option}={value}" for option, value in (("--model", model), ("--draft-model", draft_model)) if value]
    ask = Ask(max_tokens=max_tokens, max_draft_tokens=max_draft_tokens)
    alone = _decode_on_one_rank(named, ask, each) if ranks > 1 else []
    sharing = [f"--ranks={ranks}"] if ranks > 1 else []
    with own_daemon(*named, *sharing) as daemon, options.DaemonOptions(daemon.address).connect() as client:
        status = client.status()
        _introduce(out, daemon, status)
        pairs = _show_pairs_live(out, client, ask, _held_out(daemon.model, each), bar=save is None)
    summary, groups = summarise(pairs), {name: summarise(group) for name, group in by_group(pairs).items()}
    _show_summary(out, groups | {"all": summary}, save)
    classes, seconds = {name: _shown(group) for name, group in groups.items()}, round(time.monotonic() - began, 1)
    document = {"draftd": __version__, "model": daemon.model, "backend": status.backend} | _shown(summary)
    same = _count_same(alone, pairs) if ranks > 1 else len(pairs)
    if ranks > 1:
        out.print(f"{same} of {len(pairs)} texts of {ranks} ranks are those of one")
        document |= {"ranks": ranks, "same_as_one_rank": same}
    output.print_json(document | {"classes": classes, "seconds": seconds})
    if differ := max(summary["comparable"] - summary["identical"], len(pairs) - same):
        output.complain(f"{differ} of {summary['comparable']} pairs differ")
        raise typer.Exit(1)


def _decode_on_one_rank(arguments: Sequence[str], ask: Ask, each: int) -> list[Pair]:
    with own_daemon(*arguments) as daemon, options.DaemonOptions(daemon.address).connect() as client:
        return [pair for _, pair in run_pairs(client, ask, _held_out(daemon.model, each))]


def _introduce(out: Console, daemon: Serving, status: control_pb2.GetStatusResponse) -> None:
    drafters = [name for name in status.model.drafters if name != GRAMMAR]
    draft = name_drafts(status.model.draft_model, drafters) or next(iter(drafters), "none")
    served = f"{daemon.model}, draft {draft}, {status.backend}, {daemon.address}"
    out.print(f"[bold]draftd {__version__}[/] serves {served}")
    for name, text in ranks_of(status):
        out.print(Text.assemble((f"{name:<8}", "dim"), text))
    out.print("Each prompt is decoded autoregressively, then speculatively. Greedy: the texts must be the same.")
    like = ("like this", output.DRAFTED) if out.is_terminal else "⟦like this⟧"
    out.print(Text.assemble("Text ", like, " was proposed by the draft and accepted by the target.\n"))


def _show_pairs_live(
    out: Console, client: DraftdClient, ask: Ask, chosen: Sequence[prompts.Prompt], *, bar: bool
) -> list[Pair]:
    """Returns the pairs, and shows the first answer of each group. `bar`: whether to draw one, on a terminal."""
    pairs: list[Pair] = []
    for p, pair in run_pairs(client, ask, chosen, console=out if out.is_terminal and bar else None):
        if pair.group not in {earlier.group for earlier in pairs}:
            _show_answer(out, p, pair)
        pairs.append(pair)
    return pairs


def _show_summary(out: Console, groups: Mapping[str, Mapping[str, Any]], save: Path | None) -> None:
    columns = ("workload", *(heading for heading, _ in _DEMO.values()))
    out.print(output.table(out, columns, [_demo_row(name, group) for name, group in groups.items()]))
    out.print(f"[dim]{_SUMMED_UP}[/]\n")
    if save is not None:
        output.save_picture(save, out.export_svg(title="make demo"))


def _count_same(alone: Sequence[Pair], pairs: Sequence[Pair]) -> int:
    """Counts speculative texts in `pairs` that equal the autoregressive texts in `alone`, decoded on one rank."""
    on_one_rank = [pair.autoregressive.answer.tokens for pair in alone]
    return sum(text == pair.speculative.answer.tokens for text, pair in zip(on_one_rank, pairs, strict=True))


def _show_answer(out: Console, prompt: prompts.Prompt, pair: Pair) -> None:
    question = prompts.shorten(prompt.messages[-1][1], 92)
    slow, fast = pair.autoregressive.answer.tokens_per_second, pair.speculative.answer.tokens_per_second
    drafted = pair.speculative.answer
    accepted, same = percent(drafted.counts.acceptance), "identical" if pair.identical else "DIFFERENT"
    below = f"{both(slow, fast)} tokens/s · {times(pair.speedup)} · {accepted} accepted · {same}"
    if out.is_terminal:
        answer = Text.assemble(
            *((output.visible(p.text), output.DRAFTED if p.from_draft else "") for p in drafted.pieces)
        )
        answer.rstrip()
        body = Text.assemble((question, "bold"), "\n\n", answer)
        out.print(Panel(body, title=pair.group, subtitle=below, title_align="left", subtitle_align="right"))
    else:
        text = output.bracket_drafts(drafted.pieces).strip()
        out.print(f"{pair.group}: {question}\n{text}\n({below})\n", markup=False, soft_wrap=True)


def _demo_row(name: str, summary: Mapping[str, Any]) -> tuple[str, ...]:
    shown = [written(summary[key]) for key, (_, written) in _DEMO.items()]
    return name, *shown[:-1], f"{shown[-1]} of {summary['comparable']}"


def _shown(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in shorten_figures(summary).items() if key in _DEMO}
