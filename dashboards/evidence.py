"""What the alerts judge by, as PromQL: enough samples, a baseline, and counters that count from their first value.

Each expression has no series where there is nothing to judge. That is what keeps an alert from firing on it.
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

# The baseline of acceptance is the pair's on a kind of text: it survives a restart, after which `instance` is new.
BY_PAIR: tuple[str, ...] = tuple(name for name in BY_WORKLOAD if name != INSTANCE)
# The time to the first token is a machine's, and the prompt's length decides it.
BY_PROMPT: tuple[str, ...] = (INSTANCE, label(a.MODEL), label(a.CONTEXT_TIER))

BY_MODEL: tuple[str, ...] = (INSTANCE, label(a.MODEL))

FULL = f'{label(a.PLAN_LEVEL)}="{FallbackLevel.FULL.label}"'
_ENDED = f'{label(a.MODE)}="{DecodeMode.SPECULATIVE.value}", {label(a.OUTCOME)}!="refused"'

# Each daemon's resource, by the collector's prometheus exporter and by the daemon's own /metrics.
_DAEMON = ("host_name", label(a.SERVER_PORT))
TARGET_INFO = External("target_info", "the resource of what is scraped", (*_DAEMON, "job", INSTANCE))
_STATE = label(a.DAEMON_STATE)
STAGE = "stage"  # made by dropped()

ACCEPTANCE_BASELINE = "draftd:acceptance_per_token:baseline"
TTFT_BASELINE = "draftd:time_to_first_token_seconds:baseline"


# Of drafts that another daemon's target judged, or that another daemon made, the local ladder hears nothing.
LOCAL = f'{label(a.STRATEGY)}!="{Strategy.SPECULATIVE}", {label(a.DRAFT_MODEL)}!="peer"'


def enough(
    settings: Alerting, window: str, by: Sequence[str], *, selector: str = "", offset: str = "", factor: int = 1
) -> str:
    """What a value must be joined with by `and`: without so many speculative requests and drafts it says nothing."""
    drafts = summed(catalog.DRAFTS, selector, window, by, offset=offset, function="increase")
    requests = summed(catalog.REQUESTS, matching(selector, _ENDED), window, by, offset=offset, function="increase")
    return f"{drafts} >= {settings.min_drafts * factor}\nand {requests} >= {settings.min_requests * factor}"


def acceptance_now(settings: Alerting, selector: str = "") -> str:
    """Per-token acceptance in the window at any level: it does not depend on the block's length."""
    selector = matching(LOCAL, selector)
    value = acceptance_per_token(selector, settings.window, BY_WORKLOAD)
    return f"{value}\nand {enough(settings, settings.window, BY_WORKLOAD, selector=LOCAL)}"


def acceptance_baseline(settings: Alerting) -> str:
    """The same long ago, by all daemons with the pair. Only from level `full`: what a fallback lowered is no norm."""
    back, window = settings.baseline_offset, settings.baseline
    selector = matching(FULL, LOCAL)
    value = acceptance_per_token(selector, window, BY_PAIR, offset=back)
    samples = enough(settings, window, BY_PAIR, selector=selector, offset=back, factor=settings.baseline_factor)
    return f"{value}\nand {samples}"


def drift(settings: Alerting, baseline: str) -> str:
    """Acceptance now over `baseline`, an expression or a recorded series."""
    return f"({acceptance_now(settings)})\n/ on ({', '.join(BY_PAIR)}) group_left ()\n({baseline})"


def round_trip(settings: Alerting) -> str:
    """The median round trip of the window's steps to the remote."""
    return latency(0.5, remote.ROUND_TRIP, "", settings.window, BY_MODEL)


def failed_there(settings: Alerting) -> str:
    """The share of the remote's requests that went on with the edge's own target, or ended in an error."""
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
    """Enough requests in the window that were drafted here and verified there. The figure of their speed alone does not
    say so: the collector goes on offering it after the last of them."""
    ended = matching(f'{label(a.STRATEGY)}="{Strategy.SPECULATIVE}"', f'{label(a.OUTCOME)}!="refused"')
    requests = summed(catalog.REQUESTS, ended, settings.window, BY_MODEL, function="increase")
    return f"{requests} >= {settings.min_requests}"


