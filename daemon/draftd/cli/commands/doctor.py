"""`draftd doctor`: is everything here that serving needs, and what to do where it is not?"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.metadata
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from draftd.cli import options, output
from draftd.cli.commands.doctor_hosts import answer_for, check_hosts
from draftd.cli.commands.doctor_remote import check_remote
from draftd.cli.commands.status import capabilities
from draftd.cli.figures import size
from draftd.cli.findings import STYLES, Finding, Verdict, bad, note, ok
from draftd.cli.state import measured_worth, old_flags, own_flag_file, own_folder, paths_of, quiet_transformers
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName
from draftd.engine.depth.saved import DrafterWorth
from draftd.engine.drafters.loaded import OTHER_DRAFT, DraftSource, mismatch, weight_bytes
from draftd.engine.pair import assemble, context_length_of, raised_context
from draftd.errors import ConfigError, ModelLoadError, in_one_line
from draftd.fronts.grpc import reply
from draftd.hardware.state import HardwareSample, HardwareState, advance, takeable
from draftd.hardware.system import system_probe
from draftd.listening import try_listening
from draftd.model_info import drafter_in_words
from draftd.models import blas
from draftd.models.advice import LARGE_DRAFT, warnings, without_draft
from draftd.models.check import not_served
from draftd.models.folder import ModelFolder
from draftd.models.hub import CachedModel, cached, free_bytes, is_hub_id, no_room, storage_folder
from draftd.models.tokenizer import Tokenizer
from draftd.service.request import ServedModel
from draftd.settings import Settings
from draftd.settings.certificates import certificate_files, load_certificate

_CONNECT_SECONDS = 2.0
_NO_TEMPLATE = "put the one that it was trained with into chat_template.jinja in its folder, or send prompts"


@options.with_options(
    "draftd doctor",
    "draftd doctor --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit",
    "draftd doctor --config /etc/draftd.toml --json",
    "draftd doctor --hostfile hosts.json --model ./Qwen3-32B-4bit",
)
def command(
    served: options.Served,
    adapter_path: options.AdapterPath = None,
    port: Annotated[int | None, typer.Option("--port", help="As for serve.")] = None,
    hostfile: Annotated[
        Path | None,
        typer.Option("--hostfile", help="Check these machines too, and the links between them; as for serve."),
    ] = None,
    json: options.Json = False,
    answers: Annotated[bool, typer.Option("--answer", hidden=True)] = False,
) -> None:
    """Check the machine, models, ports, folders, the remote and the collector; say what the pair can do. Exits 1 when
    something is wrong. Reads no weights, but for a hostfile: then every machine's are compared."""
    named = {"model.adapter_path": adapter_path, "server.port": port}
    if answers:  # a doctor elsewhere asks
        answer_for(served.settings(named))
        return
    findings = examine(partial(served.settings, named | {"distributed.hostfile": hostfile}))
    if json:
        output.print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        out = output.stdout()
        for finding in findings:
            out.print(f"[{STYLES[finding.verdict]}]{finding.verdict:<4}[/] [bold]{finding.subject:<12}[/]", end=" ")
            output.say(finding.found)
            if finding.mend:
                output.say(" " * 18 + f"to do: {finding.mend}")
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise typer.Exit(1)


def examine(load: Callable[[], Settings]) -> list[Finding]:
    """All checks; those of settings are left out when the settings themselves are wrong."""
    findings = [check_mlx(), check_blas()]
    try:
        settings = load()
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
    """Metal on a Mac; elsewhere CUDA, or which BLAS multiplies."""
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


class _Opened(NamedTuple):
    """What lies in a folder: mlx-lm's model, whose weights have not been read, and tokenizer."""

    folder: ModelFolder
    model: Any
    config: dict[str, Any]
    tokenizer: Any


def check_models(settings: Settings) -> list[Finding]:
    return look_at_models(settings)[0]


