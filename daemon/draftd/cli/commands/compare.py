"""`draftd compare`: the same prompts both ways, and what it made of speed and text."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from draftd.cli import options, terminal
from draftd.cli.figures import both, length, percent, times
from draftd.cli.paired import Pair, Summary, by_group, rounded, run_pair, summarise, warm_up
from draftd.client import prompts
from draftd.client.asking import Ask, connect
from draftd.core import CLASSES, SamplingParams, WorkloadClass

_COLUMNS = ("prompt", "TTFT ms", "tokens/s", "p95 ms", "speed-up", "accepted", "length", "same")


def command(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts. Without any: the held-out ones of the package.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Prompts: one a line, or .jsonl with messages.")
    ] = None,
    each: Annotated[int, typer.Option("--each", min=1, help="Held-out prompts of each workload class.")] = 3,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Times that each pair is run.")] = 1,
    workload: options.WorkloadOption = WorkloadClass.UNSPECIFIED,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    max_draft_tokens: options.MaxDraftTokens = None,
    drafter: options.DrafterOption = None,
    depth_mode: options.DepthModeOption = None,
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Decode the same prompts both ways, in turn, and compare. Greedy pairs must be identical: exits 1 where not.

    Two figures are autoregressive → speculative. TTFT is the time to the first token, p95 that between chunks of
    tokens, accepted the share of drafted tokens, length the mean number of tokens that a draft yields.

    [bold]Examples[/]

    [dim]$[/] draftd compare

    [dim]$[/] draftd compare -w code --each 10 --max-draft-tokens 6

    [dim]$[/] draftd compare "Tell me a story." "List three fruits." --repeat 3

    [dim]$[/] draftd compare --file prompts.jsonl --json | jq .summary.speedup
    """
    chosen = _choose(prompt, file, each, workload)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    client = connect(target, token, tls_ca)
    pairs: list[Pair] = []
    try:
        chat = client.model().chat_template
        base = Ask(sampling=sampling, max_draft_tokens=max_draft_tokens, drafter=drafter, depth_mode=depth_mode)
        asks = [
            replace(
                base,
                messages=p.messages if chat else None,
                prompt=None if chat else p.messages[-1][1],
                max_tokens=max_tokens or p.max_tokens,
                workload=workload if p.workload is WorkloadClass.UNSPECIFIED else p.workload,
            )
            for p in chosen
        ]
        warm_up(client, asks[0])
        with terminal.steps(terminal.stderr(), repeat * len(chosen)) as step:
            for _ in range(repeat):
                for p, ask in zip(chosen, asks, strict=True):
                    step(p.name)
                    pairs.append(run_pair(client, ask, p.name, ask.workload))
    finally:
        client.close()
    summary = summarise(pairs)
    if json:
        print(_json(pairs, summary))
    else:
        out = terminal.stdout()
        out.print(terminal.table(out, _COLUMNS, _rows(pairs, summary)))
    if summary.identical < summary.comparable:
        terminal.complain(f"{summary.comparable - summary.identical} greedy pairs differ")
        raise typer.Exit(1)


def _choose(texts: Sequence[str] | None, file: Path | None, each: int, workload: WorkloadClass) -> list[prompts.Prompt]:
    chosen = prompts.from_texts(texts or [])
    if file is not None:
        chosen += prompts.from_file(file)
    if chosen:
        return chosen
    classes = CLASSES if workload is WorkloadClass.UNSPECIFIED else (workload,)
    return [p for one in classes for p in prompts.spread(prompts.held_out(one), each)]


def _rows(pairs: Sequence[Pair], summary: Summary) -> list[tuple[str, ...]]:
    groups = by_group(pairs)
    rows = [_row(pair.name, summarise([pair])) for pair in pairs] if len(pairs) <= 24 else []
    if 1 < len(groups) < len(pairs):
        rows += [_row(f"{name} ({len(group)})", summarise(group)) for name, group in groups.items()]
    if len(pairs) > 1:
        rows.append(_row(f"all ({len(pairs)})", summary))
    return rows


def _row(name: str, s: Summary) -> tuple[str, ...]:
    same = "–" if not s.comparable else "yes" if s.identical == s.comparable else f"{s.identical}/{s.comparable}"
    if s.pairs == 1 and s.identical < s.comparable:
        same = "NO"
    return (
        name,
        both(s.autoregressive_time_to_first_token, s.speculative_time_to_first_token, 1000),
        both(s.autoregressive_tokens_per_second, s.speculative_tokens_per_second),
        both(s.autoregressive_inter_chunk_p95, s.speculative_inter_chunk_p95, 1000),
        times(s.speedup),
        percent(s.acceptance),
        length(s.mean_accepted_length),
        same,
    )


def _json(pairs: Sequence[Pair], summary: Summary) -> str:
    return jsonlib.dumps(
        {
            "summary": rounded(summary),
            "groups": {name: rounded(summarise(group)) for name, group in by_group(pairs).items()},
            "pairs": [{"prompt": p.name, "workload": p.group} | rounded(summarise([p])) for p in pairs],
        },
        ensure_ascii=False,
    )
