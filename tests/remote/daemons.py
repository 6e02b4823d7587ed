"""Two daemons as processes, an edge and its verifier, and the network between them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

from draftd.client.client import DraftdClient
from draftd.v1 import inference_pb2 as pb
from tests import forked_daemon
from tests.proxy import Proxy, proxied
from tests.remote.asking import Wanted, ask
from tests.wait_until import until

TARGET = str(files("draftd.models.nano") / "target")
DRAFT = str(files("draftd.models.nano") / "draft")

NO_DRAFT = {"DRAFTD_MODEL__PATH": TARGET, "DRAFTD_MODEL__PROMPT_LOOKUP": "false"}
"""Of a verifier: where it drafts by itself the edge need not."""

_HTTP = re.compile(r"draftd: HTTP on (http://\S+)/v1")
_STOP_SECONDS = 30.0
_QUIET = {  # nothing but what the test asks for takes the machine's time
    "OTEL_SDK_DISABLED": "false",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "DRAFTD_FALLBACK__CANARY_PERIOD_SECONDS": "0",
    "DRAFTD_FALLBACK__ERRORS": "1000000",  # else nothing is sent to a remote that fails so often, or is so slow
    "DRAFTD_FALLBACK__REMOTE_FAILURES": "1",
    "DRAFTD_FALLBACK__REMOTE_ROUND_TRIP_SECONDS": "60",
    "DRAFTD_FALLBACK__REMOTE_SPEED_FLOOR": "0",
    "DRAFTD_SERVER__DRAIN_SECONDS": "5",
    "OPENBLAS_NUM_THREADS": "1",
}


class DaemonProcess:
    """One daemon that is started and ended repeatedly, at one port; its state survives."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))},
            **_QUIET,
            "XDG_STATE_HOME": str(folder),
            "DRAFTD_FLAG__FILE": str(folder / "flags.json"),
            "DRAFTD_SERVER__PORT": str(self.port),
            "DRAFTD_SERVER__HTTP_PORT": "0",
            **environ,
        }
        self._life = contextlib.ExitStack()
        self._running: forked_daemon.Daemon | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def lines(self) -> list[str]:
        return [] if self._running is None else self._running.lines

    def start(self, **environ: str) -> None:
        """Starts it with these additional variables, and returns when it serves."""
        assert self._running is None
        whole = {**self._environ, **environ}
        self._running = self._life.enter_context(forked_daemon.daemon(forked_daemon.command, "serve", environ=whole))

    def kill(self) -> None:
        """Kills it with SIGKILL, and returns when all its processes are gone."""
        self._life.close()
        self._running = None

    def stop(self) -> None:
        """Stops it as an operator does."""
        if self._running is not None:
            self._running.child.terminate()
            self._running.child.wait(_STOP_SECONDS)
        self.kill()

    def metrics(self) -> Counter[str]:
        """Returns its Prometheus metrics, summed over series, by name without `_total`."""
        url = next(found[1] for line in self.lines if (found := _HTTP.search(line)))
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: Counter[str] = Counter()
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0].removesuffix("_total")] += float(value)  # type: ignore[assignment]
        return found


class Two:
    """A verifier that serves the embedded target, an edge, and the proxy between them."""

    def __init__(self, folder: Path, *, edge: Mapping[str, str], verifier: Mapping[str, str] | None = None) -> None:
        """Prepares both daemons. `edge` and `verifier` are their settings, as environment variables."""
        self._stack, self._earlier = contextlib.ExitStack(), 0
        self.verifier = DaemonProcess(folder / "verifier", {"DRAFTD_VERIFY__ENABLED": "true", **(verifier or {})})
        with contextlib.ExitStack() as undo:
            self.proxy: Proxy = undo.enter_context(proxied(self.verifier.port))
            remote = {"DRAFTD_REMOTE__ENABLED": "true", "DRAFTD_REMOTE__TARGET": self.proxy.target}
            self.edge = DaemonProcess(folder / "edge", {**remote, **edge})
            with ThreadPoolExecutor(2) as pool:
                for one in (self.verifier, self.edge):
                    undo.callback(one.kill)
                for started in [pool.submit(self.verifier.start), pool.submit(self.edge.start)]:
                    started.result()
            self.client = undo.enter_context(DraftdClient(self.edge.address))
            self._stack = undo.pop_all()

    def end_verifier(self, *, kill: bool) -> None:
        """Ends the verifier, and sets aside what the edge has applied of this life: the verifier's counts end with
        it."""
        if kill:
            self.verifier.kill()
        else:
            self.verifier.stop()
        until(lambda: not self.edge.metrics()["draftd_remote_open_sequences"], _STOP_SECONDS, "that the edge gives up")
        self._earlier = int(self.edge.metrics()["draftd_remote_tokens"])

    def tokens(self) -> tuple[int, int]:
        """Returns, for this life of the verifier, the tokens that it decided for the edge without the discarded ones,
        and those that the edge applied. Waits until both have been told of everything."""
        deadline, found = time.monotonic() + _STOP_SECONDS, (0, -1)
        while time.monotonic() < deadline:
            there, here = self.verifier.metrics(), self.edge.metrics()
            decided = int(there["draftd_verify_tokens"] - there["draftd_verify_discarded_tokens"])
            found = decided, int(here["draftd_remote_tokens"]) - self._earlier
            if found[0] == found[1]:
                break
            time.sleep(0.1)
        return found

    def network(self, round_trip: float, jitter: float = 0.2, bandwidth: float = 0.0) -> None:
        network = self.proxy.network
        network.delay, network.jitter, network.bandwidth = round_trip / 2, jitter, bandwidth

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def two_daemons(
    *, edge: Mapping[str, str], verifier: Mapping[str, str] | None = None, folder: Path | None = None
) -> Iterator[Two]:
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="draftd-remote-")))
        two = Two(folder, edge=edge, verifier=verifier)
        stack.callback(two.close)
        yield two


def pair_edge(**remote: object) -> dict[str, str]:
    """Returns the settings of an edge with the embedded pair."""
    return {f"DRAFTD_REMOTE__{name.upper()}": str(value) for name, value in remote.items()}


def draft_edge(**remote: object) -> dict[str, str]:
    """Returns the settings of an edge that serves the embedded draft, and drafts with it for the remote target."""
    return {**pair_edge(**remote), "DRAFTD_MODEL__PATH": DRAFT, "DRAFTD_MODEL__DRAFT_PATH": DRAFT}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def until_remote(two: Two, seconds: float) -> float:
    """Waits until the verifier answers through the edge. Returns the seconds that took."""
    began = time.monotonic()
    while True:
        one = ask(two.client, Wanted((5, 6, 7), most=2, strategy=pb.STRATEGY_REMOTE))
        if one.remote_tokens:
            return time.monotonic() - began
        assert time.monotonic() - began < seconds, f"not on the remote within {seconds:g} s: {one.error}"
        time.sleep(0.02)
