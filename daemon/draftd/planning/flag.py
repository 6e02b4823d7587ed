"""The feature flags through OpenFeature, with flagd's provider: on a file by default, or on a flagd server.

Flags are evaluated in this process in both cases (a server's flags are synced over a stream), so evaluation never
waits. If the source is broken, requests get its last good state, with the reason STALE. If it never had a good state,
or lacks the flag, they get the configured default variant, with the reason ERROR. The flag `decoding-strategy` is
optional: a source without it is no error.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.event import EventDetails, ProviderEvent
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagEvaluationDetails
from openfeature.hook import Hook
from openfeature.provider import ProviderStatus
from openfeature.provider.no_op_provider import NoOpProvider

from draftd.errors import DeadlineExceeded
from draftd.journal import Journal, Subject
from draftd.planning.flag_backend import POLL_SECONDS, make_backend
from draftd.planning.flag_file import SPECULATION, STRATEGY, Flag, FlagResolution
from draftd.planning.planner import FlagContext
from draftd.settings import FlagSettings
from draftd.strategies import Strategy

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 5.0  # how long a change may take to be in force


@dataclass(frozen=True, slots=True)
class FlagState:
    """The source of a flag, and its default. `error`: why the source is broken; empty if it is not."""

    key: str
    default_variant: str
    variants: tuple[str, ...]
    provider: str
    writable: bool
    source: str
    error: str
    shared: bool = False  # other daemons may use it too


class FlagService:
    """Owns one provider, in an OpenFeature domain of its own. Any thread."""

    def __init__(
        self,
        settings: FlagSettings,
        *,
        file: Path | None = None,
        strategy: str = Strategy.AUTO,
        hook: Hook | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Writes the file if it is missing. If that fails, the configured default applies until the file exists. A
        broken file, or a server that cannot be reached, is logged and waited for. `file`: this daemon's own, used if
        the settings name none. `strategy`: the default variant of `decoding-strategy`."""
        self._defaults = {SPECULATION: settings.default_variant, STRATEGY: strategy}
        self._backend = make_backend(settings, file, self._defaults)
        self._default = SPECULATION.variants[settings.default_variant] is True
        self._domain = f"draftd-{uuid.uuid4().hex}"
        self._client = api.get_client(self._domain)
        self._client.add_hooks([] if hook is None else [hook])
        self._unhooked_client = api.get_client(self._domain)  # without hooks, which are for requests' evaluations
        self._write_lock = threading.Lock()
        self._journal = journal if journal is not None else Journal()
        self._journal_lock = threading.Lock()
        self._changed = threading.Event()
        self._error = ""
        logging.getLogger("openfeature.contrib").addFilter(_drop_watcher_traceback)
        self._start_provider()
        # The default variants that were logged and recorded last.
        self._journaled = {flag: self.state(flag).default_variant for flag in self._defaults}
        # Only now: a new handler is called at once with the state of the provider in place, which was another before.
        for event, handler in self._handlers():
            self._client.add_handler(event, handler)

    def evaluate(self, context: FlagContext) -> FlagResolution:
        """Returns whether a request may draft. About 0.1 ms. Never raises."""
        return self._resolution(
            self._client.get_boolean_details(SPECULATION.key, self._default, _evaluation_context(context))
        )

    def strategy(self, context: FlagContext) -> FlagResolution:
        """Returns where a request is decoded: one of `Strategy`. About 0.1 ms. Never raises."""
        if self._details(STRATEGY).error_code is ErrorCode.FLAG_NOT_FOUND:  # the flag is optional
            return self._resolve(STRATEGY)
        evaluation = _evaluation_context(context, prompt_tokens=context.prompt_tokens)
        resolution = self._resolution(
            self._client.get_string_details(STRATEGY.key, self._defaults[STRATEGY], evaluation)
        )
        if resolution.value in STRATEGY.variants:
            return resolution
        default = self._defaults[STRATEGY]
        return FlagResolution(default, default, "ERROR", f"{resolution.value!r} is not a strategy")

    def default_value(self) -> bool | None:
        """Returns the flag's value for a request without attributes; None while its source has given none."""
        resolution = self._resolve(SPECULATION)
        return None if resolution.reason == "ERROR" else bool(resolution.value)

    @property
    def save_errors(self) -> int | None:
        """How often the flag file could not be written; None if the flags come from a server."""
        return self._backend.save_errors

    def _resolve(self, flag: Flag) -> FlagResolution:
        return self._resolution(self._details(flag), flag)

    def _details(self, flag: Flag) -> FlagEvaluationDetails[bool] | FlagEvaluationDetails[str]:
        if flag is SPECULATION:
            return self._unhooked_client.get_boolean_details(flag.key, self._default)
        return self._unhooked_client.get_string_details(flag.key, self._defaults[flag])

    def _resolution(
        self, details: FlagEvaluationDetails[bool] | FlagEvaluationDetails[str], flag: Flag = SPECULATION
    ) -> FlagResolution:
        value = details.value
        variant = details.variant or (value if isinstance(value, str) else "on" if value else "off")
        if flag is STRATEGY and details.error_code is ErrorCode.FLAG_NOT_FOUND:
            return FlagResolution(variant, value, "DEFAULT")
        reason = str(details.reason or "UNKNOWN")
        if details.error_code is not None:
            return FlagResolution(variant, details.value, "ERROR", details.error_message or details.error_code.value)
        error = self._error
        return FlagResolution(variant, details.value, "STALE" if error else reason, error)

    def state(self, flag: Flag = SPECULATION) -> FlagState:
        """Returns the source's present state, even if that is not in force yet."""
        error, variants, default, writable = self._error, tuple(flag.variants), "", False
        try:
            if (content := self._backend.read(flag)) is not None:
                (variants, default), writable = content, True
        except ValueError as broken:
            error = str(broken)
        if not writable:
            default = self._resolve(flag).variant
        backend = self._backend
        return FlagState(flag.key, default, variants, backend.name, writable, backend.source, error, backend.shared)

    def set_variant(self, variant: str, flag: Flag = SPECULATION) -> str:
        """Makes `variant` the default and returns the previous one, once the change is in force. Blocks: not for the
        event loop.

        Raises InvalidRequest, FlagReadOnly, or DeadlineExceeded if the provider did not take the change up."""
        with self._write_lock:
            self._changed.clear()
            with self._journal_lock:  # so that the provider's notice of this change comes later
                previous = self._backend.set_default(flag, variant)
                self._journal_default(flag, previous or self._journaled[flag], self._backend.edit_cause)
                self._journal_default(flag, variant, "set over gRPC")
            if previous != variant and not self._wait_until_set(flag, variant):
                raise DeadlineExceeded(
                    f"{self._backend.source} was written but is not in force after {_SETTLE_SECONDS:g} s: {self._error}"
                )
        return previous

    def close(self) -> None:
        """Stops the provider and its watcher. The watcher may look once more, so its log filter stays."""
        for event, handler in self._handlers():
            self._client.remove_handler(event, handler)
        api.set_provider(NoOpProvider(), self._domain)

    def _start_provider(self) -> None:
        try:
            if self._backend.prepare():
                log.info("wrote the flag file %s", self._backend.source)
        except OSError as error:
            problem = f"{self._backend.source} cannot be written ({error.strerror})"
            log.warning("%s; the flag is %s until the file exists", problem, self._defaults[SPECULATION])
        if not self._backend.start(self._domain):
            self._report_broken("")

    def _handlers(self) -> tuple[tuple[ProviderEvent, Callable[[EventDetails], None]], ...]:
        return (
            (ProviderEvent.PROVIDER_CONFIGURATION_CHANGED, self._on_changed),
            (ProviderEvent.PROVIDER_READY, self._on_ready),
            (ProviderEvent.PROVIDER_ERROR, self._on_error),
            (ProviderEvent.PROVIDER_STALE, self._on_error),
        )

    def _on_changed(self, details: EventDetails) -> None:
        self._changed.set()
        self._journal_defaults()

    def _journal_defaults(self) -> None:
        with self._journal_lock:
            for flag in self._defaults:
                self._journal_default(flag, self.state(flag).default_variant, self._backend.edit_cause)

    def _journal_default(self, flag: Flag, variant: str, cause: str) -> None:
        """Logs and records a default that has changed. The caller holds `_journal_lock`."""
        if variant == (noted := self._journaled[flag]):
            return
        log.info("flag %s: default variant %s, was %s (%s)", flag.key, variant, noted, cause)
        self._journal.record(Subject.FLAG, noted, variant, cause if flag is SPECULATION else f"{flag.key}: {cause}")
        self._journaled[flag] = variant

    def _on_ready(self, details: EventDetails) -> None:
        self._journal_defaults()
        if self._error:
            self._error = ""
            log.info("flag source %s: works again", self._backend.source)

    def _on_error(self, details: EventDetails) -> None:
        # Called at every poll while the file is broken. Handlers run in a pool: this one may be late.
        if self._client.get_provider_status() is ProviderStatus.READY:
            return
        self._report_broken(details.message or "unknown error")

    def _report_broken(self, reason: str) -> None:
        """Logs a fault of the source, once. If the file itself has a fault, that is logged instead of `reason`."""
        reason = self._backend.fault() or reason
        if reason and reason != self._error:
            self._error = reason
            log.warning(
                "flag source %s: %s; until it is mended, %s is %s",
                self._backend.source,
                reason,
                SPECULATION.key,
                self._resolve(SPECULATION).variant,
            )

    def _wait_until_set(self, flag: Flag, variant: str) -> bool:
        """Waits until the provider answers with the new default. Returns False if it takes too long."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while self._changed.wait(max(0.0, deadline - time.monotonic())):
            details = self._details(flag)
            if details.variant == variant:
                return True
            if details.reason == "TARGETING_MATCH":
                # A rule hides the default. The event may be of an earlier edit; after a whole poll it is of ours.
                time.sleep(2 * POLL_SECONDS)
                return True
            self._changed.clear()
        return False


def _evaluation_context(context: FlagContext, **more: int) -> EvaluationContext:
    attributes = {"model": context.model, "workload": context.workload.value, "caller": context.caller, **more}
    return EvaluationContext(context.caller or None, attributes)


def _drop_watcher_traceback(record: logging.LogRecord) -> bool:
    """Drops the tracebacks of the file watcher, one at each poll: `FlagService` logs the fault once, in a line."""
    return record.funcName != "handle_error"
