"""Examines one architecture: the engine as `draftd serve` composes it, over a tiny model, against mlx-lm's own loop.

It runs in the caller's thread, so that no queue and no clock decides anything. Imports MLX: load the BLAS first.
"""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    DrafterName,
    FallbackLevel,
    FinishReason,
    LadderLevel,
    SamplingParams,
)
from draftd.engine import assembly, calibration
from draftd.engine.cache.base import flat
from draftd.engine.limits import Limits
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels, assemble
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence
from draftd.errors import ModelLoadError, in_one_line
from draftd.model_info import ModelInfo
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import ModelFolder
from draftd.models.mlx_lm import load_model, make_prompt_cache
from draftd.planning.flag_file import FlagResolution
from draftd.planning.planner import RequestedPlan, decide
from tests.models.configurations import VOCABULARY
from tests.models.forms import forms
from tests.models.result import Result
from tests.models.tiny import draft_of, logits, quantised, stored, tiny
from tests.rig import Collected, request
from tests.scripted import ByteTokenizer

_LENGTHS = (2, 7, 12, 21)  # of the prompts in a batch, shorter and longer than a window
_AGAIN = 4
_LATER = 10  # of one that takes the place of the cancelled one
_LONG = 34  # of the prompt whose prefix is kept: what is short is computed anew
_CONTEXT = 512
_PADDED = 8  # ids of the model that no token has
_MOST_DRAFTED = 6
_SLICE = 16  # tokens of a prompt in one forward, whatever the machine's speed
_STEPS = 2000
_TIE = 1e-3  # of the standard deviation of the logits: as the trial of the cache layouts has it
_TRIALS = 48  # perturbed choices that tell a tie

Tokens = list[int]


@dataclass(frozen=True)
class Size:
    """Size of the examination. `tokens` is the length of each text; with the shortest prompt it fills a window
    twice."""

    tokens: int = 32
    depths: tuple[int, ...] = (1, 4, 6)
    alone: tuple[int, ...] = (0, 3)  # prompts that are decoded alone as well
    quantised: bool = True
    forms: bool = True


WHOLE = Size()


@dataclass(frozen=True)
class Way:
    """A decoding configuration: `depth` drafted tokens a step, by this drafter."""

    depth: int
    drafter: DrafterName = DRAFT_MODEL

    @property
    def wish(self) -> RequestedPlan:
        if not self.depth:
            return RequestedPlan(max_draft_tokens=0)
        return RequestedPlan(max_draft_tokens=self.depth, drafter=self.drafter, depth_mode=DepthMode.FIXED)

    def __str__(self) -> str:
        drafter = "" if self.drafter == DRAFT_MODEL else " of prompt lookup"
        return f"depth {self.depth}{drafter}"


def examine(name: str, size: Size = WHOLE) -> Result:
    """Examines one architecture. Raises nothing: failures are in the result."""
    began, result = time.monotonic(), Result(name)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            scene = Scene(name, size, result)
            expected = scene.references()
    except (Exception, SystemExit) as error:
        what = said.getvalue().strip() or in_one_line(error)
        result.reasons["served"] = f"mlx-lm's own loop does not run it here: {what}"
        return result
    try:
        scene.run(expected)
    except Exception as error:
        result.different.append(f"the examination ended: {in_one_line(error)}")
        if not result.served:
            result.reasons.setdefault("served", in_one_line(error))
    result.identical = not result.different
    if not result.identical:
        result.reasons["identical"] = "; ".join(result.different[:3])
        result.consistent = scene.consistent(expected)
        if not result.consistent:
            result.reasons["identical"] = "mlx-lm's own text depends on how a prompt is cut into slices"
    result.seconds = round(time.monotonic() - began, 1)
    return result


