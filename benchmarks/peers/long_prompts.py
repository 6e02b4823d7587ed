"""Part `long`: time between tokens of running streams while a 1,500-token prompt arrives every second.

Windows of some seconds alternate without and with such prompts. Each window starts the same streams again, so that
their lengths, on which their cost depends, are the same in both. The result is the ratio of the p99 of inter-token
times. A gap that is still open at a window's end counts for as long as it has lasted; otherwise the longest ones would
be left out.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import ANSWER_SECONDS, AUTOMATIC, AUTOREGRESSIVE, PEER, Asker, arms
from benchmarks.peers.codec import Codec
from benchmarks.peers.drawn import long_prompt
from benchmarks.peers.load import together
from benchmarks.peers.part import Context, Direction, Figure
from benchmarks.peers.streams import Stream
from benchmarks.peers.stretched import stretched
from draftd.client.timing import quantile

ARMS = (
    AUTOMATIC,
    AUTOREGRESSIVE,
    PEER,
)  # the peer with its draft decodes one stream at a time: none would be disturbed
WANTED = 2.0
_SLACK_SECONDS = 0.5  # the deadline is measured by another clock


@dataclass(frozen=True, slots=True)
class Window:
    """Streams that ran from `since` to `until`, in seconds, and the long prompts that came meanwhile: none if it is
    undisturbed."""

    streams: tuple[Stream, ...]
    long: tuple[Stream, ...]
    since: float
    until: float

    def inter_token(self) -> list[float]:
        """Returns the seconds between tokens of all streams, gaps open at the window's end included; a stream that has
        not begun counts as one gap of the whole window. Raises RuntimeError if a stream ended before the window."""
        found: list[float] = []
        for stream in self.streams:
            if stream.ended < self.until - _SLACK_SECONDS:
                raise RuntimeError(
                    f"{stream.prompt}: the stream ended before the measured window did: "
                    f"{stream.error or 'its answer was complete'}"
                )
            found += stream.inter_token(self.since, self.until)
            last = max((chunk.at for chunk in stream.chunks if chunk.at <= self.until), default=self.since)
            if last < self.until:
                found.append(self.until - last)
        return found

    @property
    def p99(self) -> float:
        found = quantile(self.inter_token(), 0.99)
        assert found is not None
        return found

    @property
    def answered(self) -> tuple[int, int]:
        """Returns how many long prompts got their first token within the window, and how many were sent."""
        return sum(bool(one.chunks) and one.chunks[0].at <= self.until for one in self.long), len(self.long)

    def record(self, origin: float) -> dict[str, Any]:
        return {
            "since": round(self.since - origin, 6),
            "until": round(self.until - origin, 6),
            "streams": [stream.record(origin) for stream in self.streams],
            "long": [stream.record(origin) for stream in self.long],
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Window:
        streams, long = (tuple(map(Stream.of_record, record[name])) for name in ("streams", "long"))
        return cls(streams, long, record["since"], record["until"])


Windows = Mapping[tuple[int, str, bool], Window]  # by repetition, arm, whether disturbed


@dataclass(frozen=True, slots=True)
class LongPrompts:
    name: str = "long"
    title: str = "inter-token p99 of four running streams, with a 1,500-token prompt every second over without"
    repetitions: int = 3
    rows: int = 4
    prompt_tokens: int = 1500
    every_seconds: float = 1.0
    settle_seconds: float = 2.0  # from the streams' start to the window's
    window_seconds: float = 7.0

    def run(self, context: Context) -> list[Figure]:
        repetitions = 1 if context.quick else self.repetitions
        draw = random.Random(f"{context.seed}/long")
        turns = [
            (repetition, arm, disturbed)
            for repetition in range(repetitions)
            for arm in draw.sample(ARMS, len(ARMS))
            for disturbed in draw.sample((False, True), 2)
        ]
        missing = [turn for turn in turns if turn not in windows(context.store.records())]
        if missing:
            with stretched(context.pair, endless=True) as pair:
                codec = Codec(pair.model)
                with arms(pair, codec, 16, ARMS) as askers:
                    self._measure(context, askers, codec, missing)
        return compared(windows(context.store.records()))

    def _measure(
        self, context: Context, askers: Mapping[str, Asker], codec: Codec, turns: Sequence[tuple[int, str, bool]]
    ) -> None:
        draw = random.Random(f"{context.seed}/long prompts")
        for arm, asker in askers.items():  # the warm-up is not kept
            context.say(f"warming up {arm}")
            self._window(asker, context.prompts, [long_prompt(context.prompts, codec, 500, "warm-up", draw)], 1.0)
            settle(asker, context.prompts[0])
        for repetition, arm, disturbed in turns:
            seconds = 3.0 if context.quick else self.window_seconds
            number = int(seconds / self.every_seconds) if disturbed else 0
            names = [f"long-{repetition}-{i}" for i in range(number)]
            coming = [long_prompt(context.prompts, codec, self.prompt_tokens, name, draw) for name in names]
            origin = time.perf_counter()
            window = self._window(askers[arm], context.prompts[4 * repetition :], coming, seconds)
            settle(askers[arm], context.prompts[0])
            context.store.add(
                {"repetition": repetition, "arm": arm, "disturbed": disturbed, "window": window.record(origin)}
            )
            came = "{} of {} long prompts answered".format(*window.answered) if disturbed else "undisturbed"
            context.say(f"{arm}, {came}: p99 {1000 * window.p99:.1f} ms")

    def _window(self, asker: Asker, prompts: Sequence[Prompt], coming: Sequence[Prompt], seconds: float) -> Window:
        """Decodes streams until the window's end, and sends long prompts at intervals from its beginning."""
        began = time.perf_counter()
        since = began + self.settle_seconds
        until = since + seconds
        streams: list[Stream] = []
        long: list[Stream] = []

        def run(prompt: Prompt) -> None:
            # More tokens than there is time for: the window's end cuts the answer off.
            streams.append(asker.ask(prompt, 2000, until))

        def come(prompt: Prompt, at: float) -> None:
            time.sleep(max(0.0, at - time.perf_counter()))
            long.append(asker.ask(prompt, 8, until))

        tasks = [*(_task(run, prompt) for prompt in prompts[: self.rows])]
        tasks += [_task(come, prompt, since + i * self.every_seconds) for i, prompt in enumerate(coming)]
        together(tasks, self.settle_seconds + seconds + ANSWER_SECONDS)
        return Window(tuple(streams), tuple(long), since, until)


