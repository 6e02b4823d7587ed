"""The embedded pair's folder, its prompts, and the training scripts, which are not installed with the package."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

NANO = Path(str(files("draftd") / "models" / "nano"))
WORKLOADS = ("code", "tool_call", "chat", "prose")


@pytest.fixture(scope="session")
def nano() -> Path:
    return NANO


@pytest.fixture(scope="session")
def manifest() -> dict[str, Any]:
    return json.loads((NANO / "manifest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def prompts() -> dict[str, list[dict[str, Any]]]:
    read = {}
    for workload in WORKLOADS:
        lines = (NANO / "prompts" / f"{workload}.jsonl").read_text(encoding="utf-8").splitlines()
        read[workload] = [json.loads(line) for line in lines]
    return read
