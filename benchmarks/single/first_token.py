"""Part `first_token`: the time to the first token of a prompt that was never seen, and the memory that it takes.

Each prompt has a new daemon, because MLX's peak in a daemon covers all that it has done. That peak includes loading and
what is measured at start; of mlx-lm it begins with the prompt, when its weights are loaded. The daemon has default
settings, except that it reads its memory more often.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.arms import Prompt, daemon
from benchmarks.idle import process_at
from benchmarks.single.asking import ask, ask_mlx_lm
from benchmarks.single.figures import Found, Record, Row, median_of, same_texts, spread
from benchmarks.single.part import AUTOMATIC, MLX_LM, Turn
from benchmarks.single.resident import watched
from draftd.client.client import DraftdClient

_WANTED: Mapping[int, float] = {50: 0.65, 500: 0.97, 2000: 0.70, 6000: 0.75}
_EVERY: Mapping[int, int] = {6000: 3}  # in every third repetition, from the first on: it takes three minutes
_MEMORY = 1.10
_SETTINGS = {"hardware.period_seconds": 0.5}  # or what is measured when idle would be in the first reading after it
_STATUS_SECONDS, _LOOK_SECONDS = 60.0, 0.2
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
        room = turn.processes.context_length
        for place, length in enumerate(self.lengths):
            if turn.repetition % _EVERY.get(length, 1):
                continue
            if length >= room:
                turn.say(f"{length} tokens: left out, the model takes {room}")
                continue
            prompt = turn.prompts.of_length(length, turn.repetition * len(self.lengths) + place)
            for arm in turn.shuffled((AUTOMATIC, MLX_LM)):
                turn.processes.rest()
                if arm == MLX_LM:
                    with watched(mlx_lm.pid) as resident:
                        answer = ask_mlx_lm(mlx_lm, prompt, 1)
                else:
                    with daemon(turn.processes.model, "", turn.processes.sink, settings=_SETTINGS) as client:
                        ask(client, warm_up, 2)
                        with watched(process_at(client.target).pid) as resident:
                            answer = _peaked(client, prompt)
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


def _peaked(client: DraftdClient, prompt: Prompt) -> dict[str, Any]:
    """The answer to one token, and MLX's peak by the daemon's first reading of it after that."""
    answer = ask(client, prompt, 1)
    ended = time.monotonic()
    while time.monotonic() < ended + _STATUS_SECONDS:
        hardware = client.status().hardware
        if hardware.age.ToTimedelta().total_seconds() < time.monotonic() - ended - _LOOK_SECONDS:
            return answer | {"peak": hardware.mlx_peak_bytes}
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"the daemon read no memory for {_STATUS_SECONDS:.0f} s")