def look_at_models(settings: Settings) -> tuple[list[Finding], _Opened | None]:
    """The folders that would be loaded, opened as `serve` opens them, but for their weights; what the pair can do, what
    memory it takes, and what would be refused. Of a hub id only the cache is looked at: no network is needed."""
    blas.load_blas()  # before MLX is imported
    quiet_transformers()
    path, draft = paths_of(settings.model)
    found, target = _open("model", path, settings.model.adapter_path)
    findings = [found, *_surplus("model", target)]
    if target is not None and (changes := target.folder.tokenizer_changes):
        findings.append(note("tokenizer", changes))
    drafts, refused = dict[DrafterName, _Opened](), dict[DrafterName, str]()
    for name, subject, pair, named in (
        (DRAFT_MODEL, "draft model", "pair", draft),
        (LIGHT_DRAFT_MODEL, "light draft", "light pair", settings.model.light_draft_path),
    ):
        if named is None:
            continue
        found, opened = _open(subject, named)
        findings += [found, *_surplus(subject, opened)]
        if target is None or opened is None:
            refused[name] = f"the {subject} could not be looked at"
        elif why := mismatch(target.tokenizer, opened.tokenizer):
            findings.append(bad(pair, f"{why}; it is served without this draft", OTHER_DRAFT))
            refused[name] = why
        else:
            findings.append(ok(pair, "the draft's tokenizer is the target's"))
            drafts[name] = opened
    if target is not None:
        findings += check_draft(target, draft, drafts.get(DRAFT_MODEL))
        findings += check_worth(measured_worth(settings, os.environ))
    machine = advance(None, system_probe(HardwareSample).sample(), 0.0, settings.hardware.memory_floor_bytes)
    if target is None:
        return [*findings, check_memory(machine)], None
    return [*findings, *foresee(settings, machine, target, drafts, refused)], target


def _open(subject: str, path: str, adapter: Path | None = None) -> tuple[Finding, _Opened | None]:
    """What is found; None where something is wrong, or where it is not here."""
    from draftd.engine.cache.layouts import why_not_batched

    named = {path: False} | ({} if adapter is None else {str(adapter): True})
    for name in filter(is_hub_id, named):
        if not (copy := cached(name, adapter=named[name])).whole:
            return _not_cached(subject, name, copy), None
    try:
        folder = ModelFolder(path, subject, adapter, offline=True)
        model, config = folder.open()
        tokenizer = folder.tokenizer(config)
    except ModelLoadError as error:
        return bad(subject, error.what.removeprefix(f"{subject}: "), error.cure), None
    try:
        why_not_batched(model, weights=False)  # remembers it, so that nothing below has to try
    except Exception as error:
        what = f"{path}: mlx-lm cannot run {config['model_type']!r} here: {in_one_line(error)}"
        return bad(subject, what, "serve a model of another architecture"), None
    where = ", in the hub's cache" if is_hub_id(path) else ""
    found = f"{path} ({config['model_type']}, {size(weight_bytes(model))}{where})"
    return ok(subject, found), _Opened(folder, model, config, tokenizer)


def _not_cached(subject: str, name: str, copy: CachedModel) -> Finding:
    """A model, or an adapter, that `serve` would download, or cannot for want of room."""
    if not copy.total:
        found = f"{name}: no such folder, so a hub id: {copy}, and is downloaded when it is served"
        return note(subject, found)
    if copy.missing > (free := free_bytes(storage_folder(name))):
        why = no_room(copy.missing, free, storage_folder(name))
        return bad(subject, f"{name}: {copy}: {why.what}", why.cure)
    return note(subject, f"{name}: {copy}; the rest is downloaded when it is served")


def check_draft(target: _Opened, named: str | None, draft: _Opened | None) -> list[Finding]:
    """Whether a draft model may speed the target up: with none, which might; one that has many bytes hardly does."""
    if named is None:
        found = "none: only text that repeats itself is drafted (prompt_lookup)"
        return [note("draft model", found, without_draft(target.config))]
    if draft is None:
        return []
    share = weight_bytes(draft.model) / weight_bytes(target.model)
    if share <= LARGE_DRAFT:
        return []
    found = f"it has {share:.0%} of the target's bytes, so each drafted token takes about {share:.0%} of a step"
    mend = (
        "`draftd compare` measures whether it pays; a tenth of the bytes is better: see `draftd docs choosing-a-draft`"
    )
    return [note("draft size", found, mend)]


def check_worth(worth: DrafterWorth | None) -> list[Finding]:
    """Whether the draft model pays, as `serve` measured it here before."""
    if worth is None:
        return []
    if worth.warning:
        return [
            note("draft worth", worth.warning, "serve without it, or with another: see `draftd docs choosing-a-draft`")
        ]
    return [ok("draft worth", f"measured here: up to {worth.speedup:.2f} times the speed without drafts")]


