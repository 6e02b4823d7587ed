"""Fills the settings: flags over DRAFTD_* variables over a TOML file over defaults.

An unknown name is an error: otherwise a misspelt limit that silently keeps its default would be found only in
production.
"""

from __future__ import annotations

import difflib
import tomllib
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from draftd.errors import ConfigError, UnknownSetting
from draftd.settings.distributed import DistributedSettings
from draftd.settings.fallback import AnnotationSettings, FallbackSettings, WebhookSettings
from draftd.settings.kinds import Section
from draftd.settings.machine import (
    CAPTURE_CONTENT_VARIABLE,
    CostSettings,
    HardwareSettings,
    LogSettings,
    TelemetrySettings,
)
from draftd.settings.remote import RemoteSettings, VerifySettings
from draftd.settings.serving import EngineSettings, FlagSettings, ModelSettings, ServerSettings

ENV_PREFIX = "DRAFTD_"
_ENVIRONMENT = "the environment"
UNSET = "unset"
#: Variables of the commands, and of the pipeline around the daemon: not settings of the daemon.
COMMAND_VARIABLES = {
    "DRAFTD_CONFIG": "TOML file with settings, for commands with the option `--config`, such as `draftd serve`.",
    "DRAFTD_TARGET": "host:port of the daemon, for commands that talk to one. Unset: 127.0.0.1:50551.",
    "DRAFTD_TOKEN": "Bearer token of the daemon, for commands that talk to one.",
    "DRAFTD_TLS_CA": "Certificate authority (PEM) of the daemon's certificate, or `system` for those that this machine "
    "trusts, for commands that talk to a daemon. It turns TLS on.",
    "DRAFTD_TLS_CERT": "The command's own certificate (PEM) for mutual TLS. It turns TLS on.",
    "DRAFTD_TLS_KEY": "Private key (PEM) of DRAFTD_TLS_CERT.",
    "DRAFTD_WEBHOOK_URL": "Address of the daemon's webhook as Grafana or Alertmanager reaches it, for `draftd "
    "dashboards push`, `make stack` and Docker Compose. The daemon does not read it.",
    "DRAFTD_WEBHOOK_SECRET": "Key with which Grafana signs alerts, or Alertmanager's bearer token, for the same "
    "programs. The daemon does not read it; its own settings are webhook.secret and webhook.token.",
    "DRAFTD_DOCS_URL": "Address of the documentation that alerts link to, for `draftd dashboards push`.",
    "DRAFTD_TRACE_SHARE_PERCENT": "Percentage of ordinary traces that the collector keeps. Unset: 10.",
    "DRAFTD_BLAS": "On Linux, `reference` makes MLX compute with the slow BLAS that it comes with, for diagnosis. "
    "Unset: OpenBLAS or MKL, if installed.",
}


