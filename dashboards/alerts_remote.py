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
            description=f"For {settings.hold} no request could be opened at the remote. Requests that allow it use "
            "this daemon's own model; requests that demand the remote are refused.",
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
            summary=f"The remote fails: {_WHERE}",
            description=f"{{figure}} of the requests that the remote was asked for went on with this daemon's own "
            f"model, or ended in an error, in two consecutive windows of {window}.",
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
            summary=f"The remote is far away: {_WHERE}",
            description=f"Half of the steps take {{figure}} s to the remote and back, without the remote's own time. "
            "Above "
            f"{settings.remote_round_trip_seconds:g} s, in two consecutive windows of {window}, drafting does not pay.",
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
            description=f"Requests that are drafted here and verified there run at {{figure}} times the speed of the "
            f"remote's own streaming; the minimum is {settings.remote_speed_floor:g}.",
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
            description=f"A step of an edge waits {{figure}} s for its forward, in two consecutive windows of "
            f"{settings.window}. The target cannot keep up with the edges.",
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
            f"{{{{ .Labels.{_REASON} }}}}; the daemon's log says which edges, and why.",
            dashboard=_DASHBOARD,
        ),
    )
