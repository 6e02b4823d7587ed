"""Checks answers under JSON schemas with another library than the one that enforced them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jsonschema import Draft202012Validator

from draftd.core import DRAFT_MODEL, GRAMMAR, PROMPT_LOOKUP, FinishReason, SamplingParams
from draftd.engine.pair import LoadedModels
from draftd.models import grammar
from tests.rig import Rig, automatic, autoregressive, request
from tests.schemas.drawn import Drawn

LIMIT = 384  # tokens of an answer
_PLANS = {"autoregressive": autoregressive(), "speculative": automatic(6, DRAFT_MODEL, PROMPT_LOOKUP, GRAMMAR)}
_SAMPLINGS = {"greedy": SamplingParams(), "temperature 1": SamplingParams(temperature=1.0, seed=11)}
_BATCH = 16


@dataclass
class Found:
    """Results. `wrong` has a line for each invalid answer."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def examined(models: LoadedModels, drawn: Sequence[Drawn]) -> Found:
    found = Found()
    prompt = models.tokenizer.render_chat([{"role": "user", "content": "Answer with JSON."}])
    sources = {}
    for one in drawn:
        source = grammar.json_schema(json.dumps(one.schema))
        try:
            assert models.grammars is not None
            models.grammars.compile(source)
        except ValueError as refused:
            found.counts["refused"] += 1
            found.wrong.append(f"{one.name} is refused: {refused}")
            continue
        sources[one.name] = source
    for how, sampling in _SAMPLINGS.items():
        texts: dict[str, dict[str, list[int]]] = {}
        for mode, plan in _PLANS.items():
            rig = Rig(models, max_batch=_BATCH)
            asked = {name: request(prompt, plan, max_tokens=LIMIT, sampling=sampling) for name in sources}
            sinks = rig.run([replace(one, id=name, grammar=sources[name]) for name, one in asked.items()])
            texts[mode] = {name: sink.tokens for name, sink in zip(asked, sinks, strict=True)}
            for one, sink in zip((one for one in drawn if one.name in sources), sinks, strict=True):
                found.counts["answers"] += 1
                _judge(found, one, f"{one.name}, {how}, {mode}", sink.done.reason, models.tokenizer.decode(sink.tokens))
        differ = [name for name in sources if len({tuple(one[name]) for one in texts.values()}) > 1]
        found.wrong += [f"{name}, {how}: drafts change the text" for name in differ]
    return found


def _judge(found: Found, one: Drawn, what: str, reason: FinishReason, text: str) -> None:
    if reason is FinishReason.LENGTH:
        found.counts["cut"] += 1
        if one.bound is not None and one.bound < LIMIT:
            found.wrong.append(f"{what}: cut, although no text of it has more than {one.bound} characters")
        return
    if reason is not FinishReason.STOP:
        found.wrong.append(f"{what}: ended in {reason}")
        return
    try:
        Draft202012Validator(one.schema).validate(json.loads(text))
    except Exception as error:
        found.wrong.append(f"{what}: {text!r}: {str(error).splitlines()[0]}")
    else:
        found.counts["valid"] += 1
