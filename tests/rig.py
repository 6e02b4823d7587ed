"""Runs the engine's scheduler in the test's own thread: no queues, no clock, every step in order."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx

from draftd.core import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    GRAMMAR,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    DrafterName,
    FallbackLevel,
    SamplingParams,
    StopMatcher,
    TokenLogprobs,
)
from draftd.engine.admission import Admission
from draftd.engine.cache.base import Caches
from draftd.engine.cache.batched import BatchedCaches
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import StepCosts
from draftd.engine.depth.explorer import PlainMeasurement
from draftd.engine.drafters.base import Drafter
from draftd.engine.drafters.draft_head import DraftHead
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.drafters.forced_tokens import ForcedTokens
from draftd.engine.drafters.heads import drafter_of
from draftd.engine.drafters.prompt_lookup import PromptLookup
from draftd.engine.limits import Limits
from draftd.engine.local_decoder import LocalDecoder
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels, assemble
from draftd.engine.scheduler import Scheduler
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, SequenceStep
from draftd.engine.targets.base import SequenceOptions, Target
from draftd.engine.targets.choice import StepChoice
from draftd.engine.targets.local import LocalTarget
from draftd.outcome import Emission, Outcome
from tests.scripted import ByteTokenizer

_ids = itertools.count()


def autoregressive() -> DecodePlan:
    return DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "test")


def speculative(depth: int, drafter: DrafterName = DRAFT_MODEL) -> DecodePlan:
    return DecodePlan(DecodeMode.SPECULATIVE, depth, drafter, FallbackLevel.FULL, "on", "test")


def automatic(depth: int, drafter: DrafterName = DRAFT_MODEL, *alternatives: DrafterName) -> DecodePlan:
    """Returns a plan that drafts as many tokens as pay, up to `depth`."""
    return replace(speculative(depth, drafter), depth_mode=DepthMode.AUTOMATIC, alternatives=frozenset(alternatives))


@dataclass
class Collected:
    """A sink that keeps everything it receives."""

    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    prompt: list[TokenLogprobs] | None = None
    outcome: Outcome | None = None
    finishes: int = 0

    def on_tokens(self, emission: Emission) -> None:
        assert self.outcome is None, "tokens after the end"
        if emission.prompt is not None:
            assert (self.prompt, self.tokens, emission.tokens) == (None, [], ()), "told once, and first"
            self.prompt = list(emission.prompt)
            return
        self.tokens += emission.tokens
        self.from_draft += emission.from_draft
        self.logprobs += emission.logprobs
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
    grammar: str = "",
    identity: str = "",
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
        grammar=grammar,
        identity=identity,
    )


def steady_timer() -> Callable[[], float]:
    """Returns a timer by which all steps and slices take equally long, and not long: what is planned by measured times
    is the same on every machine."""
    return itertools.count(0, 1e-6).__next__


class Rig:
    """A scheduler over models in memory. Replace `drafters` to use a drafter of your own."""

    def __init__(
        self,
        models: LoadedModels,
        *,
        max_batch: int = 8,
        prefill_chunk: int = 512,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        drafters: dict[DrafterName, Drafter] | None = None,
        measurement: PlainMeasurement | None = None,
        prefix_bytes: int = 0,
        depth: DepthControl | None = None,
        prefill_slice_seconds: float = 0.05,
        timer: Callable[[], float] = time.perf_counter,
        admission: Admission | None = None,
        gather_seconds: float = 0.0,
        wrap: Callable[[LocalTarget], Target] = lambda target: target,
        head_drafter: type[DraftHead] | None = None,
    ) -> None:
        """Composes the scheduler. Random numbers of sequences without a seed are the same each time. Without a
        `measurement` no plain steps are measured between drafted ones, which would depend on the machine's speed.
        `wrap` puts a target before the local one."""
        self.models = models
        self._dice = itertools.count()
        self.prefix = PrefixCache(prefix_bytes)
        info = models.info

        def made() -> dict[DrafterName, Drafter]:
            if drafters is not None:
                return drafters
            out: dict[DrafterName, Drafter] = {
                PROMPT_LOOKUP: PromptLookup(),
                GRAMMAR: ForcedTokens(models.grammars, info.vocab_size),
            }
            if models.draft is not None:
                out[DRAFT_MODEL] = DraftModel(models.draft, info.vocab_size, prefix=self.prefix)
            if models.head is not None:
                out[DRAFT_HEAD] = (head_drafter or drafter_of(models.head))(models.head, info.vocab_size, self.prefix)
            return out

        self.target = LocalTarget(
            models.target, info.vocab_size, prefix=self.prefix, dice=self._seeded, grammars=models.grammars
        )
        local = LocalDecoder(
            target=wrap(self.target),
            drafters=made,
            eos=models.tokenizer.eos_ids,
            vocabulary=info.vocab_size,
            context_length=info.context_length,
            observer=observer or EngineObserver(),
            limits=Limits(
                max_batch=max_batch,
                prefill_chunk=prefill_chunk,
                prefill_slice_seconds=prefill_slice_seconds,
                gather_seconds=gather_seconds,
            ),
            clock=clock,
            depth=depth or DepthControl(StepCosts(), 16, measurement=measurement or PlainMeasurement(math.inf)),
            timer=timer,
            admission=admission,
        )
        self.scheduler = Scheduler(local, clock=clock)

    def add(self, req: DecodeRequest) -> Collected:
        sink = Collected()
        self.scheduler.add(self._row(req, sink))
        return sink

    def _row(self, req: DecodeRequest, sink: Collected) -> DecodeSequence:
        row = DecodeSequence.of(req, sink, self.models.info.context_length)
        row.generator = self._seeded()
        return row

    def _seeded(self) -> random.Random:
        return random.Random(f"sequence {next(self._dice)}")

    def run(self, requests: Sequence[DecodeRequest]) -> list[Collected]:
        sinks = [self.add(r) for r in requests]
        self.drain()
        return sinks

    def run_together(self, requests: Sequence[DecodeRequest]) -> list[Collected]:
        """Processes all prompts, which must have the same length, in one forward of each model, so that thousands of
        requests start cheaply. They decode as one batch from start to end."""
        local, target, sinks = self.scheduler.local, self.target, [Collected() for _ in requests]
        rows = [self._row(req, sink) for req, sink in zip(requests, sinks, strict=True)]
        now = local._clock()
        for row in rows:
            row.id = local._opened = local._opened + 1
            target.open(row.id, SequenceOptions(len(row.tokens), len(row.tokens), row.request.sampling))
        target.texts.clear()
        logits = _taken_in(target._batch.caches, rows)
        known = [target._sequences[row.id] for row in rows]
        target._running = [row.id for row in rows]
        target._batch.replays = [[] for _ in rows]
        for row, one in zip(rows, known, strict=True):
            one.ids += row.tokens
        starts = [0] * len(rows)
        chosen = StepChoice(
            known, target._own_sampling(known), starts, target._masks, logits[:, -1:], [None] * len(known)
        ).tokens()
        for row, one, (token,) in zip(rows, known, chosen.tolist(), strict=True):
            one.ids.append(token)
            row.stats.scheduled = row.stats.prefilled = now
            first = SequenceStep(0, [], token, 0)
            local.delivery.send_tokens(row, first, DecodeStep([first], 0.0, 0.0, []), now)
        local._running, local._max_batch = rows, len(rows)
        local.mark_interruption()
        for kind, drafter in local.drafting.drafters.items():
            drafting = [row for row in rows if row.drafter == kind]
            if drafting and isinstance(drafter, DraftModel):
                _taken_in(drafter.caches, drafting, but=1)  # which `propose` catches up with
                drafter.sequences = drafting
                drafter.places = {id(row): i for i, row in enumerate(drafting)}
            else:
                assert all(drafter.prefill(row, 512) for row in drafting)
        self.drain()
        return sinks

    def drain(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            if self.scheduler.idle:
                return
            self.scheduler.step()
        raise AssertionError(f"not finished after {steps} steps")


def _taken_in(caches: Caches, rows: Sequence[DecodeSequence], but: int = 0) -> mx.array:
    """Fills empty caches with the texts of all rows, except their last `but` tokens. Returns the logits."""
    assert isinstance(caches, BatchedCaches)
    assert caches.lengths == []
    tokens = mx.array([row.tokens[: len(row.tokens) - but] for row in rows], dtype=mx.uint32)
    caches.lengths = [0] * len(rows)
    for window in caches.windows.values():
        window.hold(caches.lengths)
    logits = caches.forward(tokens, [tokens.shape[1]] * len(rows))
    mx.eval(caches.arrays(), logits)
    return logits


def tiny_llama(seed: int, *, vocab: int = 32, layers: int = 2, sliding: int | None = None, scale: float = 1.0) -> Any:
    """Returns a Llama with random weights, in fp32. `sliding` is the window of every second layer, which has a rotating
    cache."""
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
    """Returns two models in memory as the engine takes them; the text never ends by itself."""
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
