"""What was measured: the models to the last byte, the programs, the machine, the settings, the prompts.

Two figures can be compared where what matters of their manifests is the same.
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

SECONDS = 600.0  # for taking one: large files are hashed when they are first asked for
ABSENT = "absent"

_FIGURELESS = ("created", "harness", "load_seconds")  # decide no figure
# Settings that decide no figure: where it listens, what is written and sent to others.
_IDLE_SETTINGS = ("server.", "log.", "telemetry.", "webhook.", "annotations.", "cost.")
# A folder may have any name, and a flag's file any place: what lies there is compared.
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
    """`quantization` as its configuration says, such as "4 bits, groups of 64"; "none" without."""

    name: str
    quantization: str
    weight_bytes: int  # in memory, as it was loaded
    files: tuple[ModelFile, ...]
    changed_since_load: bool = False  # a file has changed since it was loaded


@dataclass(frozen=True, slots=True)
class Manifest:
    """`models` by role: target, draft, light_draft. `settings` by dotted name; of a secret only whether it is set.
    `prompts`: the SHA-256 of each group's prompts. What is not known is None or empty."""

    created: str  # ISO 8601, UTC
    harness: str  # draftd's version where this was written
    draftd: str  # the daemon's
    packages: Mapping[str, str]  # mlx, mlx-lm and what else decides a result: name to version
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
    load_seconds: float | None = None  # the models' loading took


@dataclass(frozen=True, slots=True)
class Difference:
    """`field` is dotted: models.draft.files.model.safetensors.sha256. `matters`: figures are not to be compared."""

    field: str
    left: str
    right: str
    matters: bool


def take_manifest(
    client: DraftdClient, prompts: Mapping[str, str] | None = None, *, timeout: float = SECONDS
) -> Manifest:
    """The daemon's account of itself. `prompts`: `prompt_checksum` of each group that is asked. Raises CallError."""
    reply = client.manifest(timeout=timeout)
    fields = MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    fields |= {name: dict(sorted(fields[name].items())) for name in ("packages", "models", "settings")}
    fields |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "harness": __version__,
        "draftd": reply.version,
        "low_power": fields.get("low_power"),
        "prompts": prompts or {},
        "load_seconds": reply.load_time.ToNanoseconds() / 1e9 if reply.HasField("load_time") else None,
    }
    return TypeAdapter(Manifest).validate_python(fields)


def prompt_checksum(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of what is asked, in its order. A prompt's name does not change it."""
    contents = [
        {"messages": prompt.messages, "workload": prompt.workload, "max_tokens": prompt.max_tokens}
        for prompt in prompts
    ]
    text = json.dumps(contents, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(a: Manifest, b: Manifest) -> tuple[Difference, ...]:
    """Those that matter first, each kind by name. None that matters: what was measured is the same."""
    left, right = dict(_fields(a, b)), dict(_fields(b, a))
    # Of a model without files nothing but its name is known.
    both = a.models.keys() & b.models.keys()
    named = [f"models.{role}.name" for role in both if a.models[role].files and b.models[role].files]
    differing = [
        Difference(name, left.get(name, ABSENT), right.get(name, ABSENT), name not in named and _matters(name, a, b))
        for name in {**left, **right}
        if left.get(name) != right.get(name)
    ]
    return tuple(sorted(differing, key=lambda difference: (not difference.matters, difference.field)))


def _fields(manifest: Manifest, other: Manifest) -> Iterator[tuple[str, str]]:
    """All of one manifest by dotted name, as text. A model or a file that the other lacks is a single field."""
    for field_ in fields(Manifest):
        value = getattr(manifest, field_.name)
        if not isinstance(value, Mapping):
            yield field_.name, _text(value)
        elif field_.name != "models":
            yield from ((f"{field_.name}.{name}", _text(said)) for name, said in value.items())
    for role, model in manifest.models.items():
        if role not in other.models:
            yield f"models.{role}", model.name
            continue
        for name in ("name", "quantization", "weight_bytes", "changed_since_load"):
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
    # The size in memory follows from the files, the backend and the programs; of a draft that was unloaded it is 0.
    return name not in _FIGURELESS and not (group == "models" and name.endswith(".weight_bytes"))


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    return str(value).lower() if isinstance(value, bool) else str(value)
