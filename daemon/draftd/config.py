"""Fills the settings: flags over DRAFTD_* variables over a TOML file over defaults.

A name that nobody knows is an error, never ignored: a misspelt limit that silently stays at its default is
found in production. Callers import the settings' classes from here.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from draftd.core import DrafterKind
from draftd.errors import ConfigError
from draftd.settings import (
    CAPTURE_CONTENT_VARIABLE,
    EngineSettings,
    FlagSettings,
    HardwareSettings,
    LogSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    TelemetrySettings,
)
from draftd.settings_base import Section, existing_file, is_loopback, state_dir
from draftd.settings_fallback import AnnotationSettings, FallbackSettings, WebhookSettings

__all__ = [
    "COMMAND_VARIABLES",
    "AnnotationSettings",
    "EngineSettings",
    "FallbackSettings",
    "FlagSettings",
    "HardwareSettings",
    "LogSettings",
    "ModelSettings",
    "ServerSettings",
    "SettingDoc",
    "Settings",
    "TelemetrySettings",
    "WebhookSettings",
    "describe_settings",
    "is_loopback",
    "load_settings",
    "state_dir",
]

ENV_PREFIX = "DRAFTD_"
#: Variables of the commands themselves, and of the pipeline around the daemon, which are not settings of the daemon.
COMMAND_VARIABLES = (
    "DRAFTD_CONFIG",
    "DRAFTD_TARGET",
    "DRAFTD_TOKEN",
    "DRAFTD_TLS_CA",
    "DRAFTD_TLS_CERT",
    "DRAFTD_TLS_KEY",
    "DRAFTD_WEBHOOK_URL",
    "DRAFTD_WEBHOOK_SECRET",
    "DRAFTD_TRACE_SHARE_PERCENT",
    "DRAFTD_BLAS",
)


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """One setting as a person needs it: dotted name, variable, default, what is allowed, what it does."""

    name: str
    variable: str
    default: str
    allowed: str
    description: str
    secret: bool


def describe_settings() -> Iterator[SettingDoc]:
    """Every setting there is, in the order of the model."""
    for section, outer in Settings.model_fields.items():
        kind = outer.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        for key, info in kind.model_fields.items():
            yield SettingDoc(
                name=f"{section}.{key}",
                variable=f"{ENV_PREFIX}{section}__{key}".upper(),
                default=_default_text(info),
                allowed=_allowed_text(info),
                description=info.description or "",
                secret=SecretStr in get_args(info.annotation),
            )


def load_settings(file: Path | None, overrides: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Settings from `overrides` (dotted names; None means not given), `environ`, `file` and defaults.

    The first of these that has a value wins. Raises ConfigError, which names the setting, where the value
    came from, and what is allowed.
    """
    docs = {doc.name: doc for doc in describe_settings()}
    found: dict[str, tuple[object, str]] = {}  # name → value, where it came from; later layers win
    if CAPTURE_CONTENT_VARIABLE in environ:
        found["telemetry.capture_content"] = (_captures(environ), CAPTURE_CONTENT_VARIABLE)
    if environ is not os.environ:
        found["flag.file"] = (state_dir(environ) / "flags.json", "default")
    for layer in (_from_file(file, docs), _from_environ(environ, docs), _from_overrides(overrides, docs)):
        found.update(layer)

    merged: dict[str, dict[str, object]] = {}
    for name, (value, _) in found.items():
        section, key = name.split(".")
        merged.setdefault(section, {})[key] = value
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        name = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
        value, source = found[name]
        doc = docs[name]
        raise ConfigError(_place(name, source), "***" if doc.secret else value, doc.allowed) from None


_Layer = dict[str, tuple[object, str]]


def _from_file(file: Path | None, docs: Mapping[str, SettingDoc]) -> _Layer:
    if file is None:
        return {}
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", str(file), f"a readable TOML file ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("--config", str(file), f"valid TOML ({error})") from None
    layer: _Layer = {}
    for section, table in tables.items():
        if section not in Settings.model_fields:
            raise _unknown(f"{section} in {file}", section, list(Settings.model_fields))
        if not isinstance(table, dict):
            raise ConfigError(f"{section} in {file}", table, f"a table: [{section}]")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in docs:
                raise _unknown(f"{name} in {file}", name, list(docs))
            layer[name] = (value, str(file))
    return layer


