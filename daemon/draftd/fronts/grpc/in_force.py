"""The settings in force as a manifest tells them: names and values that can be compared with those of another machine,
and shown to anybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, SecretStr

SET, UNSET = "set", "unset"


def in_force(settings: BaseModel, labels: Mapping[str, str]) -> dict[str, str]:
    """Values by dotted name. Of a secret, a file or an address only whether it is set. `labels` says what to show
    instead of those named there, where they are set: a model is called by its label, not by its path."""
    return {
        name: labels.get(name, shown) if (shown := _shown(name, value)) != UNSET else UNSET
        for name, value in _values(settings)
    }


def _values(section: BaseModel, place: str = "") -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _values(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def _shown(name: str, value: object) -> str:
    if value is None:
        return UNSET
    if isinstance(value, (SecretStr, Path)) or name.endswith("_url"):
        return SET
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, (tuple, list)):
        return ", ".join(_shown(name, one) for one in value)
    return str(value)
