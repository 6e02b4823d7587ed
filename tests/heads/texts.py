"""No text depends on a head's drafts."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

from draftd.core import DRAFT_HEAD, DecodeRequest, SamplingParams
from draftd.engine.pair import LoadedModels
from draftd.models.grammar import json_schema
from draftd.models.head_families import MTP
from tests.heads.targets import HEAD_KINDS, KINDS, target_with_head
from tests.rig import Rig, autoregressive, request, speculative
from tests.rigged_head import RiggedHead, rigged

_TOKENS = 20
_RIGHT = 0.7  # share of tokens drafted right
_LEAST_ACCEPTED, _MOST_ACCEPTED = 0.3, 0.9
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"enum": ["alpha", "beta"]}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": False,
    }
)


def check(each: int) -> tuple[dict[str, int], list[str]]:
    """Decodes `each` texts in each cell, without drafts and with. Returns how many differ, and what failed."""
    failures, total, differ = list[str](), 0, 0
    for kind in KINDS:
        models = target_with_head(kind)
        for seeded, at_once, prefix, schema in product((False, True), (1, 8), (False, True), (False, True)):
            drafter = rigged(HEAD_KINDS.get(kind, MTP))
            count, wrong, accepted = _cell(models, drafter, each, seeded, at_once, prefix, schema)
            total, differ = total + count, differ + wrong
            words = ("seeded" if seeded else "greedy", f"{at_once} at once", "prefix" if prefix else "no prefix")
            cell = ", ".join((kind, *words, "schema" if schema else "no schema"))
            print(f"{cell:64} {wrong} of {count} differ, {accepted:.0%} accepted", flush=True)
            if not _LEAST_ACCEPTED <= accepted <= _MOST_ACCEPTED:
                failures.append(f"{cell}: {accepted:.0%} of drafted tokens accepted")
    if differ:
        failures.append(f"{differ} texts differ")
    return {"texts": total, "differ": differ}, failures


def _cell(
    models: LoadedModels, drafter: type[RiggedHead], each: int, seeded: bool, at_once: int, prefix: bool, schema: bool
) -> tuple[int, int, float]:
    """Returns the number of texts, of those that differ, and the share of drafted tokens that were accepted."""
    dice, plain = random.Random(f"{seeded} {at_once} {prefix} {schema}"), Rig(models)
    rig = Rig(models, prefix_bytes=128 << 20 if prefix else 0, head_drafter=drafter)
    head = rig.scheduler.local.drafting.drafters[DRAFT_HEAD]
    assert isinstance(head, RiggedHead)
    head.right, shared = _RIGHT, [dice.randrange(5, 4000) for _ in range(40)]
    grammar = json_schema(_SCHEMA) if schema else ""
    count = wrong = drafted = accepted = 0
    while count < each:
        own = [[dice.randrange(5, 4000) for _ in range(dice.randrange(2, 40))] for _ in range(at_once)]
        texts = [[*shared, *text] if prefix else text for text in own]

        def asked(plan: Any, length: int, texts: list[list[int]] = texts, first: int = count) -> list[DecodeRequest]:
            return [
                request(text, plan, max_tokens=length, sampling=_sampling(seeded, first + i), grammar=grammar)
                for i, text in enumerate(texts)
            ]

        expected = [sink.tokens for sink in plain.run(asked(autoregressive(), _TOKENS + 6))]
        head.answers = {tuple(text): [*text, *tokens] for text, tokens in zip(texts, expected, strict=True)}
        sinks = rig.run(asked(speculative(3, DRAFT_HEAD), _TOKENS))
        wrong += sum(sink.tokens != tokens[:_TOKENS] for sink, tokens in zip(sinks, expected, strict=True))
        drafted += sum(sink.done.stats.counts.drafted for sink in sinks)
        accepted += sum(sink.done.stats.counts.accepted for sink in sinks)
        count += at_once
    return count, wrong, accepted / max(1, drafted)


def _sampling(seeded: bool, seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=seed) if seeded else SamplingParams()
