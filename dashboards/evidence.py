"""PromQL that the alerts judge by: enough samples, baselines, and counters whose first value counts.

An expression has no series where there is nothing to judge, so that no alert fires on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dashboards import external
from dashboards.external import External
from dashboards.ratios import BY_WORKLOAD, INSTANCE, acceptance_per_token, label, latency, matching, summed
from dashboards.series import UPTIME, exporting, grown_through_gaps
from dashboards.settings import Alerting
from draftd.core import DaemonState, DecodeMode, FallbackLevel
from draftd.strategies import Strategy
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry import catalog_sdk as sdk

# Labels of the acceptance baseline: it belongs to a pair and a category, so that it survives a new `instance`.
BY_PAIR: tuple[str, ...] = tuple(name for name in BY_WORKLOAD if name != INSTANCE)
# Labels of the time to first token: it depends on the machine and on the prompt's length.
BY_PROMPT: tuple[str, ...] = (INSTANCE, label(a.MODEL), label(a.CONTEXT_TIER))

BY_MODEL: tuple[str, ...] = (INSTANCE, label(a.MODEL))

FULL = f'{label(a.PLAN_LEVEL)}="{FallbackLevel.FULL.label}"'
_ENDED = f'{label(a.MODE)}="{DecodeMode.SPECULATIVE.value}", {label(a.OUTCOME)}!="refused"'

# A daemon's resource, as the collector's Prometheus exporter and the daemon's own /metrics show it.
_DAEMON = ("host_name", label(a.SERVER_PORT))
TARGET_INFO = External("target_info", "the resource of what is scraped", (*_DAEMON, "job", INSTANCE))
_STATE = label(a.DAEMON_STATE)
STAGE = "stage"  # a label that dropped() adds

ACCEPTANCE_BASELINE = "draftd:acceptance_per_token:baseline"
TTFT_BASELINE = "draftd:time_to_first_token_seconds:baseline"


# Selects what the local ladder judges: no drafts that another daemon verified or made.
LOCAL = f'{label(a.STRATEGY)}!="{Strategy.SPECULATIVE}", {label(a.DRAFT_MODEL)}!="peer"'


def enough(
    settings: Alerting, window: str, by: Sequence[str], *, selector: str = "", offset: str = "", factor: int = 1
) -> str:
    """Returns the condition to join a value with by `and`: at least so many speculative requests and drafts in the
    window."""
    drafts = summed(catalog.DRAFTS, selector, window, by, offset=offset, function="increase")
    requests = summed(catalog.REQUESTS, matching(selector, _ENDED), window, by, offset=offset, function="increase")
    return f"{drafts} >= {settings.min_drafts * factor}\nand {requests} >= {settings.min_requests * factor}"


def acceptance_now(settings: Alerting, selector: str = "") -> str:
    """Returns per-token acceptance in the window at any level; it does not depend on the block's length."""
    selector = matching(LOCAL, selector)
    value = acceptance_per_token(selector, settings.window, BY_WORKLOAD)
    return f"{value}\nand {enough(settings, settings.window, BY_WORKLOAD, selector=LOCAL)}"


def acceptance_baseline(settings: Alerting) -> str:
    """Returns per-token acceptance in an earlier, longer window, over all daemons with the pair. Only requests at level
    `full` count: acceptance that a fallback lowered is no baseline."""
    back, window = settings.baseline_offset, settings.baseline
    selector = matching(FULL, LOCAL)
    value = acceptance_per_token(selector, window, BY_PAIR, offset=back)
    samples = enough(settings, window, BY_PAIR, selector=selector, offset=back, factor=settings.baseline_factor)
    return f"{value}\nand {samples}"


def drift(settings: Alerting, baseline: str) -> str:
    """Returns current acceptance divided by `baseline`, an expression or a recorded series."""
    return f"({acceptance_now(settings)})\n/ on ({', '.join(BY_PAIR)}) group_left ()\n({baseline})"


def round_trip(settings: Alerting) -> str:
    """Returns the median round trip of the window's steps to the remote, in seconds."""
    return latency(0.5, remote.ROUND_TRIP, "", settings.window, BY_MODEL)


def failed_there(settings: Alerting) -> str:
    """Returns the share of the remote's requests that failed over to the edge's own target, or ended in an error."""
    window, theirs = settings.window, f'{label(a.STRATEGY)}=~"{Strategy.REMOTE}|{Strategy.SPECULATIVE}"'
    failed = summed(remote.FAILOVERS, "", window, BY_MODEL, function="increase")
    errors = summed(
        catalog.REQUESTS, matching(theirs, f'{label(a.OUTCOME)}="error"'), window, BY_MODEL, function="increase"
    )
    ended = summed(
        catalog.REQUESTS, matching(theirs, f'{label(a.OUTCOME)}!="refused"'), window, BY_MODEL, function="increase"
    )
    return f"({failed} + ({errors} or {failed} * 0)) / ({ended} > 0)\nand {ended} >= {settings.min_requests}"


def drafted_there(settings: Alerting) -> str:
    """Returns the condition that enough requests in the window were drafted here and verified there. The speed-up gauge
    alone does not show it: the collector keeps its last value after the last such request."""
    ended = matching(f'{label(a.STRATEGY)}="{Strategy.SPECULATIVE}"', f'{label(a.OUTCOME)}!="refused"')
    requests = summed(catalog.REQUESTS, ended, settings.window, BY_MODEL, function="increase")
    return f"{requests} >= {settings.min_requests}"


