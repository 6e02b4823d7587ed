"""`--set NAME=VALUE`: any setting by its dotted name."""

from __future__ import annotations

from collections.abc import Iterable

from draftd.errors import ConfigError


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Raises ConfigError for one without an equals sign. Names and values are checked where settings are loaded."""
    made = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("--set", text, "NAME=VALUE, as in engine.max_batch=4")
        made[name.strip()] = value.strip()
    return made
