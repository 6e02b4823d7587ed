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
from draftd.telemetry.recording import Guard, named
from draftd.telemetry.spans import call_context, request_context


class FlagHook(Hook):
    """An OpenFeature hook that emits `feature_flag.evaluation` when an evaluation is over, also when it failed."""

    def __init__(self, logger: Logger, guard: Guard) -> None:
        self._logger, self._guard = logger, guard

    def finally_after(
        self, hook_context: HookContext, details: FlagEvaluationDetails[FlagValueType], hints: HookHints
    ) -> None:
        with self._guard.part("flag"):
            metadata = {key: str(value) for key, value in details.flag_metadata.items()}
            provider, code, value = hook_context.provider_metadata, details.error_code, details.value
            caller = hook_context.evaluation_context.targeting_key or None
            stands_in = details.variant is None and isinstance(value, bool | int | float | str)
            self._logger.emit(
                timestamp=time.time_ns(),
                context=request_context.get() or call_context.get() or Context(),
                severity_number=SeverityNumber.INFO if code is None else SeverityNumber.WARN,
                event_name=catalog.FLAG_EVALUATION.name,
                attributes=named(
                    {
                        a.FLAG_KEY: details.flag_key,
                        a.FLAG_VARIANT: details.variant,
                        a.FLAG_VALUE: value if stands_in else None,
                        # The conventions spell reasons in lower case, OpenFeature in upper case.
                        a.FLAG_REASON: str(details.reason or "unknown").lower(),
                        a.FLAG_PROVIDER: None if provider is None else provider.name,
                        a.FLAG_CONTEXT: metadata.get("contextId") or caller,
                        a.FLAG_SET: metadata.get("flagSetId"),
                        a.FLAG_VERSION: metadata.get("version"),
                        a.ERROR_TYPE: None if code is None else str(code.value).lower(),
                        a.FLAG_ERROR_MESSAGE: details.error_message or None,
                    }
                ),
            )


def log_transition(logger: Logger, guard: Guard, change: Transition) -> None:
    """Emits `draftd.transition`. Any thread; never raises, never blocks."""
    with guard.part("transition"):
        logger.emit(
            timestamp=time.time_ns(),
            context=Context(),
            severity_number=SeverityNumber.INFO,
            event_name=catalog.TRANSITION.name,
            body=f"{change.subject}: {change.previous} -> {change.current} ({change.cause})",
            attributes=named(
                {
                    a.TRANSITION_SUBJECT: change.subject.value,
                    a.TRANSITION_FROM: change.previous,
                    a.TRANSITION_TO: change.current,
                    a.TRANSITION_CAUSE: change.cause,
                    a.TRANSITION_EVIDENCE: change.evidence,
                }
            ),
        )
