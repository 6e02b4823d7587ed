"""What `draftd doctor` looks at: each check says what it found and, where that is wrong, how to mend it."""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from draftd.settings import Settings

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
    verdict: Verdict
    found: str
    mend: str = ""


def check_mlx() -> Finding:
    version = importlib.metadata.version("mlx")
    place = f"mlx {version}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return Finding("MLX", Verdict.OK, place)


def check_blas() -> Finding:
    """Metal on a Mac; elsewhere which BLAS multiplies."""
    from draftd.engine.blas import INSTALL_HINT, load_blas

    backend = load_blas()
    if backend == "metal":
        if platform.machine() != "arm64":
            return Finding("Metal", Verdict.BAD, f"{platform.machine()}", "use an arm64 Python: MLX needs one")
        return Finding("Metal", Verdict.OK, "Apple silicon")
    if backend == "reference":
        found = "only the reference BLAS, some fifty times slower than a good one"
        return Finding("BLAS", Verdict.BAD, found, INSTALL_HINT)
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
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
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
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")


def check_memory(settings: Settings) -> Finding:
    """Free memory against the weights as they will lie in it."""
    import psutil

    needed = 0
    for path in (settings.model.path, settings.model.draft_path):
        if path and Path(path).is_dir():
            needed += sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))
    if sys.platform == "linux":
        needed *= 2  # half-precision weights are widened to fp32: see draftd.engine.folder
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
