"""`draftd doctor`: is everything here that serving needs, and what to do where it is not?"""

from __future__ import annotations

import dataclasses
import enum
import fcntl
import importlib.metadata
import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import psutil
import typer

from draftd.cli import options, output
from draftd.cli.state import paths_of, quiet_transformers
from draftd.engine.drafters.loaded import OTHER_DRAFT, mismatch, no_rollback
from draftd.errors import ConfigError, ModelLoadError
from draftd.fallback.alerts.connections import listening_socket
from draftd.models import blas
from draftd.models.folder import ModelFolder, is_hub_id
from draftd.settings import Settings, load_settings, state_dir

_CONNECT_SECONDS = 2.0


class Verdict(enum.StrEnum):
    """BAD means that serving will fail, or be far slower than it must be."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `mend` says what to do where the verdict is BAD."""

    subject: str
    found: str
    mend: str = ""
    verdict: Verdict = Verdict.OK


_ok = partial(Finding, verdict=Verdict.OK)
_note = partial(Finding, verdict=Verdict.NOTE)
_bad = partial(Finding, verdict=Verdict.BAD)
_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.BAD: "bold red"}


@options.with_options(
    "draftd doctor",
    "draftd doctor --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit",
    "draftd doctor --config /etc/draftd.toml --json",
)
def command(
    model: Annotated[str | None, typer.Option("--model", help="As for serve.")] = None,
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="As for serve.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="As for serve.")] = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
    json: options.Json = False,
) -> None:
    """Check BLAS or Metal, memory, model files, ports, folders and the collector. Exits 1 when something is wrong."""
    overrides: dict[str, object] = {"model.path": model, "model.draft_path": draft_model, "server.port": port}
    findings = examine(config, overrides | options.parse_assignments(assignments))
    if json:
        output.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        out = output.stdout()
        for finding in findings:
            out.print(f"[{_STYLES[finding.verdict]}]{finding.verdict:<4}[/] [bold]{finding.subject:<12}[/]", end=" ")
            output.say(finding.found)
            if finding.mend:
                output.say(" " * 18 + f"to do: {finding.mend}")
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise typer.Exit(1)


def examine(config: Path | None, overrides: dict[str, object]) -> list[Finding]:
    """All checks; those of settings are left out when the settings themselves are wrong."""
    findings = [check_mlx(), check_blas()]
    try:
        settings = load_settings(config, overrides, os.environ)
    except ConfigError as error:
        return [*findings, _bad("settings", error.message, "correct or remove it")]
    findings += [_ok("settings", "flags, DRAFTD_* variables and file are in order"), *check_models(settings)]
    findings += [check(settings) for check in (check_memory, check_port, check_flag, check_webhook)]
    return [*findings, check_state(settings, os.environ), *check_collectors(os.environ)]


def check_mlx() -> Finding:
    version, python = importlib.metadata.version("mlx"), platform.python_version()
    return _ok("MLX", f"mlx {version}, Python {python}, {platform.system()} {platform.machine()}")


def check_blas() -> Finding:
    """Metal on a Mac; elsewhere which BLAS multiplies."""
    backend = blas.load_blas()
    if backend == "reference":
        return _bad("BLAS", "only the reference BLAS, about fifty times slower than a fast one", blas.INSTALL_HINT)
    if backend != "metal":
        return _ok("BLAS", backend)
    if platform.machine() != "arm64":
        return _bad("Metal", platform.machine(), "use an arm64 Python: MLX needs one")
    return _ok("Metal", "Apple silicon")


def check_models(settings: Settings) -> list[Finding]:
    """The folders that would be loaded, opened as `serve` opens them, but for their weights. A hub id is only named:
    looking it up would need the network."""
    blas.load_blas()  # before MLX is imported
    quiet_transformers()
    path, draft = paths_of(settings.model)
    light = settings.model.light_draft_path
    found, target, tokenizer = _open("model", path)
    findings = [found]
    for subject, pair, named in (("draft model", "pair", draft), ("light draft", "light pair", light)):
        if named is None:
            continue
        found, model, own = _open(subject, named)
        findings.append(found)
        if target is None or model is None:
            continue
        if why := no_rollback(target, "the model"):
            findings.append(_bad(pair, f"{why}; it is served without drafts", "serve another model, or this one alone"))
        elif why := mismatch(tokenizer, own) or no_rollback(model, "the draft model"):
            findings.append(_bad(pair, f"{why}; it is served without this draft", OTHER_DRAFT))
        else:
            findings.append(_ok(pair, "the draft's tokenizer is the target's"))
    return findings


