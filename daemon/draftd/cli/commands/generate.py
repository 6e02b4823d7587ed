"""`draftd generate`: streams one answer, or holds a chat."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from draftd.canaries.prompts import PromptError
from draftd.cli import options, output
from draftd.cli.failures import explain
from draftd.cli.figures import length, milliseconds, percent, rate
from draftd.client.client import Ask, DraftdClient
from draftd.client.gathering import Answer, Piece, gather
from draftd.core import DecodeMode, ModePreference, SamplingParams, WorkloadClass
from draftd.errors import DraftdError, in_one_line
from draftd.model_info import model_drafters
from draftd.planning.prices import money
from draftd.protocol import enum_name, plain
from draftd.v1 import inference_pb2 as pb

_CHAT = "A chat: /reset starts over, Ctrl-C stops an answer, Ctrl-D ends it, ↑ recalls a line."


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is drawn, and where the answer ends."""

    max_tokens: options.MaxTokens = None
    temperature: options.Temperature = 0.0
    top_p: Annotated[
        float,
        options.sampling(
            "--top-p", help="Sample only from the likeliest tokens that together have this probability. 1: off."
        ),
    ] = 1.0
    top_k: Annotated[
        int, options.sampling("--top-k", max=2**31 - 1, help="Sample only from this many likeliest tokens. 0: off.")
    ] = 0
    min_p: Annotated[
        float,
        options.sampling(
            "--min-p", help="Sample only tokens with at least this share of the likeliest token's probability. 0: off."
        ),
    ] = 0.0
    seed: options.Seed = None
    stop: Annotated[
        list[str] | None, options.sampling("--stop", help="Text that ends the answer. May be repeated.")
    ] = None

    def ask_arguments(self) -> dict[str, Any]:
        """Returns the fields of `Ask` that these options set."""
        params = SamplingParams(self.temperature, self.top_p, self.top_k, self.min_p, self.seed)
        return {"max_tokens": self.max_tokens, "sampling": params, "stop": tuple(self.stop or ())}


@dataclass(frozen=True)
class PlanOptions:
    """Inputs of the planner: the mode, the kind of text and the caller."""

    mode: Annotated[
        ModePreference,
        options.decoding(
            "--mode",
            "-m",
            metavar="MODE",
            help="How to decode: speculative (refused if not possible), autoregressive (no drafts) or auto "
            "(the daemon decides).",
        ),
    ] = ModePreference.AUTO
    workload: options.Workload = WorkloadClass.UNSPECIFIED
    caller: options.Caller = ""


@dataclass(frozen=True)
class FormatOptions:
    """The required format of the answer; at most one."""

    schema: Annotated[
        str | None,
        options.sampling(
            "--schema",
            metavar="FILE",
            help="File with a JSON schema that the answer must match. -: read it from stdin.",
        ),
    ] = None
    regex: Annotated[
        str | None, options.sampling("--regex", help="Regular expression that the whole answer must match.")
    ] = None
    choice: Annotated[
        list[str] | None,
        options.sampling("--choice", help="One of the allowed answers. Repeat the option for each of them."),
    ] = None


@options.with_options(
    'draftd generate "What is the capital of France?"',
    "draftd generate",
    'draftd generate --highlight -w code "Write a function that adds two numbers."',
    'git diff | draftd generate --system "Say in one line what changed." -n 60',
    'draftd generate --schema trip.json "A flight from Oslo to Rome."',
    'draftd generate --mode autoregressive --json "Hello" | jq .counts',
)
def command(
    daemon: options.DaemonOptions,
    drafting: options.DraftOptions,
    routing: options.RouteOptions,
    planning: PlanOptions,
    drawing: SamplingOptions,
    formatting: FormatOptions,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Prompt. Several words are joined. Unset: stdin is read or, on a terminal, a chat begins."),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message before the prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Tokenise the prompt without the model's chat template.")] = False,
    highlight: Annotated[
        bool,
        typer.Option("--highlight", help="Mark drafted tokens that were accepted, and tokens of a remote model."),
    ] = False,
    wait: options.Wait = 300.0,
    json: options.Json = False,
) -> None:
    """Stream one answer. On a terminal, without a prompt, hold a chat. Each answer's figures go to stderr, in one
    line."""
    wanted = _format(formatting.schema, formatting.regex, formatting.choice, bool(prompt))
    talks = not prompt and not json and all(one.isatty() for one in (sys.stdin, sys.stdout))
    text = "" if talks else " ".join(prompt or []) or _stdin()
    with daemon.connect() as client:
        with contextlib.closing(output.WaitingBar()) as loading:
            model = client.wait_until_loaded(wait, loading.hear_loading)
        chat = not raw and model.chat_template
        if system and not chat:
            why = "with --raw there is none" if raw else f"{model.model} has none"
            raise PromptError("--system", system, f"only with a chat template: {why}")
        question = Ask(
            messages=(*([("system", system)] if system else []), ("user", text)) if chat else None,
            prompt=None if chat else text,
            **asdict(planning),
            **drawing.ask_arguments(),
            **asdict(drafting),
            **routing.ask_arguments(),
        )
        if json:
            output.print_json(document(gather(client.generate_raw(question.message(response_format=wanted)))))
        else:
            has_draft = bool(model_drafters(model.drafters))
            _print_answers(client, question, wanted, highlight, talks=talks, has_draft=has_draft)


