"""A draft head is fed each hidden state once, and drafts as before, after all that may happen to it in an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, DecodeRequest
from draftd.engine.drafters.registry import DrafterNeeds, DrafterRegistry
from draftd.engine.pair import LoadedModels, load_models
from tests.rig import Collected, automatic, autoregressive, request, speculative
from tests.rigged_head import TOLERANCE_OF_STATES, RiggedHead, check_fed
from tests.unit.engine.conftest import Running

Start = Callable[..., Running]


class RecordedHead(RiggedHead):
    """A head that may be told to fail at its next draft."""

    failing = False

    def catch_up(self, drafting: list[int]) -> mx.array:
        if RecordedHead.failing:
            raise RuntimeError("on purpose")
        return super().catch_up(drafting)


@pytest.fixture
def load(nano_pair, monkeypatch: pytest.MonkeyPatch) -> Callable[[], LoadedModels]:
    """Loads the embedded target with its trained head, and nothing else that drafts."""
    monkeypatch.setattr(RecordedHead, "failing", False)

    def load() -> LoadedModels:
        registry = DrafterRegistry()
        registry.register(
            DRAFT_HEAD,
            lambda provided: RecordedHead(provided.model, provided.vocabulary, provided.prefix),
            DrafterNeeds.HEAD,
        )
        return load_models(nano_pair.target, registry=registry, prompt_lookup=False, progress=lambda line: None)

    return load


def asked(prompts: list[list[int]], plan=None) -> list[DecodeRequest]:
    return [request(prompt, plan or speculative(3, DRAFT_HEAD), max_tokens=24) for prompt in prompts]


def decoded(engine: Running, requests: list[DecodeRequest]) -> list[Collected]:
    sinks = [engine.ask(each) for each in requests]
    engine.ended(*sinks)
    return sinks


def acceptance(sinks: list[Collected]) -> float:
    counts = [sink.done.stats.counts for sink in sinks]
    return sum(c.accepted for c in counts) / sum(c.drafted for c in counts)


def head_of(engine: Running) -> RecordedHead:
    assert engine.worker._engine is not None
    head = engine.worker._engine.local.drafting.drafters[DRAFT_HEAD]
    assert isinstance(head, RecordedHead)
    return head


def checked(engine: Running, models: LoadedModels, sinks: list[Collected], texts: list[list[int]]) -> float:
    """Compares the texts, and all states that the present head was fed. Returns the share of drafts accepted."""
    assert [sink.tokens for sink in sinks] == texts
    assert all(sink.done.degraded == "" for sink in sinks)
    head = head_of(engine)
    check_fed(models, head, whole=False, tolerance=TOLERANCE_OF_STATES)
    head.fed_features.clear()
    return acceptance(sinks)


def test_head_drafts_as_before_after_reload_unload_and_failed_step(
    running: Start, load: Callable[[], LoadedModels], prompts: list[list[int]], tmp_path: Path
) -> None:
    models, prompts = load(), [prompt * 4 for prompt in prompts]  # short ones are not kept on disk
    disk = {"prefix_folder": tmp_path / "prefixes", "prefix_disk_bytes": 64 << 20}
    engine = running(load, idle_unload_seconds=3600.0, prefix_cache_bytes=64 << 20, **disk)
    texts = engine.answer(*asked(prompts, autoregressive()))
    usual = checked(engine, models, decoded(engine, asked(prompts)), texts)
    assert usual > 0.3
    assert checked(engine, models, decoded(engine, asked(prompts)), texts) == pytest.approx(usual, abs=0.1)

    first = head_of(engine)
    engine.worker.reload_draft().result(60)
    assert checked(engine, models, decoded(engine, asked(prompts)), texts) == pytest.approx(usual, abs=0.1)
    assert head_of(engine) is not first

    RecordedHead.failing = True
    failed = decoded(engine, asked(prompts))
    RecordedHead.failing = False
    assert [sink.tokens for sink in failed] == texts
    assert all("on purpose" in sink.done.degraded for sink in failed)
    head_of(engine).fed_features.clear()
    assert checked(engine, models, decoded(engine, asked(prompts)), texts) == pytest.approx(usual, abs=0.1)

    engine.unload()
    sinks = decoded(engine, asked(prompts))
    assert checked(engine, models, sinks, texts) == pytest.approx(usual, abs=0.1)
    assert any(sink.done.stats.cached_tokens > 0 for sink in sinks), "the long prompts come from the disk"


def test_exact_engine_drafts_with_its_head_and_gives_the_plain_texts(
    running: Start, load: Callable[[], LoadedModels], prompts: list[list[int]]
) -> None:
    engine = running(load, exact=True)
    texts = engine.answer(*asked(prompts, autoregressive()))
    sinks = decoded(engine, asked(prompts))
    assert [sink.tokens for sink in sinks] == texts
    assert acceptance(sinks) > 0.3


def test_text_whose_draft_model_is_not_loaded_is_drafted_by_head_of_its_plan(
    running: Start, nano_pair, prompts: list[list[int]]
) -> None:
    engine = running(lambda: load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None))
    texts = engine.answer(*asked(prompts, autoregressive()))
    engine.worker.keep(frozenset({DRAFT_HEAD})).result(60)
    sinks = decoded(engine, asked(prompts, automatic(3, DRAFT_MODEL, DRAFT_HEAD)))
    assert [sink.tokens for sink in sinks] == texts
    outcomes = {(sink.done.lowered, sink.done.degraded) for sink in sinks}
    assert outcomes == {("the draft model is not loaded", "")}
    assert sum(sink.done.stats.counts.drafted for sink in sinks) > 0
