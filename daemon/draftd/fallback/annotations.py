"""Marks each transition in Grafana, as an annotation of the whole organisation: any dashboard can show it by its tags.

On a thread of its own, behind a bounded queue: a Grafana that is slow, refuses or is away delays nothing and fails
nothing. What could not be sent is tried again, for it carries its own time; what Grafana will not take is left.
"""

from __future__ import annotations

import asyncio
import html
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from draftd.fallback.seams import FallbackTelemetry
from draftd.journal import Journal, Subject, Transition
from draftd.rate_limited_log import OutageLog
from draftd.settings import AnnotationSettings
from draftd.threads import lasting

log = logging.getLogger(__name__)

SENT, FAILED, REFUSED, DROPPED = "sent", "failed", "refused", "dropped"

_CAPACITY = 64
_ANSWER_SECONDS = 5.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 60.0  # until what failed is tried again
_MOST_TEXT = 2_000
_TITLES = {
    Subject.LEVEL: "Fallback level",
    Subject.FLAG: "Feature flag",
    Subject.REMOTE: "Remote",
    Subject.LINK: "Link to the remote",
}


class Annotator:
    """Hears of transitions on any thread, from `start` to `close`. `instance` says which daemon this is."""

    def __init__(
        self,
        settings: AnnotationSettings,
        journal: Journal,
        telemetry: FallbackTelemetry,
        instance: Callable[[], str],
        *,
        capacity: int = _CAPACITY,
        answer_seconds: float = _ANSWER_SECONDS,
        first_wait: float = _FIRST_WAIT_SECONDS,
    ) -> None:
        """`settings` names a Grafana. `capacity`: annotations that may wait; the oldest makes room."""
        assert settings.grafana_url is not None
        self._url, self._answer_seconds = settings.grafana_url, answer_seconds
        self.reload(settings)
        self._journal, self._telemetry, self._instance = journal, telemetry, instance
        self._capacity, self._first_wait = capacity, first_wait
        self._waiting: queue.SimpleQueue[Transition | None] = queue.SimpleQueue()  # None: nothing more will come
        self._until = float("inf")  # when it must have ended
        self._closing = threading.Event()
        self._deaf: Callable[[], None] = lambda: None
        self._outage = OutageLog(log)
        self._thread = lasting("draftd-annotations", self._run, self._closing)

    def reload(self, settings: AnnotationSettings) -> None:
        """The next annotation is sent with this token."""
        self._token = None if settings.grafana_token is None else settings.grafana_token.get_secret_value()

    def start(self) -> None:
        self._thread.start()
        self._deaf = self._journal.listen(self._heard)

    def close(self, seconds: float) -> bool:
        """Sends what still waits, each once, for so many seconds; what is left is dropped. False where the thread did
        not end in time."""
        self._deaf()
        self._until = time.monotonic() + seconds
        self._closing.set()
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(seconds)
        while not self._waiting.empty():
            self._drop_oldest()
        return not self._thread.is_alive()

    def _heard(self, transition: Transition) -> None:
        if self._waiting.qsize() >= self._capacity:
            self._drop_oldest()
        self._waiting.put(transition)

    def _drop_oldest(self) -> None:
        with suppress(queue.Empty):  # it is being sent
            if self._waiting.get_nowait() is not None:
                self._telemetry.annotation(DROPPED)

    # its own thread

    def _run(self) -> None:
        while (transition := self._next()) is not None:
            wait, last = self._first_wait, self._closing.is_set()
            while (result := self._send(transition)) == FAILED and not last:
                self._telemetry.annotation(FAILED)
                last = self._closing.wait(wait)
                wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
            self._telemetry.annotation(result)
            if result == FAILED:
                self._telemetry.annotation(DROPPED)

    def _next(self) -> Transition | None:
        """Returns the oldest that waits; None once there is nothing left to do, or no time."""
        return self._waiting.get() if time.monotonic() < self._until else None

    def _send(self, transition: Transition) -> str:
        first = f"{_TITLES[transition.subject]}: {transition.previous} → {transition.current}"
        lines = (first, transition.cause, transition.evidence)
        text = "\n".join(html.escape(line, quote=False) for line in lines if line)[:_MOST_TEXT]
        try:
            tags = ["draftd", transition.subject.value, *([named] if (named := self._instance()) else [])]
            result, why = self._annotate(round(transition.at.timestamp() * 1000), tags, text)
        except Exception as error:  # whatever it is, it concerns this thread alone
            result, why = FAILED, f"{self._url} gives no answer ({type(error).__name__})"
        if result == SENT:
            self._outage.clear("transitions are marked in Grafana again")
        else:
            self._outage.report(f"transitions are not marked in Grafana for now: {why}", why)
        return result

    def _annotate(self, at: int, tags: list[str], text: str) -> tuple[str, str]:
        """Whether it was sent, failed for now or was refused for good, and why, without the token in it. `at` in
        milliseconds since 1970. Raises what aiohttp raises where there is no answer."""
        body = {"time": at, "tags": tags, "text": text}
        status, text_back = asyncio.run(self._post(f"{self._url}/api/annotations", body))
        if 200 <= status < 300:
            return SENT, ""
        if 300 <= status < 400:
            return REFUSED, f"{self._url} redirects: set the final address"
        if self._token:
            text_back = text_back.replace(self._token, "…")
        final = 400 <= status < 500 and status not in (408, 429)
        return REFUSED if final else FAILED, f"{self._url} answers {status} ({text_back[:200]})"

    async def _post(self, url: str, body: Mapping[str, object]) -> tuple[int, str]:
        """The status of the answer, and its text."""
        import aiohttp  # here, for it takes a while to import

        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=self._answer_seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            # A redirect could carry the token elsewhere.
            session.post(url, json=body, allow_redirects=False) as response,
        ):
            return response.status, await response.text(errors="replace")
