"""The texts of one model in every way to decode them, and whether they differ."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, DecodeRequest, SamplingParams
from draftd.engine.cache.alone_mode import is_exact
from draftd.engine.exactness.measure import ExactLayers, make_exact, measure
from draftd.engine.exactness.operations import StepSizes
from draftd.engine.limits import EXACT_SLICE
from draftd.engine.pair import LoadedModels
from draftd.exactness import Exactness
from draftd.models.mlx_lm import vocabulary_size
from tests.exactness.plants import Plant
from tests.models.architectures import configuration
from tests.models.tiny import quantised, tiny
from tests.random_costs import random_depth_control
from tests.rig import Collected, Rig, automatic, autoregressive, pair, request, speculative

BATCH, DEPTH = 8, 4
SIZES = StepSizes.of(DEPTH, BATCH, (EXACT_SLICE,))
_TIE = 3e-7  # by which the two rows of a pair in the last layer differ: as little as rounding
_NOISE = 0.05  # of a draft's weights: some of its tokens are rejected
_WIDE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
_COMMON = 70  # tokens with which all prompts begin
PLANS: dict[str, DecodePlan] = {
    "no draft": autoregressive(),
    "depth 1": speculative(1),
    "depth 4": speculative(DEPTH),
    "automatic": automatic(DEPTH, DRAFT_MODEL, PROMPT_LOOKUP),
}


@dataclass(frozen=True)
class Way:
    """A way to decode texts: the plan, how many `together`, whether their prompts are `cached`, tokens of a `chunk`."""

    plan: str
    together: int
    cached: bool
    chunk: int

    def __str__(self) -> str:
        cached = "prefixes cached" if self.cached else "no prefix"
        return f"{self.plan}, {self.together} at once, {cached}, slices of {self.chunk}"


WAYS = [Way(*way) for way in itertools.product(PLANS, (1, BATCH), (False, True), (512, EXACT_SLICE))]


def tied_pair(name: str) -> LoadedModels:
    """Returns a tiny model with random weights, and a draft of it. Its logits come in pairs that nearly tie, so that a
    choice depends on how sums are rounded. `name`: an architecture, perhaps "… 4 bits" or "… wide",
    whose products are as large as those for which a BLAS has several kernels."""
    architecture, _, kind = name.partition(" ")
    bits, config = kind == "4 bits", {**configuration(architecture), **(_WIDE if kind == "wide" else {})}
    target, draft = (quantised if bits else tiny)(architecture, config), tiny(architecture, config)
    assert target is not None
    head = getattr(target, "lm_head", None) or target.model.embed_tokens
    if not bits:
        weight, count = head.weight, head.weight.shape[0] // 2
        mx.random.seed(5)
        close = weight[:count] * (1 + _TIE * mx.random.normal(weight[:count].shape))
        head.weight = mx.stack([weight[:count], close], axis=1).reshape(-1, weight.shape[1])
    mx.random.seed(6)
    noisy = [
        (path, a + _NOISE * mx.sqrt(mx.mean(a * a)) * mx.random.normal(a.shape))
        for path, a in tree_flatten(draft.parameters())
        if mx.issubdtype(a.dtype, mx.floating)
    ]
    draft.update(tree_unflatten(noisy))
    mx.eval(target.parameters(), draft.parameters())
    return pair(target, draft, vocab=vocabulary_size(target))


def prompts(vocabulary: int, count: int = BATCH, seed: int = 1) -> list[list[int]]:
    """Returns prompts of unlike lengths; half of them begin alike."""
    drawn = random.Random(seed)

    def tokens(n: int) -> list[int]:
        return [drawn.randrange(4, vocabulary) for _ in range(n)]

    common = tokens(_COMMON)
    lengths = (1, 10, 56, 70, 2, 9, 30, 20)
    return [
        [*(common[: drawn.choice((64, 67, _COMMON))] if i % 2 else []), *tokens(lengths[i % len(lengths)] + 8)]
        for i in range(count)
    ]


def requests(models: LoadedModels, plan: DecodePlan, tokens: int, seed: int = 1) -> list[DecodeRequest]:
    """Returns a request for each prompt: most greedy, every fourth seeded."""
    seeded = SamplingParams(temperature=0.8, top_p=0.95, seed=17)
    return [
        replace(
            request(prompt, plan, max_tokens=tokens, sampling=seeded if i % 4 == 3 else SamplingParams()), logprobs=0
        )
        for i, prompt in enumerate(prompts(models.info.vocab_size, seed=seed))
    ]


Text = tuple[list[int], list[float]]


def texts(models: LoadedModels, way: Way, tokens: int, seed: int = 1) -> list[Text]:
    """Returns each text's tokens and their log-probabilities."""
    rig = Rig(
        models,
        max_batch=way.together,
        depth=random_depth_control(way.together),
        prefill_chunk=way.chunk,
        prefix_bytes=1 << 26 if way.cached else 0,
    )
    sinks: list[Collected] = []
    for _ in range(2 if way.cached else 1):
        sinks = rig.run(requests(models, PLANS[way.plan], tokens, seed))
    if way.cached and is_exact(models.target):  # a usual recurrent model keeps whole texts only
        assert sum(sink.done.stats.cached_tokens for sink in sinks) > 0, "no prefix was read: nothing was proven"
    assert all(sink.done.error == "" for sink in sinks), [sink.done for sink in sinks]
    return [(sink.tokens, [chosen.logprob for chosen in sink.logprobs]) for sink in sinks]


@dataclass
class TextDifferences:
    """Counts texts, those with other tokens than the first way's, and those with other log-probabilities."""

    texts: int = 0
    differ: int = 0
    bits: int = 0

    def add(self, texts: Sequence[Text], expected: Sequence[Text]) -> None:
        for (tokens, logprobs), (own, theirs) in zip(texts, expected, strict=True):
            self.texts += 1
            self.differ += tokens != own
            self.bits += logprobs != theirs


def compare(models: LoadedModels, ways: Sequence[Way], tokens: int, seeds: Sequence[int] = (1,)) -> TextDifferences:
    """Compares the texts of all ways with those of one text at a time, without drafts and prefixes."""
    compared = TextDifferences()
    for seed in seeds:
        expected = texts(models, WAYS[0], tokens, seed)
        for way in ways:
            compared.add(texts(models, way, tokens, seed), expected)
    return compared


def exact(models: LoadedModels) -> ExactLayers:
    """Makes the target exact."""
    return make_exact(models.target, models.info.vocab_size, SIZES, EXACT_SLICE, lambda line: None)


def measured(models: LoadedModels, layers: ExactLayers | None = None) -> Exactness:
    """Measures the target."""
    vocabulary = models.info.vocab_size
    pieces = measure(models.target, vocabulary, prompts(vocabulary), SIZES, EXACT_SLICE, exact=layers)
    return _result(pieces)


def _result(pieces: Iterator[Any]) -> Exactness:
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: Exactness = end.value
            return result


def some_ways(count: int) -> list[Way]:
    """Returns so many of the ways, the last ones first: deep drafts, eight at once."""
    return sorted(WAYS, key=lambda way: (-way.together, way.plan != "depth 4", way.plan == "no draft"))[:count]


@contextlib.contextmanager
def nothing(model: Any) -> Iterator[None]:
    """Changes nothing."""
    yield


def named(models: LoadedModels, plant: Plant | None) -> str:
    """Measures the target. Returns by which name and where the measurement found the plant; empty if it did not."""
    operations = measured(models).operations
    for operation in operations:
        if plant is None or operation.name.endswith(plant.named):
            return f"{operation.name.removeprefix('model.')} {operation.where}"
    return ""
