"""`draftd doctor`: is everything here that serving needs, and what to do where it is not?"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import http.client
import importlib.metadata
import json as jsonlib
import os
import platform
import socket
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import psutil
import typer

from draftd.cli import options, output
from draftd.errors import ConfigError
from draftd.fallback.alerts.connections import listening_socket
from draftd.models import blas
from draftd.settings import Settings, WebhookSettings, load_settings, state_dir

_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 2.0


class Verdict(enum.StrEnum):
    """BAD means that serving will fail, or be far slower than it must be."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `mend` says what to do where the verdict is BAD."""

    subject: str
    verdict: Verdict
    found: str
    mend: str = ""


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
        return [*findings, Finding("settings", Verdict.BAD, error.message, "correct or remove it")]
    findings.append(Finding("settings", Verdict.OK, "flags, DRAFTD_* variables and file are in order"))
    findings += check_models(settings)
    findings += [check_memory(settings), check_port(settings), check_flag(settings)]
    findings += [check_webhook(settings), check_state(settings, os.environ)]
    return findings + check_collectors(os.environ)


def check_mlx() -> Finding:
    version = importlib.metadata.version("mlx")
    place = f"mlx {version}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return Finding("MLX", Verdict.OK, place)


def check_blas() -> Finding:
    """Metal on a Mac; elsewhere which BLAS multiplies."""
    backend = blas.load_blas()
    if backend == "metal":
        if platform.machine() != "arm64":
            return Finding("Metal", Verdict.BAD, f"{platform.machine()}", "use an arm64 Python: MLX needs one")
        return Finding("Metal", Verdict.OK, "Apple silicon")
    if backend == "reference":
        found = "only the reference BLAS, some fifty times slower than a good one"
        return Finding("BLAS", Verdict.BAD, found, blas.INSTALL_HINT)
    return Finding("BLAS", Verdict.OK, backend)


def check_models(settings: Settings) -> list[Finding]:
    """The folders that would be loaded. A hub id is only named: looking it up would need the network."""
    if settings.model.path is None:
        nano = Path(str(resources.files("draftd.models.nano")))
        folders = [("model", str(nano / "target")), ("draft model", str(nano / "draft"))]
    else:
        folders = [("model", settings.model.path)]
        if settings.model.draft_path:
            folders.append(("draft model", settings.model.draft_path))
    if settings.model.light_draft_path:
        folders.append(("light draft", settings.model.light_draft_path))
    findings = [_check_model(subject, path) for subject, path in folders]
    read = {
        subject: Path(path) for (subject, path), f in zip(folders, findings, strict=True) if f.verdict is Verdict.OK
    }
    for subject, draft in (("pair", "draft model"), ("light pair", "light draft")):
        if "model" in read and draft in read:
            findings.append(_check_pair(subject, read["model"], read[draft]))
    return findings


def _check_model(subject: str, path: str) -> Finding:
    folder = Path(path)
    if not folder.is_dir():
        if path.count("/") == 1 and not path.startswith((".", "/", "~")):
            return Finding(subject, Verdict.NOTE, f"{path}: a hub id, fetched when it is served")
        mend = "give a folder that mlx-lm can load; the embedded pair comes with the package"
        return Finding(subject, Verdict.BAD, f"{path}: no such folder", mend)
    weights = list(folder.glob("*.safetensors"))
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not weights:
        missing.append("*.safetensors")
    if missing:
        return Finding(subject, Verdict.BAD, f"{path}: no {', '.join(missing)}", "fetch the whole model again")
    try:
        kind = jsonlib.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (ValueError, KeyError, OSError) as error:
        return Finding(subject, Verdict.BAD, f"{path}/config.json: {error!r}", "fetch the whole model again")
    megabytes = sum(file.stat().st_size for file in weights) / 1e6
    return Finding(subject, Verdict.OK, f"{path} ({kind}, {megabytes:.0f} MB)")


def _check_pair(subject: str, target: Path, draft: Path) -> Finding:
    sizes = [_vocabulary(folder) for folder in (target, draft)]
    if sizes[0] != sizes[1]:
        found = f"vocabularies of {sizes[0]} and {sizes[1]} tokens: drafts of the one mean nothing to the other"
        return Finding(subject, Verdict.BAD, found, "use a draft of the same family, or --drafter prompt_lookup")
    return Finding(subject, Verdict.OK, f"one vocabulary of {sizes[0]} tokens")


def _vocabulary(folder: Path) -> object:
    config = jsonlib.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")


def check_memory(settings: Settings) -> Finding:
    """Free memory against the weights as they will lie in it."""
    needed = 0
    for path in (settings.model.path, settings.model.draft_path):
        if path and Path(path).is_dir():
            needed += sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
    if sys.platform == "linux":
        needed *= 2  # half-precision weights are widened to fp32: see draftd.models.folder
    memory = psutil.virtual_memory()
    found = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"
    if needed:
        found += f", about {needed / 1e9:.1f} GB needed for weights"
    if needed > memory.available:
        return Finding("memory", Verdict.BAD, found, "serve a smaller or quantised model, or close something")
    return Finding("memory", Verdict.OK, found)


