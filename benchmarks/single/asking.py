"""Sends a prompt to draftd or mlx-lm, and returns the greedy answer as a record: its token ids, and when each came."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.arms import MlxLm, Prompt
from benchmarks.peers.load import together
from draftd.client.client import DraftdClient
from draftd.core import ModePreference, WorkloadClass

_ANSWER_SECONDS = 600.0


def ask(
    client: DraftdClient,
    prompt: Prompt,
    max_tokens: int,
    mode: ModePreference = ModePreference.AUTO,
    **more: Any,
) -> dict[str, Any]:
    """Sends a prompt to a daemon over gRPC. `more` has other fields of the request. Returns a record with `text` (token
    ids) and `times` (seconds from the request to each token). It also has the daemon's counts: `cached` prompt tokens
    that were reused, `steps`, and `drafted` and `accepted` tokens."""
    text: list[int] = []
    times: list[float] = []
    counts = dict[str, Any]()
    asked = time.perf_counter()
    for response in client.generate(
        tokens=prompt.tokens,
        max_tokens=max_tokens,
        mode=mode,
        workload=WorkloadClass(prompt.workload),
        timeout=_ANSWER_SECONDS,
        **more,
    ):
        if response.HasField("chunk"):
            now = time.perf_counter() - asked
            text += response.chunk.token_ids
            times += [round(now, 6)] * len(response.chunk.token_ids)
        elif response.HasField("finished"):
            finished = response.finished
            counts = {
                "cached": finished.usage.cache_read_tokens,
                "steps": finished.counts.steps,
                "drafted": finished.counts.drafted_tokens,
                "accepted": finished.counts.accepted_tokens,
            }
    return _record(prompt, text, times) | counts


def ask_together(
    client: DraftdClient, prompts: Sequence[Prompt], max_tokens: int, mode: ModePreference, **more: Any
) -> list[dict[str, Any]]:
    """Sends all prompts at once, one thread each. Returns their records, whose `times` count from the same moment."""
    answers: list[dict[str, Any]] = []
    began = time.perf_counter()

    def one(prompt: Prompt) -> None:
        offset = time.perf_counter() - began
        answer = ask(client, prompt, max_tokens, mode, **more)
        answers.append(answer | {"times": [round(offset + at, 6) for at in answer["times"]]})

    together([lambda prompt=prompt: one(prompt) for prompt in prompts], _ANSWER_SECONDS)  # type: ignore[misc]
    return answers


def ask_mlx_lm(process: subprocess.Popen[str], prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """Sends a prompt to the mlx-lm process, which measures itself. Returns a record with `text` (token ids), `times`
    (seconds to each token) and `peak`, the peak of MLX's memory in bytes."""
    found = MlxLm(process, 0, 0.0, max_tokens).answer(prompt, seed=0)
    return _record(prompt, found.text, found.times) | {"peak": found.peak}


def _record(prompt: Prompt, text: Sequence[int], times: Sequence[float]) -> dict[str, Any]:
    if not text:
        raise RuntimeError(f"{prompt.id}: the answer has no token")
    return {
        "prompt": prompt.id,
        "workload": prompt.workload,
        "prompt_tokens": len(prompt.tokens),
        "text": list(text),
        "times": [round(at, 6) for at in times],
    }
