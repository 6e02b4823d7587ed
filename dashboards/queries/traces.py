"""TraceQL queries for the panels' links to Tempo: the requests behind a panel, with columns to sort by."""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.attributes import Attribute


def _requests(condition: str, *shown: Attribute) -> str:
    columns = ", ".join(f"span.{one.name}" for one in shown)
    return f'{{ resource.service.name = "draftd" && {condition} }} | select({columns})'


ENDED = _requests(f"span.{a.OUTCOME.name} != nil", a.MODE, a.WORKLOAD, a.TTFT, a.TOKENS_PER_SECOND)
FAILED = _requests(f'span.{a.OUTCOME.name} =~ "refused|error|deadline"', a.OUTCOME, a.ERROR_TYPE, a.WORKLOAD)
DID_NOT_PAY = _requests(f"span.{a.SPEEDUP.name} < 1", a.SPEEDUP, a.ACCEPTANCE, a.WORKLOAD)
REMOTE = _requests(
    f'span.{a.STRATEGY.name} =~ "remote|speculative"', a.STRATEGY, a.ROUND_TRIPS, a.ROUND_TRIP_TIME, a.FAILED_OVER
)
FAILED_OVER = _requests(f"span.{a.FAILED_OVER.name} != nil", a.FAILED_OVER, a.STRATEGY, a.QUALITY)
STEPPED_DOWN = _requests(f'span.{a.PLAN_LEVEL.name} != "full"', a.PLAN_LEVEL, a.PLAN_REASON)
