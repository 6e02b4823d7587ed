"""Part `long`: a 1,500-token prompt arrives every second beside streams that run.

Windows of some seconds, alternately undisturbed and disturbed, each with the same streams begun anew: what a stream
costs grows with its length, which so is the same in both. What is compared is the time between tokens of the streams
that run. A gap still open at a window's end counts for as long as it has lasted: it would else be the longest of all
that is left out.
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

ARMS = (AUTOMATIC, AUTOREGRESSIVE, PEER)  # the peer with its draft runs one stream at a time: there are none to disturb
WANTED = 2.0
_SLACK_SECONDS = 0.5  # a deadline's clock is another's


@dataclass(frozen=True, slots=True)
class Window:
    """The streams that ran, and the long prompts that came, of which there are none where it was undisturbed. What
    counts is what came within (since, until]."""

    streams: tuple[Stream, ...]
    long: tuple[Stream, ...]
    since: float
    until: float

    def inter_token(self) -> list[float]:
        """Of all streams, open gaps with them; one that had not begun has waited for the whole window. Raises
        RuntimeError where a stream ended otherwise than by the window's end."""
        found: list[float] = []
        for stream in self.streams:
            if stream.ended < self.until - _SLACK_SECONDS:
                raise RuntimeError(
                    f"{stream.prompt} ended before the window did: {stream.error or 'its answer was complete'}"
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
        """Long prompts that had their first token within the window, and how many came."""
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
    settle_seconds: float = 2.0  # from the streams' beginning until the window's
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
        for arm, asker in askers.items():  # not kept
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
        """Streams that run until the window's end, and long prompts that come from its beginning on."""
        began = time.perf_counter()
        since = began + self.settle_seconds
        until = since + seconds
        streams: list[Stream] = []
        long: list[Stream] = []

        def run(prompt: Prompt) -> None:
            # More than there is time for: the window's end ends it.
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
    """Waits until what was left unfinished is out of the way. Raises RuntimeError where it never is."""
    stream = asker.ask(prompt, 1, time.perf_counter() + ANSWER_SECONDS)
    if stream.error:
        raise RuntimeError(stream.error)


def windows(records: Sequence[dict[str, Any]]) -> dict[tuple[int, str, bool], Window]:
    return {(one["repetition"], one["arm"], one["disturbed"]): Window.of_record(one["window"]) for one in records}


def compared(found: Windows) -> list[Figure]:
    """For each arm, p99 disturbed over undisturbed, paired by repetition."""
    figures = []
    for arm in ARMS:
        pairs = [
            (window.p99, found[repetition, arm, False].p99)
            for (repetition, name, disturbed), window in sorted(found.items())
            if name == arm and disturbed and (repetition, arm, False) in found
        ]
        if not pairs:
            raise ValueError(f"no repetition of {arm} has both windows")
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
