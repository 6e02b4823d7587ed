"""Configurations (arms) that benchmarks compare. Each answers a prompt and measures how long that took; all arms of a
benchmark answer the same prompts in turn."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.core import PROMPT_LOOKUP, DepthMode, DrafterName, ModePreference, SamplingParams, WorkloadClass

_START_SECONDS = 600.0
_ANSWER_SECONDS = 600.0  # a long prompt of a real model takes minutes on a busy machine
BLAS = "DRAFTD_BLAS"  # the only one of draftd's environment variables that daemons inherit: it applies to every arm


@dataclass(frozen=True, slots=True)
class Prompt:
    """A held-out prompt, rendered with the chat template. `workload` is its category (class), such as code or chat;
    `tokens` are the token ids, the same for all arms."""

    id: str
    workload: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `text` is its token ids; `seconds` is the time from the request to its last token. mlx-lm's answers
    also have `times`, the seconds from the request to each token, and `peak`, the peak of MLX's memory in bytes."""

    text: tuple[int, ...]
    seconds: float
    times: tuple[float, ...] = ()
    peak: int = 0


def fixed_depth(depth: int) -> dict[str, object]:
    """Returns settings that allow `depth` draft tokens a step and turn the prefix cache off: no arm may be faster
    because another arm sent the same prompt before."""
    return {"engine.max_draft_tokens": depth, "engine.prefix_cache_bytes": 0}


def fixed_drafter(draft: str) -> DrafterName | None:
    """Returns the drafter that a request for a fixed depth must name: prompt lookup if the draft model's path is empty,
    else None."""
    return None if draft else PROMPT_LOOKUP


class Arm(Protocol):
    def answer(self, prompt: Prompt, seed: int) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Draftd:
    """Sends prompts to a draftd daemon over gRPC, from this process. In speculative mode each step drafts `depth`
    tokens."""

    client: DraftdClient
    mode: ModePreference
    depth: int
    temperature: float
    max_tokens: int
    drafter: DrafterName | None = None  # None: the daemon's default

    def answer(self, prompt: Prompt, seed: int) -> Answer:
        text: list[int] = []
        started = time.perf_counter()
        for response in self.client.generate(
            tokens=prompt.tokens,
            max_tokens=self.max_tokens,
            sampling=SamplingParams(temperature=self.temperature, seed=seed),
            mode=self.mode,
            max_draft_tokens=self.depth if self.mode is ModePreference.SPECULATIVE else None,
            drafter=self.drafter,
            depth_mode=DepthMode.FIXED,
            workload=WorkloadClass(prompt.workload),
            timeout=_ANSWER_SECONDS,
        ):
            text += response.chunk.token_ids
        return Answer(tuple(text), time.perf_counter() - started)

    def together(self, prompts: Sequence[Prompt], seed: int) -> list[Answer]:
        """Sends all prompts at once, one thread each. Returns the answers in order; each has the seconds until all had
        ended."""
        texts: list[tuple[int, ...]] = [()] * len(prompts)

        def one(i: int) -> None:
            texts[i] = self.answer(prompts[i], seed).text

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_ANSWER_SECONDS)
        seconds = time.perf_counter() - started
        return [Answer(text, seconds) for text in texts]


@dataclass(frozen=True, slots=True)
class MlxLm:
    """Sends prompts to mlx-lm's own decoding loop in a child process, which measures the times itself. With `depth` 0
    it decodes without a draft."""

    process: subprocess.Popen[str]
    depth: int
    temperature: float
    max_tokens: int

    def answer(self, prompt: Prompt, seed: int) -> Answer:
        ask = {
            "tokens": prompt.tokens,
            "max_tokens": self.max_tokens,
            "depth": self.depth,
            "temperature": self.temperature,
            "seed": seed,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(ask) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the mlx-lm process ended with exit code {self.process.wait()}")
        said = json.loads(line)
        return Answer(tuple(said["text"]), said["seconds"], tuple(said["times"]), said["peak"])


@contextlib.contextmanager
def daemon(
    model: str,
    draft: str,
    endpoint: str | None,
    checkout: Path | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    state: Path | None = None,
) -> Iterator[DraftdClient]:
    """Starts a daemon and yields a client of it once its models are loaded. `draft` is empty for no draft model.
    `endpoint` receives its telemetry over OTLP; None exports none. `checkout` is another working copy, already set up,
    whose daemon is started instead. `settings` are draftd's, by name; the others keep their defaults. `state` is the
    folder in which the daemon keeps what it learns; None makes a temporary one."""
    with tempfile.TemporaryDirectory(prefix="draftd-bench-") as folder:
        inherited = clean_environ("")
        environ = {k: v for k, v in inherited.items() if k == BLAS or not k.startswith(("OTEL_", "DRAFTD_"))}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it each start would compile draftd again, but not mlx-lm
        environ |= {"DRAFTD_FLAG__FILE": str(Path(folder) / "flags.json"), "XDG_STATE_HOME": str(state or folder)}
        if endpoint is not None:
            environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
            environ |= {"OTEL_METRIC_EXPORT_INTERVAL": "10000"}
        command = serve_command("--model", model, "--host", "127.0.0.1", "--port", "0")
        command += ["--draft-model", draft] if draft else []
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={value}"]
        if checkout is not None:
            command[0] = str(checkout / ".venv" / "bin" / "python")
        with (
            serving(command, environ, timeout=_START_SECONDS) as child,
            DraftdClient(child.address) as client,
        ):
            client.wait_until_loaded(_START_SECONDS)
            yield client


@contextlib.contextmanager
def helper(module: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a module of this package as a child process. Yields the process and the first line that it prints. Raises
    RuntimeError if it ends before that."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline().strip()
        if not first:
            raise RuntimeError(
                f"the child process {module} ended with exit code {process.wait()} before it printed a line"
            )
        yield process, first
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
