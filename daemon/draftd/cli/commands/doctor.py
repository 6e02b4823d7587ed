"""`draftd doctor`: checks all that serving needs, and says how to mend what is wrong."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from draftd.cli import options, output
from draftd.cli.commands.doctor_exactness import check_exactness, refuse_ranks
from draftd.cli.commands.doctor_hosts import check_hosts
from draftd.cli.commands.doctor_models import look_at_models
from draftd.cli.figures import milliseconds
from draftd.cli.findings import STYLES, Finding, Severity, bad, note, ok
from draftd.cli.persistent_state import old_flags, own_flag_file, own_folder
from draftd.engine.drafters.registry import built_in_drafters
from draftd.errors import ConfigError
from draftd.listening import other_port, try_listening
from draftd.models import blas
from draftd.models.tokenizer import Tokenizer
from draftd.planning.flag_file import SPECULATION, FlagFile
from draftd.settings import RemoteSettings, Settings
from draftd.settings.certificates import certificate_files, load_certificate
from draftd.verifier_client.codec import VERSION
from draftd.verifier_client.connection import check_verifier
from draftd.verifier_client.failures import REFUSED, LinkError

_CONNECT_SECONDS = 2.0


@options.with_options(
    "draftd doctor",
    "draftd doctor --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit",
    "draftd doctor --config /etc/draftd.toml --json",
    "draftd doctor --hostfile hosts.json --model ./Qwen3-32B-4bit",
    "draftd doctor --exactness --model ./Qwen3-8B-4bit",
)
def command(
    served: options.ServeOptions,
    adapter_path: options.AdapterPath = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the gRPC server, as for draftd serve.")] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option(
            "--hostfile",
            help="Also check the machines in this file and the links between them. The file is as for draftd serve.",
        ),
    ] = None,
    exactness: Annotated[
        bool,
        typer.Option(
            "--exactness",
            help="Also load the model, and measure which of its operations depend on draft depth, batch size and "
            "prefill slices.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Check the machine, models, ports, folders, the remote and the collector. Say what the models can do. Exits 1 if
    something is wrong. Reads weights only with --hostfile, to compare the machines' files, and with --exactness."""
    named = {"model.adapter_path": adapter_path, "server.port": port, "distributed.hostfile": hostfile}
    load = partial(served.settings, named)
    if exactness:
        refuse_ranks(load)
    findings = examine(load)
    if not json:
        show(findings)
    if exactness:
        check = check_exactness(load, findings)
        findings += check.findings
        if not json:
            show(check.findings)
            check.show_table()
    if json:
        output.print_json([finding.document() for finding in findings])
    if any(finding.verdict is Severity.BAD for finding in findings):
        raise typer.Exit(1)


def show(findings: Iterable[Finding]) -> None:
    """Prints the findings, each with what to do."""
    out = output.stdout()
    for finding in findings:
        out.print(f"[{STYLES[finding.verdict]}]{finding.verdict:<4}[/] [bold]{finding.subject:<12}[/]", end=" ")
        output.say(finding.text)
        if finding.mend:
            output.say(" " * 18 + f"to do: {finding.mend}")


def examine(load: Callable[[], Settings]) -> list[Finding]:
    """Runs all checks; if the settings are invalid, only those that need none."""
    findings = [check_mlx(), check_blas()]
    try:
        settings = load()
        options.check_drafters(settings, built_in_drafters())
    except ConfigError as error:
        return [*findings, bad("settings", error.message, "correct or remove it")]
    models, target = look_at_models(settings)
    findings += [ok("settings", "flags, DRAFTD_* variables and file are in order"), *models]
    findings += [check_port(settings), check_http(settings), check_flag(settings, os.environ), check_webhook(settings)]
    tokenizer = None if target is None else Tokenizer(target.tokenizer)
    findings += [*check_certificates(settings), *check_log(settings), *check_remote(settings.remote, tokenizer)]
    findings += [check_state(settings, os.environ), *check_collectors(os.environ)]
    return findings if settings.distributed.hostfile is None else [*findings, *check_hosts(settings)]