def _surplus(subject: str, opened: _Opened | None) -> list[Finding]:
    """Weight files in its folder that are not read."""
    said = "" if opened is None else opened.folder.surplus
    return [note(subject, said, "take them out of the folder, or put the index there that names them")] if said else []


def foresee(
    settings: Settings,
    machine: HardwareState,
    target: _Opened,
    drafts: Mapping[DrafterName, _Opened],
    refused: Mapping[DrafterName, str],
) -> list[Finding]:
    """What `GetModel` would say, and what would be refused. `refused`: drafts that do not go with the target, and
    why."""
    from draftd.engine.assembly import cache_limit, prefix_limit

    draft, light = drafts.get(DRAFT_MODEL), drafts.get(LIGHT_DRAFT_MODEL)
    declared, max_context = context_length_of(target.config, target.tokenizer), settings.model.max_context
    models = assemble(
        target.model,
        draft and draft.model,
        Tokenizer(target.tokenizer),
        model=target.folder.name,
        draft_model=draft and draft.folder.name,
        light_draft_model=light and light.folder.name,
        context_length=max_context or declared,
        backend="",
        prompt_lookup=settings.model.prompt_lookup,
        refused=refused,
        sources={LIGHT_DRAFT_MODEL: DraftSource("light draft", lambda: light.model)} if light else {},
        architecture=target.config["model_type"],
        left_out=not_served(target.config),
    )
    needed = models.info.weight_bytes + models.info.draft_weight_bytes
    loaded = dataclasses.replace(
        machine,
        available=None if machine.available is None else max(0, machine.available - needed),
        headroom=None if machine.headroom is None else machine.headroom - needed,
    )
    engine = settings.engine
    limits = engine.limits(headroom=lambda: takeable(loaded))
    layout, limit, info = cache_limit(models, limits)
    prefixes = prefix_limit(layout, limit, limits)
    chat = models.tokenizer.has_chat_template
    served = ServedModel(
        info,
        engine.default_max_tokens,
        engine.max_draft_tokens,
        engine.depth_mode,
        chat,
        generic_tools=settings.model.generic_tools and models.tokenizer.generic_tools,
    )
    told = reply.model(served)
    figures = output.plain(told)
    batching = ok("batching", "requests share forward passes; a trial when the weights are loaded decides it")
    if info.batched_reason:
        batching = note("batching", f"none, each request has forward passes of its own: {info.batched_reason}")
    else:
        figures["batched"] = None
    findings = [
        dataclasses.replace(batching, figures=figures),
        (ok if info.speculation_available else note)("speculation", info.speculation(engine.max_draft_tokens)),
        *(ok(subject, found) for subject, found in capabilities(told)),
        *([note("max_context", raised)] if max_context and (raised := raised_context(max_context, declared)) else []),
        check_memory(machine, needed, limit, prefixes),
        *([ok("prefix cache", f"{size(prefixes)}: room for {info.prefix_room(prefixes)}")] if prefixes else []),
    ]
    findings += [note("tokenizer", *one) for one in warnings(target.config, models.tokenizer, info.vocab_size)]
    # That there is no draft model is said already.
    named = [name for name in info.refused_drafters if name != DRAFT_MODEL or name in refused]
    reasons = {f"requests for the drafter {drafter_in_words(name)}": info.why_no(name) for name in named}
    if not info.speculation_available:
        reasons["requests for the mode SPECULATIVE"] = info.why_no(DRAFT_MODEL)
    if not prefixes:
        findings.append(note("prefix reuse", "off: engine.prefix_cache_bytes is 0"))
    if not chat:
        findings.append(note("refused", "chats: this model has no chat template", _NO_TEMPLATE))
    if (whole := info.context_length) > info.largest_context:
        need = size(layout.held([whole]))
        reasons[f"texts of more than {info.largest_context:,} tokens"] = (
            f"{whole:,} need {need} of KV cache, and {size(limit)} are there"
        )
    return [*findings, *(note("refused", f"{what}: {why}") for what, why in reasons.items())]


