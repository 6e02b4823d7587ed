"""Marks each transition in Grafana as an annotation of the whole organisation, which any dashboard can show by its
tags.

A thread sends them from a bounded queue, so a slow or absent Grafana delays nothing. An annotation carries its own
time: one that could not be sent is tried again, and one that Grafana refuses is dropped.
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
from draftd.threads import restarting_thread

log = logging.getLogger(__name__)

SENT, FAILED, REFUSED, DROPPED = "sent", "failed", "refused", "dropped"

_CAPACITY = 64
_ANSWER_SECONDS = 5.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 60.0  # before a failed annotation is tried again
_MOST_TEXT = 2_000
_TITLES = {
    Subject.LEVEL: "Fallback level",
    Subject.FLAG: "Feature flag",
    Subject.REMOTE: "Remote",
    Subject.LINK: "Link to the remote",
}


class Annotator:
    """Sends an annotation for each transition, reported on any thread, from `start` to `close`. `instance` names this
    daemon."""

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
        """`settings` must name a Grafana. `capacity`: the most waiting annotations; a new one replaces the oldest."""
        assert settings.grafana_url is not None
        self._url, self._answer_seconds = settings.grafana_url, answer_seconds
        self.reload(settings)
        self._journal, self._telemetry, self._instance = journal, telemetry, instance
        self._capacity, self._first_wait = capacity, first_wait
        self._waiting: queue.SimpleQueue[Transition | None] = queue.SimpleQueue()  # None ends the thread
        self._until = float("inf")  # deadline of `close`
        self._closing = threading.Event()
        self._deaf: Callable[[], None] = lambda: None
        self._outage = OutageLog(log)
        self._thread = restarting_thread("draftd-annotations", self._run, self._closing)

    def reload(self, settings: AnnotationSettings) -> None:
        """Uses this token from the next annotation on."""
        self._token = None if settings.grafana_token is None else settings.grafana_token.get_secret_value()

    def start(self) -> None:
        self._thread.start()
        self._deaf = self._journal.listen(self._heard)

    def close(self, seconds: float) -> bool:
        """Sends each waiting annotation once, for up to `seconds`, and drops the rest. Returns False if the thread did
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
        with suppress(queue.Empty):  # it is being sent already
            if self._waiting.get_nowait() is not None:
                self._telemetry.annotation(DROPPED)

    # on its own thread

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
        """Returns the oldest waiting transition, and waits for one. Returns None after `close`, once all were returned
        or its time is over."""
        return self._waiting.get() if time.monotonic() < self._until else None

    def _send(self, transition: Transition) -> str:
        first = f"{_TITLES[transition.subject]}: {transition.previous} → {transition.current}"
        lines = (first, transition.cause, transition.evidence)
        text = "\n".join(html.escape(line, quote=False) for line in lines if line)[:_MOST_TEXT]
        try:
            tags = ["draftd", transition.subject.value, *([named] if (named := self._instance()) else [])]
            result, why = self._annotate(round(transition.at.timestamp() * 1000), tags, text)
        except Exception as error:  # any error concerns this thread alone
            result, why = FAILED, f"{self._url} gives no answer ({type(error).__name__})"
        if result == SENT:
            self._outage.clear("transitions are marked in Grafana again")
        else:
            self._outage.report(f"transitions are not marked in Grafana for now: {why}", why)
        return result

    def _annotate(self, at: int, tags: list[str], text: str) -> tuple[str, str]:
        """Sends an annotation. Returns whether it was sent, failed for now or was refused, and why, without the token.
        `at`: milliseconds since 1970. Raises aiohttp's errors if there is no answer."""
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
        """Returns the answer's status and text."""
        import aiohttp  # here, because the import is slow

        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=self._answer_seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            # A redirect could carry the token elsewhere.
            session.post(url, json=body, allow_redirects=False) as response,
        ):
            return response.status, await response.text(errors="replace")