def _open(subject: str, path: str) -> tuple[Finding, Any, Any]:
    """What is found, and mlx-lm's model and tokenizer; None where something is wrong, or where it is not here."""
    if is_hub_id(path):
        return _note(subject, f"{path}: no such folder, so a hub id: it is downloaded when it is served"), None, None
    try:
        folder = ModelFolder(path, subject)
        model, config = folder.open()
        tokenizer = folder.tokenizer(config)
    except ModelLoadError as error:
        return _bad(subject, error.what.removeprefix(f"{subject}: "), error.cure), None, None
    return _ok(subject, f"{path} ({config['model_type']}, {_weight_bytes(path) / 1e6:.0f} MB)"), model, tokenizer


def _weight_bytes(path: str | None) -> int:
    """On disk; 0 where there is no such folder."""
    return sum(file.stat().st_size for file in Path(path).expanduser().glob("*.safetensors")) if path else 0


def check_memory(settings: Settings) -> Finding:
    """Free memory against the weights as they will lie in it."""
    needed = _weight_bytes(settings.model.path) + _weight_bytes(settings.model.draft_path)
    if sys.platform == "linux":
        needed *= 2  # half-precision weights are widened to fp32: see draftd.models.folder
    memory = psutil.virtual_memory()
    found = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"
    if needed:
        found += f", about {needed / 1e9:.1f} GB needed for weights"
    if needed > memory.available:
        return _bad("memory", found, "serve a smaller or quantised model, or close something")
    return _ok("memory", found)


def check_port(settings: Settings) -> Finding:
    mend = "a daemon may already run there (see draftd status); otherwise use --port"
    return _check_listener("port", settings.server.host, settings.server.port, mend)


def check_webhook(settings: Settings) -> Finding:
    """The port that alerts are to arrive on."""
    if not settings.webhook.listens:
        return _note("webhook", "neither webhook.token nor webhook.secret: alerts are not accepted")
    mend = "a daemon may already take alerts there (see draftd status); otherwise set webhook.host and webhook.port"
    return _check_listener("webhook", settings.webhook.host, settings.webhook.port, mend)


def _check_listener(subject: str, host: str, port: int, mend: str) -> Finding:
    if port == 0:
        return _ok(subject, "any free one")
    try:
        listening_socket(host, port).close()
    except OSError as error:
        return _bad(subject, f"{host}:{port}: {error.strerror}", mend)
    return _ok(subject, f"{host}:{port} is free")


def check_flag(settings: Settings) -> Finding:
    flag = settings.flag
    if flag.provider == "flagd":
        if _reachable(flag.host, flag.port):
            return _ok("flag", f"flagd answers at {flag.host}:{flag.port}")
        mend = "start flagd, or set flag.provider to file"
        return _bad("flag", f"no flagd at {flag.host}:{flag.port}", mend)
    if flag.file.is_dir() or _unusable(flag.file.parent):
        return _bad("flag", f"{flag.file} cannot be written", "set flag.file to one that can")
    return _ok("flag", f"{flag.file}{'' if flag.file.exists() else ' (will be written)'}")


def check_state(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Where the level and its history are kept. The user's own folder can be done without; one that is named cannot."""
    named, port = settings.fallback.state_dir, settings.server.port
    if named is None and not port:
        return _note("state", "server.port is 0: the level is not kept over a restart")
    folder = named or state_dir(environ) / str(port)
    if why := _unusable(folder):
        if named is None:
            return _note("state", f"{folder} {why}: the level is not kept over a restart")
        return _bad("state", f"{folder} {why}", "set fallback.state_dir to one that can be written")
    if _in_use(folder):
        return _note("state", f"{folder}: a daemon uses it now")
    return _ok("state", f"{folder}{'' if folder.exists() else ' (will be created)'}")


def _unusable(folder: Path) -> str:
    """Why files cannot be written there, now or once it is made; empty where they can."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return "is no folder" if there == folder else f"cannot be made: {there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return "cannot be written" if there == folder else f"cannot be made in {there}"
    return ""


def _in_use(folder: Path) -> bool:
    """Whether a daemon has locked it."""
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def check_collectors(environ: Mapping[str, str]) -> list[Finding]:
    """Each distinct endpoint of the OTEL_* variables, by opening a connection to it."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [_note("collector", "telemetry is off: OTEL_SDK_DISABLED is true")]
    names = [f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("LOGS_", "METRICS_", "TRACES_", "")]
    endpoints = {environ[name].strip(): name for name in names if environ.get(name, "").strip()}
    if not endpoints:
        return [_note("collector", "no OTEL_EXPORTER_OTLP_ENDPOINT: nothing is exported")]
    return [_check_endpoint(endpoint, name) for endpoint, name in endpoints.items()]


def _check_endpoint(endpoint: str, name: str) -> Finding:
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 4317)
    except ValueError:
        host, port = None, 0
    if not host:
        return _bad("collector", f"{name}={endpoint}", "an address such as http://localhost:4317")
    if not _reachable(host, port):
        mend = f"start the collector, or correct {name}; draftd also serves without it"
        return _bad("collector", f"nothing answers at {host}:{port}", mend)
    return _ok("collector", f"{host}:{port} answers")


def _reachable(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
