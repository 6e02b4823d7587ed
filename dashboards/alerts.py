"""The alert rules, defined once. rules_prometheus.py and rules_grafana.py write them; docs/runbooks.md explains them.

The label `fallback_level` is the highest level that the daemon `instance` may then use. When an alert resolves, its
evidence is gone, which need not mean that all is well: autoregressive traffic has no acceptance. So a resolved alert
only permits a step up; the daemon itself checks whether speculation pays again.
"""

from __future__ import annotations

from dashboards import evidence
from dashboards.alerts_ranks import rank_rules
from dashboards.alerts_remote import remote_rules
from dashboards.alerts_service import service_rules
from dashboards.ratios import BY_WORKLOAD, INSTANCE, label, speedup
from dashboards.rule import AlertRule, Figure, OnError, RecordingRule, Severity
from dashboards.series import grown, live
from dashboards.settings import Alerting
from draftd.core import PROMPT_LOOKUP, FallbackLevel
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog

_AT_ONCE = "0s"
_SPECULATION, _LATENCY, _MACHINE = "draftd-speculation", "draftd-latency", "draftd-machine"
_TOP = FallbackLevel.FULL.value
_OVERVIEW, _TELEMETRY = "draftd-overview", "draftd-telemetry"


def _told(name: str) -> str:
    return f"{{{{ .Labels.{name} }}}}"


_INSTANCE = _told(INSTANCE)
_WHERE = f"{_told(label(a.DRAFT_MODEL))} for {_told(label(a.MODEL))} on {_told(label(a.WORKLOAD))} ({_INSTANCE})"


def alert_rules(settings: Alerting, *, recorded: bool = False) -> tuple[AlertRule, ...]:
    """Returns all alert rules. With `recorded`, baselines come from the series of `recording_rules`."""
    return (
        *_speculation(settings, recorded),
        *_machine(settings),
        *_service(settings, recorded),
        *service_rules(settings),
        *remote_rules(settings),
        *rank_rules(settings),
    )


def recording_rules(settings: Alerting) -> tuple[RecordingRule, ...]:
    """Returns the rules for the baselines: slow-changing values over long ranges, which alerts and panels read."""
    return (
        RecordingRule(evidence.ACCEPTANCE_BASELINE, evidence.acceptance_baseline(settings)),
        RecordingRule(evidence.TTFT_BASELINE, evidence.ttft_baseline(settings)),
    )


