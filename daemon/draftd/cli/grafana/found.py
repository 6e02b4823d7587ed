"""What a Grafana has of what matters here: everything that is ours, and everything that could be in the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from draftd.cli.grafana.names import FOLDER_UID, Json


@dataclass(frozen=True, slots=True)
class FoundDashboard:
    """One dashboard. `provisioned`: it comes from a file on Grafana's side, which refuses changes from elsewhere."""

    model: Json
    folder_uid: str
    provisioned: bool = False

    @property
    def version(self) -> int:
        return int(self.model.get("version") or 0)


@dataclass(frozen=True, slots=True)
class Found:
    """One look at a Grafana."""

    folder: Json | None = None
    same_title: tuple[str, ...] = ()  # uids of other folders with our folder's title, beside where ours would be
    dashboards: Mapping[str, FoundDashboard] = field(default_factory=dict)  # shipped uids, and all with our mark
    neighbours: tuple[Json, ...] = ()  # uid and title of everything in our folder
    rules: tuple[Json, ...] = ()  # of the whole organisation
    intervals: Mapping[str, int] = field(default_factory=dict)  # seconds, by the name of a group in our folder
    contact_points: tuple[Json, ...] = ()
    policies: Json | None = None  # read only when the route is asked for

    def group(self, name: str) -> list[Json]:
        return [r for r in self.rules if r.get("folderUID") == FOLDER_UID and r.get("ruleGroup") == name]
