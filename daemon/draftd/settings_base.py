"""What the settings are made of: kinds of values, and the base of a section."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FiniteFloat, SecretStr

from draftd.core import DrafterKind

Seconds = Annotated[FiniteFloat, Ge(0), Le(3600)]


def existing_file(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise ValueError("no such file")
    return path


ExistingFile = Annotated[Path, AfterValidator(existing_file)]
HomePath = Annotated[Path, AfterValidator(Path.expanduser)]


def _listed(value: object) -> object:
    """`4, 3, 2` as variables and flags spell a list; empty is none."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Blocks = Annotated[tuple[Annotated[int, Ge(1), Le(16)], ...], BeforeValidator(_listed)]
Drafters = Annotated[tuple[DrafterKind, ...], BeforeValidator(_listed)]


def sendable(value: SecretStr | None) -> SecretStr | None:
    """A token as a header can carry it; empty is none. Raises ValueError."""
    if value is None or not value.get_secret_value():
        return None
    text = value.get_secret_value()
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("not a header value")
    return value


def state_dir(environ: Mapping[str, str]) -> Path:
    """Where draftd keeps what it writes, for this user and platform."""
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


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
