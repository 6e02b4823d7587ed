"""A trained head is accepted less when it is used in a wrong way."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from draftd.core import DRAFT_HEAD
from draftd.engine.cache.model_layers import record_states
from draftd.engine.features import Features
from draftd.engine.head_forms import take_form
from draftd.engine.pair import LoadedModels, load_models
from draftd.models.eagle import EagleHead
from draftd.models.head_families import HeadForm
from draftd.models.target_parts import TargetParts
from tests.heads.targets import NANO
from tests.rig import Rig, request, speculative
from tests.rigged_head import RiggedHead

_PROMPTS, _TOKENS = 24, 32  # prompts of each class, tokens of each answer
_TOGETHER = 8
_LEVEL = 0.1  # final norms with weights that vary by less: to a head with a norm of its own they make no difference
_CLASSES = ("chat", "code", "prose", "tool_call")


class UnprimedHead(RiggedHead):
    """A head that is fed zeros in place of the hidden states of the prompt."""

    def feed(self, sequence: Any, features: Features) -> None:
        if not features.start or features.positions > 8:
            features = features._replace(states=mx.zeros_like(features.states))
        super().feed(sequence, features)


Ways = dict[str, Callable[[], type[RiggedHead]]]
"""Changes of a head or its target; each returns the drafter to use then."""


def check(models: list[tuple[Path, Path | None]]) -> tuple[dict[str, int], list[str]]:
    """Measures for each model, and head in a folder of its own, the acceptance at the first position with the head as
    it was trained, then used in each wrong way, with the same texts. Returns how many ways lower it by more than the
    95 % interval of the mean difference, and what failed."""
    total, failures = {"controls": 0, "controls_lower": 0}, list[str]()
    for model, head in models:
        loaded = load_models(str(model), None if head is None else str(head), progress=lambda line: None)
        assert loaded.head is not None, loaded.info.head
        print(f"{(head or model).name}:", flush=True)
        counts, failed = _compare(loaded)
        total = {name: total[name] + count for name, count in counts.items()}
        failures += [f"{(head or model).name}: {each}" for each in failed]
    return total, failures


def _compare(models: LoadedModels) -> tuple[dict[str, int], list[str]]:
    head, target = models.head, models.target
    right, weights, ids = head.form, head.parameters(), head.ids
    ways = _ways_of_eagle(models) if isinstance(head, EagleHead) else _ways_of_mtp(models)
    ways |= {"not primed": lambda: UnprimedHead, "weights shuffled": lambda: _shuffled(head)}
    trained = _accepted_by_text(models, RiggedHead)
    print(f"{'as trained':28} {statistics.mean(trained):.3f} accepted at the first position", flush=True)
    failures, lower = list[str](), 0
    for name, change in ways.items():
        wrong = _accepted_by_text(models, change())
        head.update(weights)
        take_form(head, target, right)
        head.update(weights)
        head._ids = ids
        losses = [a - b for a, b in zip(trained, wrong, strict=True)]
        loss, error = statistics.mean(losses), 1.96 * statistics.stdev(losses) / math.sqrt(len(losses))
        line = f"{statistics.mean(wrong):.3f} accepted, lower by {loss:.3f} ± {error:.3f}"
        print(f"{name:28} {line}", flush=True)
        lower += loss > error
        if loss <= error:
            failures.append(f"{name}: {line}")
    return {"controls": len(ways), "controls_lower": lower}, failures


def _ways_of_mtp(models: LoadedModels) -> Ways:
    right = models.head.form
    ways: Ways = {
        "the two inputs swapped": lambda: _formed(models, replace(right, embedding_first=False)),
        "states of the layer before": lambda: _tapped(models),
        "states before the norm": lambda: _formed(models, replace(right, after_norm=False)),
        "+ 1 forgotten": lambda: _formed(models, replace(right, added_to_norms=-1)),
    }
    norm = _parts(models).norm.weight.astype(mx.float32)
    variation = (mx.std(norm) / mx.abs(mx.mean(norm))).item()
    if variation < _LEVEL:
        print(f"states before the norm: not told apart, as the norm's weights vary by {variation:.0%} only", flush=True)
        del ways["states before the norm"]
    return ways


def _ways_of_eagle(models: LoadedModels) -> Ways:
    right = models.head.form

    def shifted() -> type[RiggedHead]:
        models.head._ids = mx.roll(models.head.ids, 1)
        return RiggedHead

    return {
        "taps one layer up": lambda: _formed(models, replace(right, taps=tuple(tap + 1 for tap in right.taps))),
        "taps one layer down": lambda: _formed(models, replace(right, taps=tuple(tap - 1 for tap in right.taps))),
        "the normed state as residual": lambda: _formed(models, replace(right, normed_residual=True)),
        "d2t shifted": shifted,
    }


def _parts(models: LoadedModels) -> TargetParts:
    parts = TargetParts.of(models.target)
    assert parts is not None
    return parts


def _tapped(models: LoadedModels) -> type[RiggedHead]:
    """Feeds the head with the input of the target's last layer."""
    record_states(models.target, [_parts(models).layers[-1]])
    return RiggedHead


def _formed(models: LoadedModels, form: HeadForm) -> type[RiggedHead]:
    take_form(models.head, models.target, form)
    return RiggedHead


def _shuffled(head: Any) -> type[RiggedHead]:
    mx.random.seed(3)
    arrays = [
        (name, a if a.ndim < 2 else mx.random.permutation(a, axis=0)) for name, a in tree_flatten(head.parameters())
    ]
    head.update(tree_unflatten(arrays))
    return RiggedHead


def _accepted_by_text(models: LoadedModels, kind: type[RiggedHead]) -> list[float]:
    """Returns for each text the share of first drafted tokens that were accepted."""
    shares = []
    for name in _CLASSES:
        lines = (NANO / "prompts" / f"{name}.jsonl").read_text().splitlines()[:_PROMPTS]
        texts = [models.tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]
        rig = Rig(models, max_batch=_TOGETHER, head_drafter=kind)
        for sink in rig.run([request(text, speculative(1, DRAFT_HEAD), max_tokens=_TOKENS) for text in texts]):
            counts = sink.done.stats.counts
            shares.append(counts.accepted / max(counts.drafts, 1))
    return shares
