"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftd.core import DepthMode, DrafterKind, ModePreference, WorkloadClass

_INT32 = 2**31 - 1  # what the contract can carry; the daemon says what it allows

DEFAULT_TARGET = "127.0.0.1:50551"

_DAEMON = "Which daemon"
_SAMPLING = "How to choose tokens"
_DECODING = "How to decode"

Target = Annotated[
    str,
    typer.Option(
        "--target", envvar="DRAFTD_TARGET", help="Daemon's host:port.", rich_help_panel=_DAEMON, show_default=True
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="DRAFTD_TOKEN", help="Bearer token. Better in the variable.", rich_help_panel=_DAEMON
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE|system",
        envvar="DRAFTD_TLS_CA",
        help="Authority (PEM) of the daemon's certificate; turns TLS on.",
        rich_help_panel=_DAEMON,
    ),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", envvar="DRAFTD_CONFIG", help="Settings in TOML.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; may be given again.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
PATIENCE = 600.0
Patience = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, max=86_400.0, help="Wait no longer; what was begun goes on."),
]

MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", "-n", max=_INT32, help="Longest answer.", rich_help_panel=_SAMPLING)
]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option("--top-p", help="1 is off.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option("--top-k", max=_INT32, help="0 is off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[float, typer.Option("--min-p", help="0 is off.", rich_help_panel=_SAMPLING)]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, max=2**64 - 1, help="Same seed, same text, either way.", rich_help_panel=_SAMPLING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="Text that ends the answer; may be given again.", rich_help_panel=_SAMPLING),
]
MaxDraftTokens = Annotated[
    int | None,
    typer.Option("--max-draft-tokens", max=_INT32, help="Most tokens drafted per round.", rich_help_panel=_DECODING),
]
DrafterOption = Annotated[
    DrafterKind | None,
    typer.Option(
        "--drafter",
        metavar="NAME",
        help="draft_model, light_draft_model or prompt_lookup.",
        rich_help_panel=_DECODING,
    ),
]
DepthModeOption = Annotated[
    DepthMode | None,
    typer.Option(
        "--depth-mode",
        metavar="MODE",
        help="automatic (as many a round as pay) or fixed (always the most).",
        rich_help_panel=_DECODING,
    ),
]
ModeOption = Annotated[
    ModePreference,
    typer.Option(
        "--mode",
        "-m",
        metavar="MODE",
        help="auto (the daemon decides), speculative or autoregressive.",
        rich_help_panel=_DECODING,
    ),
]
WorkloadOption = Annotated[
    WorkloadClass,
    typer.Option(
        "--workload",
        "-w",
        metavar="CLASS",
        help="Kind of text: code, tool_call, chat or prose.",
        rich_help_panel=_DECODING,
        show_default=False,
    ),
]
Caller = Annotated[
    str, typer.Option("--caller", help="Key that the feature flag may target.", rich_help_panel=_DECODING)
]
