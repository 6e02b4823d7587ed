"""Options that several commands share, each declared once, and `with_options`, which puts them into a command.

A group of options is a frozen dataclass whose fields are annotated options. A command takes the group as one parameter.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from draftd.core import DepthMode, DrafterName, WorkloadClass
from draftd.errors import ConfigError
from draftd.settings import Settings, describe_settings, load_settings
from draftd.strategies import QualityClass, Strategy

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient
    from draftd.engine.drafters.registry import DrafterRegistry

Quality = Literal["draft", "standard", "professional"]

_INT32 = 2**31 - 1  # the contract's largest; a daemon may allow less
models = partial(typer.Option, rich_help_panel="What to serve")
which_daemon = partial(typer.Option, rich_help_panel="Which daemon")
sampling = partial(typer.Option, rich_help_panel="How to choose tokens")
decoding = partial(typer.Option, rich_help_panel="How to decode")

PATIENCE = 600.0

Wait = Annotated[
    float,
    typer.Option(
        "--wait", min=0, help="Longest wait in seconds while the model loads, once the daemon listens. 0: no wait."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Patience = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=86_400.0,
        help="Longest wait for the result. After it the command fails, and the daemon finishes its work.",
    ),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", envvar="DRAFTD_CONFIG", help="TOML file with settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Value of a setting, such as engine.max_batch=4. Secrets are refused. May be repeated.",
    ),
]
AdapterPath = Annotated[
    Path | None,
    models(
        "--adapter-path", help="LoRA adapter of the model: folder or hub id. Unset: the setting model.adapter_path."
    ),
]
Token = Annotated[
    str | None,
    which_daemon(
        "--token",
        envvar="DRAFTD_TOKEN",
        help="Bearer token of the daemon. Prefer the variable: options are visible in the list of processes.",
    ),
]
TlsCa = Annotated[
    str | None,
    which_daemon(
        "--tls-ca",
        metavar="FILE|system",
        envvar="DRAFTD_TLS_CA",
        help="Certificate authority (PEM) of the daemon's certificate; system: those that this machine trusts. "
        "Turns TLS on.",
    ),
]
Picture = Annotated[Path | None, typer.Option("--save", help="Save the last screen to this file, as an SVG picture.")]
MaxTokens = Annotated[
    int | None,
    sampling("--max-tokens", "-n", max=_INT32, help="Most tokens of an answer. Unset: the daemon's default."),
]
MaxTokensEach = Annotated[
    int | None,
    sampling("--max-tokens", "-n", max=_INT32, help="Most tokens of an answer. Unset: each prompt's own limit."),
]
Temperature = Annotated[float, sampling("--temperature", "-t", help="Sampling temperature. 0: greedy decoding.")]
Seed = Annotated[
    int | None,
    sampling(
        "--seed",
        min=0,
        max=2**64 - 1,
        help="Seed for sampling: the same seed gives the same text, with drafts or without. Unset: random.",
    ),
]
Workload = Annotated[
    WorkloadClass,
    decoding(
        "--workload",
        "-w",
        metavar="CLASS",
        help="Kind of text: code, tool_call, chat, prose or edit. Flags, routing and estimates use it. "
        "Unset: unspecified.",
        show_default=False,
    ),
]
Caller = Annotated[
    str, decoding("--caller", help="Name of the caller, for the rules of the flags and for remote.local_callers.")
]


@dataclass(frozen=True)
class DaemonOptions:
    """A running daemon, and how to reach it."""

    target: Annotated[
        str, which_daemon("--target", envvar="DRAFTD_TARGET", help="host:port of the running daemon.")
    ] = "127.0.0.1:50551"
    token: Token = field(default=None, repr=False)
    tls_ca: TlsCa = None

    def connect(self) -> DraftdClient:
        """Returns a client that has sent nothing yet. `tls_ca`: a PEM file, or `system` for the authorities that this
        machine trusts. DRAFTD_TLS_CERT and DRAFTD_TLS_KEY name the client's own certificate, if the daemon wants one.
        Raises ConfigError for an invalid port, and for certificates that cannot be used."""
        from draftd.client.client import DraftdClient

        port = self.target.rpartition(":")[2]
        if port.isdecimal() and not 0 < int(port) <= 65535:
            raise ConfigError("--target", self.target, "host:port, with a port from 1 to 65535")
        cert, key = (Path(path) if (path := os.environ.get(f"DRAFTD_TLS_{name}")) else None for name in ("CERT", "KEY"))
        ca = None if self.tls_ca in (None, "system") else Path(str(self.tls_ca))
        tls = self.tls_ca is not None or cert is not None
        if (cert is None) != (key is None):
            missing = "KEY" if key is None else "CERT"
            raise ConfigError(f"DRAFTD_TLS_{missing}", None, "DRAFTD_TLS_CERT and DRAFTD_TLS_KEY together")
        if ca is not None or cert is not None:
            from draftd.settings.certificates import CertificateFile, load_certificates

            named = {"--tls-ca": (ca, None), "DRAFTD_TLS_CERT": (cert, key)}
            load_certificates([CertificateFile(name, one, its) for name, (one, its) in named.items() if one])
        return DraftdClient(self.target, self.token, ca, tls_cert=cert, tls_key=key, tls=tls)


@dataclass(frozen=True)
class ServeOptions:
    """The models and other settings of a daemon to start."""

    model: Annotated[
        str | None,
        models(
            "--model", help="Model to serve: folder or hub id. Unset: the setting model.path, or the embedded pair."
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        models(
            "--draft-model",
            help="Draft model, or draft head, of --model: folder or hub id. Unset: the setting model.draft_path.",
        ),
    ] = None
    config: Config = None
    assignments: Assignments = None
    argument: Annotated[str | None, typer.Argument(hidden=True, metavar="")] = None

    def settings(self, others: Mapping[str, object] = {}) -> Settings:
        """Loads the settings, with `others` by dotted name, where None means unset. Raises ConfigError."""
        if self.argument is not None:
            raise ConfigError(
                "argument",
                self.argument,
                f"no argument: use --model {self.argument}, or --set NAME=VALUE",
            )
        named = {"model.path": self.model, "model.draft_path": self.draft_model, **others}
        return load_settings(self.config, named | parse_assignments(self.assignments), os.environ)


@dataclass(frozen=True)
class DraftOptions:
    """How to draft. None leaves it to the daemon."""

    max_draft_tokens: Annotated[
        int | None,
        decoding(
            "--max-draft-tokens",
            max=_INT32,
            help="Most tokens drafted in one step. 0: no drafts. Unset: the daemon's engine.max_draft_tokens.",
        ),
    ] = None
    drafter: Annotated[
        DrafterName | None,
        decoding(
            "--drafter",
            metavar="NAME",
            help="Drafter: draft_model, draft_head, light_draft_model or prompt_lookup. Unset: the daemon's "
            "model.drafter.",
        ),
    ] = None
    depth_mode: Annotated[
        DepthMode | None,
        decoding(
            "--depth-mode",
            metavar="MODE",
            help="Tokens drafted in a step. automatic: as many as pay; fixed: always the most allowed. "
            "Unset: the daemon's engine.depth_mode.",
        ),
    ] = None


@dataclass(frozen=True)
class RouteOptions:
    """The strategy of a request, and limits on its answer. None leaves it to the daemon. `quality`: the least class.
    `max_seconds`, `max_cost` (in the daemon's currency): wishes for the whole answer; if no strategy keeps them, the
    one that exceeds them least answers."""

    strategy: Annotated[
        Strategy | None,
        decoding(
            "--strategy",
            metavar="STRATEGY",
            help="Where to decode: local, remote, speculative (draft locally, verify at the remote) or auto. "
            "Unset: as the flag decoding-strategy says.",
        ),
    ] = None
    quality: Annotated[
        Quality | None,
        decoding(
            "--quality",
            metavar="CLASS",
            help="Lowest quality class accepted: draft, standard or professional. Unset: standard, if possible.",
        ),
    ] = None
    max_seconds: Annotated[
        float | None,
        decoding(
            "--max-seconds",
            help="Wanted limit on the seconds of the whole answer. If no strategy keeps it, the closest one answers.",
        ),
    ] = None
    max_cost: Annotated[
        float | None,
        decoding(
            "--max-cost",
            help="Wanted limit on the cost of the whole answer, in the daemon's currency. If no strategy keeps it, "
            "the closest one answers.",
        ),
    ] = None

    def ask_arguments(self) -> dict[str, Any]:
        """Returns the options as arguments of `client.Ask`."""
        quality = None if self.quality is None else QualityClass.of(self.quality)
        return {name: getattr(self, name) for name in ("strategy", "max_seconds", "max_cost")} | {"quality": quality}


def parse_assignments(assignments: Iterable[str] | None) -> dict[str, str]:
    """Returns settings by dotted name from `--set NAME=VALUE`. Raises ConfigError for one without an equals sign, and
    for a secret, which every user of the machine could read in the list of processes. Loading checks names and
    values."""
    values: dict[str, str] = {}
    secrets = {one.name: one.variable for one in describe_settings() if one.secret} if assignments else {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("--set", text, "NAME=VALUE, as in engine.max_batch=4")
        name = name.strip()
        if name in secrets:
            raise ConfigError(f"--set {name}", "***", f"the variable {secrets[name]}, or the TOML file: not a flag")
        values[name] = value.strip()
    return values


def with_options(*examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: its groups of options become options of its own, and its help ends with `examples`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters, groups = _flatten_parameters(function)

        def run(**values: Any) -> None:
            for name, group in groups.items():
                values[name] = group(**{one.name: values.pop(one.name) for one in fields(group)})
            function(**values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = function.__name__, _help(function.__doc__ or "", examples)
        return run

    return decorate


def _flatten_parameters(function: Callable[..., None]) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    """Returns a command's parameters, with each group replaced by its fields, and the groups by parameter name."""
    parameters: list[inspect.Parameter] = []
    groups = {}
    keyword = inspect.Parameter.KEYWORD_ONLY
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=keyword))
            continue
        groups[parameter.name] = kind
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(item.name, keyword, default=item.default, annotation=hints[item.name])
            for item in fields(kind)
        ]
    return parameters, groups


def _help(text: str, examples: Sequence[str]) -> str:
    """Returns the docstring with each paragraph on one line, which any terminal wraps, then a paragraph for each
    example."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n")]
    if examples:
        shown = (example.replace("[", r"\[") for example in examples)
        paragraphs += ["[bold]Examples[/]", *(f"[dim]$[/] {example}" for example in shown)]
    return "\n\n".join(paragraphs)


def check_drafters(settings: Settings, drafters: DrafterRegistry) -> None:
    """Raises ConfigError for a setting that names a drafter which is not registered."""
    if settings.model.drafter is not None:
        drafters.get(settings.model.drafter, "model.drafter")
    for name in settings.fallback.lighter:
        drafters.get(name, "fallback.lighter")
