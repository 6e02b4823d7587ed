"""Runs a daemon with a scripted model in a process of its own: `python -m tests.scripted_daemon FLAG_FILE [KEY=NUMBER
…]`.

Keys are those of the server's settings, and `step_seconds`, `context_length`, `max_batch`, `load_seconds`;
`prompt_seconds`, the additional time of a forward of more than 64 tokens; `hardware_seconds`, between two readings of
the machine; `leaked_bytes`, which each request leaks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftd.cli.serve import run_daemon
from draftd.core import DepthMode
from draftd.engine.pair import LoadedModels
from draftd.models.blas import load_blas
from draftd.settings import EngineSettings, FlagSettings, HardwareSettings, ServerSettings, Settings
from tests.forked_daemon import Daemon, daemon


def main(flag_file: str, *assignments: str) -> int:
    numbers = {key: float(value) for key, value in (assignment.split("=") for assignment in assignments)}
    step, context = numbers.pop("step_seconds", 0.0), int(numbers.pop("context_length", 4096))
    batch, load_seconds = int(numbers.pop("max_batch", 8)), numbers.pop("load_seconds", 0.0)
    prompt_seconds = numbers.pop("prompt_seconds", 0.0)
    hardware, leaked = numbers.pop("hardware_seconds", 5.0), int(numbers.pop("leaked_bytes", 0))

    def load(progress: object) -> LoadedModels:
        load_blas()
        from tests.scripted import scripted_models

        time.sleep(load_seconds)
        models = scripted_models(0.7, step_seconds=step, context_length=context)
        if prompt_seconds:
            models.target.on_prompt = lambda: (report("a prompt is prefilled"), time.sleep(prompt_seconds))
        if leaked:
            models = replace(models, tokenizer=LeakingTokenizer(models.tokenizer, leaked))
        return models

    settings = Settings(
        server=ServerSettings.model_validate({"port": 0, **numbers}),
        engine=EngineSettings(max_batch=batch, depth_mode=DepthMode.FIXED),
        hardware=HardwareSettings(period_seconds=hardware),
        flag=FlagSettings(file=Path(flag_file)),
    )
    return run_daemon(settings, announce=report, load=load)


def report(line: str) -> None:
    print(f"draftd: {line}", file=sys.stderr, flush=True)


class LeakingTokenizer:
    """A tokenizer that leaks memory in every chat."""

    def __init__(self, inner: Any, leaked_bytes: int) -> None:
        self._inner, self._each, self._leaked = inner, leaked_bytes, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *more: Any) -> list[int]:
        self._leaked.append(b"\1" * self._each)  # written, so that it is resident
        return list(self._inner.render_chat(messages, *more))


@contextlib.contextmanager
def scripted_daemon(tmp_path: Path, *, until: str = "serving", **numbers: float) -> Iterator[Daemon]:
    """Runs the daemon until the block ends. Returns when it has announced that it is `until` (listening or serving)."""
    arguments = [str(tmp_path / "flags.json"), *(f"{key}={value:g}" for key, value in numbers.items())]
    with daemon(main, *arguments, environ={**os.environ, "OTEL_SDK_DISABLED": "true"}, until=until) as running:
        yield running


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
