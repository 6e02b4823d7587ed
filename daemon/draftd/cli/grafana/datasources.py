"""Which of the Grafana's data sources the dashboards and rules shall read. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.cli.grafana.errors import GrafanaError
from draftd.cli.grafana.names import SHIPPED_SOURCES, Json
from draftd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Source:
    """One data source of the Grafana."""

    kind: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The sources that were chosen, by kind, and what a person should know of the others."""

    sources: Mapping[str, Source]
    notes: tuple[str, ...] = ()

    def put_into(self, value: Any) -> Any:
        """`value` with every mention of a shipped uid replaced, in whatever text it stands."""
        replace = {SHIPPED_SOURCES[kind]: source.uid for kind, source in self.sources.items()}
        if not replace:
            return value
        names = "|".join(re.escape(uid) for uid in replace)
        # A name by itself: no letter, digit or hyphen beside it, unless that ends an encoded sign of a link (%22).
        alone = rf"(?:(?<![\w-])|(?<=%[0-9A-Fa-f]{{2}}))({names})(?![\w-])"
        return _mapped(value, re.compile(alone), replace)


def choose(found: Sequence[Json], asked: Mapping[str, str | None]) -> Choice:
    """What is asked for by uid, else the only one of its kind. Prometheus must be had; the others may be missing."""
    known = [Source(str(s.get("type")), str(s.get("uid")), str(s.get("name"))) for s in found]
    chosen: dict[str, Source] = {}
    notes: list[str] = []
    for kind in SHIPPED_SOURCES:
        candidates = [source for source in known if source.kind == kind]
        wanted = asked.get(kind)
        if wanted is not None:
            chosen[kind] = _asked_for(kind, wanted, candidates)
        elif len(candidates) == 1:
            chosen[kind] = candidates[0]
        elif kind == "prometheus":
            raise _no_prometheus(candidates)
        elif candidates:
            notes.append(f"none of the {kind} sources is used: --{kind} picks one of {_listed(candidates)}")
        else:
            notes.append(f"there is no {kind} source: links to it lead nowhere until there is, and this is run again")
    return Choice(chosen, tuple(notes))


def _asked_for(kind: str, uid: str, candidates: Sequence[Source]) -> Source:
    for source in candidates:
        if source.uid == uid:
            return source
    raise ConfigError(kind, uid, f"the uid of one of its {kind} data sources: {_listed(candidates)}")


def _no_prometheus(candidates: Sequence[Source]) -> GrafanaError:
    if candidates:
        return GrafanaError(
            f"this Grafana has several Prometheus data sources: --prometheus UID picks one of {_listed(candidates)}"
        )
    return GrafanaError(
        "this Grafana has no Prometheus data source: add one that reads draftd's metrics, then run this again"
    )


def _listed(sources: Sequence[Source]) -> str:
    return ", ".join(f"{source.uid} ({source.name})" for source in sources) or "none is there"


def _mapped(value: Any, pattern: re.Pattern[str], replace: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda found: replace[found.group(1)], value)
    if isinstance(value, list):
        return [_mapped(item, pattern, replace) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, pattern, replace) for key, item in value.items()}
    return value
