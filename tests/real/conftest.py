"""The real models that `make real-model` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftd.engine.pair import LoadedModels
from scripts.real_model import FULL, QUANTIZED
from tests.conftest import missing
from tests.real import parity


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct with 16 bits. Missing: a skip at a desk, a failure where CI is set."""
    return _made(FULL)


@pytest.fixture(scope="session")
def real_model_4bit() -> Path:
    """The same with 4 bits."""
    return _made(QUANTIZED)


@pytest.fixture(scope="session")
def models(real_model: Path) -> LoadedModels:
    """The model with 16 bits, loaded once for all tests of a worker."""
    return parity.load(real_model)


def _made(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        missing(f"a real model, which `make real-model` makes: {folder}")
    return folder
