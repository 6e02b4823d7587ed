"""Loads a server with concurrent requests: clients in a closed loop, or tasks that start together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import ANSWER_SECONDS, Asker
from benchmarks.peers.streams import Stream, failed, tokens_within


@dataclass(frozen=True, slots=True)
class Load:
    """Answers of several clients, and the window in which all of them were busy, from `began` to `until`. It ends when
    the first client finds no prompt left."""

    streams: tuple[Stream, ...]
    began: float
    until: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of all clients together, within the window."""
        return tokens_within(self.streams, self.began, self.until) / (self.until - self.began)

    @property
    def requests_per_second(self) -> float:
        """Complete answers per second, within the window."""
        return sum(stream.ended <= self.until for stream in self.streams) / (self.until - self.began)

    def record(self) -> dict[str, Any]:
        """Returns the answers as JSON data, with times in seconds from the window's start."""
        streams = [stream.record(self.began) for stream in self.streams]
        return {"began": 0.0, "until": round(self.until - self.began, 6), "streams": streams}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Load:
        return cls(tuple(map(Stream.of_record, record["streams"])), record["began"], record["until"])


def closed_loop(asker: Asker, prompts: Sequence[Prompt], clients: int, max_tokens: int) -> Load:
    """Sends all `prompts` from so many clients, each of which sends its next one when the last is answered. Raises
    RuntimeError if a request fails."""
    waiting = _Shared(iter(prompts))
    streams: list[Stream] = []
    idle: list[float] = []

    def client() -> None:
        while (prompt := waiting.next()) is not None:
            streams.append(asker.ask(prompt, max_tokens))
        idle.append(time.perf_counter())

    began = time.perf_counter()
    together([client] * clients, len(prompts) * ANSWER_SECONDS)
    failed(streams)
    return Load(tuple(streams), began, min(idle))


def together(tasks: Sequence[Callable[[], None]], seconds: float) -> None:
    """Runs all tasks at once, one thread each, until they end. Raises the first error, or TimeoutError after
    `seconds`."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            raise TimeoutError(f"a concurrent task has not ended after {seconds:.0f} s")
    if errors:
        raise errors[0]


class _Shared:
    """An iterator over prompts that several threads share."""

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._prompts, self._lock = prompts, threading.Lock()

    def next(self) -> Prompt | None:
        with self._lock:
            return next(self._prompts, None)