def _from_environ(environ: Mapping[str, str], docs: Mapping[str, SettingDoc]) -> _Layer:
    names = {doc.variable: doc.name for doc in docs.values()}
    layer: _Layer = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in COMMAND_VARIABLES:
            continue
        if variable not in names:
            raise _unknown(variable, variable, [*names, *COMMAND_VARIABLES])
        layer[names[variable]] = (_unset(value, docs[names[variable]]), variable)
    return layer


def _from_overrides(overrides: Mapping[str, object], docs: Mapping[str, SettingDoc]) -> _Layer:
    layer: _Layer = {}
    for name, value in overrides.items():
        if name not in docs:
            raise _unknown(name, name, list(docs))
        if value is not None:
            layer[name] = (value, "")
    return layer


def _unset(value: str, doc: SettingDoc) -> object:
    """An empty variable unsets an optional setting; elsewhere it is a value, and wrong."""
    return None if not value and doc.default == "unset" else value


def _captures(environ: Mapping[str, str]) -> bool:
    # The convention's newer values name where the content goes; only spans are a place that draftd writes to.
    return environ[CAPTURE_CONTENT_VARIABLE].strip().lower() in ("true", "1", "span_only", "span_and_event")


def _place(name: str, source: str) -> str:
    return f"{name} (from {source})" if source else name


def _unknown(field: str, name: str, known: list[str]) -> ConfigError:
    # The value stays unsaid: it may be a token whose name was misspelt.
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    prefix, dot, _ = name.rpartition(".")
    siblings = [k for k in known if k.startswith(prefix + dot)] if dot else []
    hint = f"; did you mean {close[0]}?" if close else ""
    listed = ", ".join(siblings or known) if len(siblings or known) <= 12 else "a known setting"
    return ConfigError(field, "a name that is not known", f"{listed}{hint}")


def _default_text(info: FieldInfo) -> str:
    if info.default_factory is not None:
        return "in the user's state folder"
    if info.default is None:
        return "unset"
    if isinstance(info.default, tuple):
        return ", ".join(map(str, info.default))
    return str(info.default).lower() if isinstance(info.default, bool) else str(info.default)


def _allowed_text(info: FieldInfo) -> str:
    kinds = [kind for kind in _flatten(info.annotation) if kind is not type(None)]
    kind: Any
    kind, *extra = kinds[0] if isinstance(kinds[0], tuple) else (kinds[0],)
    metadata: list[Any] = [*info.metadata, *extra]
    low = next((m.ge for m in metadata if isinstance(m, Ge)), None)
    high = next((m.le for m in metadata if isinstance(m, Le)), None)
    if get_origin(kind) is tuple:
        (member, *bounds), *_ = map(_spread, get_args(kind))
        if member is DrafterKind:
            return f"none or some of {', '.join(DrafterKind)}"
        low, high = (next(getattr(m, n) for m in bounds if isinstance(m, c)) for n, c in (("ge", Ge), ("le", Le)))
        return f"whole numbers from {low} to {high}, with commas between them"
    if get_origin(kind) is Literal:
        return ", ".join(str(choice) for choice in get_args(kind))
    if kind is bool:
        return "true, false"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(kind)
    if kind in (int, float):
        noun = "whole number" if kind is int else "number"
        return f"a {noun} from {low} to {high}"
    if kind is SecretStr:
        return "printable ASCII without spaces"
    if kind is Path:
        return "an existing file" if any(m is existing_file for m in map(_function, metadata)) else "a path"
    return "text"


def _spread(annotation: object) -> list[Any]:
    return list(get_args(annotation)) if get_origin(annotation) is Annotated else [annotation]


def _function(metadata: object) -> object:
    return getattr(metadata, "func", None)


def _flatten(annotation: object) -> list[Any]:
    """The members of a union; an Annotated member as a tuple of its type and metadata."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return [member for part in get_args(annotation) for member in _flatten(part)]
    if origin is Annotated:
        kind, *metadata = get_args(annotation)
        return [(kind, *metadata)]
    return [annotation]
