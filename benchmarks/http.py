"""`make bench-http`: what does HTTP cost beside gRPC?

Sends the same prompts to one daemon over both protocols, in a random order. Clients in this process stream the answers,
one at a time and eight at once. A result is the median over prompts and repetitions of tokens per second over HTTP
divided by those over gRPC, with a 95 % interval over prompts. HTTP passes if each median is at least 0.97. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks import options
from benchmarks.arms import Prompt, fixed_drafter
from benchmarks.peers.load import together as all_at_once
from benchmarks.run import load_prompts
from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.core import DepthMode, DrafterName, ModePreference
from draftd_acceptance.statistics import Interval, bootstrap

BOUND = 0.97
GROUPS = (1, 8)
_SECONDS = 600.0
_PAUSE_SECONDS = 0.08  # as in benchmarks.run


@dataclass(frozen=True, slots=True)
class Said:
    """One answer: its text and its number of tokens."""

    text: str
    tokens: int


@dataclass(slots=True)
class Front:
    """Clients of one daemon over gRPC and over HTTP. `connections` holds an HTTP connection for each stream's
    number."""

    grpc: DraftdClient
    http_port: int
    mode: ModePreference
    max_tokens: int
    drafter: DrafterName | None = None
    connections: dict[int, http.client.HTTPConnection] = field(default_factory=dict)

    def over_grpc(self, prompt: Prompt, stream: int) -> Said:
        text, tokens = "", 0
        for response in self.grpc.generate(
            tokens=prompt.tokens,
            max_tokens=self.max_tokens,
            mode=self.mode,
            depth_mode=DepthMode.FIXED,
            drafter=self.drafter,
            timeout=_SECONDS,
        ):
            text += response.chunk.text
            tokens += len(response.chunk.token_ids)
        return Said(text, tokens)

    def over_http(self, prompt: Prompt, stream: int) -> Said:
        asked: dict[str, Any] = {
            "prompt": prompt.tokens,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "draftd": {"mode": self.mode.value, "depth_mode": "fixed", "drafter": self.drafter},
        }
        connection = self.connections.get(stream)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=_SECONDS)
            self.connections[stream] = connection
        connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
        text, tokens, held = "", 0, b""
        with connection.getresponse() as response:
            if response.status != http.client.OK:
                raise RuntimeError(f"HTTP {response.status}: {response.read(500).decode(errors='replace')}")
            while part := response.read1(65536):
                *events, held = (held + part).split(b"\n\n")
                for event in events:
                    if event.startswith(b"data: {"):
                        told = json.loads(event[6:])
                        text += "".join(choice["text"] for choice in told["choices"])
                        tokens = told["usage"]["completion_tokens"] if told["usage"] else tokens
        return Said(text, tokens)


def together(ask: Any, prompts: Sequence[Prompt]) -> tuple[list[Said], float]:
    """Calls `ask(prompt, stream number)` for all prompts at once, one thread each. Returns the answers in order, and
    the seconds until all had ended."""
    said: list[Said] = [Said("", 0)] * len(prompts)

    def one(i: int) -> None:
        said[i] = ask(prompts[i], i)

    began = time.perf_counter()
    all_at_once([partial(one, i) for i in range(len(prompts))], _SECONDS)
    return said, time.perf_counter() - began


def measured(front: Front, prompts: Sequence[Prompt], group: int, repetitions: int, name: str) -> Interval:
    """Measures the ratio of tokens per second over HTTP to those over gRPC, paired by groups of `group` concurrent
    prompts. Raises SystemExit if the texts differ between the protocols."""
    rng = random.Random(0)
    groups = [[prompts[(i + k) % len(prompts)] for k in range(group)] for i in range(len(prompts))]
    quotients: dict[int, list[float]] = {}
    for _ in track(range(repetitions), f"{name}, {group} at once"):
        for i, asked in enumerate(groups):
            rates, texts = {}, {}
            for arm in rng.sample(("grpc", "http"), 2):
                time.sleep(_PAUSE_SECONDS)
                said, seconds = together(front.over_grpc if arm == "grpc" else front.over_http, asked)
                rates[arm] = sum(one.tokens for one in said) / seconds
                texts[arm] = [(one.text, one.tokens) for one in said]
            if texts["grpc"] != texts["http"]:
                raise SystemExit(f"the texts of {[one.id for one in asked]} differ between gRPC and HTTP")
            quotients.setdefault(i, []).append(rates["http"] / rates["grpc"])
    found = bootstrap(list(quotients.values()))
    assert found is not None
    return found


def main() -> int:
    args = _arguments()
    console = Console(stderr=True)
    prompts = load_prompts(args.model, args.prompts)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environ = clean_environ(str(Path(folder) / "flags.json"))
        environ = {key: value for key, value in environ.items() if not key.startswith("OTEL_")}
        environ["XDG_STATE_HOME"] = folder
        listening = ["--host", "127.0.0.1", "--port", "0", "--http-port", str(port)]
        # Otherwise the second protocol would find the first one's prompts in the prefix cache.
        listening += ["--set", "engine.prefix_cache_bytes=0"]
        pair = ["--model", args.model, *(["--draft-model", args.draft_model] if args.draft_model else [])]
        command = serve_command(*pair, *listening)
        found: dict[str, Interval] = {}
        with serving(command, environ, timeout=_SECONDS) as child, DraftdClient(child.address) as client:
            client.wait_until_loaded(_SECONDS)
            for name, mode in (("ar", ModePreference.AUTOREGRESSIVE), ("spec", ModePreference.SPECULATIVE)):
                front = Front(client, port, mode, args.tokens, fixed_drafter(args.draft_model))
                for group in GROUPS:
                    repetitions = max(1, args.repetitions // (1 if group == 1 else 2))
                    found[f"{name}_x{group}"] = measured(front, prompts, group, repetitions, name)
    for key, one in found.items():
        console.print(f"{key}: HTTP ÷ gRPC {one.estimate:.3f} ({one.low:.3f}–{one.high:.3f})")
    holds = all(one.estimate >= BOUND for one in found.values())
    figures = {key: [round(value, 4) for value in (one.estimate, one.low, one.high)] for key, one in found.items()}
    print(json.dumps({**figures, "holds": holds}))
    return 0 if holds else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each category (class)")
    parser.add_argument("--tokens", type=int, default=96, help="maximum tokens of an answer")
    parser.add_argument("--repetitions", type=int, default=6)
    return options.parse(parser)


if __name__ == "__main__":
    sys.exit(main())
