"""What the sweep's tests ask of a daemon, and one to ask it of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftd.core import DrafterName
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.session import Session
from tests.acceptance import manifest
from tests.scripted import scripted_models
from tests.serving import Served, serving

BEGUN = Callable[[Path], Session]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """On a scripted pair that takes its time; blocks of 4 at most."""
    with serving(
        tmp_path_factory.mktemp("daemon"),
        lambda: scripted_models(0.8, step_seconds=0.001),
        engine={"max_draft_tokens": 4},
    ) as served:
        yield served


@pytest.fixture(scope="module")
def begin(daemon: Served) -> BEGUN:
    """Begins a session of that daemon at a run, which is begun where it is not there."""

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
    """As a daemon describes itself."""
    return pb.GetModelResponse(
        model="m",
        context_length=context_length,
        drafters=drafters,
        speculation_available=bool(drafters),
        speculation_reason=reason,
        max_draft_tokens=max_draft_tokens,
        chat_template=True,
    )
