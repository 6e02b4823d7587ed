"""Runs the engine's scheduler in the test's own thread: no queues, no clock, every round in order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from draftd.core import (
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DrafterKind,
    Emission,
    FallbackLevel,
    Outcome,
    SamplingParams,
    StopMatcher,
)
from draftd.engine.batch import Row
from draftd.engine.drafting import Drafter, DraftModel, PromptLookup
from draftd.engine.exploration import Exploration
from draftd.engine.model import LoadedModels, assemble
from draftd.engine.observer import EngineObserver, NullObserver
from draftd.engine.scheduler import Scheduler
from draftd.engine.scripted import ByteTokenizer
from draftd.engine.verification import LocalVerifier

_ids = itertools.count()


def autoregressive() -> DecodePlan:
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test")


def speculative(depth: int, drafter: DrafterKind = DrafterKind.DRAFT_MODEL) -> DecodePlan:
    return DecodePlan(DecodeMode.SPECULATIVE, depth, drafter, FallbackLevel.FULL, "on", "test")


@dataclass
class Collected:
    """A sink that keeps what it hears."""

    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    outcome: Outcome | None = None
    finishes: int = 0

    def on_tokens(self, emission: Emission) -> None:
        assert self.outcome is None, "tokens after the end"
        self.tokens += emission.tokens
        self.from_draft += emission.from_draft
        self.chunks.append(len(emission.tokens))

    def on_finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.finishes += 1

    @property
    def done(self) -> Outcome:
        assert self.outcome is not None
        return self.outcome


def request(
    prompt: Sequence[int],
    plan: DecodePlan,
    *,
    max_tokens: int = 32,
    sampling: SamplingParams | None = None,
    stop: StopMatcher | None = None,
    deadline: float | None = None,
) -> DecodeRequest:
    return DecodeRequest(
        id=f"r{next(_ids)}",
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        plan=plan,
        arrival=time.monotonic(),
        sampling=sampling or SamplingParams(),
        stop=stop,
        deadline=deadline,
    )


class Rig:
    """A scheduler over models in memory. Replace `drafters` to plant a drafter of your own."""

    def __init__(
        self,
        models: LoadedModels,
        *,
        max_batch: int = 8,
        prefill_chunk: int = 512,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        drafters: dict[DrafterKind, Drafter] | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        self.models = models
        info = models.info

        def made() -> dict[DrafterKind, Drafter]:
            if drafters is not None:
                return drafters
            out: dict[DrafterKind, Drafter] = {DrafterKind.PROMPT_LOOKUP: PromptLookup(info.vocab_size)}
            if models.draft is not None:
                out[DrafterKind.DRAFT_MODEL] = DraftModel(models.draft, info.vocab_size)
            return out

        self.scheduler = Scheduler(
            verifier=lambda: LocalVerifier(models.target, info.vocab_size),
            drafters=made,
            eos=models.tokenizer.eos_ids,
            vocabulary=info.vocab_size,
            observer=observer or NullObserver(),
            max_batch=max_batch,
            prefill_chunk=prefill_chunk,
            clock=clock,
            exploration=exploration,
        )

    def add(self, req: DecodeRequest) -> Collected:
        sink = Collected()
        self.scheduler.add(Row.of(req, sink, self.models.info.context_length))
        return sink

    def run(self, requests: Sequence[DecodeRequest]) -> list[Collected]:
        sinks = [self.add(r) for r in requests]
        self.drain()
        return sinks

    def run_together(self, requests: Sequence[DecodeRequest]) -> list[Collected]:
        """Prefills all requests before the first round, so that they decode as one batch from start to end."""
        scheduler, sinks = self.scheduler, [Collected() for _ in requests]
        for req, sink in zip(requests, sinks, strict=True):
            row = Row.of(req, sink, self.models.info.context_length)
            row.stats.scheduled = scheduler._clock()
            scheduler._retake(row)
            if row.drafter is not None:
                while not scheduler._drafters[row.drafter].prefill(row, 512):
                    pass
        self.drain()
        return sinks

    def drain(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            if self.scheduler.idle:
                return
            self.scheduler.step()
        raise AssertionError(f"not finished after {steps} steps")


def tiny_llama(seed: int, *, vocab: int = 32, layers: int = 2, sliding: int | None = None, scale: float = 1.0) -> Any:
    """A Llama with random weights, in fp32. `sliding`: window of every second layer, a rotating cache."""
    from mlx_lm.models.llama import Model, ModelArgs

    kinds = ["full_attention" if sliding is None or i % 2 == 0 else "sliding_attention" for i in range(layers)]
    args = ModelArgs(
        model_type="llama",
        hidden_size=16,
        num_hidden_layers=layers,
        intermediate_size=32,
        num_attention_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=vocab,
        layer_types=kinds,
        sliding_window=sliding,
        tie_word_embeddings=False,
    )
    mx.random.seed(seed)
    model = Model(args)
    model.lm_head.weight = model.lm_head.weight * scale
    mx.eval(model.parameters())
    return model


def pair(target: Any, draft: Any | None, *, vocab: int = 32, context: int = 4096) -> LoadedModels:
    """Two models in memory as the engine takes them; the text never ends by itself."""
    tokenizer = ByteTokenizer(vocab)
    tokenizer.eos_ids = frozenset()
    return assemble(
        target,
        draft,
        tokenizer,
        model="target",
        draft_model=None if draft is None else "draft",
        context_length=context,
        backend="test",
    )
