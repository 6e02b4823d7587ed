"""Which daemon is measured: one that runs, or one of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from draftd.acceptance.cost import CostRates
from draftd.cli import terminal
from draftd.cli.overrides import parse_assignments
from draftd.client.asking import connect
from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.interrupts import answered
from draftd.settings import Settings, load_settings

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient
    from draftd.v1 import inference_pb2 as pb

_DAEMON = "Which daemon"
_SILENCE_SECONDS = 600.0  # a large model is read, or downloaded
_READY_SECONDS = 60.0

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        envvar="DRAFTD_TARGET",
        help="host:port of a running daemon. Without it, one is started for the run.",
        rich_help_panel=_DAEMON,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Of a daemon of its own: folder or hub id. Unset: the embedded pair.", rich_help_panel=_DAEMON
    ),
]
DraftModel = Annotated[
    str | None, typer.Option("--draft-model", help="Its draft: folder or hub id.", rich_help_panel=_DAEMON)
]


@dataclass(frozen=True, slots=True)
class Which:
    """Which daemon: a running one at `target`, or one of its own from the same settings as `draftd serve`."""

    target: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    model: str | None = None
    draft_model: str | None = None
    config: Path | None = None
    assignments: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        return any((self.target, self.model, self.draft_model, self.config, self.assignments))

    def memory(self) -> dict[str, object]:
        """For the run's own file: never the token."""
        config = None if self.config is None else str(self.config)
        return {
            "target": self.target,
            "model": self.model,
            "draft_model": self.draft_model,
            "config": config,
            "assignments": list(self.assignments),
        }

    def remembered(self, memory: Mapping[str, Any]) -> Which:
        """The one that a run was begun with."""
        config = memory.get("config")
        return replace(
            self,
            target=memory.get("target"),
            model=memory.get("model"),
            draft_model=memory.get("draft_model"),
            config=Path(config) if config else None,
            assignments=tuple(memory.get("assignments") or ()),
        )

    def settings(self) -> Settings:
        """Those of a daemon of its own; of costs in any case. Raises ConfigError."""
        named = {"model.path": self.model, "model.draft_path": self.draft_model}
        return load_settings(self.config, {**named, **parse_assignments(self.assignments)}, os.environ)


@dataclass(frozen=True, slots=True)
class Measured:
    """A daemon that serves, and may be measured."""

    client: DraftdClient
    model: pb.GetModelResponse
    own: bool


@contextlib.contextmanager
def measured(which: Which, *, block_length: int = 0) -> Iterator[Measured]:
    """`block_length` is the longest that will be asked for: a daemon of its own allows it."""
    from draftd.acceptance.holding import held

    with contextlib.ExitStack() as stack:
        stack.enter_context(_stoppable())
        if which.target is None:
            address = stack.enter_context(_own(which.settings(), block_length))
            client = connect(address, None, None)
        else:
            client = connect(which.target, which.token, which.tls_ca)
        stack.callback(client.close)
        client.status()  # where nobody answers that is said at once; one that loads is waited for
        client.wait_ready(_READY_SECONDS)
        if which.target is not None:
            stack.enter_context(held(client))
        yield Measured(client, client.model(), own=which.target is None)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, so that no daemon of its own is left behind; also where a shell that put the
    command into the background had it ignore SIGINT."""
    with answered(dict.fromkeys((signal.SIGTERM, signal.SIGINT), signal.default_int_handler)):
        yield


@contextlib.contextmanager
def _own(settings: Settings, block_length: int) -> Iterator[str]:
    """A daemon on a free port of loopback, by those of the settings that decide how it decodes. Neither its guard nor
    its canaries come between what is measured."""
    chosen: dict[str, object] = {}
    for section in ("model", "engine", "hardware", "cost"):
        values = getattr(settings, section)
        chosen |= {f"{section}.{name}": getattr(values, name) for name in values.model_fields_set}
    chosen["engine.max_draft_tokens"] = max(settings.engine.max_draft_tokens, block_length)
    chosen["hardware.period_seconds"] = min(settings.hardware.period_seconds, 0.5)
    chosen |= {"fallback.guard": "false", "fallback.canary_period_seconds": 0, "fallback.probe_share": 0}
    given = [f"--set={name}={value}" for name, value in chosen.items() if value is not None]
    err = terminal.stderr()
    with tempfile.TemporaryDirectory(prefix="draftd-run-") as folder, contextlib.ExitStack() as stack:
        with err.status("starting a daemon") as status:
            child = stack.enter_context(
                serving(
                    serve_command("--host", "127.0.0.1", "--port", "0", "--log-level", "warning", *given),
                    clean_environ(f"{folder}/flags.json"),
                    timeout=_SILENCE_SECONDS,
                    on_line=lambda line: status.update(escape(line)),
                )
            )
        yield child.address


def prices(settings: Settings) -> CostRates | None:
    """What the machine costs, where the settings say."""
    said = settings.cost
    if said.per_hour is None and said.tariff is None:
        return None
    return CostRates(said.currency, said.per_hour, said.watts, said.tariff)