def _task(function: Any, *arguments: Any) -> Any:
    return lambda: function(*arguments)


def settle(asker: Asker, prompt: Prompt) -> None:
    """Waits until the server has finished what was cancelled and answers again. Raises RuntimeError if it does not."""
    stream = asker.ask(prompt, 1, time.perf_counter() + ANSWER_SECONDS)
    if stream.error:
        raise RuntimeError(stream.error)


def windows(records: Sequence[dict[str, Any]]) -> dict[tuple[int, str, bool], Window]:
    return {(one["repetition"], one["arm"], one["disturbed"]): Window.of_record(one["window"]) for one in records}


def compared(found: Windows) -> list[Figure]:
    """Returns for each arm the p99 of inter-token times with long prompts divided by that without, paired by
    repetition."""
    figures = []
    for arm in ARMS:
        pairs = [
            (window.p99, found[repetition, arm, False].p99)
            for (repetition, name, disturbed), window in sorted(found.items())
            if name == arm and disturbed and (repetition, arm, False) in found
        ]
        if not pairs:
            raise ValueError(f"no repetition of the arm {arm} has both a disturbed and an undisturbed window")
        quotients = [mine / base for mine, base in pairs]
        disturbed_ms, base_ms = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
        came = [window.answered for (_, name, disturbed), window in found.items() if name == arm and disturbed]
        answered = f"{sum(a for a, _ in came)} of {sum(b for _, b in came)} long prompts answered within"
        figures.append(
            Figure.of_ratios(
                f"{arm}_inter_token_p99",
                quotients,
                WANTED if arm == AUTOMATIC else None,
                Direction.AT_MOST,
                f"{disturbed_ms:.0f} ms against {base_ms:.0f}; {answered}",
            )
        )
    return figures