def check_mlx() -> Finding:
    version, python = importlib.metadata.version("mlx"), platform.python_version()
    return ok("MLX", f"mlx {version}, Python {python}, {platform.system()} {platform.machine()}")


def check_blas() -> Finding:
    """Checks what MLX computes with: Metal on a Mac, elsewhere CUDA or a BLAS library."""
    backend = blas.load_blas()
    if blas.compute_backend() == "cuda":
        return ok("CUDA", blas.device_name())
    if backend == "reference":
        return bad("BLAS", "only the reference BLAS: prompts take about ten times as long", blas.INSTALL_HINT)
    if backend != "metal":
        return ok("BLAS", backend)
    if platform.machine() != "arm64":
        return bad("Metal", platform.machine(), "use an arm64 Python: MLX needs one")
    return ok("Metal", "Apple silicon")


def check_port(settings: Settings) -> Finding:
    return _check_listener("port", settings.server.host, settings.server.port, other_port("server.port"))


def check_http(settings: Settings) -> Finding:
    """Checks the port for OpenAI's and Anthropic's clients."""
    server = settings.server
    if server.http is None:
        return note("HTTP", "only gRPC is served: server.http_port is " + ("off" if server.http_port else "unset"))
    mend = other_port("server.http_port")
    listener = _check_listener("HTTP", server.host, server.http, mend)
    if listener.verdict is Severity.BAD and server.http_port is None:
        return note("HTTP", f"{listener.text}: only gRPC is served", mend)
    return listener


def check_webhook(settings: Settings) -> Finding:
    """Checks the port on which alerts arrive."""
    if not settings.webhook.listens:
        return note("webhook", "neither webhook.token nor webhook.secret: alerts are not accepted")
    mend = "a daemon may already take alerts there (see draftd status); otherwise set webhook.host and webhook.port"
    return _check_listener("webhook", settings.webhook.host, settings.webhook.port, mend)


def _check_listener(subject: str, host: str, port: int, mend: str) -> Finding:
    if port == 0:
        return ok(subject, "any free one")
    try:
        try_listening(host, port)
    except OSError as error:
        return bad(subject, f"{host}:{port}: {error.strerror}", mend)
    return ok(subject, f"{host}:{port} is free")


def check_certificates(settings: Settings) -> list[Finding]:
    """Checks the certificates that the daemon would show or trust: whether clients take them, and until when."""
    findings = []
    for file in certificate_files(settings):
        try:
            certificate = load_certificate(file, time.time())
        except ConfigError as error:
            findings.append(bad("certificate", error.message, "serve ends with this error: replace the file"))
            continue
        named = f"{file.setting}: {file.path}"
        findings.append(ok("certificate", f"{named}: {certificate}"))
        findings += [note("certificate", f"{named}: {warning.text}", warning.mend) for warning in certificate.warnings]
    return findings


def check_log(settings: Settings) -> list[Finding]:
    """Checks that the log file, if one is set, can be written."""
    if (file := settings.log.file) is None:
        return []
    there = file if file.exists() else file.parent
    if file.is_dir() or not there.exists() or not os.access(there, os.W_OK):
        return [bad("log", f"{file} cannot be written", "set log.file to one that can, in a folder that exists")]
    return [ok("log", str(file))]


