"""The interface between the command and its parts, and what a part works with: processes and prompts.

A part measures one claim, once in each repetition, and computes its results from its records alone. A record has at
least `repetition` and `arm`. A new part is added to `registry.py`.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import psutil
from rich.console import Console

from benchmarks.arms import Prompt, daemon, helper
from benchmarks.idle import process_at, wait_until_idle
from benchmarks.single.figures import Found, Record
from benchmarks.single.prompts import Prompts
from draftd.client.client import DraftdClient
from draftd.core import WorkloadClass

AUTOMATIC = "automatic"  # draftd's default
AUTOREGRESSIVE = "autoregressive"  # draftd, where each request turns drafts off
MLX_LM = "mlx_lm"


class Processes:
    """Processes that the parts of a repetition share, each started on first use: a daemon with default settings that
    exports its telemetry, and mlx-lm."""

    def __init__(self, stack: contextlib.ExitStack, model: str) -> None:
        self._stack, self.model = stack, model
        self._running: list[psutil.Process] = []

    def rest(self, *others: psutil.Process) -> None:
        """Waits until these processes and `others` are idle. After an answer they may still measure step costs, or
        finish a forward that was started ahead and is discarded."""
        wait_until_idle([*self._running, *others])

    @cached_property
    def sink(self) -> str:
        """Endpoint to which telemetry is sent."""
        return self._stack.enter_context(helper("benchmarks.otlp_sink"))[1]

    @cached_property
    def daemon(self) -> DraftdClient:
        client = self._stack.enter_context(daemon(self.model, "", self.sink))
        self._running.append(process_at(client.target))
        self.rest()  # step costs that it measured beside another process would be measured again
        return client

    @cached_property
    def context_length(self) -> int:
        """The longest context that the model accepts, in tokens."""
        return self.daemon.model().context_length

    @cached_property
    def mlx_lm(self) -> subprocess.Popen[str]:
        process, _ = self._stack.enter_context(helper("benchmarks.mlx_lm_peer", self.model))
        self._running.append(psutil.Process(process.pid))
        return process


@dataclass(frozen=True, slots=True)
class Turn:
    """One part's measurements in one repetition. `draw` has random numbers of its own, the same each time the part is
    measured."""

    repetition: int
    processes: Processes
    prompts: Prompts
    console: Console
    draw: random.Random
    records: list[Record] = field(default_factory=list)

    def add(self, arm: str, record: Mapping[str, Any]) -> None:
        self.records.append({"repetition": self.repetition, **record, "arm": arm})

    def say(self, line: str) -> None:
        self.console.print(f"  {line}", style="dim", highlight=False)

    def of_class(self, workload: WorkloadClass, count: int) -> list[Prompt]:
        """Returns `count` held-out prompts of a category (class); different ones in each repetition."""
        return self.prompts.of_class(workload, self.repetition, count)

    def shuffled(self, arms: Sequence[str]) -> list[str]:
        """Returns the arms in a random order, drawn again at each call. Each group of answers that are compared makes a
        call."""
        return self.draw.sample(arms, len(arms))


class Part(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def measure(self, turn: Turn) -> None:
        """Measures one repetition and adds its records to `turn`."""
        ...

    def found(self, records: Sequence[Record]) -> Found:
        """Computes the results. Raises ValueError if the records cannot be compared."""
        ...
