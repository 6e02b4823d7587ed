"""Polls Alertmanager or Grafana for firing alerts, to make up for lost webhooks, and after a restart.

Each poll's list is complete: alerts listed before but not now are over. So a failed poll changes nothing, and leases
expire by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import aiohttp

from draftd.errors import InvalidRequest, NotServing, QueueFull
from draftd.fallback.alerts.connections import LoopThread
from draftd.fallback.alerts.payload import LEVEL_LABEL, PollResult, notice_of, parse_alerts
from draftd.fallback.leases import Notice
from draftd.fallback.seams import FallbackTelemetry
from draftd.rate_limited_log import OutageLog, RateLimitedLog
from draftd.settings import WebhookSettings

log = logging.getLogger(__name__)

_PATH = "/api/v2/alerts"
_WANTED = (
    ("active", "true"),
    ("unprocessed", "true"),  # so new that no notification was sent yet
    ("silenced", "false"),
    ("inhibited", "false"),
    ("filter", f'{LEVEL_LABEL}=~".+"'),
)
_SECONDS = 10.0
_MOST_BYTES = 8 * 1024 * 1024
_LONGEST_WAIT_SECONDS = 300.0  # between failing polls, unless the interval is longer


class PollFailed(Exception):
    """The error for a poll that changes nothing."""

    def __init__(self, result: PollResult, message: str) -> None:
        super().__init__(message)
        self.result = result


class Poller:
    """Polls periodically. `polled` receives all firing alerts, even an empty list; it raises QueueFull or NotServing if
    it cannot take them now. `instance`: see the webhook."""

    def __init__(
        self,
        settings: WebhookSettings,
        polled: Callable[[Sequence[Notice]], object],
        telemetry: FallbackTelemetry,
        instance: Callable[[], str],
        *,
        seconds: float = _SECONDS,
    ) -> None:
        assert settings.poll_url is not None
        self._url, self._period, self._seconds = settings.poll_url + _PATH, settings.poll_seconds, seconds
        self.reload(settings)
        self._polled, self._telemetry, self._instance = polled, telemetry, instance
        self._log = RateLimitedLog(log, seconds=3600.0)
        self._outage = OutageLog(log)
        self._failures = 0
        self._thread = LoopThread("draftd-alert-poll", self._run)

    def reload(self, settings: WebhookSettings) -> None:
        """Uses this token from the next poll on."""
        token = settings.poll_token
        self._headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}

    def start(self) -> None:
        """Polls at once, then periodically."""
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Returns True if its thread has ended within `seconds`."""
        return self._thread.close(seconds)

    async def _run(self) -> None:
        while True:
            await self._poll()
            await asyncio.sleep(self._wait())

    def _wait(self) -> float:
        """Returns the seconds to the next poll, doubled with each consecutive failure up to a limit."""
        longest = max(self._period, _LONGEST_WAIT_SECONDS)
        return min(self._period * 2.0 ** min(self._failures, 30), longest)

    async def _poll(self) -> None:
        try:
            firing = self._understood(await self._answer())
            await asyncio.to_thread(self._polled, firing)
        except PollFailed as failure:
            self._report_failure(failure.result, str(failure))
        except (QueueFull, NotServing) as error:
            self._report_failure(PollResult.BUSY, error.message)
        except Exception as error:
            self._report_failure(PollResult.FAILED, repr(error), error)
        else:
            self._outage.clear(f"alerts are polled at {self._url} again, after {self._failures} failures")
            self._failures = 0
            self._telemetry.poll(PollResult.OK)

    def _report_failure(self, result: PollResult, why: str, error: Exception | None = None) -> None:
        self._telemetry.poll(result)
        then = "until then, alerts expire unless they are repeated"
        self._outage.report(f"alerts cannot be polled at {self._url}: {why}; {then}", result, error=error)
        self._failures += 1

    async def _answer(self) -> bytes:
        """Returns the body of the answer. Raises PollFailed. Each poll has its own session, so a bad one does not
        persist."""
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                # A redirect could carry the token elsewhere.
                session.get(self._url, params=_WANTED, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise PollFailed(PollResult.REFUSED, f"status {response.status}; wanted: 200")
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise PollFailed(PollResult.TOO_LARGE, f"an answer of more than {_MOST_BYTES} bytes")
                return bytes(body)
        except TimeoutError:
            raise PollFailed(PollResult.SLOW, f"no answer within {self._seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PollFailed(PollResult.UNREACHABLE, str(error) or type(error).__name__) from None

    def _understood(self, body: bytes) -> list[Notice]:
        """Returns the alerts that ask this daemon for a level. Raises PollFailed."""
        try:
            alerts = parse_alerts(body)
        except InvalidRequest as error:
            raise PollFailed(PollResult.INVALID, error.message) from None
        instance, now = self._instance(), time.time()
        notices = []
        for i, alert in enumerate(alerts):
            if not alert.firing:
                continue
            try:
                notice = notice_of(alert, f"alerts[{i}]", instance, now)
            except InvalidRequest as error:  # another team's rule must not hide the other alerts
                name = alert.labels.get("alertname", "")
                self._log.write(logging.WARNING, "ignored", f"polled alert ignored: {error.message}", name)
                continue
            if isinstance(notice, Notice):
                notices.append(notice)
        return notices