def check_port(settings: Settings) -> Finding:
    host, port = settings.server.host, settings.server.port
    if port == 0:
        return Finding("port", Verdict.OK, "any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            found = f"{host}:{port}: {error.strerror}"
            mend = "a daemon may be running there (draftd status); else serve with --port"
            return Finding("port", Verdict.BAD, found, mend)
    return Finding("port", Verdict.OK, f"{host}:{port} is free")


def check_flag(settings: Settings) -> Finding:
    flag = settings.flag
    if flag.provider == "flagd":
        if _reachable(flag.host, flag.port):
            return Finding("flag", Verdict.OK, f"flagd answers at {flag.host}:{flag.port}")
        mend = "start flagd, or set flag.provider to file"
        return Finding("flag", Verdict.BAD, f"no flagd at {flag.host}:{flag.port}", mend)
    folder = flag.file if flag.file.is_dir() else flag.file.parent
    while not folder.exists():
        folder = folder.parent
    if flag.file.is_dir() or not os.access(folder, os.W_OK):
        return Finding("flag", Verdict.BAD, f"{flag.file} cannot be written", "set flag.file to one that can")
    return Finding("flag", Verdict.OK, f"{flag.file}{'' if flag.file.exists() else ' (will be written)'}")


def check_collectors(environ: Mapping[str, str]) -> list[Finding]:
    """Each distinct endpoint of the OTEL_* variables, by opening a connection to it."""
    names = ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    names += [f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT" for signal in ("TRACES", "METRICS", "LOGS")]
    endpoints = {environ[name].strip(): name for name in reversed(names) if environ.get(name, "").strip()}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [Finding("collector", Verdict.NOTE, "telemetry is off: OTEL_SDK_DISABLED is true")]
    if not endpoints:
        found = "no OTEL_EXPORTER_OTLP_ENDPOINT: nothing is exported"
        return [Finding("collector", Verdict.NOTE, found)]
    return [_check_endpoint(endpoint, name) for endpoint, name in endpoints.items()]


def _check_endpoint(endpoint: str, name: str) -> Finding:
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 4317)
    except ValueError:
        host, port = None, 0
    if not host:
        return Finding("collector", Verdict.BAD, f"{name}={endpoint}", "an address such as http://localhost:4317")
    if not _reachable(host, port):
        mend = f"start the collector, or mend {name}; draftd serves without it"
        return Finding("collector", Verdict.BAD, f"nothing answers at {host}:{port}", mend)
    return Finding("collector", Verdict.OK, f"{host}:{port} answers")


def _reachable(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def check_webhook(settings: Settings) -> Finding:
    """The port that alerts are to arrive on: free, or a draftd's already."""
    webhook = settings.webhook
    if not webhook.listens:
        return Finding("webhook", Verdict.NOTE, "neither webhook.token nor webhook.secret: no alerts are taken")
    if webhook.port == 0:
        return Finding("webhook", Verdict.OK, "any free port")
    place = f"{webhook.host}:{webhook.port}"
    try:
        listening_socket(webhook.host, webhook.port).close()
    except socket.gaierror as error:
        mend = "set webhook.host to an address of this machine"
        return Finding("webhook", Verdict.BAD, f"{webhook.host}: {error.strerror}", mend)
    except OSError as error:
        if _is_draftd(webhook):
            return Finding("webhook", Verdict.NOTE, f"{place}: a daemon takes alerts there now")
        return Finding("webhook", Verdict.BAD, f"{place}: {error.strerror}", "set webhook.port to one that is free")
    return Finding("webhook", Verdict.OK, f"{place} is free")


def _is_draftd(webhook: WebhookSettings) -> bool:
    """Whether a draftd answers there. Nothing secret is said, so that its certificate need not be known."""
    host = webhook.host.strip("[]")
    if webhook.tls_cert is None:
        asked = http.client.HTTPConnection(host, webhook.port, timeout=_ANSWER_SECONDS)
    else:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        asked = http.client.HTTPSConnection(host, webhook.port, timeout=_ANSWER_SECONDS, context=context)
    with contextlib.closing(asked):
        try:
            asked.request("GET", "/")
            return asked.getresponse().getheader("Server") == "draftd"
        except (OSError, http.client.HTTPException):
            return False


def check_state(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Where the level and its history are kept. The user's own folder can be done without; one that is named cannot."""
    named, port = settings.fallback.state_dir, settings.server.port
    if named is None and not port:
        return Finding("state", Verdict.NOTE, "server.port is 0: the level is not kept over a restart")
    folder = named or state_dir(environ) / str(port)
    if why := _unusable(folder):
        if named is None:
            return Finding("state", Verdict.NOTE, f"{folder} {why}: the level is not kept over a restart")
        return Finding("state", Verdict.BAD, f"{folder} {why}", "set fallback.state_dir to one that can be written")
    if _in_use(folder):
        return Finding("state", Verdict.NOTE, f"{folder}: a daemon uses it now")
    return Finding("state", Verdict.OK, f"{folder}{'' if folder.exists() else ' (will be made)'}")


def _unusable(folder: Path) -> str:
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
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
