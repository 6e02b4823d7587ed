"""Many clients at once: each asks again when it has been answered, or all when they are told to."""

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
    """What was answered, and the window in which all clients were at it: from the first question until the first client
    that found none left."""

    streams: tuple[Stream, ...]
    began: float
    until: float

    @property
    def tokens_per_second(self) -> float:
        """Of all clients together, within the window."""
        return tokens_within(self.streams, self.began, self.until) / (self.until - self.began)

    @property
    def requests_per_second(self) -> float:
        """Answered to their end within the window."""
        return sum(stream.ended <= self.until for stream in self.streams) / (self.until - self.began)

    def record(self) -> dict[str, Any]:
        """As JSON, with times from the window's beginning on."""
        streams = [stream.record(self.began) for stream in self.streams]
        return {"began": 0.0, "until": round(self.until - self.began, 6), "streams": streams}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Load:
        return cls(tuple(map(Stream.of_record, record["streams"])), record["began"], record["until"])


def closed_loop(asker: Asker, prompts: Sequence[Prompt], clients: int, max_tokens: int) -> Load:
    """All `prompts`, by so many clients at a time. Raises RuntimeError where one is not answered."""
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
    """All at once, each in a thread, to their end. Raises the first error; TimeoutError after `seconds`."""
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
            raise TimeoutError(f"a client is not done after {seconds:.0f} s")
    if errors:
        raise errors[0]


class _Shared:
    """What is left to ask, for several clients."""

    def __init__(self, prompts: Iterator[Prompt]) -> None:
        self._prompts, self._lock = prompts, threading.Lock()

    def next(self) -> Prompt | None:
        with self._lock:
            return next(self._prompts, None)
