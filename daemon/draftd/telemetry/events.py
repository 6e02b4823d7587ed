"""The log events: each evaluation of the feature flag, as the convention says, and each transition."""

from __future__ import annotations

import time

from openfeature.flag_evaluation import FlagEvaluationDetails, FlagValueType
from openfeature.hook import Hook, HookContext, HookHints
from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context

from draftd.fallback.journal import Transition
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.recording import Guard
from draftd.telemetry.spans import call_context, request_context


class FlagHook(Hook):
    """An OpenFeature hook that emits `feature_flag.evaluation` when an evaluation is over, also when it failed."""

    def __init__(self, logger: Logger, guard: Guard) -> None:
        self._logger, self._guarded = logger, guard.part("flag")

    def finally_after(
        self, hook_context: HookContext, details: FlagEvaluationDetails[FlagValueType], hints: HookHints
    ) -> None:
        with self._guarded:
            failed = details.error_code is not None
            self._logger.emit(
                timestamp=time.time_ns(),
                context=request_context.get() or call_context.get() or Context(),
                severity_number=SeverityNumber.WARN if failed else SeverityNumber.INFO,
                event_name=catalog.FLAG_EVALUATION.name,
                attributes=_evaluation(hook_context, details),
            )


def _evaluation(
    context: HookContext, details: FlagEvaluationDetails[FlagValueType]
) -> dict[str, str | bool | int | float]:
    # The conventions spell reasons in lower case, OpenFeature in upper case.
    found: dict[str, str | bool | int | float] = {
        a.FLAG_KEY.name: details.flag_key,
        a.FLAG_REASON.name: str(details.reason or "unknown").lower(),
    }
    if details.variant is not None:
        found[a.FLAG_VARIANT.name] = details.variant
    elif isinstance(details.value, bool | int | float | str):
        found[a.FLAG_VALUE.name] = details.value
    if context.provider_metadata is not None:
        found[a.FLAG_PROVIDER.name] = context.provider_metadata.name
    if context.evaluation_context.targeting_key:
        found[a.FLAG_CONTEXT.name] = context.evaluation_context.targeting_key
    for key, attribute in (("contextId", a.FLAG_CONTEXT), ("flagSetId", a.FLAG_SET), ("version", a.FLAG_VERSION)):
        if key in details.flag_metadata:
            found[attribute.name] = str(details.flag_metadata[key])
    if details.error_code is not None:
        found[a.ERROR_TYPE.name] = str(details.error_code.value).lower()
        if details.error_message:
            found[a.FLAG_ERROR_MESSAGE.name] = details.error_message
    return found


class TransitionLog:
    """Emits `draftd.transition` for each transition. Any thread; never raises, never blocks."""

    def __init__(self, logger: Logger, guard: Guard) -> None:
        self._logger, self._guarded = logger, guard.part("transition")

    def __call__(self, change: Transition) -> None:
        with self._guarded:
            self._logger.emit(
                timestamp=time.time_ns(),
                context=Context(),
                severity_number=SeverityNumber.INFO,
                event_name=catalog.TRANSITION.name,
                body=f"{change.subject}: {change.previous} -> {change.current} ({change.cause})",
                attributes={
                    a.TRANSITION_SUBJECT.name: str(change.subject),
                    a.TRANSITION_FROM.name: change.previous,
                    a.TRANSITION_TO.name: change.current,
                    a.TRANSITION_CAUSE.name: change.cause,
                    a.TRANSITION_EVIDENCE.name: change.evidence,
                },
            )
