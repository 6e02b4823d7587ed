"""Part `start`: seconds from the start of a process to the first token of a short answer, divided by mlx-lm's
process's.

draftd's client is already there and asks as soon as the daemon serves. mlx-lm's process loads the model, generates and
prints.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arms import Prompt, daemon
from benchmarks.single.asking import ask
from benchmarks.single.figures import Found, Record, Row, median_of, spread
from benchmarks.single.part import MLX_LM, Turn

EMPTY, KEPT = "empty_state", "kept_state"
_TOKENS = 8
_PROMPT_TOKENS = 40
_MLX_LM = """
import json, sys
from draftd.models.blas import load_blas
load_blas()
import mlx.core as mx
from mlx_lm import load, stream_generate
model, tokenizer = load(sys.argv[1])
if mx.default_device() == mx.Device(mx.cpu):
    model.set_dtype(mx.float32)
for response in stream_generate(model, tokenizer, json.loads(sys.argv[2]), max_tokens=int(sys.argv[3])):
    print(int(response.token), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Start:
    name: str = "start"
    title: str = "seconds from a process's start to the first token of a short answer, over mlx-lm's process"

    def measure(self, turn: Turn) -> None:
        prompt = turn.prompts.of_length(_PROMPT_TOKENS, turn.repetition)
        with tempfile.TemporaryDirectory(prefix="draftd-bench-") as folder:
            for arm in turn.draw.choice(((MLX_LM, EMPTY, KEPT), (EMPTY, KEPT, MLX_LM))):
                turn.processes.rest()
                if arm == MLX_LM:
                    found = _mlx_lm(turn.processes.model, prompt)
                else:
                    found = _draftd(turn.processes.model, prompt, Path(folder))
                turn.add(arm, {"prompt": prompt.id, "seconds": found[0], "text": found[1]})

    def found(self, records: Sequence[Record]) -> Found:
        empty, kept = (spread(records, arm, MLX_LM, median_of("seconds")) for arm in (EMPTY, KEPT))
        rows = [
            Row("an empty state folder", empty, "s", "≤ 1.5"),
            Row("the state folder of an earlier start", kept, "s"),
        ]
        return Found({"start_vs_mlx_lm": empty.document()}, rows)


def _draftd(model: str, prompt: Prompt, state: Path) -> tuple[float, list[int]]:
    began = time.perf_counter()
    with daemon(model, "", None, state=state) as client:
        until_served = time.perf_counter() - began
        answer = ask(client, prompt, _TOKENS)
        return until_served + answer["times"][0], answer["text"]


def _mlx_lm(model: str, prompt: Prompt) -> tuple[float, list[int]]:
    arguments = [model, str(list(prompt.tokens)), str(_TOKENS)]
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", _MLX_LM, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        seconds = time.perf_counter() - began
        text = [int(line) for line in (first, *process.stdout)]
    if process.returncode:
        raise RuntimeError(f"the mlx-lm process ended with exit code {process.returncode}")
    return seconds, text[:_TOKENS]