def check_memory(machine: HardwareState, needed: int = 0, limit: int = 0, prefixes: int = 0) -> Finding:
    """Free memory against the weights as they will lie in it, `needed` bytes; `limit`: of key-value caches; `prefixes`:
    of the prefix cache."""
    if machine.available is None or machine.limit is None:
        return note("memory", "how much is free is not known")
    found = f"{machine.available / 1e9:.1f} of {machine.limit / 1e9:.1f} GB free"
    if machine.headroom is not None:
        found += f", {size(machine.headroom)} of headroom"
    if needed:
        found += f"; {size(needed)} needed for weights, then up to {size(limit)} for KV cache"
        found += f" and {size(prefixes)} for the prefix cache" if prefixes else ""
    if needed > machine.available:
        return bad("memory", found, "serve a smaller or quantised model, or close something")
    return ok("memory", found)


def check_port(settings: Settings) -> Finding:
    mend = "a daemon may already run there (see draftd status); otherwise use --port"
    return _check_listener("port", settings.server.host, settings.server.port, mend)


def check_http(settings: Settings) -> Finding:
    """The port for OpenAI's and Anthropic's clients."""
    server = settings.server
    if server.http is None:
        return note("HTTP", "only gRPC is served: server.http_port is " + ("off" if server.http_port else "unset"))
    mend = "a daemon may already run there (see draftd status); otherwise set another server.http_port"
    found = _check_listener("HTTP", server.host, server.http, mend)
    if found.verdict is Verdict.BAD and server.http_port is None:
        return note("HTTP", f"{found.found}: only gRPC is served", mend)
    return found


def check_webhook(settings: Settings) -> Finding:
    """The port that alerts are to arrive on."""
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
            found = load_certificate(file, time.time())
        except ConfigError as error:
            findings.append(bad("certificate", error.message, "serve ends with this error: replace the file"))
            continue
        named = f"{file.setting}: {file.path}"
        findings.append(ok("certificate", f"{named}: {found}"))
        findings += [note("certificate", f"{named}: {one.found}", one.mend) for one in found.warnings]
    return findings


def check_log(settings: Settings) -> list[Finding]:
    """Whether a log file that is named can be written."""
    if (file := settings.log.file) is None:
        return []
    there = file if file.exists() else file.parent
    if file.is_dir() or not there.exists() or not os.access(there, os.W_OK):
        return [bad("log", f"{file} cannot be written", "set log.file to one that can, in a folder that exists")]
    return [ok("log", str(file))]


def check_flag(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Where the feature flags are, and who else follows them."""
    flag = settings.flag
    if flag.provider == "flagd":
        if _reachable(flag.host, flag.port):
            return ok("flag", f"flagd answers at {flag.host}:{flag.port}")
        mend = "start flagd, or set flag.provider to file"
        return bad("flag", f"no flagd at {flag.host}:{flag.port}", mend)
    file = flag.file or own_flag_file(settings, environ)
    if file is None:
        return note("flag", "server.port is 0: a temporary file, and the flags are not kept over a restart")
    if flag.file is None and (why := _unusable(file.parent)):
        return note("flag", f"{file.parent} {why}: a temporary file, and the flags are not kept over a restart")
    if file.is_dir() or _unusable(file.parent):
        return bad("flag", f"{file} cannot be written", "set flag.file to one that can")
    if flag.file is not None:
        return ok(
            "flag", f"{file}{'' if file.exists() else ' (will be written)'}; all daemons with this file follow it"
        )
    if not (old := old_flags(environ)).exists():
        return ok("flag", f"{file}{'' if file.exists() else ' (will be written)'}")
    if not file.exists():
        return note("flag", f"{file} (will be written, with the flags of {old}, which is not read afterwards)")
    mend = f"remove {old}; or set flag.file to it, and all daemons with this setting follow it"
    return note("flag", f"{file}; {old}, where flags once were, is not read", mend)


def check_state(settings: Settings, environ: Mapping[str, str]) -> Finding:
    """Where the level and its history are kept. The user's own folder can be done without; one that is named cannot."""
    named, port = settings.fallback.state_dir, settings.server.port
    if named is None and not port:
        return note("state", "server.port is 0: the level is not kept over a restart")
    folder = own_folder(settings, environ)
    assert folder is not None
    if why := _unusable(folder):
        if named is None:
            return note("state", f"{folder} {why}: the level is not kept over a restart")
        return bad("state", f"{folder} {why}", "set fallback.state_dir to one that can be written")
    if _in_use(folder):
        return note("state", f"{folder}: a daemon uses it now")
    return ok("state", f"{folder}{'' if folder.exists() else ' (will be created)'}")


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
