"""`python -m benchmarks.records`: what does it cost to send each operation of a target to other ranks as a record?

The embedded target decodes in three configurations (arms): alone; as a rank whose records are discarded; and as a rank
whose records another process reads without executing them. A result is the median over repetitions of an arm's steps
per second divided by those of the target alone, in the same process. Each repetition measures all arms in a random
order, after a garbage collection. `benchmarks.ranks` measures the gain of ranks and the time of collectives. The last
line is JSON.

--repetitions N   default: 30
--steps N         steps of each arm in each repetition; default: 16
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.table import Table

from draftd.models.blas import load_blas

LEAST = 0.97  # minimum of an arm's steps per second divided by the plain target's
_PROMPT = 32
_DEPTH = 4
_SHAPES = ((1, 0), (4, 0), (1, _DEPTH), (4, _DEPTH))  # (sequences, draft tokens of each)
_READER = "import socket,sys; s=socket.socket(fileno=int(sys.argv[1]))\nwhile s.recv(1<<16): pass"


class Records:
    """A `RecordSender` that counts records (operations of a target, encoded for other ranks). With `reader`, a socket,
    it sends them to one process that reads and discards them. Without, it discards them itself."""

    def __init__(self, reader: socket.socket | None = None) -> None:
        self.records, self.bytes, self.seconds = 0, 0, 0.0
        self._reader = reader

    def send(self, record: bytes) -> None:
        self.records, self.bytes = self.records + 1, self.bytes + len(record)
        if self._reader is not None:
            self._reader.sendall(len(record).to_bytes(4, "little") + record)

    def report_progress(self, progress: Any) -> None:
        """Does nothing: this benchmark watches no progress."""


class Arm:
    """A target with `sequences` open sequences, each with a prompt of 32 tokens. `depth` is the draft tokens of a
    step."""

    def __init__(self, target: Any, vocabulary: int, sequences: int, depth: int) -> None:
        import mlx.core as mx

        from draftd.engine.drafters.base import Draft
        from draftd.engine.step import PlanEntry
        from draftd.engine.targets.base import PlanNumbers, SequenceOptions

        self._target, self._steps, self._entry = target, PlanNumbers(target), PlanEntry
        self._depth, self._sequences = depth, list(range(sequences))
        tokens = mx.ones((sequences, depth), dtype=mx.uint32)
        self._draft = Draft(tokens, [depth] * sequences, None, [0] * sequences) if depth else None
        for one in self._sequences:
            prompt = tuple((7 * i + one) % vocabulary for i in range(_PROMPT))
            target.open(one, SequenceOptions(prompt=_PROMPT, length=_PROMPT))
            self._steps.result(self._steps.submit([PlanEntry(one, 0, prompt)]))
        self._first = [_PROMPT] * sequences

    def run(self, steps: int) -> float:
        """Decodes `steps` steps and returns their seconds. Steps without drafts are pipelined, as in real decoding. At
        the end every sequence is set back to the length of its prompt, 32 tokens."""
        began = time.perf_counter()
        if self._draft is not None:
            for _ in range(steps):
                self._steps.result(self._steps.submit(self._entries(), self._draft))
        else:
            ahead = self._steps.submit(self._entries())
            for left in reversed(range(steps)):
                current = ahead
                if left:
                    ahead = self._steps.submit(self._entries())
                self._steps.result(current)
        taken = time.perf_counter() - began
        self._target.pretend([_PROMPT] * len(self._sequences))
        return taken

    def _entries(self) -> list[Any]:
        held = self._target.lengths or self._first
        return [
            self._entry(one, position, (), self._depth) for one, position in zip(self._sequences, held, strict=True)
        ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--steps", type=int, default=16)
    given = parser.parse_args()
    load_blas()
    found = cost(given.repetitions, given.steps)
    _show(found)
    print(json.dumps({"least": LEAST, "shapes": found}))
    return int(any(one["no_follower"] < LEAST or one["reader"] < LEAST for one in found))


def cost(repetitions: int, steps: int) -> list[dict[str, float]]:
    """Measures each of `_SHAPES`, (sequences, draft tokens of each). Returns a dict for each. `no_follower` (records
    discarded) and `reader` (records sent) are steps per second divided by those of the target alone. Other keys have
    the microseconds of a step and of a record, and a step's records and their bytes."""
    ours, theirs = socket.socketpair()
    reader = subprocess.Popen([sys.executable, "-c", _READER, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        return [_cost(shape, repetitions, steps, ours) for shape in _SHAPES]
    finally:
        ours.close()
        reader.wait(10)


def _cost(shape: tuple[int, int], repetitions: int, steps: int, reader: socket.socket) -> dict[str, float]:
    from draftd.engine.ranks.channel import Op, encode_record

    senders = {"no_follower": Records(), "reader": Records(reader)}
    plain, vocabulary = _target(None)
    arms = {"plain": Arm(plain, vocabulary, *shape)}
    for name, sender in senders.items():
        arms[name] = Arm(_target(sender)[0], vocabulary, *shape)
    dice, taken = random.Random(1), dict[str, list[float]]({name: [] for name in arms})
    for _ in range(2):
        for arm in arms.values():
            arm.run(steps)
    before = {name: (one.records, one.bytes) for name, one in senders.items()}
    for _ in range(repetitions):
        gc.collect()
        for name in dice.sample(list(arms), len(arms)):
            taken[name].append(arms[name].run(steps))
    records, count = senders["reader"], repetitions * steps
    sent, size = (now - then for now, then in zip((records.records, records.bytes), before["reader"], strict=True))
    ratios = {
        name: statistics.median(a / b for a, b in zip(taken["plain"], taken[name], strict=True)) for name in senders
    }
    each = _microseconds(lambda: records.send(encode_record(Op.FORWARD, 5, 1, [1] * shape[0], None)))
    step = 1e6 * statistics.median(taken["plain"]) / steps
    return {
        "sequences": shape[0],
        "depth": shape[1],
        "step_microseconds": round(step, 1),
        **{name: round(value, 4) for name, value in ratios.items()},
        "added_microseconds": round(step * (1 / ratios["reader"] - 1), 1),
        "records_per_step": round(sent / count, 2),
        "bytes_per_step": round(size / count, 1),
        "record_microseconds": round(each, 2),
    }


def _target(sender: Records | None) -> tuple[Any, int]:
    from draftd.engine.ranks.caches import lead
    from draftd.engine.ranks.group import join_group
    from draftd.engine.ranks.model_shard import open_share, read_share
    from draftd.engine.targets.local import LocalTarget
    from draftd.models.folder import ModelFolder
    from draftd.models.mlx_lm import vocabulary_size

    folder = ModelFolder(str(files("draftd.models.nano") / "target"))
    part, _ = open_share(folder, join_group())
    read_share(part, folder.called)
    if sender is None:
        model, _ = folder.open()
    else:
        lead(part, sender)
        model = part.model
    return LocalTarget(model, vocabulary_size(model)), vocabulary_size(model)


def _microseconds(one: Callable[[], None], times: int = 2000) -> float:
    """Returns the microseconds of one call: the minimum over five means of `times` calls."""
    passes = list[float]()
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(times):
            one()
        passes.append((time.perf_counter() - began) / times)
    return 1e6 * min(passes)


def _show(found: list[dict[str, float]]) -> None:
    table = Table(title="cost of records: steps per second ÷ those of the target alone", title_justify="left")
    for column in ("sequences", "depth", "µs a step", "discarded", "read", "records/step", "bytes/step", "µs a record"):
        table.add_column(column, justify="right")
    keys = ("sequences", "depth", "step_microseconds", "no_follower", "reader", "records_per_step", "bytes_per_step")
    for one in found:
        table.add_row(*(f"{one[key]:g}" for key in (*keys, "record_microseconds")))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
