"""`python -m tests.ranks faults`: runs a daemon whose target is on several ranks, with clients. Ranks are killed,
stopped and disconnected at random moments, from a seed.

--faults N    number of faults (50)
--ranks N     size of the group (2)
--seed N      seed of the faults, their ranks and times; a new one without it
--bound N     distributed.timeout_seconds (4)
--slack N     additional seconds for a busy machine (20)
--model NAME  of the embedded pair: draft, which is the smaller, or target (draft)

After each fault every request must have ended within the bound, with its whole text or with UNAVAILABLE and a retry
delay. Then the group must serve the same text again, and the daemon must have no processes except its ranks. At the end
the daemon is killed: nothing must remain.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import grpc
import psutil

from draftd.client.client import CallError, DraftdClient
from draftd.core import ModePreference
from tests.ranks import ring
from tests.ranks.sockets import connections, cut
from tests.wait_until import until

KILL, STOP, CUT = "kill", "stop", "cut"
_PROMPT = "Once upon a time"
_TOKENS = (8, 60, 240)
_AGAIN_SECONDS = 180.0  # for a group to serve again
_CLIENTS = 3
_LEFT_SECONDS = 20.0
_PAUSE_SECONDS = 0.5  # of a client that was refused


class Broken(AssertionError):
    """A violated expectation."""


@dataclass
class Result:
    """Result of one execution. `ends` counts requests by status. Seconds: the longest from a fault to the end of a
    request that was running then (`slowest_end`), and until the group served again (`again`)."""

    faults: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    unnoticed: int = 0  # after which the group served on
    slowest_end: float = 0.0
    again: list[float] = field(default_factory=list)


class Faulted:
    """A daemon with several ranks, each in a process of its own."""

    def __init__(self, folder: Path, ranks: int, bound: float, model: str = "draft") -> None:
        self.ranks, self.lines = ranks, list[str]()
        settings = {
            "distributed.timeout_seconds": bound,
            "model.prompt_lookup": "false",
            "server.drain_seconds": 1,
            "fallback.state_dir": folder / "state",
        }
        command = [sys.executable, "-m", "tests.ranks.daemon", "serve", "--port", "0", "--ranks", str(ranks)]
        command += ["--model", str(files("draftd.models") / "nano" / model), "--flag-file", str(folder / "flags.json")]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        environ = {**ring.environ(), "PYTHONPATH": path}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True)
        self._port: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.address = self._port.get(timeout=_AGAIN_SECONDS)
        self.client = DraftdClient(self.address)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if (at := line.find("listening on ")) >= 0:
                self._port.put(line[at + len("listening on ") :].strip())

    def serving(self, seconds: float = _AGAIN_SECONDS) -> None:
        def there() -> bool:
            if self.process.poll() is not None:
                raise Broken(f"the daemon ended: {self.lines[-5:]}")
            return self.client.serving()

        until(there, seconds, f"the group serves: {self.lines[-5:]}")

    def processes(self) -> dict[int, int]:
        """Returns the process ids of its ranks, by rank, as far as they have been started."""
        found = dict[int, int]()
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    words = one.cmdline()
                    if "draftd.process.main" in words:
                        found[0] = one.pid
                    elif "follow" in words:
                        found[int(words[words.index("--rank") + 1])] = one.pid
        return found

    def strangers(self) -> list[str]:
        """Returns unexpected descendants: more than one process for each rank and the one that renders templates, and
        zombies."""
        own, seen, found = set(self.processes().values()), set[str](), list[str]()
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = one.status() if one.status() == psutil.STATUS_ZOMBIE else " ".join(one.cmdline())
                template = "template_worker" in words and "template" not in seen
                seen.add("template" if template else words)
                if one.pid not in own and not template:
                    found.append(f"{one.pid}: {words}")
        return found if len(own) == self.ranks else [*found, f"{len(own)} ranks, not {self.ranks}"]

    def everything(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def close(self) -> None:
        """Stops the daemon in order; kills what remains."""
        left = self.everything()
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_LEFT_SECONDS)
        self.process.kill()
        self.process.wait()
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


class Clients:
    """Clients that send requests repeatedly, until they are closed."""

    def __init__(self, address: str, seed: int) -> None:
        self._address, self._seed = address, seed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.running = dict[int, float]()  # since when, by client
        self.ends = Counter[str]()
        self.wrong = list[str]()
        self.texts = dict[int, str]()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(_CLIENTS)]
        for one in self._threads:
            one.start()

    def close(self) -> None:
        self._stop.set()
        for one in self._threads:
            one.join(60)
            if one.is_alive():
                self.wrong.append("a request did not end")

    def _run(self, number: int) -> None:
        dice = random.Random(f"{self._seed}/{number}")
        with DraftdClient(self._address) as client:
            while not self._stop.is_set():
                tokens = dice.choice(_TOKENS)
                with self._lock:
                    self.running[number] = time.monotonic()
                how, wrong = ask(client, tokens, self.texts)
                with self._lock:
                    del self.running[number]
                    self.ends[how] += 1
                    self.wrong += wrong
                if how != "answered":
                    self._stop.wait(_PAUSE_SECONDS)


def ask(client: DraftdClient, tokens: int, texts: dict[int, str]) -> tuple[str, list[str]]:
    """Sends one request. Returns how it ended, and what is wrong with that. `texts` are the whole texts by their
    length."""
    text = ""
    try:
        for event in client.generate(
            _PROMPT, max_tokens=tokens, mode=ModePreference.AUTOREGRESSIVE, timeout=_AGAIN_SECONDS
        ):
            text += event.chunk.text if event.HasField("chunk") else ""
    except CallError as error:
        wrong = list[str]()
        if error.code is not grpc.StatusCode.UNAVAILABLE or not error.retry_after:
            wrong.append(f"it ended with {error.code.name}, to be tried again after {error.retry_after}: {error}")
        if tokens in texts and not texts[tokens].startswith(text):
            wrong.append(f"another text before the fault: {text!r}")
        return error.code.name.lower(), wrong
    known = texts.setdefault(tokens, text)
    return "answered", [] if text == known else [f"another text: {text!r}, not {known!r}"]


def harm(daemon: Faulted, kind: str, rank: int, dice: random.Random) -> bool:
    """Applies a fault to a rank. Returns False if that rank has not started."""
    if (pid := daemon.processes().get(rank)) is None:
        return False
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if kind == CUT:
            found = connections(pid)
            if not found:
                return False
            cut(pid, dice.choice(found))
        else:
            os.kill(pid, signal.SIGKILL if kind == KILL else signal.SIGSTOP)
        return True
    return False


def drawn(faults: int, ranks: int, dice: random.Random) -> Iterator[tuple[str, int]]:
    """Yields (kind of fault, rank) at random."""
    for _ in range(faults):
        yield dice.choice((KILL, STOP, CUT)), dice.randrange(ranks)


def run(
    daemon: Faulted,
    faults: Iterable[tuple[str, int]],
    dice: random.Random,
    seconds: float,
    *,
    twice: float = 0.2,
) -> Iterator[tuple[str, Result]]:
    """Yields after each fault a line for people, and the result so far. Requests must end within `seconds` of it.
    `twice` is how often another rank is harmed while the group starts again. Raises Broken."""
    result = Result()
    daemon.serving()
    clients = Clients(daemon.address, dice.randrange(1000))
    try:
        ask(daemon.client, _TOKENS[-1], clients.texts)
        for kind, rank in faults:
            time.sleep(dice.uniform(0.0, 2.0))
            before, at, said = sum(lost(daemon).values()), time.monotonic(), len(daemon.lines)
            harmed = harm(daemon, kind, rank, dice)
            if harmed and dice.random() < twice:  # and another one while it begins anew
                time.sleep(dice.uniform(0.0, 4.0))
                harm(daemon, dice.choice((KILL, STOP)), dice.randrange(daemon.ranks), dice)
            _ended(clients, at, seconds, result)
            daemon.serving()
            until(lambda: ask(daemon.client, _TOKENS[0], clients.texts)[0] == "answered", _AGAIN_SECONDS, "an answer")
            result.faults[kind] += harmed
            result.unnoticed += sum(lost(daemon).values()) == before
            result.again.append(time.monotonic() - at)
            until(lambda: not daemon.strangers(), _LEFT_SECONDS, f"other processes: {daemon.strangers()}")
            result.losses, result.ends = lost(daemon), clients.ends
            if clients.wrong:
                raise Broken(f"{kind} of rank {rank}: {clients.wrong[:3]}")
            reasons = [line.partition("was lost ")[2] for line in daemon.lines[said:] if "the group was lost " in line]
            yield f"{kind} of rank {rank}: serves again after {result.again[-1]:.1f} s: {'; '.join(reasons)}", result
    finally:
        clients.close()
    if clients.wrong:
        raise Broken(str(clients.wrong[:3]))


def lost(daemon: Faulted) -> Counter[str]:
    try:
        group = daemon.client.status().group
    except CallError:
        return Counter()
    return Counter(dict(group.losses))


def _ended(clients: Clients, at: float, seconds: float, result: Result) -> None:
    """Waits until no request runs that began before `at`."""

    def none() -> bool:
        return all(began > at for began in list(clients.running.values()))

    until(none, seconds, "the end of each request that ran")
    result.slowest_end = max(result.slowest_end, time.monotonic() - at)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ranks faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--bound", type=float, default=4.0)
    parser.add_argument("--slack", type=float, default=20.0)
    parser.add_argument("--model", choices=("draft", "target"), default="draft")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the daemon is not left behind
    print(f"seed {given.seed}", flush=True)
    found: Result | None = None
    with tempfile.TemporaryDirectory(prefix="draftd-ranks-") as folder:
        daemon = Faulted(Path(folder), given.ranks, given.bound, given.model)
        try:
            dice = random.Random(given.seed)
            faults = drawn(given.faults, given.ranks, dice)
            for line, now in run(daemon, faults, dice, given.bound + given.slack):
                found = now
                print(f"{sum(found.faults.values())}: {line}", flush=True)
            left = daemon.everything()
            daemon.process.kill()
            until(lambda: not any(one.is_running() for one in left), _LEFT_SECONDS, "the end of all its processes")
        except AssertionError as error:
            print(f"BROKEN: {error}", *daemon.lines[-20:], sep="\n  ")
            return 1
        finally:
            daemon.close()
    assert found is not None
    result, again = found, sorted(found.again)
    print(f"{sum(result.faults.values())} faults ({dict(result.faults)}), {result.unnoticed} that the group outlived")
    print(f"losses {dict(result.losses)}; requests {dict(result.ends)}; the slowest end {result.slowest_end:.1f} s")
    print(f"served again after {again[len(again) // 2]:.1f} s (median), {again[-1]:.1f} s at most; nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
