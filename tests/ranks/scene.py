"""Compares one model on several ranks with the same model on one: texts and counters. Runs on rank 0; load the BLAS
first."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodeRequest, FinishReason, SamplingParams
from draftd.counts import DraftCounts, StepCounts
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels
from draftd.outcome import Outcome
from tests.models.scene import near_tie
from tests.rig import Collected, Rig, autoregressive, request, speculative

DEPTH = 4
_LENGTHS = (2, 9, 21, 34)  # of the prompts in a batch, shorter and longer than a window
_FOUND = 20  # tokens of a prompt that begins as an earlier one
_SLICE = 16  # tokens of a prompt in one forward
_PREFIX_BYTES = 64 << 20
_ARRIVALS = 40  # steps within which requests arrive at random
_STEPS = 4000

Tokens = list[int]


@dataclass
class Found:
    """Result for one model. `different` are texts that differ from one rank's; `ties` are those of them whose two
    tokens were practically equal; `cached` counts prompt tokens from the prefix cache."""

    name: str
    parallel: str = ""
    refused: str = ""
    failed: str = ""  # what ended the group
    batched: bool = False
    texts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    cached: int = 0
    cancelled: int = 0
    records: int = 0
    record_bytes: int = 0
    ties: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)  # sums that are not exact
    seconds: float = 0.0


@dataclass(frozen=True)
class Size:
    """Size of the test. `tokens` is the length of each text; `random` is the number of requests that arrive, leave and
    are cancelled at random."""

    tokens: int = 20
    random: int = 12
    seed: int = 1


class Counting(EngineObserver):
    """Sums the counts of all steps, and those that each request reports at its end."""

    def __init__(self) -> None:
        self.steps, self.ends = DraftCounts(), DraftCounts()
        self.outcomes: list[Outcome] = []

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        self.steps.add(result)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        self.ends = self.ends.combine(outcome.stats.counts, lambda a, b: a + b)
        self.outcomes.append(outcome)

    def wrong(self, tokens: int) -> Iterator[str]:
        """Yields the sums that are not exact, for requests with so many tokens together."""
        one = self.ends
        for name in (
            "steps",
            "drafts",
            "drafted",
            "accepted",
            "emitted",
            "cut",
            "rolled_back",
            "accepted_per_position",
        ):
            if getattr(one, name) != getattr(self.steps, name):
                yield f"{name}: {getattr(one, name)} at the ends, {getattr(self.steps, name)} of steps"
        if one.emitted != tokens:
            yield f"{one.emitted} counted, {tokens} came"
        if one.drafted != one.accepted + one.rolled_back or one.emitted != one.accepted + one.steps - one.cut:
            yield f"they do not add up: {one}"


class Scene:
    """The pair with its target on one rank (`alone`), and on several (`shared`)."""

    def __init__(self, found: Found, alone: LoadedModels, shared: LoadedModels, size: Size) -> None:
        self.found, self.alone, self.shared, self.size = found, alone, shared, size
        self._dice = random.Random(f"{found.name}/{size.seed}")
        self._known: dict[tuple[tuple[int, ...], int | None], Tokens] = {}
        self._vocabulary = min(alone.info.vocab_size, 88) - 1  # the tokenizer has fewer than the model has room for

    def run(self) -> None:
        self._parity()
        self._prefix()
        self._random()
        gc.collect()

    def _parity(self) -> None:
        prompts = [self._prompt(length) for length in _LENGTHS]
        rig, counts = self._rig()
        for depth in (0, DEPTH):
            for rows in ([prompts[1]], prompts):
                for seeded in (False, True):
                    seeds = [50 + i if seeded else None for i in range(len(rows))]
                    where = f"depth {depth}, batch {len(rows)}, {'seeded' if seeded else 'greedy'}"
                    asked = [self._request(row, depth, seed) for row, seed in zip(rows, seeds, strict=True)]
                    self._compare(rig.run(asked), asked, where)
        self._judge(counts, "parity")

    def _prefix(self) -> None:
        """Decodes a long prompt, the same again, one that branches off it, and one that continues an answer."""
        rig, counts = self._rig(_PREFIX_BYTES)
        long = self._prompt(_LENGTHS[-1])
        branch = [*long[:_FOUND], *self._prompt(9)]
        for prompt in (long, long, branch, [*long, *self._expected(tuple(long), None)[:12], *self._prompt(3)], branch):
            for depth in (0, DEPTH):
                asked = [self._request(prompt, depth, None)]
                self._compare(rig.run(asked), asked, f"prefix, depth {depth}")
        rig.prefix.shed(0)  # evicted everywhere: the same texts are computed anew
        asked = [self._request(prompt, DEPTH, None) for prompt in (long, branch)]
        self._compare(rig.run(asked), asked, "after eviction")
        self.found.cached += sum(outcome.stats.cached_tokens for outcome in counts.outcomes)
        self._judge(counts, "prefix")

    def _random(self) -> None:
        """Lets different requests join and leave at random; some are cancelled, some of them during prefill."""
        dice, size = self._dice, self.size
        rig, counts = self._rig(_PREFIX_BYTES)
        base = self._prompt(_LENGTHS[-1])
        asked, arrives, cancels = list[DecodeRequest](), list[int](), list[int | None]()
        for i in range(size.random):
            prompt = self._prompt(dice.choice([2, 5, 12, 26]))
            if dice.random() < 0.4:
                prompt = [*base[: dice.randrange(17, len(base))], *prompt]
            drafter = PROMPT_LOOKUP if dice.random() < 0.25 else DRAFT_MODEL
            asked.append(self._request(prompt, dice.choice([0, 2, DEPTH]), dice.choice([None, 200 + i]), drafter))
            arrives.append(dice.randrange(_ARRIVALS))
            cancels.append(dice.randrange(size.tokens) if dice.random() < 0.3 else None)
        sinks: dict[int, Collected] = {}
        for step in range(_STEPS):
            for i in [i for i, when in enumerate(arrives) if when == step]:
                sinks[i] = rig.add(asked[i])
            for i, sink in sinks.items():
                after = cancels[i]
                if after is not None and sink.outcome is None and len(sink.tokens) >= after:
                    rig.scheduler.end({asked[i].id: FinishReason.CANCELLED})
            if rig.scheduler.idle and len(sinks) == len(asked):
                break
            if not rig.scheduler.idle:
                rig.scheduler.step()
        in_order = [sinks[i] for i in range(len(asked))]
        self._compare(in_order, asked, "at random")
        self.found.cancelled += sum(sink.done.reason is FinishReason.CANCELLED for sink in in_order)
        self._judge(counts, "at random")

    def _rig(self, prefix_bytes: int = 0) -> tuple[Rig, Counting]:
        counts = Counting()
        rig = Rig(self.shared, observer=counts, max_batch=4, prefill_chunk=_SLICE, prefix_bytes=prefix_bytes)
        if self.shared.ranks is not None:
            rig.prefix.given_back = self.shared.ranks.give_back
        return rig, counts

    def _request(self, prompt: Tokens, depth: int, seed: int | None, drafter: Any = DRAFT_MODEL) -> DecodeRequest:
        plan = speculative(depth, drafter) if depth else autoregressive()
        sampling = None if seed is None else SamplingParams(0.9, top_p=0.95, seed=seed)
        return request(prompt, plan, max_tokens=self.size.tokens, sampling=sampling)

    def _expected(self, prompt: tuple[int, ...], seed: int | None) -> Tokens:
        """Returns one rank's text, decoded alone without drafts."""
        if (prompt, seed) not in self._known:
            (sink,) = Rig(self.alone, prefill_chunk=_SLICE).run([self._request([*prompt], 0, seed)])
            self._known[prompt, seed] = sink.tokens
        return self._known[prompt, seed]

    def _compare(self, sinks: Sequence[Collected], asked: Sequence[DecodeRequest], where: str) -> None:
        found = self.found
        for sink, one in zip(sinks, asked, strict=True):
            seed = one.sampling.seed
            found.texts, found.tokens = found.texts + 1, found.tokens + len(sink.tokens)
            if sink.done.reason not in (FinishReason.LENGTH, FinishReason.STOP, FinishReason.CANCELLED):
                found.different.append(f"{where}: it ended with {sink.done.reason}, {sink.done.error}")
                continue
            expected = self._expected(one.prompt, seed)
            if sink.done.reason is FinishReason.CANCELLED:
                expected = expected[: len(sink.tokens)]
            if sink.tokens == expected:
                continue
            at = next((i for i, pair in enumerate(zip(sink.tokens, expected, strict=False)) if pair[0] != pair[1]), -1)
            if at < 0:
                found.different.append(f"{where}: {len(sink.tokens)} tokens of {len(expected)}")
                continue
            text = [*one.prompt, *expected[:at]]
            tie = near_tie(self.alone.target, text, at, sink.tokens[at], expected[at], one.sampling)
            gap = _gap(self.alone.target, text, sink.tokens[at], expected[at])
            said = (
                f"{where}, seed {seed}: token {at} is {sink.tokens[at]}, not {expected[at]}; logits differ by {gap:.2g}"
            )
            (found.ties if tie else found.different).append(said)

    def _judge(self, counts: Counting, where: str) -> None:
        found = self.found
        found.drafted += counts.ends.drafted
        found.accepted += counts.ends.accepted
        tokens = sum(outcome.stats.counts.emitted for outcome in counts.outcomes)
        found.counters += [f"{where}: {what}" for what in counts.wrong(tokens)]

    def _prompt(self, length: int) -> Tokens:
        return [self._dice.randrange(1, self._vocabulary) for _ in range(length)]


def _gap(model: Any, text: Tokens, one: int, other: int) -> float:
    """Returns the difference of the two tokens' logits, divided by the logits' standard deviation."""
    from draftd.models.mlx_lm import make_prompt_cache

    logits = model(mx.array([text]), cache=make_prompt_cache(model))[0, -1].astype(mx.float32)
    finite = mx.where(mx.isfinite(logits), logits, 0.0)
    return abs(float(((logits[one] - logits[other]) / mx.sqrt(mx.var(finite))).item()))


Shown = Callable[[Found], None]
