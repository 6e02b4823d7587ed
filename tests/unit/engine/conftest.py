"""A real engine on its own thread, and drafts on disk that may be changed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftd.core import DecodeRequest
from draftd.engine.depth.saved import LearntCosts
from draftd.engine.limits import Limits
from draftd.engine.loop import EngineWorker
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels, load_models
from tests.rig import Collected
from tests.wait_until import loaded, until


class Running:
    """An engine, and what it was asked."""

    def __init__(
        self,
        load: Callable[[], LoadedModels],
        observer: EngineObserver | None,
        learnt: LearntCosts | None = None,
        **limits: Any,
    ) -> None:
        self.worker = EngineWorker(
            lambda progress: load(),
            observers=() if observer is None else (observer,),
            limits=Limits(**limits),
            recall=lambda: learnt,
        )
        self.worker.start()
        self.info = loaded(self.worker)

    def ask(self, request: DecodeRequest) -> Collected:
        sink = Collected()
        self.worker.submit(request, sink)
        return sink

    def answer(self, *requests: DecodeRequest) -> list[list[int]]:
        sinks = [self.ask(request) for request in requests]
        self.ended(*sinks)
        return [sink.tokens for sink in sinks]

    def ended(self, *sinks: Collected) -> None:
        until(lambda: all(sink.outcome is not None for sink in sinks), 180, "the requests' ends")

    def begun(self, *sinks: Collected) -> None:
        until(lambda: all(sink.tokens for sink in sinks), 90, "first tokens")

    def unload(self) -> None:
        """Waits until the weights are gone. Only from here on, and once, is it soon that they go."""
        assert self.worker._engine is not None
        weights = self.worker._engine.weights
        weights._seconds = 0.01
        until(lambda: self.worker.unloaded, 30, "the weights to go")
        weights._seconds = 3600.0
        until(lambda: self.worker.status().prefix.bytes == 0)


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """Starts engines; closes them."""
    with contextlib.ExitStack() as stack:

        def start(load: Callable[[], LoadedModels], observer: EngineObserver | None = None, **options: Any) -> Running:
            made = Running(load, observer, **options)
            stack.callback(lambda: made.worker.close())
            return made

        yield start


@pytest.fixture
def nano(nano_pair, tmp_path) -> Callable[..., LoadedModels]:
    """Loads the embedded draft, in the target's place as well: a pair that always agrees, and takes a tenth of the time
    of the embedded one. As a draft it lies in `tmp_path / "draft"`, or is what is named."""
    shutil.copytree(nano_pair.draft, tmp_path / "draft")

    def load(light: Path | None = None, draft: Path | None = None) -> LoadedModels:
        return load_models(
            nano_pair.draft,
            str(draft or tmp_path / "draft"),
            None if light is None else str(light),
            progress=lambda line: None,
        )

    return load


@pytest.fixture(scope="session")
def prompts(nano_pair) -> list[list[int]]:
    """One prompt of each workload class, as tokens."""
    from draftd.engine.pair import load_tokenizer

    tokenizer = load_tokenizer(nano_pair.target)
    folder = Path(nano_pair.target).parent / "prompts"
    lines = [file.read_text().splitlines()[3] for file in sorted(folder.glob("*.jsonl"))]
    return [tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]
