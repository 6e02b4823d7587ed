"""`make bench-settle`: how many tokens does the depth need to settle after a start on a busy machine, or a restart?

Three daemons get the same `edit` prompts in the same order, greedy, one at a time, so that all write the same texts.

    reference  on a quiet machine, with an empty state folder: three passes over the prompts
    start      with an empty state folder, beside two busy processes. These end 20 s after the daemon's start, or 10 s
               after it begins to serve where that is later
    restart    that daemon, stopped and started again with its state folder, on a quiet machine

The depth is drafted tokens a step, by the daemon's own counts after each chunk. Edits alternate between copied and new
text, and depth with it. So a mean over 32 tokens is compared with the reference's for the same 32 tokens in its second
and third pass, when it had settled. It is settled within 20 % of either, or between them. Windows in which the
reference drafted less than half a token a step are skipped. The result is the number of tokens until the end of the
first settled window. It counts from the busy processes' end, or from the restart's first token, and is at least 32.
After 1,500 tokens without such a window it is null.

The last line is JSON: `{"start": tokens, "restart": tokens}`. The real model is measured unless another is chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.arms import Prompt, daemon
from benchmarks.single.prompts import Prompts
from draftd.client.client import DraftdClient
from draftd.core import WorkloadClass

WINDOW = 32  # tokens
WITHIN = 0.2
MOST = 1500  # tokens after which the search for a settled window ends
_SHOWN = 256  # minimum tokens that the table covers
LEAST_DEPTH = 0.5  # minimum depth of the reference for a window to count
_LOOPS, _LOOP_SECONDS, _SERVED_SECONDS = 2, 20.0, 10.0
_PASSES = 3
_TOKENS = 96  # maximum of an answer
_ANSWER_SECONDS = 300.0
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends when its parent does


@dataclass(frozen=True, slots=True)
class Step:
    """The daemon's decode steps between two chunks of output. `end` counts the output tokens up to the second chunk,
    over all answers; `steps` and `drafted` (tokens) count since the first."""

    end: int
    steps: int
    drafted: int
    at: float = 0.0  # time.monotonic


@dataclass(frozen=True, slots=True)
class Window:
    """The mean depth (drafted tokens a step) over the `WINDOW` tokens up to `end`. `low` and `high` are the reference's
    lowest and highest mean depth for the same text."""

    end: int
    depth: float
    low: float
    high: float

    @property
    def settled(self) -> bool:
        return (1 - WITHIN) * self.low <= self.depth <= (1 + WITHIN) * self.high


def mean_depth(steps: Sequence[Step], since: int, until: int) -> float:
    """Returns drafted tokens per step, over the steps that ended at a token in (since, until]; 0 without any."""
    first, last = (bisect_right(steps, place, key=lambda one: one.end) for place in (since, until))
    chosen = steps[first:last]
    count = sum(one.steps for one in chosen)
    return sum(one.drafted for one in chosen) / count if count else 0.0


def settled_after(found: Sequence[Window], begin: int) -> int | None:
    """Returns the tokens from `begin` to the end of the first settled window, or None if none ends within `MOST`
    tokens."""
    return next((one.end - begin for one in found if one.settled and one.end - begin <= MOST), None)


@dataclass(slots=True)
class Traffic:
    """Sends the prompts again and again, and counts the daemon's steps. `texts` holds the token ids by prompt; every
    answer must repeat them."""

    client: DraftdClient
    prompts: Sequence[Prompt]
    texts: dict[str, list[int]]

    def steps(self) -> Iterator[Step]:
        """Yields steps as they come, without an end. Closing the iterator cancels the answer. Raises SystemExit if a
        text differs."""
        done = 0
        before = self.client.status().counts
        for prompt in itertools.cycle(self.prompts):
            text: list[int] = []
            for response in self.client.generate(
                tokens=prompt.tokens,
                max_tokens=_TOKENS,
                workload=WorkloadClass(prompt.workload),
                timeout=_ANSWER_SECONDS,
            ):
                if response.HasField("chunk") and response.chunk.token_ids:
                    text += response.chunk.token_ids
                    done += len(response.chunk.token_ids)
                    counts = self.client.status().counts
                    steps, drafted = counts.steps - before.steps, counts.drafted_tokens - before.drafted_tokens
                    before = counts
                    yield Step(done, steps, drafted, time.monotonic())
            if self.texts.setdefault(prompt.id, text) != text:
                raise SystemExit(f"the greedy text for prompt {prompt.id} differs from the reference's")


@dataclass(slots=True)
class Busy:
    """Child processes that compute without a pause. `ended` is the time.monotonic at which they were ended, 0
    before."""

    ended: float = 0.0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _timer: threading.Timer | None = None

    @contextlib.contextmanager
    def running(self, count: int) -> Iterator[None]:
        self._processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()
            self._end()

    def end_in(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end)
        self._timer.start()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.ended = self.ended or time.monotonic()


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference daemon's steps. Its passes over the prompts, except the first, give the settled depth at each place
    of the texts."""

    steps: Sequence[Step]
    total: int  # tokens of a pass

    def window(self, steps: Sequence[Step], end: int) -> Window | None:
        """Returns the window of `steps` that ends at token `end`, or None if the reference drafts too little there to
        compare."""
        place = (end - 1) % self.total + 1  # within a pass
        starts = [n * self.total for n in range(1, self.steps[-1].end // self.total)]
        depths = [mean_depth(self.steps, start + place - WINDOW, start + place) for start in starts]
        if min(depths) < LEAST_DEPTH:
            return None
        return Window(end, mean_depth(steps, end - WINDOW, end), min(depths), max(depths))

    def windows(self, steps: Sequence[Step], begin: int = 0) -> list[Window]:
        """Returns the windows that lie after the token `begin`, one for each step."""
        found = (self.window(steps, one.end) for one in steps if one.end >= begin + WINDOW)
        return [one for one in found if one is not None]

    def follow(self, steps: Iterator[Step], busy: Busy | None = None) -> tuple[list[Window], int]:
        """Reads steps until a window is settled, or for `MOST` tokens. Returns the windows, and the token from which
        they count: the one at which `busy` ended, or the first."""
        seen: list[Step] = []
        found: list[Window] = []
        begin = None if busy is not None else 0
        for step in steps:
            if begin is None and busy is not None and busy.ended and step.at > busy.ended:
                begin = seen[-1].end if seen else 0
            seen.append(step)
            if begin is None:
                continue
            if step.end >= begin + WINDOW and (window := self.window(seen, step.end)) is not None:
                found.append(window)
            settled = settled_after(found, begin) is not None
            if (settled and step.end >= begin + _SHOWN) or step.end >= begin + MOST:
                return found, begin
        raise AssertionError("unreachable: the iterator of steps never ends")


def main() -> int:
    args = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    prompts = Prompts(args.model).of_class(WorkloadClass.EDIT, 0, args.prompts)
    texts: dict[str, list[int]] = {}
    with daemon(args.model, args.draft_model, None) as client:
        steps = []
        for step in Traffic(client, prompts, texts).steps():
            steps.append(step)
            if len(texts) == len(prompts) and step.end > _PASSES * sum(map(len, texts.values())):
                break
    reference = Reference(steps, sum(map(len, texts.values())))
    first_pass = [one for one in reference.windows(steps) if one.end <= reference.total]
    _show("reference, from its first token", first_pass, 0, console)
    with tempfile.TemporaryDirectory(prefix="draftd-bench-") as folder:
        busy, state, began = Busy(), Path(folder), time.monotonic()
        with busy.running(_LOOPS), daemon(args.model, args.draft_model, None, state=state) as client:
            busy.end_in(max(_LOOP_SECONDS - (time.monotonic() - began), _SERVED_SECONDS))
            found = reference.follow(Traffic(client, prompts, texts).steps(), busy)
        console.print(f"the busy processes ended after {found[1]} tokens")
        start = _show("start, from the busy processes' end", *found, console)
        with daemon(args.model, args.draft_model, None, state=state) as client:
            found = reference.follow(Traffic(client, prompts, texts).steps())
        restart = _show("restart, from its first token", *found, console)
    print(json.dumps({"start": start, "restart": restart}), flush=True)
    return 0


def _show(title: str, found: Sequence[Window], begin: int, console: Console) -> int | None:
    """Prints a table of windows that do not overlap. Returns the tokens until the depth settled, or None."""
    table = Table(title=title, title_justify="left")
    for heading in ("tokens", "depth", "reference", "settled"):
        table.add_column(heading, justify="right")
    last = begin
    for one in found:
        if one.end >= last + WINDOW:
            last = one.end
            settled = "yes" if one.settled else "no"
            table.add_row(str(one.end - begin), f"{one.depth:.2f}", f"{one.low:.2f}–{one.high:.2f}", settled)
    console.print(table)
    result = settled_after(found, begin)
    console.print("  never" if result is None else f"  settled after {result} tokens")
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="edit prompts, spread over all of them")
    args = options.parse(parser, otherwise_real=True)
    if args.prompts < 1:
        parser.error(f"--prompts: got {args.prompts}; allowed: 1 or more")
    return args


if __name__ == "__main__":
    sys.exit(main())
