"""Part `first_token`: the time to the first token of a prompt that was never sent before, and the memory that it takes.

The peak of MLX's memory in a daemon covers all that it has done: loading, measurements at start and when idle, earlier
prompts. So short prompts go to a new daemon that is idle, and each long one to a daemon of its own. mlx-lm's peak
begins with the prompt, when its weights are loaded. The daemons have default settings, except that they read their
memory more often.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt, daemon
from benchmarks.idle import process_at
from benchmarks.single.asking import ask, ask_mlx_lm
from benchmarks.single.figures import Found, Record, Row, median_of, same_texts, spread
from benchmarks.single.part import AUTOMATIC, MLX_LM, Turn
from benchmarks.single.resident import watched
from draftd.client.client import DraftdClient

_WANTED: Mapping[int, float] = {50: 0.65, 500: 0.97, 2000: 0.70, 6000: 0.75}
_EVERY: Mapping[int, int] = {6000: 3}  # only in every third repetition, from the first on: both arms take three minutes
_MEMORY = 1.10
_SETTINGS = {"hardware.period_seconds": 0.5}  # else the first reading could include measurements of the idle daemon
_STATUS_SECONDS, _LOOK_SECONDS = 60.0, 0.2
_WARM_UP_TOKENS = 20


@dataclass(frozen=True, slots=True)
class FirstToken:
    name: str = "first_token"
    title: str = "prompts that were never seen: seconds to the first token, and memory, over mlx-lm's"
    daemons: Sequence[Sequence[int]] = ((50, 500), (2000,), (6000,))  # each daemon's prompt lengths, ascending

    def measure(self, turn: Turn) -> None:
        warm_up = turn.prompts.of_length(_WARM_UP_TOKENS, -1)
        ask_mlx_lm(turn.processes.mlx_lm, warm_up, 2)
        room = turn.processes.context_length
        for lengths in self.daemons:
            due = [length for length in lengths if turn.repetition % _EVERY.get(length, 1) == 0]
            if due and due[-1] >= room:
                turn.say(f"{due} tokens: left out, the model takes {room}")
            elif due:
                with daemon(turn.processes.model, "", turn.processes.sink, settings=_SETTINGS) as client:
                    ask(client, warm_up, 2)
                    for length in due:
                        self._ask(turn, client, length)

    def _ask(self, turn: Turn, client: DraftdClient, length: int) -> None:
        """Measures both arms on one prompt of `length` tokens."""
        process, mlx_lm = process_at(client.target), turn.processes.mlx_lm
        prompt = turn.prompts.of_length(length, turn.repetition * len(_WANTED) + list(_WANTED).index(length))
        for arm in turn.shuffled((AUTOMATIC, MLX_LM)):
            turn.processes.rest(process)
            with watched(process.pid if arm == AUTOMATIC else mlx_lm.pid) as resident:
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
            own = [one for one in records if one["length"] == length and "peak_before" in one]
            before = median_of("peak_before")(own)
            detail = f"{before / 2**20:.4g} before it was asked"
            rows.append(Row(f"MLX's peak, {length} tokens", peak, "MiB", f"≤ {_MEMORY:.2f}", detail))
            rows.append(Row(f"resident, {length} tokens", resident, "MiB"))
            memory[str(length)] = peak.document()
        return Found({"first_token_vs_mlx_lm": first, "memory_vs_mlx_lm": memory}, rows)


def _mebibytes(name: str) -> Any:
    return lambda records: median_of(name)(records) / 2**20


def _peaked(client: DraftdClient, prompt: Prompt) -> dict[str, Any]:
    """Asks for one token. Adds to its record the peak of MLX's memory in the daemon, in bytes: `peak_before`, as
    reported before the request, and `peak`, which the daemon read after the answer. Raises TimeoutError if the daemon
    does not read its memory within 60 seconds."""
    before = client.status().hardware.mlx_peak_bytes
    answer = ask(client, prompt, 1)
    ended = time.monotonic()
    while time.monotonic() < ended + _STATUS_SECONDS:
        hardware = client.status().hardware
        if hardware.age.ToTimedelta().total_seconds() < time.monotonic() - ended - _LOOK_SECONDS:
            return answer | {"peak": hardware.mlx_peak_bytes, "peak_before": before}
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"the daemon did not read its memory for {_STATUS_SECONDS:.0f} s")
