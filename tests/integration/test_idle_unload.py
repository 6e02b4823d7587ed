"""A client whose request waits for weights that were unloaded is told so, and gets its answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftd.engine.drafters.sources import DraftSource
from draftd.engine.pair import LoadedModels
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import collect, serving
from tests.scripted import scripted_models
from tests.wait_until import until


def test_client_of_an_idle_unloaded_model_is_told_of_the_reload_and_answered(tmp_path: Path) -> None:
    seen = threading.Event()

    def models() -> LoadedModels:
        made = scripted_models(0.7)

        def opened() -> Any:
            assert seen.wait(30), "the client heard of no loading"
            return made.target

        return replace(made, target_source=DraftSource("model", opened))

    def told(stream: Iterator[pb.GenerateResponse]) -> Iterator[pb.GenerateResponse]:
        for event in stream:
            if event.HasField("loading"):
                assert event.loading.progress.startswith("loading the weights again")
                seen.set()
            else:
                yield event

    with serving(tmp_path, models, engine={"idle_unload_seconds": 0.05}) as served:
        expected = collect(told(served.client.generate("hello", max_tokens=8)))
        until(lambda: served.client.status().unloaded, 30)
        assert served.client.serving()
        assert served.client.model().model
        answer = collect(told(served.client.generate("hello", max_tokens=8)))
        assert seen.is_set()
        assert (answer.tokens, answer.text) == (expected.tokens, expected.text)