class Settings(Section):
    """All settings. Construction itself reads no file or variable."""

    model: ModelSettings = Field(default_factory=ModelSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    verify: VerifySettings = Field(default_factory=VerifySettings)
    remote: RemoteSettings = Field(default_factory=RemoteSettings)
    distributed: DistributedSettings = Field(default_factory=DistributedSettings)
    flag: FlagSettings = Field(default_factory=FlagSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    hardware: HardwareSettings = Field(default_factory=HardwareSettings)
    fallback: FallbackSettings = Field(default_factory=FallbackSettings)
    webhook: WebhookSettings = Field(default_factory=WebhookSettings)
    annotations: AnnotationSettings = Field(default_factory=AnnotationSettings)
    cost: CostSettings = Field(default_factory=CostSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @model_validator(mode="after")
    def _each_listener_has_a_port(self) -> Self:
        """Raises ConfigError if two listeners of this daemon would share a port. 0 picks a free one."""
        ports = {"server.port": self.server.port, "server.http_port": self.server.http}
        if self.webhook.listens:
            ports["webhook.port"] = self.webhook.port
        owners = dict[int, str]()
        for name, port in ports.items():
            if port and (owner := owners.setdefault(port, name)) != name:
                raise ConfigError(name, port, f"another port than that of {owner}")
        return self


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """One setting for people: dotted name, variable, default, allowed values, description."""

    name: str
    variable: str
    default: str
    allowed: str
    description: str
    secret: bool


def describe_settings() -> Iterator[SettingDoc]:
    """Yields every setting, in order."""
    schema = Settings.model_json_schema()
    for section, table in schema["properties"].items():
        for key, shape in _definition(schema, table)["properties"].items():
            value = next((option for option in shape.get("anyOf", ()) if option.get("type") != "null"), shape)
            value = _definition(schema, value)
            yield SettingDoc(
                name=f"{section}.{key}",
                variable=variable_of(f"{section}.{key}"),
                default=shown(shape["default"]),
                allowed=_allowed_values(value),
                description=" ".join(shape["description"].split()),
                secret=value.get("format") == "password",
            )


def _definition(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    definition: Mapping[str, Any] = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    return definition


def shown(value: object) -> str:
    """Returns a value as people write it."""
    if value is None:
        return UNSET
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _allowed_values(value: Mapping[str, Any]) -> str:
    """Describes the allowed values, from one value's JSON schema."""
    if "allowed" in value:
        return str(value["allowed"])
    if "enum" in value:
        return ", ".join(value["enum"])
    if value["type"] == "boolean":
        return "true, false"
    if value["type"] in ("integer", "number"):
        noun = "whole number" if value["type"] == "integer" else "number"
        return f"a {noun} from {value['minimum']} to {value['maximum']}"
    return {"file-path": "an existing file", "path": "a path"}.get(value.get("format", ""), "text")


def load_settings(file: Path | None, overrides: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Returns the settings from `overrides` (dotted names; None: not given), `environ`, `file` and defaults, in this
    order of precedence. Raises ConfigError, which names the setting, the value's source, and what is allowed."""
    names = _names()
    variables = {variable_of(name): name for name in names}
    _refuse_unknown(overrides, names)
    _refuse_unknown(
        (variable for variable in environ if variable.startswith(ENV_PREFIX)), [*variables, *COMMAND_VARIABLES]
    )
    sources: dict[str, dict[str, Any]] = {
        "": {name: value for name, value in overrides.items() if value is not None},
        _ENVIRONMENT: {variables[variable]: value for variable, value in environ.items() if variable in variables},
        str(file): _said_in(file, names),
        CAPTURE_CONTENT_VARIABLE: _captures(environ),
    }
    merged: dict[str, Any] = {}
    for name, value in ChainMap(*sources.values()).items():
        section, _, key = name.partition(".")
        merged.setdefault(section, {})[key] = value
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise _explain_error(error.errors()[0], sources) from None


def _names() -> list[str]:
    kinds = {section: cast(type[Section], info.annotation) for section, info in Settings.model_fields.items()}
    return [f"{section}.{key}" for section, kind in kinds.items() for key in kind.model_fields]


def variable_of(name: str) -> str:
    """Returns the environment variable of a setting."""
    return ENV_PREFIX + name.replace(".", "__").upper()


def _said_in(file: Path | None, names: Collection[str]) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", str(file), f"a readable TOML file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError("--config", str(file), "TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--config", str(file), f"valid TOML: {error}") from None
    settings: dict[str, Any] = {}
    for section, table in tables.items():
        if section not in Settings.model_fields:
            raise UnknownSetting(f"{section} in {file}", _meant_at_the_top(section, names))
        if not isinstance(table, dict):
            raise ConfigError(f"{section} in {file}", table, f"a table: [{section}]")
        settings |= {f"{section}.{key}": value for key, value in table.items()}
    _refuse_unknown(settings, names, f" in {file}")
    return settings


def _captures(environ: Mapping[str, str]) -> dict[str, Any]:
    # The convention's newer values name the target of content; draftd writes content only to spans.
    wanted = environ.get(CAPTURE_CONTENT_VARIABLE)
    taken = ("true", "1", "span_only", "span_and_event")
    return {} if wanted is None else {"telemetry.capture_content": wanted.strip().lower() in taken}


def _explain_error(error: ErrorDetails, sources: Mapping[str, Mapping[str, object]]) -> ConfigError:
    name = ".".join(str(part) for part in error["loc"][:2])
    source, value = next((label, values[name]) for label, values in sources.items() if name in values)
    doc = next(doc for doc in describe_settings() if doc.name == name)
    if isinstance(value, str) and "@" in value:
        value = "…@" + value.rpartition("@")[2]  # the part before it may be a password
    place = doc.variable if source == _ENVIRONMENT else source
    return ConfigError(f"{name} (from {place})" if place else name, "***" if doc.secret else value, doc.allowed)


def _refuse_unknown(names: Iterable[str], allowed: Collection[str], place: str = "") -> None:
    for name in names:
        if name not in allowed:
            raise UnknownSetting(name + place, _meant(name, allowed))


def _meant(name: str, allowed: Collection[str]) -> str:
    """Suggests the setting that an unknown name may have meant: the same name in another section, the most similar one,
    or else all names."""
    section, _, key = _dotted_name(name).rpartition(".")
    same = [candidate for candidate in allowed if _dotted_name(candidate).rpartition(".")[2] == key]
    if same and section:
        same.sort(
            key=lambda candidate: difflib.SequenceMatcher(None, _dotted_name(candidate), _dotted_name(name)).ratio(),
            reverse=True,
        )
    siblings = {
        _dotted_name(candidate).rpartition(".")[2]: candidate
        for candidate in allowed
        if _dotted_name(candidate).startswith(f"{section}.")
    }
    if section and siblings and not same:
        longer = [siblings[match] for match in siblings if match.endswith(f"_{key}")]
        alike = longer or [siblings[match] for match in difflib.get_close_matches(key, siblings, n=1)]
    else:
        alike = difflib.get_close_matches(name, allowed, n=1)
    if close := same or alike:
        return f"did you mean {close[0]}?"
    if section and siblings:
        return f"[{section}] has {', '.join(siblings)}"
    return "`draftd docs configuration` lists all settings"


def _meant_at_the_top(name: str, names: Collection[str]) -> str:
    """Suggests what a name outside all tables of the file may have meant: a setting, or a table."""
    keys = [candidate for candidate in names if candidate.rpartition(".")[2] == name.partition(".")[0].lower()]
    if keys:
        return f"did you mean {keys[0]}: the key {name} below [{keys[0].partition('.')[0]}]?"
    return _meant(name, [*Settings.model_fields, *names])


def _dotted_name(name: str) -> str:
    """Returns a setting's name from its variable; other names unchanged."""
    return name.removeprefix(ENV_PREFIX).lower().replace("__", ".") if name.startswith(ENV_PREFIX) else name
