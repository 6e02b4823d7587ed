"""The manifest: a checksum of each model file, and the programs, machine, settings and prompts of a measurement.

Two figures can be compared if the relevant fields of their manifests are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from google.protobuf.json_format import MessageToDict
from pydantic import TypeAdapter

from draftd import __version__
from draftd.client.client import DraftdClient
from draftd.client.prompts import Prompt
from draftd.exactness import Exactness
from draftd.protocol import exactness_of

SECONDS = 600.0  # to take a manifest: the first one hashes large files
ABSENT = "absent"

_FIGURELESS = ("created", "harness", "load_seconds", "exactness")  # change no figure; `engine.exact` is a setting
# Settings that change no figure: addresses, logs, and what is sent to others.
_IDLE_SETTINGS = ("server.", "log.", "telemetry.", "webhook.", "annotations.", "cost.")
# Paths change no figure: the files themselves are compared.
_IDLE_NAMES = frozenset(
    (
        *("model.path", "model.draft_path", "model.light_draft_path", "fallback.state_dir"),
        *("flag.provider", "flag.file", "flag.host", "flag.port", "flag.tls"),
    )
)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """`kind`: weights, config, tokenizer or chat_template."""

    name: str
    kind: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelManifest:
    """`quantization` is the text of the model's configuration, such as "4 bits, groups of 64"; "none" without. `kind`,
    `form`: of a draft head, whose `files` are empty if they are the target's; empty for a whole model."""

    name: str
    quantization: str
    weight_bytes: int  # in memory, as it was loaded
    files: tuple[ModelFile, ...]
    changed_since_load: bool = False  # a file has changed since it was loaded
    kind: str = ""
    form: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`models` by role: target, draft, draft_head, light_draft. `settings` by dotted name; a secret only says whether
    it is set. `prompts`: the SHA-256 of each group's prompts. `exactness`: as the daemon had measured it by then.
    Unknown values are None or empty."""

    created: str  # ISO 8601, UTC
    harness: str  # draftd's version where this was written
    draftd: str  # the daemon's
    packages: Mapping[str, str]  # mlx, mlx-lm and others that affect a result: name to version
    python: str
    os: str
    device: str  # the processor or chip
    cores: int
    memory_bytes: int
    backend: str  # as the daemon names it: metal, cpu (openblas)
    blas: str  # which library, with its version; empty on Metal
    power_source: str  # mains, battery, or empty
    low_power: bool | None
    models: Mapping[str, ModelManifest]
    settings: Mapping[str, str]
    prompts: Mapping[str, str] = field(default_factory=dict)
    load_seconds: float | None = None  # to load the models
    exactness: Exactness | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """`field` is dotted: models.draft.files.model.safetensors.sha256. `matters`: figures must not be compared."""

    field: str
    left: str
    right: str
    matters: bool


def take_manifest(
    client: DraftdClient, prompts: Mapping[str, str] | None = None, *, timeout: float = SECONDS
) -> Manifest:
    """Returns the daemon's manifest. `prompts` maps each group to its `prompt_checksum`. Raises CallError."""
    reply = client.manifest(timeout=timeout)
    fields = MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    fields |= {name: dict(sorted(fields[name].items())) for name in ("packages", "models", "settings")}
    fields |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "harness": __version__,
        "draftd": reply.version,
        "low_power": fields.get("low_power"),
        "prompts": prompts or {},
        "exactness": exactness_of(reply.exactness) if reply.HasField("exactness") else None,
        "load_seconds": reply.load_time.ToNanoseconds() / 1e9 if reply.HasField("load_time") else None,
    }
    return TypeAdapter(Manifest).validate_python(fields)


def prompt_checksum(prompts: Sequence[Prompt]) -> str:
    """Returns the SHA-256 of the prompts in their order. A prompt's name does not change it."""
    contents = [
        {"messages": prompt.messages, "workload": prompt.workload, "max_tokens": prompt.max_tokens}
        for prompt in prompts
    ]
    text = json.dumps(contents, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(a: Manifest, b: Manifest) -> tuple[Difference, ...]:
    """Returns differing fields, relevant ones first, each kind by name. Without a relevant one the figures can be
    compared."""
    left, right = dict(_fields(a, b)), dict(_fields(b, a))
    # A model's name matters only if its files are unknown on one side.
    both = a.models.keys() & b.models.keys()
    named = [f"models.{role}.name" for role in both if a.models[role].files and b.models[role].files]
    differing = [
        Difference(name, left.get(name, ABSENT), right.get(name, ABSENT), name not in named and _matters(name, a, b))
        for name in {**left, **right}
        if left.get(name) != right.get(name)
    ]
    return tuple(sorted(differing, key=lambda difference: (not difference.matters, difference.field)))


def _fields(manifest: Manifest, other: Manifest) -> Iterator[tuple[str, str]]:
    """Yields a manifest's values as text, by dotted name. A model or file that the other lacks is a single field."""
    for field_ in fields(Manifest):
        value = getattr(manifest, field_.name)
        if field_.name == "exactness":  # its estimates are never twice the same, and it may not be measured yet
            if manifest.exactness is not None and other.exactness is not None:
                yield field_.name, f"differs {manifest.exactness.forward.where}"
        elif not isinstance(value, Mapping):
            yield field_.name, _text(value)
        elif field_.name != "models":
            yield from ((f"{field_.name}.{name}", _text(said)) for name, said in value.items())
    for role, model in manifest.models.items():
        if role not in other.models:
            yield f"models.{role}", model.name
            continue
        for name in ("name", "quantization", "weight_bytes", "changed_since_load", "kind", "form"):
            yield f"models.{role}.{name}", _text(getattr(model, name))
        theirs = [file.name for file in other.models[role].files]
        for file in model.files:
            yield f"models.{role}.files.{file.name}" + (".sha256" if file.name in theirs else ""), file.sha256


def _matters(name: str, a: Manifest, b: Manifest) -> bool:
    group, _, rest = name.partition(".")
    if group == "settings":
        return not rest.startswith(_IDLE_SETTINGS) and rest not in _IDLE_NAMES
    if group == "prompts":
        return rest in a.prompts and rest in b.prompts
    # The size in memory follows from files, backend and programs, and is 0 for an unloaded draft.
    return name not in _FIGURELESS and not (group == "models" and name.endswith(".weight_bytes"))


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return str(value).lower() if isinstance(value, bool) else str(value)