def waited(settings: Alerting) -> str:
    """Returns the mean seconds that the steps of edges waited at this daemon, per verdict."""
    verdicts = summed(remote.VERIFY_VERDICTS, "", settings.window, BY_MODEL)
    return f"{summed(remote.VERIFY_QUEUE_TIME, '', settings.window, BY_MODEL)} / ({verdicts} > 0)"


def ttft_now(settings: Alerting) -> str:
    """Returns the quantile of the time to first token over the window's requests, in seconds."""
    return _ttft(settings, settings.window, "", settings.min_requests)


def ttft_baseline(settings: Alerting) -> str:
    """Returns the same quantile on the same daemon in an earlier, longer window, in seconds."""
    least = settings.min_requests * settings.baseline_factor
    return _ttft(settings, settings.baseline, settings.baseline_offset, least)


def _ttft(settings: Alerting, window: str, offset: str, least: int) -> str:
    value = latency(settings.ttft_quantile, catalog.TIME_TO_FIRST_TOKEN, "", window, BY_PROMPT, offset=offset)
    back = f" offset {offset}" if offset else ""
    name = catalog.TIME_TO_FIRST_TOKEN.prometheus
    count = f"sum by ({', '.join(BY_PROMPT)}) (increase({name}_count[{window}]{back}))"
    return f"{value}\nand {count} >= {least}"


def missing_daemons(settings: Alerting) -> str:
    """Returns a series for each daemon that exported within `absent_memory`, was not told to stop, and does not export
    now; or one series if no daemon ever exported.

    A daemon is identified by its host and its configured port: after a restart its instance differs.
    """
    heard = _started(settings)
    return f"({heard}\nunless {_exporting_daemons(settings)})\nunless {_stopped(settings)}\nor absent({heard})"


def stopped_daemons(settings: Alerting) -> str:
    """Returns a series for each daemon that was told to stop within `absent_memory` and has not exported since."""
    return f"{_stopped(settings)}\nunless {_exporting_daemons(settings)}"


def _started(settings: Alerting, last: str = "") -> str:
    """Returns each daemon's latest start, over the instances that exported within `absent_memory`; with `last`, only
    those whose last value of that series was 1.

    Instances of one daemon share a port, so the one that started last also exported last.
    """
    memory = settings.absent_memory
    started = f"last_over_time({catalog.STARTED.prometheus}[{memory}])"
    if last:
        started = f"{started} and ignoring ({_STATE}) last_over_time({last}[{memory}]) == 1"
    known = f"last_over_time({TARGET_INFO.name}[{memory}])"
    of_instance = f"max by (job, {INSTANCE}) ({started})"
    return f"max by ({', '.join(_DAEMON)}) ({known} * on (job, {INSTANCE}) group_left () {of_instance})"


def _stopped(settings: Alerting) -> str:
    """Returns the daemons whose last export said that they were told to stop."""
    draining = f'{catalog.STATE.prometheus}{{{_STATE}="{DaemonState.DRAINING}"}}'
    return f"({_started(settings, draining)} == {_started(settings)})"


def _exporting_daemons(settings: Alerting) -> str:
    heard = exporting(settings.window)
    return f"max by ({', '.join(_DAEMON)}) ({TARGET_INFO.name} and on (job, {INSTANCE}) {heard})"


def dropped(settings: Alerting) -> str:
    """Returns the telemetry that was lost for good in the window, by daemon and by the `stage` that lost it.

    Metrics are not lost: counters are cumulative, so the next export has their full values.
    """
    failed = f'{label(a.ERROR_TYPE)}!=""'
    daemon = {
        "daemon_error": catalog.TELEMETRY_ERRORS.prometheus,
        "daemon_span_queue": f"{sdk.SPANS_PROCESSED.prometheus}{{{failed}}}",
        "daemon_log_queue": f"{sdk.LOGS_PROCESSED.prometheus}{{{failed}}}",
        "daemon_span_export": f"{sdk.SPANS_EXPORTED.prometheus}{{{failed}}}",
        "daemon_log_export": f"{sdk.LOGS_EXPORTED.prometheus}{{{failed}}}",
    }
    collector: dict[str, str] = {}
    for signal, queued, sent in zip(external.SIGNALS, external.ENQUEUE_FAILED, external.SEND_FAILED, strict=True):
        if signal != "metric_points":
            collector |= {f"collector_queue_{signal}": queued.name, f"collector_export_{signal}": sent.name}

    def lost(series: str, uptime: str) -> str:
        # Most telemetry is lost while no export arrives, so gaps must count.
        return grown_through_gaps(series, settings.window, settings.absent_memory, uptime)

    stages = {stage: (series, UPTIME) for stage, series in daemon.items()}
    stages |= {stage: (series, external.COLLECTOR_UPTIME.name) for stage, series in collector.items()}
    return "\nor ".join(
        f'label_replace(sum by ({INSTANCE}) {lost(series, uptime)}, "{STAGE}", "{stage}", "", "")'
        for stage, (series, uptime) in stages.items()
    )