def check_flag(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Says where the feature flags are kept, and whether other daemons follow the same ones."""
    flag = settings.flag
    if flag.provider == "flagd":
        if _reachable(flag.host, flag.port):
            return ok("flag", f"flagd answers at {flag.host}:{flag.port}")
        mend = "start flagd, or set flag.provider to file"
        return bad("flag", f"no flagd at {flag.host}:{flag.port}", mend)
    file = flag.file or own_flag_file(settings, environ)
    if file is None:
        return note("flag", "server.port is 0: a temporary file, and the flags are not kept over a restart")
    if file.is_dir() or _unusable(file.parent):
        mend = "make its folder writable, or set flag.file to another file"
        return bad("flag", f"{file} cannot be written: the flags cannot be set", mend)
    if file.exists() and file.suffix != ".yaml":
        try:
            FlagFile(file).read()
        except ValueError as error:
            mend = "correct it, which a running daemon notices; or delete it, then the default applies after a restart"
            return bad("flag", f"{file}: {error}: {SPECULATION.key} is {flag.default_variant} until it is mended", mend)
    shown = f"{file}{'' if file.exists() else ' (will be written)'}"
    if flag.file is not None:
        return ok("flag", f"{shown}; all daemons with this file follow it")
    if not (old := old_flags(environ)).exists():
        return ok("flag", shown)
    if not file.exists():
        return note("flag", f"{file} (will be written, with the flags of {old}, which is not read afterwards)")
    mend = f"remove {old}; or set flag.file to it, and all daemons with this setting follow it"
    return note("flag", f"{file}; {old}, where flags once were, is not read", mend)


def check_remote(settings: RemoteSettings, tokenizer: Tokenizer | None) -> list[Finding]:
    """Connects to the verifier as the link does. `tokenizer`: of this daemon's model, None if it could not be
    opened."""
    if not settings.enabled:
        return []
    reached = f"{settings.target} answers{' with TLS' if settings.encrypted else ''}"
    try:
        model, trip = check_verifier(settings, tokenizer)
    except LinkError as error:
        text = f"{reached if error.kind in REFUSED else settings.target}: {error.what}"
        return [bad("remote", text, error.cure or "look at the log of the verifier")]
    token = "the token is accepted, " if settings.token is not None else ""
    findings = [
        ok("remote", f"{reached}, {token}protocol {VERSION}, round trip {milliseconds(trip)}"),
        ok("remote", f"it serves {model.model} ({model.quality.label}), context of {model.context_length:,} tokens"),
    ]
    if tokenizer is None:
        return [*findings, note("remote", "its tokenizer was not compared: the model here could not be opened")]
    if model.shared_tokenizer:
        return [*findings, ok("remote", "its tokenizer is the model's here")]
    other = f"its tokenizer is another: {model.difference}; `remote` works by text, `speculative` is refused"
    return [*findings, note("remote", other, "serve a model of the verifier's family to draft for it")]


def check_state(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Checks the folder of the level and its history. A folder that is set must be usable; the default one need not
    be."""
    named, port = settings.fallback.state_dir, settings.server.port
    if named is None and not port:
        return note("state", "server.port is 0: the level is not kept over a restart")
    folder = own_folder(settings, environ)
    assert folder is not None
    if why := _unusable(folder):
        if named is None:
            return note("state", f"{folder} {why}: the level is not kept over a restart")
        return bad("state", f"{folder} {why}", "make it writable, or set fallback.state_dir to another folder")
    if _in_use(folder):
        return note("state", f"{folder}: a daemon uses it now")
    return ok("state", f"{folder}{'' if folder.exists() else ' (will be created)'}")


def _unusable(folder: Path) -> str:
    """Returns why files cannot be written in a folder, which may not exist yet; empty if they can."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return "is no folder" if there == folder else f"cannot be made: {there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return "cannot be written" if there == folder else f"cannot be made in {there}"
    return ""


def _in_use(folder: Path) -> bool:
    """Whether a daemon has locked the folder."""
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def check_collectors(environ: Mapping[str, str]) -> list[Finding]:
    """Checks each distinct endpoint of the OTEL_* variables by connecting to it."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [note("collector", "telemetry is off: OTEL_SDK_DISABLED is true")]
    names = [f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("LOGS_", "METRICS_", "TRACES_", "")]
    endpoints = {environ[name].strip(): name for name in names if environ.get(name, "").strip()}
    if not endpoints:
        return [note("collector", "no OTEL_EXPORTER_OTLP_ENDPOINT: nothing is exported")]
    return [_check_endpoint(endpoint, name) for endpoint, name in endpoints.items()]


def _check_endpoint(endpoint: str, name: str) -> Finding:
    parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    try:
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 4317)
    except ValueError:
        host, port = None, 0
    if not host:
        return bad("collector", f"{name}={endpoint}", "an address such as http://localhost:4317")
    if not _reachable(host, port):
        mend = f"start the collector, or correct {name}; draftd also serves without it"
        return bad("collector", f"nothing answers at {host}:{port}", mend)
    return ok("collector", f"{host}:{port} answers")


def _reachable(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