class Scene:
    """A target, its draft, and the prompts."""

    def __init__(self, name: str, size: Size, result: Result) -> None:
        calibration._MEASURES_THE_REST = False  # depths are fixed: what a step costs decides nothing
        self.name, self.size, self.result = name, size, result
        self.target = tiny(name)
        dice = random.Random(name)
        self.prompts = [_prompt(dice, length) for length in (*_LENGTHS, _LATER)]
        again = _prompt(dice, _AGAIN)  # the longest prompt ends as it begins: prompt lookup has something to draft
        self.prompts[3] = [*again, *written(self.target, again, _LENGTHS[3] - 2 * _AGAIN), *again]
        self.long = _prompt(dice, _LONG)
        self.branch = self.long[:-_LATER] + _prompt(dice, _LATER)
        kinds = Counter(type(cache).__name__ for cache in flat(make_prompt_cache(self.target)))
        result.caches = ", ".join(f"{count} {kind}" for kind, count in kinds.items())

    def references(self) -> list[Tokens]:
        """Returns mlx-lm's text after each prompt."""
        return [written(self.target, prompt, self.size.tokens) for prompt in self.prompts]

    def consistent(self, expected: list[Tokens]) -> bool:
        """Returns True if mlx-lm writes the same texts when it processes prompts a few tokens at a time."""
        texts = [written(self.target, prompt, self.size.tokens, slices=3) for prompt in self.prompts]
        return texts == expected

    def run(self, expected: list[Tokens]) -> None:
        result = self.result
        result.distinct = len({token for text in expected for token in text})
        draft, result.agreement = draft_of(self.name, self.prompts[3] + expected[3], len(self.prompts[3]))
        models = loaded(self.target, draft)
        self.info = models.info
        result.batched = self.info.batched
        if not result.batched:
            result.reasons["batched"] = self.info.batched_reason
        engine = Engine(models, result)
        self._parity(engine, expected)
        self._seeds(engine)
        self._mixed(engine, expected)
        self._cancelled(engine, expected)
        self._prefix(models)
        if self.size.quantised:
            self._quantised()
        if self.size.forms:
            self._forms()

    # what is asked of it

    def _ways(self) -> list[Way]:
        return [*(Way(depth) for depth in self.size.depths), Way(4, PROMPT_LOOKUP)]

    def _parity(self, engine: Engine, expected: list[Tokens]) -> None:
        result, batch = self.result, list(range(len(_LENGTHS)))
        asked = [[i] for i in self.size.alone]
        served = True
        for way in [Way(0), *self._ways()]:
            for rows in [*asked, batch]:
                sinks = engine.run([self._request(engine, i, way) for i in rows])
                where = f"{way}, {'alone' if len(rows) == 1 else 'in a batch'}"
                for i, sink in zip(rows, sinks, strict=True):
                    engine.compare(sink, self.prompts[i], expected[i], f"{where}, prompt {i}")
                    served = served and sink.done.reason is FinishReason.LENGTH
                    if not served:
                        result.reasons.setdefault("served", sink.done.error or f"it ended: {sink.done.reason}")
                if way == Way(4) and rows is batch:
                    self._speculation(sinks)
                if way.drafter == PROMPT_LOOKUP:
                    result.looked_up += sum(sink.done.stats.counts.drafted for sink in sinks)
        result.served = served
        if result.speculating and not result.looked_up:
            result.notes.append("prompt lookup drafted nothing")

    def _speculation(self, sinks: Sequence[Collected]) -> None:
        """Checks a batch that should draft four tokens in each step."""
        result, counts = self.result, [sink.done.stats.counts for sink in sinks]
        result.drafted = sum(one.drafted for one in counts)
        result.accepted = sum(one.accepted for one in counts)
        result.rollbacks = sum(one.rollbacks for one in counts)
        ended = next((sink.done.degraded for sink in sinks if sink.done.degraded), "")
        lowered = next((why for why in self._lowered if why), "")
        if why := ended or self.info.why_no(DRAFT_MODEL) or lowered:
            result.reasons["speculating"] = f"only until {why}" if result.drafted else why
        elif not result.drafted:
            result.reasons["speculating"] = "nothing was drafted"
        result.speculating = "speculating" not in result.reasons
        if result.speculating and not (result.accepted and result.rollbacks):
            result.notes.append("its draft had all tokens right, or none")

    def _seeds(self, engine: Engine) -> None:
        """Checks that the same seeds give the same texts alone without drafts, and in batches with drafts."""
        ways = [SamplingParams(0.8, top_p=0.95, seed=seed) for seed in range(len(_LENGTHS))]
        expected = []
        for i, sampling in enumerate(ways):
            (sink,) = engine.run([self._request(engine, i, Way(0), sampling)])
            expected.append(sink.tokens)
        for way in [Way(0), *self._ways()]:
            sinks = engine.run([self._request(engine, i, way, sampling) for i, sampling in enumerate(ways)])
            for i, (sink, sampling) in enumerate(zip(sinks, ways, strict=True)):
                what = f"seed {sampling.seed}, {way}, in a batch"
                engine.compare(sink, self.prompts[i], expected[i], what, sampling)

    def _mixed(self, engine: Engine, expected: list[Tokens]) -> None:
        """Checks greedy requests beside one with a seed and one without, whose text is random."""
        ways = [None, SamplingParams(0.8), None, SamplingParams(0.8, top_k=20, seed=1)]
        sinks = engine.run([self._request(engine, i, Way(4), sampling) for i, sampling in enumerate(ways)])
        for i, (sink, sampling) in enumerate(zip(sinks, ways, strict=True)):
            what = f"beside sampled ones, prompt {i}"
            if sampling is None:
                engine.compare(sink, self.prompts[i], expected[i], what)
            elif sink.done.reason is not FinishReason.LENGTH:
                self.result.different.append(f"{what}: {sink.done.reason}, {sink.done.error}")
            elif sink.done.degraded and self.result.speculating:
                self.result.speculating = False
                self.result.reasons["speculating"] = f"not for sampled requests: {sink.done.degraded}"

    def _cancelled(self, engine: Engine, expected: list[Tokens]) -> None:
        """Cancels one of four requests in the middle of its text; a fifth takes its place."""
        asked = [self._request(engine, i, Way(4)) for i in range(len(self.prompts))]
        sinks = engine.run(asked, cancel=1, after=self.size.tokens // 3)
        if sinks[1].done.reason is not FinishReason.CANCELLED:
            self.result.different.append(f"the cancelled one ended as {sinks[1].done.reason}")
        for i, sink in enumerate(sinks):
            whole = expected[i][: len(sink.tokens)] if i == 1 else expected[i]
            engine.compare(sink, self.prompts[i], whole, f"beside a cancelled one, prompt {i}")

    def _prefix(self, models: LoadedModels) -> None:
        """Decodes a text, then one that continues all of it, then one that shares a part of its prompt."""
        result, tokens = self.result, self.size.tokens // 2
        engine = Engine(models, result, prefix_bytes=1 << 26)
        (first,) = engine.run([self._asked(engine, self.long, Way(4), tokens)])
        engine.compare(first, self.long, written(self.target, self.long, tokens), "the text whose prefix is kept")
        longer = [*self.long, *first.tokens, *self.prompts[1]]
        cached = []
        for prompt, what in ((longer, "a text that goes on"), (self.branch, "a text that shares a part of its prompt")):
            (sink,) = engine.run([self._asked(engine, prompt, Way(4), tokens)])
            engine.compare(sink, prompt, written(self.target, prompt, tokens), what)
            cached.append(sink.done.stats.cached_tokens)
        result.continued, result.shared = cached
        result.prefix = result.continued > 0
        if not result.prefix:
            result.reasons["prefix"] = "nothing was kept of the text before"
        elif not result.shared:
            result.notes.append("prefixes: whole texts only")

    def _quantised(self) -> None:
        """Checks 4-bit weights; the unquantised model drafts."""
        result, before = self.result, len(self.result.different)
        try:
            target = quantised(self.name)
            if target is None:
                result.reasons["quantised"] = "none of its layers takes 4-bit weights"
                return
            expected = [written(target, prompt, self.size.tokens) for prompt in self.prompts]
        except Exception as error:
            result.reasons["quantised"] = f"mlx-lm's own loop does not run it here: {in_one_line(error)}"
            return
        engine = Engine(loaded(target, self.target), result)
        for way in (Way(0), Way(4)):
            for rows in ([0], list(range(len(_LENGTHS)))):
                sinks = engine.run([self._request(engine, i, way) for i in rows])
                for i, sink in zip(rows, sinks, strict=True):
                    engine.compare(sink, self.prompts[i], expected[i], f"4 bits, {way}, of {len(rows)}, prompt {i}")
        result.quantised = len(result.different) == before
        if not result.quantised:
            result.reasons["quantised"] = result.different[before]

    def _forms(self) -> None:
        """Checks folders whose configuration either version of transformers wrote."""
        result, found = self.result, []
        try:
            own, older, newer = forms(self.name)
            model = tiny(self.name, own)
            with tempfile.TemporaryDirectory() as place:
                reference, _ = load_model(stored(Path(place) / "own", model, own))
                expected = logits(reference)
                for version, config in (("4", older), ("5", newer)):
                    served, _ = ModelFolder(str(stored(Path(place) / version, model, config))).open()
                    found.append(logits(served))
                    if not mx.allclose(found[-1], expected, rtol=0, atol=1e-3).item():
                        result.reasons["forms"] = f"as transformers {version} writes its config.json, its logits differ"
                        return
        except ModelLoadError as error:
            result.reasons["forms"] = error.what.rpartition("model: ")[2]
            return
        except Exception as error:
            result.reasons["forms"] = in_one_line(error)
            return
        result.forms = bool(mx.array_equal(*found).item())
        if not result.forms:
            result.reasons["forms"] = "its logits differ between the two forms of its config.json"

    # requests

    _lowered: tuple[str, ...] = ()

    def _request(self, engine: Engine, i: int, way: Way, sampling: SamplingParams | None = None) -> DecodeRequest:
        return self._asked(engine, self.prompts[i], way, self.size.tokens, sampling)

    def _asked(
        self, engine: Engine, prompt: Tokens, way: Way, tokens: int, sampling: SamplingParams | None = None
    ) -> DecodeRequest:
        plan = planned(way, engine.info, len(prompt))
        if way == Way(4):
            self._lowered = (*self._lowered, "" if plan.drafter else plan.reason)
        return request(prompt, plan, max_tokens=tokens, sampling=sampling)


class Engine:
    """The parts that `draftd serve` composes on its engine thread, and the texts that its requests must give."""

    def __init__(self, models: LoadedModels, result: Result, *, prefix_bytes: int = 0) -> None:
        limits = Limits(
            max_batch=len(_LENGTHS),
            max_draft_tokens=_MOST_DRAFTED,
            prefill_chunk=_SLICE,
            prefix_cache_bytes=prefix_bytes,
        )
        self.info, self._model, self._result = models.info, models.target, result
        self._engine = assembly.assemble_engine(
            models,
            limits,
            learnt=None,
            observer=EngineObserver(),
            cancelled=dict,
            report=lambda line: None,
            fingerprints=Fingerprints(),
        )

    def run(self, requests: Sequence[DecodeRequest], cancel: int | None = None, after: int = 0) -> list[Collected]:
        """Runs the requests until all have ended. The one with the index `cancel` is cancelled once it has `after`
        tokens."""
        scheduler, sinks = self._engine.scheduler, [Collected() for _ in requests]
        for one, sink in zip(requests, sinks, strict=True):
            scheduler.add(DecodeSequence.of(one, sink, self.info.context_length))
        for _ in range(_STEPS):
            if scheduler.idle:
                return sinks
            scheduler.step()
            if cancel is not None and len(sinks[cancel].tokens) >= after:
                scheduler.end({requests[cancel].id: FinishReason.CANCELLED})
                cancel = None
        raise RuntimeError(f"not finished after {_STEPS} steps")

    def compare(
        self, sink: Collected, prompt: Tokens, expected: Tokens, what: str, sampling: SamplingParams | None = None
    ) -> None:
        """Notes whether a text differs, and whether that is a tie."""
        self._result.texts += 1
        found = sink.tokens
        if found == expected:
            return
        at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
        if at is None:
            ended = f"{sink.done.reason}{f', {sink.done.error}' if sink.done.error else ''}"
            self._result.different.append(f"{what}: {len(found)} tokens of {len(expected)} ({ended})")
            return
        said = f"{what}: token {at} is {found[at]}, not {expected[at]}"
        tie = near_tie(self._model, [*prompt, *expected[:at]], at, found[at], expected[at], sampling)
        (self._result.ties if tie else self._result.different).append(said)


def loaded(target: Any, draft: Any) -> LoadedModels:
    """Returns the models as the engine takes them; the text never ends by itself. The tokenizer has fewer tokens than
    the model has embeddings, like most models'."""
    tokenizer = ByteTokenizer(VOCABULARY - _PADDED)
    tokenizer.eos_ids = frozenset()
    return assemble(
        target, draft, tokenizer, model="tiny", draft_model="noisy", context_length=_CONTEXT, backend="test"
    )


def planned(way: Way, info: ModelInfo, prompt: int) -> DecodePlan:
    """Returns the plan that a daemon's planner makes at its highest level."""
    level = LadderLevel(FallbackLevel.FULL, _MOST_DRAFTED, DRAFT_MODEL)
    return decide(way.wish, FlagResolution("on", True, "STATIC"), level, info, prompt)


def written(model: Any, prompt: Tokens, tokens: int, slices: int = 2048) -> Tokens:
    """Returns the text of mlx-lm's own greedy loop with its own caches. `slices` is the number of prompt tokens in one
    forward."""
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(prompt), model, max_tokens=tokens, prefill_step_size=slices)
    return [int(token) for token, _ in steps]


def near_tie(model: Any, text: Tokens, place: int, one: int, other: int, sampling: SamplingParams | None) -> bool:
    """Returns True if noise of the size of rounding errors, on the logits after `text`, makes either of the two the
    next token. `place` is the number of answer tokens before it."""
    logits = model(mx.array([text]), cache=make_prompt_cache(model))[:, -1:].astype(mx.float32)
    finite = mx.isfinite(logits)
    spread = mx.sqrt(mx.var(mx.where(finite, logits, 0.0)))
    choice, key = Sampling([sampling or SamplingParams()]), mx.random.key(place)
    seen = set()
    for one_key in mx.random.split(key, _TRIALS):
        noisy = logits + _TIE * spread * mx.random.normal(logits.shape, key=one_key)
        seen.add(int(choice.choose(noisy, [place]).item()))
    return {one, other} <= seen


def _prompt(dice: random.Random, length: int) -> Tokens:
    return [dice.randrange(1, VOCABULARY - _PADDED) for _ in range(length)]