def _speculation(settings: Alerting, recorded: bool) -> tuple[AlertRule, ...]:
    baseline = evidence.ACCEPTANCE_BASELINE if recorded else evidence.acceptance_baseline(settings)
    enough = evidence.enough(settings, settings.window, BY_WORKLOAD, selector=evidence.LOCAL)
    demand = live(f'{catalog.FALLBACK_DEMAND.prometheus}{{{label(a.SIGNAL)}="quality"}}', settings.fresh)
    return (
        AlertRule(
            name="DraftdAcceptanceBelowFloor",
            # Prompt lookup drafts at no cost and may miss most of the time. Only break-even judges it.
            value=evidence.acceptance_now(settings, f'{label(a.DRAFT_MODEL)}!="{PROMPT_LOOKUP}"'),
            fires="<",
            threshold=settings.acceptance_floor,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.PERCENT,
            level=FallbackLevel.SHORT_BLOCK,
            summary=f"Few drafted tokens are accepted: {_WHERE}",
            description=f"The target accepts {{figure}} of the drafted tokens that it reaches: less than "
            f"{settings.acceptance_floor:.0%} for two windows of {settings.window}. The alert asks the "
            "daemon for shorter drafts. First look at Speed-up by workload: if speculation does not pay "
            "either, choose another draft.",
            dashboard=_SPECULATION,
        ),
        AlertRule(
            name="DraftdAcceptanceDrift",
            value=evidence.drift(settings, baseline),
            fires="<",
            threshold=settings.drift_ratio,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.PERCENT,
            level=FallbackLevel.SHORT_BLOCK,
            summary=f"Acceptance has fallen: {_WHERE}",
            description=f"Acceptance is at {{figure}} of its baseline, which is the same draft's on this kind of text "
            f"in the {settings.baseline} that ended {settings.baseline_offset} ago: below "
            f"{settings.drift_ratio:.0%} for two windows of {settings.window}. The alert asks the daemon "
            "for shorter drafts. First find what changed when the line fell: model, draft, prompts or "
            "sampling.",
            dashboard=_SPECULATION,
        ),
        AlertRule(
            name="DraftdSlowerThanBreakEven",
            value=f"{speedup(evidence.LOCAL, settings.window, BY_WORKLOAD)}\nand {enough}",
            fires="<",
            threshold=settings.speedup_floor,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.NUMBER,
            level=FallbackLevel.AUTOREGRESSIVE,
            summary=f"Speculation does not pay: {_WHERE}",
            description=f"Steps with drafts run at {{figure}} times the speed of steps without, measured on this "
            f"machine: below {settings.speedup_floor:g} for two windows of {settings.window}. The alert "
            "asks the daemon to draft nothing. First check whether the machine is slower than usual: "
            "heat, memory pressure, large batches.",
            dashboard=_SPECULATION,
        ),
        AlertRule(
            name="DraftdVerifierErrors",
            value=f"sum by ({', '.join((INSTANCE, label(a.MODEL), label(a.DRAFT_MODEL)))}) "
            f"{grown(catalog.VERIFIER_ERRORS.prometheus, settings.window)}",
            fires=">",
            threshold=settings.verifier_errors,
            hold=_AT_ONCE,
            severity=Severity.CRITICAL,
            figure=Figure.COUNT,
            level=FallbackLevel.AUTOREGRESSIVE,
            summary=f"Decode steps fail: {_told(label(a.MODEL))} ({_INSTANCE})",
            description=f"{{figure}} requests were in a decode step that failed, within {settings.window}. They "
            "continued without drafts, or ended in an error. The alert asks the daemon to draft nothing. "
            "First read the exception in the daemon's log.",
            dashboard=_SPECULATION,
        ),
        AlertRule(
            name="DraftdDrafterErrors",
            value=f"sum by ({', '.join((INSTANCE, label(a.MODEL), label(a.DRAFT_MODEL)))}) "
            f"{grown(catalog.DRAFTER_ERRORS.prometheus, settings.window)}",
            fires=">",
            threshold=settings.drafter_errors,
            hold=_AT_ONCE,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            level=FallbackLevel.LIGHT_DRAFT,
            summary=f"Drafting fails: {_told(label(a.DRAFT_MODEL))} for {_told(label(a.MODEL))} ({_INSTANCE})",
            description=f"Drafting failed for {{figure}} requests within {settings.window}. They continued without "
            "drafts; their answers are right. The alert asks the daemon for a lighter drafter. First "
            "read the exception in the daemon's log.",
            dashboard=_SPECULATION,
        ),
        AlertRule(
            name="DraftdCanariesFail",
            value=f"max by ({INSTANCE}, {label(a.MODEL)}) ({_TOP} - {demand})",
            fires=">",
            threshold=0,
            hold=_AT_ONCE,
            severity=Severity.CRITICAL,
            figure=Figure.COUNT,
            summary=f"Answers are worse with drafts: {_told(label(a.MODEL))} ({_INSTANCE})",
            description="In the last run of the quality canaries, fewer passed with drafts than without, or a text "
            "differed. Drafts must not change answers. The daemon drafts nothing until a run is good. "
            "First run `draftd canary run`; if it is bad again, go back to the previous model and draft.",
            dashboard="draftd-fallback",
        ),
    )


