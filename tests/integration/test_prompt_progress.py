"""While a long prompt is prefilled its client, `draftd status` and whoever asks over HTTP hear how far that is."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from draftd.engine.pair import LoadedModels
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Served, collect, serving
from tests.scripted import scripted_models

GATE = ord("!")
PROMPT = "a" * 40 + "!!!" + "b" * 20
CHUNK = 16


class GatedModel(nn.Module):
    """A model whose forward of three of the gate's tokens waits for `opened`: what the daemon tries has fewer."""

    def __init__(self, model: Any, opened: threading.Event) -> None:
        super().__init__()
        self._model, self._opened = model, opened

    def make_cache(self) -> Any:
        return self._model.make_cache()

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        if int(mx.sum(inputs == GATE).item()) == 3:
            assert self._opened.wait(60), "nobody heard how far the prompt is"
        result: mx.array = self._model(inputs, cache=cache)
        return result


@pytest.fixture
def opened() -> threading.Event:
    return threading.Event()


@pytest.fixture
def served(tmp_path: Path, opened: threading.Event) -> Iterator[Served]:
    def models() -> LoadedModels:
        made = scripted_models(0.7, with_draft=False)
        return replace(made, target=GatedModel(made.target, opened))

    engine = {"prefill_chunk": CHUNK}
    with serving(tmp_path, models, engine=engine, server={"http_port": 0}) as daemon:
        yield daemon
        opened.set()


def test_prefill_progress_is_sent_to_the_grpc_client_and_shown_in_status(
    served: Served, opened: threading.Event
) -> None:
    heard: list[pb.PromptProgress] = []

    def told(stream: Iterator[pb.GenerateResponse]) -> Iterator[pb.GenerateResponse]:
        for event in stream:
            if event.HasField("prompt_progress"):
                heard.append(event.prompt_progress)
                assert [one.processed_tokens for one in served.client.status().prompts] == [2 * CHUNK]
                opened.set()
            else:
                yield event

    answer = collect(told(served.client.generate(PROMPT, max_tokens=8, return_progress=True)))
    assert [(one.processed_tokens, one.prompt_tokens, one.cached_tokens) for one in heard[:1]] == [(32, 63, 0)]
    assert [one.processed_tokens for one in heard] == sorted({one.processed_tokens for one in heard})
    assert heard[0].elapsed.ToNanoseconds() > 0
    after = served.client.status()
    assert (list(after.prompts), after.prefilled_tokens) == ([], 63)
    assert collect(served.client.generate(PROMPT, max_tokens=8)).text == answer.text  # which says nothing of a prompt


@pytest.mark.parametrize("asked", [True, False])
def test_http_stream_has_prefill_progress_only_on_request(served: Served, opened: threading.Event, asked: bool) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "stream": True, "return_progress": asked}
    connection = http.client.HTTPConnection("127.0.0.1", served.daemon.http_port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    if not asked:
        opened.set()
    heard, text = [], ""
    for line in connection.getresponse():
        event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
        if "prompt_progress" in event:
            heard.append(event["prompt_progress"])
            opened.set()
        text += "".join(one["text"] for one in event.get("choices", ()))
    assert len(text) == 4
    assert bool(heard) is asked
    for one in heard:
        assert (one["total"], one["cache"]) == (63, 0)
        assert 0 < one["processed"] <= 63
        assert one["time_ms"] >= 0
