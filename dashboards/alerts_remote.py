"""Alerts for two daemons: an edge's alerts lower the level of its remote, a verifier's are for people.

Their `fallback_level` is the highest level allowed for the remote, as in alerts.py it is for the ladder.
"""

from __future__ import annotations

from dashboards import evidence
from dashboards.ratios import INSTANCE, label
from dashboards.rule import AlertRule, Figure, Severity
from dashboards.series import grown, live
from dashboards.settings import Alerting
from draftd.strategies import RemoteLevel
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog_remote as catalog

_BY = ", ".join(evidence.BY_MODEL)
_REASON = label(a.ERROR_TYPE)
_WHERE = f"{{{{ .Labels.{label(a.MODEL)} }}}} ({{{{ .Labels.{INSTANCE} }}}})"
_DASHBOARD = "draftd-remote"
_AT_ONCE = "0s"


def remote_rules(settings: Alerting) -> tuple[AlertRule, ...]:
    return (*_edge(settings), *_verifier(settings))


def _edge(settings: Alerting) -> tuple[AlertRule, ...]:
    window = settings.window
    return (
        AlertRule(
            name="DraftdRemoteDown",
            value=f"max by ({_BY}) (1 - {live(catalog.UP.prometheus, settings.fresh)})",
            fires=">",
            threshold=0,
            hold=settings.hold,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"The link to the remote is down: {_WHERE}",
            description=f"This edge has been unable to open requests at its remote for {settings.hold}. Its own model "
            "answers; requests that demand the remote are refused. First run `draftd status` on the "
            "edge: it gives the reason.",
            dashboard=_DASHBOARD,
        ),
        AlertRule(
            name="DraftdRemoteErrors",
            value=evidence.failed_there(settings),
            fires=">",
            threshold=settings.remote_failures,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.CRITICAL,
            figure=Figure.PERCENT,
            level=RemoteLevel.LOCAL,
            summary=f"Requests fail at the remote: {_WHERE}",
            description=f"{{figure}} of the requests to the remote continued with this daemon's own model, or ended "
            f"in an error: more than {settings.remote_failures:.0%} for two windows of {window}. The "
            "alert asks the daemon to send nothing to the remote. First run `draftd status` on the edge: "
            "it counts the errors by reason.",
            dashboard=_DASHBOARD,
        ),
        AlertRule(
            name="DraftdRemoteSlow",
            value=evidence.round_trip(settings),
            fires=">",
            threshold=settings.remote_round_trip_seconds,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.NUMBER,
            level=RemoteLevel.STREAMING,
            summary=f"The round trip to the remote is long: {_WHERE}",
            description=f"The median round trip of a step to the remote is {{figure}} s, the remote's own time left "
            f"out: more than {settings.remote_round_trip_seconds:g} s for two windows of {window}. The "
            "alert asks the daemon to stream without drafts. First check the network: VPN, Wi-Fi, a full "
            "uplink.",
            dashboard=_DASHBOARD,
        ),
        AlertRule(
            name="DraftdRemoteBelowStreaming",
            value=f"min by ({_BY}) ({live(catalog.SPEEDUP.prometheus, settings.fresh)})\n"
            f"and {evidence.drafted_there(settings)}",
            fires="<",
            threshold=settings.remote_speed_floor,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.NUMBER,
            level=RemoteLevel.STREAMING,
            summary=f"Drafting for the remote does not pay: {_WHERE}",
            description=f"Requests that are drafted here and verified by the remote run at {{figure}} times the speed "
            f"of the remote's own streaming: below {settings.remote_speed_floor:g} for two windows of "
            f"{window}. The alert asks the daemon to stream without drafts. First see on the dashboard "
            "whether drafts are rejected or the round trip is long.",
            dashboard=_DASHBOARD,
        ),
    )


def _verifier(settings: Alerting) -> tuple[AlertRule, ...]:
    return (
        AlertRule(
            name="DraftdPeersWait",
            value=evidence.waited(settings),
            fires=">",
            threshold=settings.verify_queue_seconds,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.NUMBER,
            summary=f"Edges wait for this verifier: {_WHERE}",
            description=f"A step of an edge waits {{figure}} s on average for its forward pass here: more than "
            f"{settings.verify_queue_seconds:g} s for two windows of {settings.window}. The target cannot "
            "keep up with the edges. First run `draftd status`: it shows how much of the target's time "
            "each edge takes.",
            dashboard=_DASHBOARD,
        ),
        AlertRule(
            name="DraftdPeersRefused",
            value=f"sum by ({_BY}, {_REASON}) {grown(catalog.VERIFY_REFUSED.prometheus, settings.window)}",
            fires=">",
            threshold=settings.verify_refused,
            hold=_AT_ONCE,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"Edges are refused: {_WHERE}",
            description=f"{{figure}} connections or sequences of edges were refused within {settings.window}: "
            f"{{{{ .Labels.{_REASON} }}}}. First read in the daemon's log which edges, and why.",
            dashboard=_DASHBOARD,
        ),
    )
