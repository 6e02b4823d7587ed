"""`draftd generate`: one answer, as it comes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from draftd.cli import options, terminal
from draftd.cli.figures import one_line
from draftd.client.asking import Answer, Ask, Message, Piece, connect, gather, send
from draftd.client.prompts import PromptError
from draftd.core import ModePreference, SamplingParams, WorkloadClass


def command(
    prompt: Annotated[list[str] | None, typer.Argument(help="The prompt; without one, stdin is read.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="A system message before it.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Tokenise as it is, without chat template.")] = False,
    highlight: Annotated[
        bool, typer.Option("--highlight", help="Mark the tokens that were drafted and accepted.")
    ] = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    mode: options.ModeOption = ModePreference.AUTO,
    max_draft_tokens: options.MaxDraftTokens = None,
    drafter: options.DrafterOption = None,
    depth_mode: options.DepthModeOption = None,
    workload: options.WorkloadOption = WorkloadClass.UNSPECIFIED,
    caller: options.Caller = "",
    json: options.Json = False,
    target: options.Target = options.DEFAULT_TARGET,
    token: options.Token = None,
    tls_ca: options.TlsCa = None,
) -> None:
    """Stream one answer to stdout, then one line of figures to stderr.

    [bold]Examples[/]

    [dim]$[/] draftd generate "What is the capital of France?"

    [dim]$[/] draftd generate --highlight -w code "Write a function that adds two numbers."

    [dim]$[/] git diff | draftd generate --system "Say in one line what changed." -n 60

    [dim]$[/] draftd generate --mode autoregressive --json "Hello" | jq .counts
    """
    text = " ".join(prompt or []) or _stdin()
    client = connect(target, token, tls_ca)
    try:
        chat = not raw and client.model().chat_template
        asked = Ask(
            messages=_messages(system, text) if chat else None,
            prompt=None if chat else text,
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature, top_p, top_k, min_p, seed),
            stop=tuple(stop or ()),
            mode=mode,
            max_draft_tokens=max_draft_tokens,
            drafter=drafter,
            depth_mode=depth_mode,
            workload=workload,
            caller=caller,
        )
        stream = send(client, asked)
        if json:
            print(as_json(gather(stream)))
            return
        show = _highlighted if highlight and sys.stdout.isatty() else _bracketed if highlight else _plain
        answer = gather(stream, show)
    finally:
        client.close()
    if not answer.text.endswith("\n"):
        print()
    terminal.stderr().print(one_line(answer), style="dim", markup=False, soft_wrap=True)


def as_json(answer: Answer) -> str:
    """Everything that was streamed, as one object."""
    import json

    from draftd.cli.plain import plain

    whole = {"text": answer.text, "token_ids": answer.tokens, "started": plain(answer.started)}
    return json.dumps(whole | plain(answer.finished), ensure_ascii=False)


def _stdin() -> str:
    if sys.stdin.isatty():
        raise PromptError("PROMPT", "", "words after the command, or text on stdin")
    text = sys.stdin.read().strip("\n")
    if not text:
        raise PromptError("stdin", "", "text that is not empty")
    return text


def _messages(system: str | None, text: str) -> tuple[Message, ...]:
    asked: Message = ("user", text)
    return (("system", system), asked) if system else (asked,)


def _plain(pieces: Sequence[Piece]) -> None:
    sys.stdout.write("".join(piece.text for piece in pieces))
    sys.stdout.flush()


def _bracketed(pieces: Sequence[Piece]) -> None:
    # Into a pipe there is no colour: what was accepted from the draft stands between brackets.
    sys.stdout.write("".join(f"⟦{p.text}⟧" if p.from_draft else p.text for p in pieces))
    sys.stdout.flush()


def _highlighted(pieces: Sequence[Piece]) -> None:
    console = terminal.stdout()
    for piece in pieces:
        console.print(Text(piece.text, terminal.DRAFTED if piece.from_draft else ""), end="", soft_wrap=True)
