"""Examines each architecture in a process of its own, several at a time. Keeps results, and uses them again until
something that they depend on changes. Imports no MLX."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path

from tests.models.architectures import configuration, version
from tests.models.result import Result

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".benchmarks" / "models"
# What a result depends on besides the configuration and the libraries.
_CODE = (
    *("daemon/draftd/engine", "daemon/draftd/models", "daemon/draftd/planning", "daemon/draftd/core.py"),
    *(
        "tests/models/scene.py",
        "tests/models/tiny.py",
        "tests/models/forms.py",
        "tests/models/result.py",
        "tests/rig.py",
    ),
)


def code() -> str:
    """Returns a digest of the code that decides a result."""
    digest = hashlib.sha256()
    for place in _CODE:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def key(name: str, code: str) -> str:
    """Returns the key of a result: equal keys mean the same configuration, libraries and code."""
    parts = json.dumps([configuration(name), version(), metadata.version("transformers"), code], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


def kept(name: str, key: str) -> Result | None:
    """Returns an earlier result, or None if it must be found again."""
    try:
        found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return Result.of(found["result"]) if found["key"] == key else None


def results(
    names: Sequence[str], *, again: bool = False, jobs: int = 1, seconds: float = 60.0
) -> Iterator[tuple[Result, bool]]:
    """Yields (result, whether it was kept from earlier) for each architecture, as they come. A process may take
    `seconds`."""
    digest = code()
    keys = {name: key(name, digest) for name in names}
    missing = []
    for name in names:
        found = None if again else kept(name, keys[name])
        if found is None:
            missing.append(name)
        else:
            yield found, True
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_examined, name, seconds): name for name in missing}
        try:
            for done in as_completed(running):
                result = done.result()
                written = json.dumps({"key": keys[result.name], "result": result.as_json()}, indent=1)
                (FOLDER / f"{result.name}.json").write_text(written + "\n", encoding="utf-8")
                yield result, False
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _examined(name: str, seconds: float) -> Result:
    """Examines the architecture in a process of its own: a crash or hang ends no other."""
    command = [sys.executable, "-m", "tests.models", "--child", name]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return _failed(name, f"it was not done after {seconds:g} s")
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return Result.of(json.loads(lines[-1]))
    how = f"by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"with {done.returncode}"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return _failed(name, f"its process ended {how}{': ' if last else ''}{last[:200]}")


def _failed(name: str, why: str) -> Result:
    return Result(name, reasons={"served": why}, different=[why])


def child(name: str, examine: Callable[[str], Result]) -> int:
    """Runs such a process; its last line is the result."""
    print(json.dumps(examine(name).as_json()))
    return 0
