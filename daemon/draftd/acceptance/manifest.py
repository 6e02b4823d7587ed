"""What was measured: the models to the last byte, the programs, the machine, the settings, the prompts.

Two figures can be compared where what matters of their manifests is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


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
    changed_since_load: bool = False  # a file is no longer what was loaded


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


ABSENT = "absent"

# What keeps no figure from being compared with another: who listens where, what is written and told to whom.
_IDLE_SETTINGS = ("server.", "log.", "telemetry.", "webhook.", "annotations.", "cost.")
# A folder may have any name, and a flag's file any place: what lies there is compared.
_IDLE_NAMES = frozenset(
    (
        "model.path",
        "model.draft_path",
        "model.light_draft_path",
        "flag.provider",
        "flag.file",
        "flag.host",
        "flag.port",
        "flag.tls",
        "fallback.state_dir",
    )
)


@dataclass(frozen=True, slots=True)
class Difference:
    """`field` is dotted: models.draft.files.model.safetensors.sha256. `matters`: figures are not to be compared."""

    field: str
    left: str
    right: str
    matters: bool


def differences(a: Manifest, b: Manifest) -> tuple[Difference, ...]:
    """Those that matter first, each kind by name. None that matters: what was measured is the same."""
    found = [
        *_values("", a, b, ("draftd", "python", "os", "device", "cores", "memory_bytes", "backend", "blas")),
        *_values("", a, b, ("power_source", "low_power")),
        *_values("", a, b, ("created", "harness", "load_seconds"), matters=False),
        *_entries("packages", a.packages, b.packages),
        *_models(a.models, b.models),
        *_entries("settings", a.settings, b.settings, setting_matters),
        *_entries("prompts", a.prompts, b.prompts, lambda name: name in a.prompts and name in b.prompts),
    ]
    return tuple(sorted(found, key=lambda one: (not one.matters, one.field)))


def setting_matters(name: str) -> bool:
    """Whether figures measured under different values of a setting are not to be compared."""
    return not name.startswith(_IDLE_SETTINGS) and name not in _IDLE_NAMES


def _models(a: Mapping[str, ModelManifest], b: Mapping[str, ModelManifest]) -> Iterator[Difference]:
    for role in sorted({*a, *b}):
        place = f"models.{role}"
        if role not in a or role not in b:
            names = [side[role].name if role in side else ABSENT for side in (a, b)]
            yield Difference(place, names[0], names[1], True)
            continue
        left, right = a[role], b[role]
        # Of a model without files nothing but its name is known.
        yield from _values(place, left, right, ("name",), matters=not (left.files and right.files))
        yield from _values(place, left, right, ("quantization", "changed_since_load"))
        # What the files, the backend and the programs decide, and what a draft that was let go has none of.
        yield from _values(place, left, right, ("weight_bytes",), matters=False)
        yield from _files(f"{place}.files", left.files, right.files)


def _files(place: str, a: Sequence[ModelFile], b: Sequence[ModelFile]) -> Iterator[Difference]:
    ours, theirs = ({file.name: file for file in side} for side in (a, b))
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs:
            left, right = (side[name].sha256 if name in side else ABSENT for side in (ours, theirs))
            yield Difference(f"{place}.{name}", left, right, True)
        elif ours[name].sha256 != theirs[name].sha256:
            yield Difference(f"{place}.{name}.sha256", ours[name].sha256, theirs[name].sha256, True)


def _values(place: str, a: object, b: object, names: Sequence[str], *, matters: bool = True) -> Iterator[Difference]:
    for name in names:
        left, right = getattr(a, name), getattr(b, name)
        if left != right:
            yield Difference(f"{place}.{name}".lstrip("."), _shown(left), _shown(right), matters)


def _entries(
    place: str, a: Mapping[str, str], b: Mapping[str, str], matters: Callable[[str], bool] = lambda name: True
) -> Iterator[Difference]:
    for name in sorted({*a, *b}):
        left, right = a.get(name), b.get(name)
        if left != right:
            yield Difference(f"{place}.{name}", _shown(left, ABSENT), _shown(right, ABSENT), matters(name))


def _shown(value: object, nothing: str = "unknown") -> str:
    if value is None:
        return nothing
    return str(value).lower() if isinstance(value, bool) else str(value)
