"""Starts edge daemons, their verifiers and the simulated network between them."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.idle import wait_until_idle
from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.v1 import inference_pb2 as pb
from tests.proxy import Proxy, proxied

_START_SECONDS = 600.0
_WHO = ("plain", "own")
_HTTP = re.compile(r"HTTP on (http://\S+)/v1")


@dataclass(frozen=True, slots=True)
class Daemons:
    """A client of an edge daemon, and the network to its verifier. `urls` are the HTTP addresses of the edge and of the
    verifier, for their metrics."""

    edge: DraftdClient
    proxy: Proxy
    urls: tuple[str, str]

    def network(self, round_trip: float, jitter: float) -> None:
        self.proxy.network.delay, self.proxy.network.jitter = round_trip / 2, jitter

    def edge_metrics(self) -> Counter[str]:
        return metrics(self.urls[0])

    def verifier_metrics(self) -> Counter[str]:
        return metrics(self.urls[1])


@contextlib.contextmanager
def daemons(model: str, draft: str, edge_model: str, settle: float) -> Iterator[tuple[Daemons, ...]]:
    """Starts two edges, each with a verifier: the first verifier has no draft, the second drafts by itself. Yields
    both, or only the first without a draft model, after `settle` seconds and once all are idle."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="draftd-bench-remote-")))
        names = _WHO if draft else _WHO[:1]
        found = [_two(stack, folder / who, model, draft, edge_model, draft * (who == "own")) for who in names]
        time.sleep(settle)
        wait_until_idle(psutil.Process().children())
        yield tuple(found)


def _two(stack: contextlib.ExitStack, folder: Path, model: str, draft: str, edge_model: str, own: str) -> Daemons:
    """Starts a verifier and an edge that is connected to it. `own` is the verifier's draft model, empty for none."""
    settings = {"DRAFTD_VERIFY__ENABLED": "true", "DRAFTD_MODEL__PROMPT_LOOKUP": str(bool(own)).lower()}
    verifier, verifier_url = _daemon(stack, folder / "verifier", model, own, **settings)
    proxy = stack.enter_context(proxied(int(verifier.rpartition(":")[2])))
    remote = {"DRAFTD_REMOTE__ENABLED": "true", "DRAFTD_REMOTE__TARGET": proxy.target}
    edge, edge_url = _daemon(stack, folder / "edge", edge_model, draft, **remote)
    two = Daemons(stack.enter_context(DraftdClient(edge)), proxy, (edge_url, verifier_url))
    _linked(two.edge)
    return two


def metrics(url: str) -> Counter[str]:
    """Reads a daemon's Prometheus metrics. Returns values summed over series, by name without `_total`."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0].removesuffix("_total")] += float(value)  # type: ignore[assignment]
    return found


def _daemon(stack: contextlib.ExitStack, folder: Path, model: str, draft: str, **environ: str) -> tuple[str, str]:
    """Starts a daemon. Returns its gRPC address and its HTTP address."""
    folder.mkdir(parents=True)
    kept = {name: value for name, value in clean_environ(str(folder / "flags.json")).items() if "OTEL_" not in name}
    kept |= {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    kept |= {"XDG_STATE_HOME": str(folder), "DRAFTD_SERVER__HTTP_PORT": "0", **environ}
    pair = ["--model", model, *(["--draft-model", draft] if draft else [])]
    command = serve_command(*pair, "--host", "127.0.0.1", "--port", "0")
    urls: list[str] = []

    def heard(line: str) -> None:
        urls.extend(_HTTP.findall(line))

    child = stack.enter_context(serving(command, kept, timeout=_START_SECONDS, on_line=heard))
    return child.address, urls[0]


def _linked(edge: DraftdClient) -> None:
    """Waits until the remote answers a request through the edge. Raises SystemExit if it does not."""
    request = pb.GenerateRequest(tokens=pb.TokenInput(ids=[5, 6, 7]), max_tokens=2, strategy=pb.STRATEGY_REMOTE)
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(Exception):
            if any(one.chunk.verifier == pb.VERIFIER_REMOTE for one in edge.generate_raw(request, timeout=10)):
                return
        if time.monotonic() > deadline:
            raise SystemExit("the edge daemon got no answer from the remote in time")
        time.sleep(0.2)
