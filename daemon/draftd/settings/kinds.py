"""The base of all sections, kinds of values, and rules that several sections share."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    FiniteFloat,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from draftd.core import DrafterName
from draftd.errors import ConfigError

_SHORTEST = 16  # characters of a credential


class Section(BaseModel):
    """A table of the TOML file. Each setting's description follows its declaration."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any, info: ValidationInfo) -> Any:
        """Reads an empty value, such as an empty variable, as None if the setting's default is None. Other settings
        validate the empty text like any value."""
        assert info.field_name is not None
        return None if value == "" and cls.model_fields[info.field_name].default is None else value


def state_dir(environ: Mapping[str, str]) -> Path:
    """Returns the folder in which draftd keeps its files, for this user and platform."""
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base) / "draftd"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "draftd"
    return Path.home() / ".local" / "state" / "draftd"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_listener(name: str, host: str, cert: Path | None, key: Path | None, **needed: object) -> None:
    """Checks the listener of section `name`. `needed`: settings required beyond loopback, besides certificate and key.
    Raises ConfigError for half of a key pair, or if something required is missing."""
    if (cert is None) != (key is None):
        missing = "tls_key" if key is None else "tls_cert"
        raise ConfigError(f"{name}.{missing}", None, f"{name}.tls_cert and {name}.tls_key together")
    unset = [f"{name}.{part}" for part, value in (needed | {"tls_cert": cert, "tls_key": key}).items() if value is None]
    if unset and not is_loopback(host):
        raise ConfigError(
            f"{name}.host",
            host,
            f"127.0.0.0/8, ::1 or localhost; to listen on any other address also set {', '.join(unset)}",
        )


def check_token_is_private(name: str, url: str | None, token: SecretStr | None, token_name: str) -> None:
    """Raises ConfigError if a token would be sent unencrypted."""
    if token is None or url is None:
        return
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ConfigError(name, url, f"https, unless it is on loopback: {token_name} is sent there")


def _token(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("the text cannot stand in an HTTP header")
    return value


def _credential(value: SecretStr) -> SecretStr:
    words = value.get_secret_value().split(" ")
    if len(words) > 2 or any(len(word) < _SHORTEST for word in words):  # shorter secrets could be guessed
        raise ValueError("a secret is too short, or there are more than two")
    for word in words:
        _token(SecretStr(word))
    return value


def secrets_of(credential: SecretStr | None) -> tuple[bytes, ...]:
    """Returns the valid secrets; none if unset."""
    return () if credential is None else tuple(credential.get_secret_value().encode().split())


def _address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("not an address")
    if "@" in parts.netloc or parts.query:
        raise ValueError("the address has a user, a password or a query")
    return value.rstrip("/")


def _home(value: object) -> object:
    return os.path.expanduser(value) if isinstance(value, (str, Path)) else value


def _split_list(value: object) -> object:
    """Splits a list as written in variables and flags, `4, 3, 2`; empty is no element."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _allow(text: str) -> Any:
    """Marks a type with the description of allowed values for error messages and documentation."""
    return Field(json_schema_extra={"allowed": text})


Seconds = Annotated[FiniteFloat, Ge(0), Le(3600)]
ExistingFile = Annotated[FilePath, BeforeValidator(_home)]
HomePath = Annotated[Path, BeforeValidator(_home)]
ModelName = Annotated[str, BeforeValidator(_home), _allow("a folder or a hub id")]
Token = Annotated[SecretStr, AfterValidator(_token), _allow("printable ASCII without spaces")]
#: Secrets of senders to this daemon: two, separated by a space, while senders change over.
Credential = Annotated[
    SecretStr,
    AfterValidator(_credential),
    _allow(f"at least {_SHORTEST} characters of printable ASCII; or two such, with a space between them"),
]
Address = Annotated[
    str, AfterValidator(_address), _allow("http:// or https://, a host, a path; a token has a setting of its own")
]
HeaderName = Annotated[
    str, Field(pattern="^[0-9A-Za-z-]+$"), _allow("the name of a header: letters, digits and hyphens")
]
BlockLengths = Annotated[
    tuple[Annotated[int, Ge(1), Le(16)], ...],
    BeforeValidator(_split_list),
    _allow("whole numbers from 1 to 16, with commas between them"),
]
Drafters = Annotated[
    tuple[DrafterName, ...], BeforeValidator(_split_list), _allow("names of drafters, with commas between them")
]
#: 0: any free port.
HttpPort = Annotated[
    Annotated[int, Ge(0), Le(65535)] | Literal["off"], _allow("a whole number from 0 to 65535, or off")
]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_list), _allow("names, with commas between them")]
