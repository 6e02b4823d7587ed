"""`draftd demo`: a real daemon on the embedded pair, asked over gRPC both ways; exits 1 if any greedy pair differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from draftd import __version__
from draftd.acceptance.ticks import decode_tokens_per_second
from draftd.cli import options, output
from draftd.cli.commands.compare import Pair, by_group, rounded, run_pairs, summarise
from draftd.cli.figures import length, percent, rate, times
from draftd.cli.runs import own_daemon
from draftd.client import prompts
from draftd.client.asking import Ask, connect
from draftd.client.child import Serving
from draftd.core import CLASSES

_FIGURES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "pairs": ("pairs", str),
    "autoregressive_tokens_per_second": ("autoregressive\ntokens/s", rate),
    "speculative_tokens_per_second": ("speculative\ntokens/s", rate),
    "speedup": ("speed-up", times),
    "acceptance": ("drafts\naccepted", percent),
    "mean_accepted_length": ("tokens\nper draft", length),
    "identical": ("texts\nidentical", str),
}
"""What is shown of a summary: its name in JSON, its heading, and how it is written in a table."""


@options.with_options("draftd demo", "draftd demo --each 8 --max-draft-tokens 6", "draftd demo | tail -1 | jq .speedup")
def command(
    each: Annotated[int, typer.Option("--each", min=1, help="Prompts of each workload class.")] = 6,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", help="Longest answer.")] = None,
    max_draft_tokens: Annotated[
        int | None, typer.Option("--max-draft-tokens", min=1, help="Most tokens drafted at a time.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Another target to show.")] = None,
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="Its draft.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Also save the screen as a picture (.svg).")] = None,
) -> None:
    """Start a daemon on the embedded pair and see its answers with and without drafts.

    Takes about half a minute. Ends with one line of JSON; exits 1 if any pair of texts differs.
    """
    chosen = [p for workload in CLASSES for p in prompts.spread(prompts.held_out(workload), each)]
    began = time.monotonic()
    out = output.recording() if save is not None else output.stdout()
    named = [f"{option}={value}" for option, value in (("--model", model), ("--draft-model", draft_model)) if value]
    pairs: list[Pair] = []
    with own_daemon(*named) as daemon, connect(daemon.address, None, None) as client:
        status = client.status()
        _introduce(out, daemon, status.model.draft_model, status.backend)
        for p, pair in run_pairs(client, Ask(max_tokens=max_tokens, max_draft_tokens=max_draft_tokens), chosen):
            if pair.group not in {earlier.group for earlier in pairs}:
                _show_answer(out, p, pair)
            pairs.append(pair)
    summary = summarise(pairs)
    columns = ("workload", *(heading for heading, _ in _FIGURES.values()))
    rows = [_row(name, summarise(group)) for name, group in by_group(pairs).items()]
    out.print(output.table(out, columns, [*rows, _row("all", summary)]))
    out.print("")
    if save is not None:
        output.save_picture(save, out.export_svg(title="make demo"))
    output.print_json(_figures(daemon.model, status.backend, pairs, summary, time.monotonic() - began))
    if differ := summary["comparable"] - summary["identical"]:
        output.complain(f"{differ} of {summary['comparable']} pairs differ")
        raise typer.Exit(1)


def _introduce(out: Console, daemon: Serving, draft: str, backend: str) -> None:
    out.print(f"[bold]draftd {__version__}[/] serves {daemon.model}, draft {draft}, {backend}, {daemon.address}")
    out.print("Each prompt is decoded autoregressively, then speculatively. Greedy: the texts must be the same.")
    like = ("like this", output.DRAFTED) if out.is_terminal else "⟦like this⟧"
    out.print(Text.assemble("Text ", like, " was proposed by the draft and accepted by the target.\n"))


def _show_answer(out: Console, prompt: prompts.Prompt, pair: Pair) -> None:
    question = prompts.shorten(prompt.messages[-1][1], 92)
    figures = (
        f"{rate(decode_tokens_per_second(pair.autoregressive))} → {rate(decode_tokens_per_second(pair.speculative))}"
        f" tokens/s · {times(pair.speedup)} · {percent(pair.speculative.counts.acceptance)} accepted"
        f" · {'identical' if pair.identical else 'DIFFERENT'}"
    )
    if out.is_terminal:
        answer = Text.assemble(
            *((output.visible(p.text), output.DRAFTED if p.from_draft else "") for p in pair.answer.pieces)
        )
        answer.rstrip()
        body = Text.assemble((question, "bold"), "\n\n", answer)
        out.print(Panel(body, title=pair.group, subtitle=figures, title_align="left", subtitle_align="right"))
    else:
        text = output.bracketed(pair.answer.pieces).strip()
        out.print(f"{pair.group}: {question}\n{text}\n({figures})\n", markup=False, soft_wrap=True)


def _row(name: str, summary: Mapping[str, Any]) -> tuple[str, ...]:
    shown = [written(summary[key]) for key, (_, written) in _FIGURES.items()]
    return name, *shown[:-1], f"{shown[-1]} of {summary['comparable']}"


def _figures(
    model: str, backend: str, pairs: Sequence[Pair], summary: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    def chosen(s: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in rounded(s).items() if key in _FIGURES}

    return {
        "draftd": __version__,
        "model": model,
        "backend": backend,
        **chosen(summary),
        "classes": {name: chosen(summarise(group)) for name, group in by_group(pairs).items()},
        "seconds": round(seconds, 1),
    }