def waited(settings: Alerting) -> str:
    """How long the steps of edges waited at this daemon, for each verdict."""
    verdicts = summed(remote.VERIFY_VERDICTS, "", settings.window, BY_MODEL)
    return f"{summed(remote.VERIFY_QUEUE_TIME, '', settings.window, BY_MODEL)} / ({verdicts} > 0)"


def ttft_now(settings: Alerting) -> str:
    """Time to first token of the window's requests."""
    return _ttft(settings, settings.window, "", settings.min_requests)


def ttft_baseline(settings: Alerting) -> str:
    """The same long ago, on the same daemon."""
    least = settings.min_requests * settings.baseline_factor
    return _ttft(settings, settings.baseline, settings.baseline_offset, least)


def _ttft(settings: Alerting, window: str, offset: str, least: int) -> str:
    value = latency(settings.ttft_quantile, catalog.TIME_TO_FIRST_TOKEN, "", window, BY_PROMPT, offset=offset)
    back = f" offset {offset}" if offset else ""
    name = catalog.TIME_TO_FIRST_TOKEN.prometheus
    count = f"sum by ({', '.join(BY_PROMPT)}) (increase({name}_count[{window}]{back}))"
    return f"{value}\nand {count} >= {least}"


def missing_daemons(settings: Alerting) -> str:
    """A series for each daemon that was heard within `absent_memory`, was not told to stop, and is silent now; one if
    none was ever heard.

    A daemon is its host and the port that it was configured with: after a restart it is another instance.
    """
    heard = _started(settings)
    return f"({heard}\nunless {_exporting_daemons(settings)})\nunless {_stopped(settings)}\nor absent({heard})"


def stopped_daemons(settings: Alerting) -> str:
    """A series for each daemon that was told to stop within `absent_memory`, and of which nothing was heard since."""
    return f"{_stopped(settings)}\nunless {_exporting_daemons(settings)}"


def _started(settings: Alerting, last: str = "") -> str:
    """When each daemon last started, of the instances heard within `absent_memory`; of those only whose `last` was so.

    Since they have the same port, the one that started last was heard last.
    """
    memory = settings.absent_memory
    started = f"last_over_time({catalog.STARTED.prometheus}[{memory}])"
    if last:
        started = f"{started} and ignoring ({_STATE}) last_over_time({last}[{memory}]) == 1"
    known = f"last_over_time({TARGET_INFO.name}[{memory}])"
    of_instance = f"max by (job, {INSTANCE}) ({started})"
    return f"max by ({', '.join(_DAEMON)}) ({known} * on (job, {INSTANCE}) group_left () {of_instance})"


def _stopped(settings: Alerting) -> str:
    """The daemons whose last export said that they were told to stop."""
    draining = f'{catalog.STATE.prometheus}{{{_STATE}="{DaemonState.DRAINING}"}}'
    return f"({_started(settings, draining)} == {_started(settings)})"


def _exporting_daemons(settings: Alerting) -> str:
    heard = exporting(settings.window)
    return f"max by ({', '.join(_DAEMON)}) ({TARGET_INFO.name} and on (job, {INSTANCE}) {heard})"


def dropped(settings: Alerting) -> str:
    """Telemetry that was lost for good in the window, by the daemon and the `stage` where it was lost.

    Metrics are not among it: counters are cumulative, and the next export carries all that they said.
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
        # Most is lost while nothing arrives.
        return grown_through_gaps(series, settings.window, settings.absent_memory, uptime)

    stages = {stage: (series, UPTIME) for stage, series in daemon.items()}
    stages |= {stage: (series, external.COLLECTOR_UPTIME.name) for stage, series in collector.items()}
    return "\nor ".join(
        f'label_replace(sum by ({INSTANCE}) {lost(series, uptime)}, "{STAGE}", "{stage}", "", "")'
        for stage, (series, uptime) in stages.items()
    )