def _machine(settings: Alerting) -> tuple[AlertRule, ...]:
    swap_ins = f"increase({catalog.MEMORY_SWAP_INS.prometheus}[{settings.window}])"
    used = f'{catalog.SYSTEM_PAGING_USAGE.prometheus}{{{label(a.PAGING_STATE)}="used"}}'
    critical = f"increase({catalog.MEMORY_CRITICAL.prometheus}[{settings.window}])"
    return (
        AlertRule(
            name="DraftdSwapRising",
            # The two series have different labels, so `or` keeps both; max takes the larger.
            value=f"max by ({INSTANCE}) ({live(f'({swap_ins} or delta({used}[{settings.window}]))', settings.fresh)})",
            fires=">",
            threshold=settings.swap_bytes,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.BYTES,
            level=FallbackLevel.LIGHT_DRAFT,
            summary=f"The machine swaps: {_INSTANCE}",
            description=f"The machine read {{figure}}B back from swap within {settings.window}, or its use of swap "
            f"grew by that much: more than {settings.swap_bytes / 2**20:.0f}MiB for two windows. The alert "
            "asks the daemon for a lighter drafter. First stop other programs; then lower "
            "engine.max_batch.",
            dashboard=_MACHINE,
        ),
        AlertRule(
            name="DraftdMemoryPressureCritical",
            value=f"sum by ({INSTANCE}) ({critical}) / {settings.window_seconds:.15g}",
            fires=">",
            threshold=settings.critical_share,
            hold=settings.machine_hold,
            keep_firing=settings.keep_firing,
            severity=Severity.CRITICAL,
            figure=Figure.PERCENT,
            level=FallbackLevel.AUTOREGRESSIVE,
            summary=f"Memory is critically short: {_INSTANCE}",
            description=f"The machine spent {{figure}} of the last {settings.window} in critical memory pressure "
            f"(limit: {settings.critical_share:.0%}). Next, the system ends processes. The alert asks the daemon to "
            "draft nothing. First stop other programs, and keep new requests away.",
            dashboard=_MACHINE,
        ),
        AlertRule(
            name="DraftdThermalHeavy",
            value=f"max by ({INSTANCE}) ({live(catalog.THERMAL_LEVEL.prometheus, settings.fresh)})",
            fires=">",
            threshold=settings.thermal_level - 1,
            hold=settings.machine_hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            level=FallbackLevel.SHORT_BLOCK,
            summary=f"The machine is hot and slowed down: {_INSTANCE}",
            description=f"macOS has reported a high thermal level for {settings.machine_hold}, now {{figure}} (2 "
            "heavy, 3 trapping, 4 sleeping). The alert asks the daemon for shorter drafts. First reduce "
            "the load, and check fans and cooling.",
            dashboard=_MACHINE,
        ),
    )


def _service(settings: Alerting, recorded: bool) -> tuple[AlertRule, ...]:
    baseline = evidence.TTFT_BASELINE if recorded else evidence.ttft_baseline(settings)
    there = "{{ if .Labels.host_name }} on {{ .Labels.host_name }}, port {{ .Labels.server_port }}{{ end }}"
    return (
        AlertRule(
            name="DraftdTimeToFirstTokenRegression",
            value=f"(({evidence.ttft_now(settings)}) > {settings.ttft_floor_seconds:g})\n/ ({baseline})",
            fires=">",
            threshold=settings.ttft_ratio,
            hold=settings.hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.NUMBER,
            summary=f"First tokens come late: {_told(label(a.MODEL))}, {_told(label(a.CONTEXT_TIER))} prompts "
            f"({_INSTANCE})",
            description=f"The time to the first token (p{settings.ttft_quantile * 100:g}) is {{figure}} times what it "
            f"was in the {settings.baseline} that ended {settings.baseline_offset} ago, and above "
            f"{settings.ttft_floor_seconds:g} s, for two windows of {settings.window}. First see on the "
            "dashboard whether the queue or prefill takes the time.",
            dashboard=_LATENCY,
        ),
        AlertRule(
            name="DraftdAbsent",
            value=evidence.missing_daemons(settings),
            fires=">",
            threshold=0,
            hold=settings.machine_hold,
            severity=Severity.CRITICAL,
            figure=Figure.NUMBER,
            summary=f"draftd{there} does not report",
            description=f"No metrics of the daemon{there} have arrived for {settings.window}: the daemon is down, or "
            "its telemetry does not get through. First run `draftd status` on its host. If it answers, "
            "look at the collector and Prometheus.",
            dashboard=_OVERVIEW,
            on_error=OnError.FIRE,
        ),
        AlertRule(
            name="DraftdStopped",
            value=evidence.stopped_daemons(settings),
            fires=">",
            threshold=0,
            hold=settings.stopped,
            severity=Severity.INFO,
            figure=Figure.NUMBER,
            summary=f"draftd is stopped{there}",
            description=f"The daemon{there} was stopped on purpose and has not been started again for "
            f"{settings.stopped}. Start it, unless it should stay stopped.",
            dashboard=_OVERVIEW,
        ),
        AlertRule(
            name="DraftdTelemetryDropped",
            value=evidence.dropped(settings),
            fires=">",
            threshold=settings.telemetry_dropped,
            hold=_AT_ONCE,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"Telemetry is lost at {_told(evidence.STAGE)} ({_INSTANCE})",
            description=f"{{figure}} spans or log events were lost, or errors in telemetry code caught, within "
            f"{settings.window} or an earlier gap. Requests and counters are not affected. First look "
            "at what the stage names: daemon_error, the daemon's log; another daemon_* stage, the collector; a "
            "collector_* stage, Tempo or Loki.",
            dashboard=_TELEMETRY,
        ),
    )
