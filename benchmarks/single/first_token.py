"""Part `first_token`: the time to the first token of a prompt that was never seen, and the memory that it takes.

Each prompt has a new daemon with default settings, because MLX's peak in a daemon covers all that it has done. That
peak includes loading and what is measured at start; of mlx-lm it begins with the prompt, when its weights are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.arms import Prompt, daemon
from benchmarks.single.asking import ask, ask_mlx_lm
from benchmarks.single.figures import Found, Record, Row, median_of, same_texts, spread
from benchmarks.single.part import AUTOMATIC, MLX_LM, PAUSE_SECONDS, Turn
from benchmarks.single.resident import watched
from draftd.client.client import DraftdClient

_WANTED: Mapping[int, float] = {50: 0.65, 500: 0.97, 2000: 0.70, 6000: 0.75}
_EVERY: Mapping[int, int] = {6000: 3}  # in every third repetition, from the first on: it takes three minutes
_MEMORY = 1.10
_STATUS_SECONDS = 60.0
_WARM_UP_TOKENS = 20


@dataclass(frozen=True, slots=True)
class FirstToken:
    name: str = "first_token"
    title: str = "prompts that were never seen: seconds to the first token, and memory, over mlx-lm's"
    lengths: Sequence[int] = field(default=tuple(_WANTED))

    def measure(self, turn: Turn) -> None:
        mlx_lm = turn.processes.mlx_lm
        warm_up = turn.prompts.of_length(_WARM_UP_TOKENS, -1)
        ask_mlx_lm(mlx_lm, warm_up, 2)
        for place, length in enumerate(self.lengths):
            if turn.repetition % _EVERY.get(length, 1):
                continue
            prompt = turn.prompts.of_length(length, turn.repetition * len(self.lengths) + place)
            with _new_daemon(turn) as (client, pid):
                room = client.model().context_length
                if length >= room:
                    turn.say(f"{length} tokens: left out, the model takes {room}")
                    continue
                ask(client, warm_up, 2)
                for arm in turn.shuffled((AUTOMATIC, MLX_LM)):
                    time.sleep(PAUSE_SECONDS)
                    with watched(pid if arm == AUTOMATIC else mlx_lm.pid) as resident:
                        answer = _peaked(client, prompt) if arm == AUTOMATIC else ask_mlx_lm(mlx_lm, prompt, 1)
                    said = {"length": length, "first": answer["times"][0], "resident": resident.most}
                    turn.add(arm, answer | said)
                    turn.say(f"{length} tokens, {arm}: {answer['times'][0]:.2f} s, {answer['peak'] / 2**20:.0f} MiB")

    def found(self, records: Sequence[Record]) -> Found:
        same_texts(records)
        first: dict[str, Any] = {}
        memory: dict[str, Any] = {}
        rows = []
        for length in sorted({one["length"] for one in records}):
            seconds = spread(records, AUTOMATIC, MLX_LM, median_of("first"), length=length)
            wanted = f"≤ {_WANTED[length]:.2f}" if length in _WANTED else ""
            rows.append(Row(f"first token, {length} tokens", seconds, "s", wanted))
            first[str(length)] = seconds.document()
        for length in sorted({one["length"] for one in records}):
            peak = spread(records, AUTOMATIC, MLX_LM, _mebibytes("peak"), length=length)
            resident = spread(records, AUTOMATIC, MLX_LM, _mebibytes("resident"), length=length)
            rows.append(Row(f"MLX's peak, {length} tokens", peak, "MiB", f"≤ {_MEMORY:.2f}"))
            rows.append(Row(f"resident, {length} tokens", resident, "MiB"))
            memory[str(length)] = peak.document()
        return Found({"first_token_vs_mlx_lm": first, "memory_vs_mlx_lm": memory}, rows)


def _mebibytes(name: str) -> Any:
    return lambda records: median_of(name)(records) / 2**20


@contextmanager
def _new_daemon(turn: Turn) -> Iterator[tuple[DraftdClient, int]]:
    """With its process id."""
    here, sink = psutil.Process(), turn.processes.sink
    before = {child.pid for child in here.children()}
    with daemon(turn.processes.model, "", sink) as client:
        (new,) = (child.pid for child in here.children() if child.pid not in before)
        yield client, new


def _peaked(client: DraftdClient, prompt: Prompt) -> dict[str, Any]:
    """The answer to one token, and MLX's peak by the daemon's first reading of it after that."""
    answer = ask(client, prompt, 1)
    ended = time.monotonic()
    while time.monotonic() < ended + _STATUS_SECONDS:
        hardware = client.status().hardware
        if hardware.age.ToTimedelta().total_seconds() < time.monotonic() - ended - PAUSE_SECONDS:
            return answer | {"peak": hardware.mlx_peak_bytes}
        time.sleep(PAUSE_SECONDS)
    raise TimeoutError(f"the daemon read no memory for {_STATUS_SECONDS:.0f} s")
