"""Alerts for a target that runs on several ranks. All are for people: the daemon restarts the group by itself."""

from __future__ import annotations

from dashboards.ratios import INSTANCE, label
from dashboards.rule import AlertRule, Figure, Severity
from dashboards.series import grown, live
from dashboards.settings import Alerting
from draftd.group import GroupState
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog_ranks as catalog

_INSTANCE = f"{{{{ .Labels.{INSTANCE} }}}}"
_RANK = f"rank {{{{ .Labels.{label(a.RANK)} }}}} on {{{{ .Labels.{label(a.RANK_HOST)} }}}}"
_DASHBOARD = "draftd-ranks"
_AT_ONCE = "0s"


def rank_rules(settings: Alerting) -> tuple[AlertRule, ...]:
    serving = live(f'{catalog.STATE.prometheus}{{{label(a.GROUP_STATE)}="{GroupState.SERVING}"}}', settings.fresh)
    lost = f"sum by ({INSTANCE}) ({catalog.LOSSES.prometheus}) > 0"
    by_loss, by_rank = (INSTANCE, label(a.GROUP_LOSS)), (INSTANCE, label(a.RANK), label(a.RANK_HOST))
    return (
        AlertRule(
            name="DraftdGroupLost",
            value=f"sum by ({', '.join(by_loss)}) {grown(catalog.LOSSES.prometheus, settings.window)}",
            fires=">",
            threshold=settings.group_losses,
            hold=_AT_ONCE,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"A group of ranks was lost: {{{{ .Labels.{label(a.GROUP_LOSS)} }}}} ({_INSTANCE})",
            description=f"Losses of the group within {settings.window}: {{figure}}. The requests that ran ended "
            "with UNAVAILABLE. The daemon restarts the group. First run `draftd status`: it names the rank and the "
            "reason.",
            dashboard=_DASHBOARD,
        ),
        AlertRule(
            name="DraftdGroupNotServing",
            # A first start does not count: reading weights may take longer than any hold.
            value=f"max by ({INSTANCE}) (1 - {serving})\nand on ({INSTANCE}) ({lost})",
            fires=">",
            threshold=0,
            hold=settings.machine_hold,
            severity=Severity.CRITICAL,
            figure=Figure.COUNT,
            summary=f"A group of ranks does not come back ({_INSTANCE})",
            description=f"The group was lost and has not served for {settings.machine_hold}: every request is "
            "refused. First run `draftd status` for the reason, then `draftd doctor --hostfile FILE` on "
            "rank 0's machine.",
            dashboard=_DASHBOARD,
        ),
        AlertRule(
            name="DraftdRankBehind",
            value=f"max by ({', '.join(by_rank)}) ({catalog.LAG.prometheus} and on ({INSTANCE}) {serving} == 1)",
            fires=">",
            threshold=settings.rank_lag,
            hold=settings.machine_hold,
            keep_firing=settings.keep_firing,
            severity=Severity.WARNING,
            figure=Figure.COUNT,
            summary=f"A rank is behind: {_RANK} ({_INSTANCE})",
            description=f"For {settings.machine_hold} the rank had more than {settings.rank_lag} records from rank 0 "
            f"still to execute, now {{figure}}. The other ranks wait for it. First look at other "
            "programs, memory and heat on its machine.",
            dashboard=_DASHBOARD,
        ),
    )
