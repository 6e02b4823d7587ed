"""Alerts about requests, saved state, certificates and the webhook.

All are for people. Requests refused through their client's fault do not count, because the operator cannot change that.
"""

from __future__ import annotations

from dashboards.ratios import INSTANCE, label, matching
from dashboards.rule import AlertRule, Figure, Severity
from dashboards.series import grown, live
from dashboards.settings import Alerting
from draftd import errors
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog

_AT_ONCE = "0s"
_LATENCY, _OVERVIEW, _FALLBACK = "draftd-latency", "draftd-overview", "draftd-fallback"
_INSTANCE = f"{{{{ .Labels.{INSTANCE} }}}}"
_OUTCOME, _ERROR = label(a.OUTCOME), label(a.ERROR_TYPE)
_DEADLINE = errors.DeadlineExceeded.__name__

#: Errors that are the daemon's own: it is full, short of memory, not serving, broken or late.
OWN_REFUSALS = tuple(
    sorted(
        kind.__name__
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.DraftdError)
        and kind.grpc_status in ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED")
    )
)
#: The results with which the webhook refuses a notification meant for this daemon.
REFUSED_NOTIFICATIONS = (
    "no_credentials", "bad_token", "bad_signature", "no_timestamp", "bad_timestamp", "stale", "malformed", "invalid",
    "bad_level", "too_large", "rate_limited", "full", "failed",
)  # fmt: skip


def service_rules(settings: Alerting) -> tuple[AlertRule, ...]:
    return (*_requests(settings), *_operation(settings))


def _share(settings: Alerting, *selectors: str) -> str:
    """Returns PromQL for the matching requests divided by those that the daemon should have answered, if there were
    enough."""
    refused = f'{_OUTCOME}="refused", {_ERROR}=~"{"|".join(OWN_REFUSALS)}"'
    found = _ended(settings, *selectors)
    all_of = _ended(settings, f'{_OUTCOME}!~"cancelled|refused"', refused)
    return f"{found}\n/ ({all_of} > 0)\nand {all_of} >= {settings.min_requests}"


def _ended(settings: Alerting, *selectors: str) -> str:
    """Returns PromQL that counts the requests in the window that match any of the selectors, by instance."""
    name, window = catalog.REQUESTS.prometheus, settings.window
    return f"sum by ({INSTANCE}) ({' or '.join(f'increase({name}{{{one}}}[{window}])' for one in selectors)})"


def _requests(settings: Alerting) -> tuple[AlertRule, ...]:
    window = settings.window
    late = matching(f'{_OUTCOME}=~"deadline|refused"', f'{_ERROR}="{_DEADLINE}"')
    refused = "|".join(kind for kind in OWN_REFUSALS if kind != _DEADLINE)
    return (
        AlertRule(
            name="DraftdRequestErrors",
            value=_share(settings, f'{_OUTCOME}="error"'),
            fires=">",
            threshold=settings.error_share,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.CRITICAL,
            figure=Figure.PERCENT,
            summary=f"Requests fail: {_INSTANCE}",
            description=f"{{figure}} of the requests ended in an error: more than {settings.error_share:.0%} for two "
            f"windows of {window}. First read the exceptions in the daemon's log, and What went wrong on "
            "the dashboard.",
            dashboard=_LATENCY,
        ),
        AlertRule(
            name="DraftdRequestsRefused",
            value=_share(settings, matching(f'{_OUTCOME}="refused"', f'{_ERROR}=~"{refused}"')),
            fires=">",
            threshold=settings.refused_share,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.PERCENT,
            summary=f"Requests are refused: {_INSTANCE}",
            description=f"{{figure}} of the requests were refused because the daemon was full, short of memory or not "
            f"serving: more than {settings.refused_share:.0%} for two windows of {window}. First look at "
            "What went wrong on the dashboard: it names the reason.",
            dashboard=_LATENCY,
        ),
        AlertRule(
            name="DraftdDeadlinesExceeded",
            value=_share(settings, late),
            fires=">",
            threshold=settings.late_share,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.PERCENT,
            summary=f"Requests run out of time: {_INSTANCE}",
            description=f"{{figure}} of the requests reached their client's deadline before their answer was "
            f"complete: more than {settings.late_share:.0%} for two windows of {window}. First see on the "
            "dashboard whether the queue, prefill or decoding takes the time.",
            dashboard=_LATENCY,
        ),
    )


def _operation(settings: Alerting) -> tuple[AlertRule, ...]:
    certificate, file, result = label(a.CERTIFICATE), label(a.STATE_FILE), label(a.RESULT)
    expiry = live(catalog.CERTIFICATE_EXPIRY.prometheus, settings.fresh)
    left = f"max by ({INSTANCE}, {certificate}) ({expiry}) - time()"
    refused = f'{catalog.ALERT_NOTIFICATIONS.prometheus}{{{result}=~"{"|".join(REFUSED_NOTIFICATIONS)}"}}'
    days = settings.certificate_seconds // 86_400
    return (
        AlertRule(
            name="DraftdStateNotSaved",
            value=f"sum by ({INSTANCE}, {file}) {grown(catalog.STATE_SAVE_ERRORS.prometheus, settings.window)}",
            fires=">",
            threshold=settings.save_errors,
            hold=_AT_ONCE,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"State cannot be saved: {{{{ .Labels.{file} }}}} ({_INSTANCE})",
            description=f"The daemon failed {{figure}} times within {settings.window} to save this file. It serves "
            "and tries again, but a restart would lose what was not saved. First free disk space, or "
            "make the folder writable; do not restart before.",
            dashboard=_FALLBACK,
        ),
        AlertRule(
            name="DraftdCertificateExpires",
            value=f"({left}) >= 0",
            fires="<",
            threshold=settings.certificate_seconds,
            hold=settings.machine_hold,
            severity=Severity.WARNING,
            figure=Figure.DURATION,
            summary=f"A certificate expires soon: {{{{ .Labels.{certificate} }}}} ({_INSTANCE})",
            description=f"The certificate expires in {{figure}}; the alert fires below {days:g} days. After "
            "that, peers that check it do not connect. Renew it in the same file, and send the daemon SIGHUP.",
            dashboard=_OVERVIEW,
        ),
        AlertRule(
            name="DraftdCertificateExpired",
            value=left,
            fires="<",
            threshold=0,
            hold=_AT_ONCE,
            severity=Severity.CRITICAL,
            figure=Figure.DURATION,
            summary=f"A certificate has expired: {{{{ .Labels.{certificate} }}}} ({_INSTANCE})",
            description="Time left: {figure}. Peers that check the certificate do not connect. Renew it in the same "
            "file now, and send the daemon SIGHUP.",
            dashboard=_OVERVIEW,
        ),
        AlertRule(
            name="DraftdAlertsRefused",
            value=f"sum by ({INSTANCE}, {result}) {grown(refused, settings.window)}",
            fires=">",
            threshold=settings.notifications_refused,
            hold=_AT_ONCE,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"The daemon refuses alerts: {{{{ .Labels.{result} }}}} ({_INSTANCE})",
            description=f"The daemon's webhook refused {{figure}} notifications within {settings.window}. Alerts that "
            "ask for a fallback level may not arrive. First read the reason in the daemon's log; often "
            "the sender has another token or secret.",
            dashboard=_FALLBACK,
        ),
    )
