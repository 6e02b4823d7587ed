"""Shared by all recorders: a guard that keeps failures of telemetry away from requests, and the common labels."""

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


def attributes_of(values: Mapping[Attribute, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Returns the attributes in OpenTelemetry's form, without None values."""
    return {attribute.name: value for attribute, value in values.items() if value is not None}


class Stopwatch:
    """A clock that starts now. A span's times are wall-clock times; the differences between them are monotonic, even if
    the wall clock is set."""

    def __init__(self) -> None:
        self.start, self._began = time.time_ns(), time.monotonic_ns()  # nanoseconds

    @property
    def nanoseconds(self) -> int:
        return time.monotonic_ns() - self._began


class FailureGuard:
    """Counts failures of telemetry itself by part, and logs the first of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Catches and counts errors inside the block under this name."""
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
    """The loaded model's name, and the model and draft labels from it. `ask` is called until it answers. `address`: the
    daemon's host and port, once it listens. Labels have few values each, and are never ids."""

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
        """The model label; None before the model has a name, because values under another name would count twice."""
        return None if self.info() is None else {a.MODEL.name: self.model()}

    def draft(self, plan: DecodePlan | None) -> str:
        """Returns the draft label: the plan's drafter if that is not the draft model, otherwise the loaded draft model.
        Autoregressive requests get the latter too, or `draft_head` if the model's head stands in for it, so that the
        label does not divide the two modes."""
        if plan is not None and plan.drafter not in (None, DRAFT_MODEL):
            return plan.drafter
        if (info := self.info()) is None:
            return "none"
        drafter = info.stand_in(DRAFT_MODEL)
        return drafter if drafter != DRAFT_MODEL else info.draft_model or "none"

    def labels(self, plan: DecodePlan | None, workload: WorkloadClass, tier: ContextTier | None) -> Labels:
        """Returns a request's labels. `plan` and `tier` are None if it was refused before it had them."""
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
        """Attributes of the daemon's address."""
        host, port = self.address or (None, None)
        return {a.SERVER_ADDRESS: host, a.SERVER_PORT: port}
