"""Fixtures for the sweep's tests: a daemon, and a session with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftd.core import DrafterName
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.session import Session
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models
from tests.synthetic_run import manifest

BEGUN = Callable[[Path], Session]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon on a scripted pair that takes its time; blocks of 4 at most."""
    with serving(
        tmp_path_factory.mktemp("daemon"),
        lambda: scripted_models(0.8, step_seconds=0.001),
        engine={"max_draft_tokens": 4},
    ) as served:
        yield served


@pytest.fixture(scope="module")
def begin(daemon: Served) -> BEGUN:
    """Returns a function that begins a session with the daemon in a run, which it creates if it is missing."""

    def begun(path: Path) -> Session:
        folder = RunFolder.open(path) if (path / "run.json").exists() else RunFolder.create(path)
        return Session(daemon.client, folder, folder.begin_session(manifest(settings={"engine.max_batch": "8"})))

    return begun


def model(
    *drafters: DrafterName,
    max_draft_tokens: int = 8,
    context_length: int = 32_768,
    reason: str = "",
) -> pb.GetModelResponse:
    """Returns a model as a daemon describes it."""
    return pb.GetModelResponse(
        model="m",
        context_length=context_length,
        drafters=drafters,
        speculation_available=bool(drafters),
        speculation_reason=reason,
        max_draft_tokens=max_draft_tokens,
        chat_template=True,
    )
