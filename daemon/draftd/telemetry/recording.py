"""What every recorder needs: a guard that lets no failure of telemetry reach a request, and the shared labels."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.util.types import AttributeValue

from draftd.core import DRAFT_MODEL, ContextTier, DecodePlan, WorkloadClass
from draftd.model_info import ModelInfo
from draftd.telemetry import attributes as a
from draftd.telemetry.attributes import Attribute

_log = logging.getLogger("draftd.telemetry")

Labels = dict[str, str]


def named(values: Mapping[Attribute, AttributeValue | None]) -> dict[str, AttributeValue]:
    """As OpenTelemetry takes them; what is None is absent."""
    return {attribute.name: value for attribute, value in values.items() if value is not None}


class Stopwatch:
    """Begins now. A span's times are the wall clock's; what lies between them is monotonic, whatever that is set to."""

    def __init__(self) -> None:
        self.start, self._began = time.time_ns(), time.monotonic_ns()  # nanoseconds

    @property
    def nanoseconds(self) -> int:
        return time.monotonic_ns() - self._began


class FailureGuard:
    """Counts failures of telemetry itself by the part that failed, and logs the first of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """For `with`: what its body raises is caught and counted under that name."""
        try:
            yield
        except Exception as error:
            self.caught(name, error)

    def caught(self, part: str, error: Exception) -> None:
        """Counts one failure. Never raises."""
        with self._lock:
            self._counts[part] += 1
            first = self._counts[part] == 1
        if first:
            _log.warning(
                "telemetry failed in its %s part; requests are not affected, further failures are only counted",
                part,
                exc_info=error,
            )

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class ModelNames:
    """Knows which model is loaded, and from it the model and draft labels. `ask` is called until it answers.
    `address`: the host and the port that the daemon listens on, once it does.

    Labels have few values each, and are never ids.
    """

    def __init__(self, ask: Callable[[], ModelInfo | None] = lambda: None) -> None:
        self.ask = ask
        self.address: tuple[str, int] | None = None
        self._model: ModelInfo | None = None

    def info(self) -> ModelInfo | None:
        if self._model is None:
            self._model = self.ask()
        return self._model

    def model(self) -> str:
        info = self.info()
        return info.model if info is not None else "unknown"

    def model_label(self) -> Labels | None:
        """None while the model has no name: what is observed under another one would count twice."""
        return None if self.info() is None else {a.MODEL.name: self.model()}

    def draft(self, plan: DecodePlan | None) -> str:
        """The draft label: that of the loaded pair in both modes, so that the modes can be compared."""
        if plan is not None and plan.drafter not in (None, DRAFT_MODEL):
            return plan.drafter
        info = self.info()
        return (info and info.draft_model) or "none"

    def labels(self, plan: DecodePlan | None, workload: WorkloadClass, tier: ContextTier | None) -> Labels:
        """`plan` and `tier` are None for a request that was refused before it had them."""
        labels = {
            a.MODEL: self.model(),
            a.DRAFT_MODEL: self.draft(plan),
            a.WORKLOAD: workload.value,
            a.MODE: None if plan is None else plan.mode.value,
            a.STRATEGY: None if plan is None else plan.strategy.value,
            a.PLAN_LEVEL: None if plan is None else plan.level.label,
            a.CONTEXT_TIER: None if tier is None else tier.value,
        }
        return {attribute.name: label for attribute, label in labels.items() if label is not None}

    def server(self) -> Mapping[Attribute, AttributeValue | None]:
        """Where the daemon listens."""
        host, port = self.address or (None, None)
        return {a.SERVER_ADDRESS: host, a.SERVER_PORT: port}