def _print_answers(
    client: DraftdClient,
    question: Ask,
    wanted: pb.ResponseFormat | None,
    highlight: bool,
    *,
    talks: bool,
    has_draft: bool,
) -> None:
    """Prints the answer, or holds a chat if `talks`."""

    def answer(ask: Ask) -> Answer:
        begun = len(ask.messages or ()) > len(question.messages or ())
        return _stream_answer(client, ask, wanted, highlight, draft_model=begun or has_draft)  # advised once in a chat

    if not talks:
        answer(question)
    elif question.messages is None:
        raise PromptError("PROMPT", "", "words after the command, or text on stdin: there is no chat template")
    else:
        hold_chat(replace(question, messages=question.messages[:-1]), answer)


def _stream_answer(
    client: DraftdClient, question: Ask, wanted: pb.ResponseFormat | None, highlight: bool, *, draft_model: bool
) -> Answer:
    """Streams an answer to stdout, then prints its figures to stderr."""
    stream = client.generate_raw(question.message(response_format=wanted, return_progress=sys.stderr.isatty()))
    show = _print_highlighted if highlight and sys.stdout.isatty() else partial(_print, marked=highlight)
    try:
        with contextlib.closing(output.WaitingBar()) as waiting:
            answer = gather(stream, waiting.before(show), waiting.before(_print_thought), waiting.hear)
    except (DraftdError, KeyboardInterrupt):
        if sys.stdout.isatty():
            print()  # the error starts on a line of its own
        raise
    finally:
        stream.close()  # cancels an incomplete answer
    if not answer.text.endswith("\n"):
        print()
    line = summary(answer, draft_model=draft_model)
    output.stderr().print(line, style="dim", markup=False, soft_wrap=True)
    return answer


def hold_chat(opening: Ask, answer: Callable[[Ask], Answer]) -> None:
    """Reads turns from the terminal and answers them, until Ctrl-D. `opening`: the request, with the messages before
    the first turn. A turn without a complete answer is dropped from the conversation."""
    with contextlib.suppress(ImportError):  # a Python built without readline
        import readline  # noqa: F401  # gives input() line editing and a history

    begun = opening.messages or ()
    said = begun
    output.stderr().print(_CHAT, style="dim", markup=False)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # drops the line
            print()
            continue
        if text == "/reset":
            said = begun
            output.stderr().print("the conversation starts over", style="dim")
        elif text == "/help":
            output.stderr().print(_CHAT, style="dim", markup=False)
        elif text:
            turn = (*said, ("user", text))
            try:
                said = (*turn, ("assistant", answer(replace(opening, messages=turn)).text))
            except KeyboardInterrupt:
                output.stderr().print("stopped: this turn is left out of the conversation", style="dim")
            except DraftdError as error:
                if (failure := explain(error)) is not None:
                    output.complain(failure.message)


def document(answer: Answer) -> dict[str, Any]:
    whole = {"text": answer.text, "token_ids": answer.tokens, "started": plain(answer.started)}
    if answer.reasoning:
        whole["reasoning"] = answer.reasoning
    return whole | plain(answer.finished)


