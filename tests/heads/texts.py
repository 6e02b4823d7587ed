"""No text depends on the drafts of a head, or of prompt lookup in earlier answers."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import product
from typing import Any

from draftd.core import DRAFT_HEAD, PROMPT_LOOKUP, DecodeRequest, DrafterName, SamplingParams
from draftd.engine.drafters.base import Drafter, Text
from draftd.engine.pair import LoadedModels
from draftd.models.grammar import json_schema
from draftd.models.head_families import MTP
from tests.heads.targets import HEAD_KINDS, KINDS, target_with_head
from tests.rig import Rig, autoregressive, request, speculative
from tests.rigged_head import RiggedHead, rigged

_TOKENS = 20
_RIGHT = 0.7  # share of tokens drafted right
_RIGHT_EARLIER = 0.75  # the same of an earlier answer: prompt lookup finds its way back after a wrong one
_CALLER = "a caller"
_VOCABULARY = 4096
_LEAST_ACCEPTED, _MOST_ACCEPTED = 0.3, 0.9
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"enum": ["alpha", "beta"]}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": False,
    }
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to decode: `kind` of target and head, the drafter, and how the texts are asked for."""

    kind: str
    drafter: DrafterName
    seeded: bool
    at_once: int
    prefix: bool
    schema: bool

    def __str__(self) -> str:
        drafter = [self.drafter] if self.drafter == PROMPT_LOOKUP else []
        sampling = "seeded" if self.seeded else "greedy"
        options = ("prefix" if self.prefix else "no prefix", "schema" if self.schema else "no schema")
        return ", ".join((*drafter, self.kind, sampling, f"{self.at_once} at once", *options))


def check(each: int) -> tuple[dict[str, int], list[str]]:
    """Decodes `each` texts in each cell, without drafts and with. Returns how many differ, and what failed."""
    failures, total, differ = list[str](), 0, 0
    without_weights = [(kind, PROMPT_LOOKUP) for kind in KINDS if kind not in HEAD_KINDS]
    for kind, drafter in [*((kind, DRAFT_HEAD) for kind in KINDS), *without_weights]:
        models = target_with_head(kind)
        for ways in product((False, True), (1, 8), (False, True), (False, True)):
            cell = Cell(kind, drafter, *ways)
            count, wrong, accepted = _decode(models, cell, each)
            total, differ = total + count, differ + wrong
            print(f"{cell!s:80} {wrong} of {count} differ, {accepted:.0%} accepted", flush=True)
            if not _LEAST_ACCEPTED <= accepted <= _MOST_ACCEPTED:
                failures.append(f"{cell}: {accepted:.0%} of drafted tokens accepted")
    if differ:
        failures.append(f"{differ} texts differ")
    return {"texts": total, "differ": differ}, failures


def _decode(models: LoadedModels, cell: Cell, each: int) -> tuple[int, int, float]:
    """Returns the number of texts, of those that differ, and the share of drafted tokens that were accepted."""
    seeded, at_once, prefix = cell.seeded, cell.at_once, cell.prefix
    dice, plain = random.Random(f"{seeded} {at_once} {prefix} {cell.schema}"), Rig(models)
    head_drafter = rigged(HEAD_KINDS.get(cell.kind, MTP))
    rig = Rig(models, prefix_bytes=128 << 20 if prefix else 0, head_drafter=head_drafter)
    drafter = rig.scheduler.local.drafting.drafters[cell.drafter]
    shared, grammar = [dice.randrange(5, 4000) for _ in range(40)], json_schema(_SCHEMA) if cell.schema else ""
    count = wrong = drafted = accepted = 0
    while count < each:
        own = [[dice.randrange(5, 4000) for _ in range(dice.randrange(2, 40))] for _ in range(at_once)]
        texts = [[*shared, *text] if prefix else text for text in own]

        def asked(plan: Any, length: int, texts: list[list[int]] = texts, first: int = count) -> list[DecodeRequest]:
            also = {"max_tokens": length, "grammar": grammar, "identity": _CALLER}
            return [request(text, plan, sampling=_sampling(seeded, first + i), **also) for i, text in enumerate(texts)]

        expected = [sink.tokens for sink in plain.run(asked(autoregressive(), _TOKENS + 6))]
        _rig(drafter, texts, expected, dice)
        sinks = rig.run(asked(speculative(3, cell.drafter), _TOKENS))
        wrong += sum(sink.tokens != tokens[:_TOKENS] for sink, tokens in zip(sinks, expected, strict=True))
        drafted += sum(sink.done.stats.counts.drafted for sink in sinks)
        accepted += sum(sink.done.stats.counts.accepted for sink in sinks)
        count += at_once
    return count, wrong, accepted / max(1, drafted)


def _rig(drafter: Drafter, texts: list[list[int]], answers: list[list[int]], dice: random.Random) -> None:
    """Makes a drafter draft these answers, some tokens wrong: a head is told so, prompt lookup finds them as the
    caller's earlier answers. These are wrong at the same places, or the most frequent continuation would be right."""
    if isinstance(drafter, RiggedHead):
        drafter.right = _RIGHT
        drafter.answers = {tuple(text): [*text, *tokens] for text, tokens in zip(texts, answers, strict=True)}
        return
    right = [dice.random() < _RIGHT_EARLIER for _ in range(max(map(len, answers)))]
    for text, tokens in zip(texts, answers, strict=True):
        drafted = [token if ok else (token + 1) % _VOCABULARY for token, ok in zip(tokens, right, strict=False)]
        drafter.leave(Text([*text, *drafted], answered=len(drafted), identity=_CALLER, ended=True))


def _sampling(seeded: bool, seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=seed) if seeded else SamplingParams()