def _format(
    schema: str | None, regex: str | None, choices: list[str] | None, prompted: bool
) -> pb.ResponseFormat | None:
    """Returns the format that --schema, --regex or --choice asks for, or None."""
    named = [f"--{name}" for name, value in (("schema", schema), ("regex", regex), ("choice", choices)) if value]
    if len(named) > 1:
        raise PromptError(named[1], " and ".join(named), "only one of --schema, --regex, --choice")
    if schema == "-" and not prompted:
        raise PromptError("--schema", schema, "a file: stdin is already read for the prompt")
    if schema:
        try:
            return pb.ResponseFormat(json_schema=sys.stdin.read() if schema == "-" else Path(schema).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise PromptError("--schema", schema, f"a file of text ({in_one_line(error)})") from None
    if regex:
        return pb.ResponseFormat(regex=regex)
    return pb.ResponseFormat(choices=pb.Choices(texts=choices)) if choices else None


def _stdin() -> str:
    if sys.stdin.isatty():
        raise PromptError("PROMPT", "", "words after the command, or text on stdin")
    text = sys.stdin.read().strip("\n")
    if not text:
        raise PromptError("stdin", "", "text that is not empty")
    return text


def _print(pieces: Sequence[Piece], marked: bool) -> None:
    """Prints pieces as they are into a pipe; for a terminal, replaces control characters."""
    text = output.bracket_drafts(pieces) if marked else "".join(piece.text for piece in pieces)
    print(output.visible(text) if sys.stdout.isatty() else text, end="", flush=True)


def _print_thought(text: str) -> None:
    """Prints reasoning to stderr, on a terminal only."""
    if sys.stderr.isatty():
        output.stderr().print(output.visible(text), style="dim", markup=False, soft_wrap=True, end="")


def _print_highlighted(pieces: Sequence[Piece]) -> None:
    console = output.stdout()
    for piece in pieces:
        style = f"{output.DRAFTED if piece.from_draft else ''} {output.REMOTE if piece.remote else ''}".strip()
        console.print(Text(output.visible(piece.text), style), end="", soft_wrap=True)


def route_summary(answer: Answer) -> list[str]:
    """Returns up to three texts: the strategy and the answer's quality class, unless the strategy is local; the cost,
    if known; the reason for a failover."""
    finished, parts = answer.finished, []
    strategy = enum_name(pb.Strategy.DESCRIPTOR, answer.started.plan.strategy)
    if answer.started.plan.strategy not in (pb.STRATEGY_UNSPECIFIED, pb.STRATEGY_LOCAL):
        parts.append(f"{strategy}, {enum_name(pb.QualityClass.DESCRIPTOR, finished.quality)}")
    if finished.HasField("cost"):
        parts.append(money(finished.currency, finished.cost))
    if finished.failed_over:
        parts.append(f"went on with the local model: {finished.failed_over}")
    return parts


def summary(answer: Answer, *, draft_model: bool = True) -> str:
    """Returns one line of figures of a complete answer. If there is neither a draft model nor a draft head
    (`draft_model`), a speculative answer's line ends with the command that shows how to choose a draft model."""
    plan, counts = answer.started.plan, answer.counts
    planned = plan.mode == pb.DECODE_MODE_SPECULATIVE
    how = answer.mode.value
    if answer.mode is DecodeMode.SPECULATIVE:
        how += f", up to {plan.max_draft_tokens} at a time"
    usage = answer.finished.usage
    cached = f", {usage.cache_read_tokens} of them cached" if usage.cache_read_tokens else ""
    parts = [
        f"{usage.output_tokens} tokens ({how})",
        f"prompt of {usage.input_tokens} tokens{cached}",
        f"{rate(answer.tokens_per_second)} tokens/s",
        f"first after {milliseconds(answer.time_to_first_token)}",
    ]
    if counts.drafted:
        parts.append(f"{counts.accepted} of {counts.drafted} drafted accepted ({percent(counts.acceptance)})")
        parts.append(f"{length(counts.mean_accepted_length)} tokens per draft, the target's own included")
    elif planned and not counts.parked_steps:
        parts.append("nothing was drafted")
    if counts.parked_steps:
        parts.append(
            f"{counts.drafts} of {counts.steps} steps drafted, {counts.parked_steps} were parked: "
            "drafting would not have paid"
        )
    parts += route_summary(answer)
    if answer.finished.reason == pb.FINISH_REASON_LENGTH:
        parts.append("cut off by max_tokens")
    if answer.finished.degraded:
        parts.append(f"went on autoregressively: {answer.finished.degraded}")
    # A speculative plan's reason begins with the flag that allows it; its limits follow the semicolon.
    if why := plan.reason.partition("; ")[2] if planned else plan.reason:
        parts.append(why)
    if planned and not draft_model:
        parts.append("see `draftd docs choosing-a-draft`")
    return " · ".join(parts)
