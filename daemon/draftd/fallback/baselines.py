"""Baselines of acceptance: frozen ones from a file, and what probes showed while all was well.

    {"version": 1, "baselines": {"draft_model/code": {"mean": 0.71, "spread": 0.18}}}

A name is a drafter and a workload class.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from draftd.canaries.prompts import FrozenPrompt
from draftd.core import PROMPT_LOOKUP, DrafterName, WorkloadClass
from draftd.errors import ConfigError
from draftd.fallback.drift import Baseline, StreamKey
from draftd.fallback.probes import ProbedPrompt
from draftd.fallback.store import Document, explained

_WORKLOADS = {workload.value: workload for workload in WorkloadClass}


def _known(name: str) -> str:
    drafter, _, workload = name.rpartition("/")
    if not drafter or workload not in _WORKLOADS:
        raise ValueError(f"DRAFTER/WORKLOAD, with a workload class of {', '.join(_WORKLOADS)}")
    return name


class BaselineDocument(Document):
    mean: Annotated[float, Field(ge=0, le=1)]
    spread: Annotated[float, Field(ge=0, le=1)]

    @classmethod
    def of(cls, one: Baseline) -> BaselineDocument:
        return cls(mean=one.mean, spread=one.spread)

    def baseline(self) -> Baseline:
        return Baseline(self.mean, self.spread)


BaselineDocuments = dict[Annotated[str, AfterValidator(_known)], BaselineDocument]


class _Frozen(Document):
    version: Literal[1]
    baselines: BaselineDocuments = Field(default_factory=dict)


def documents(baselines: Mapping[StreamKey, Baseline]) -> dict[str, BaselineDocument]:
    return {f"{drafter}/{workload.value}": BaselineDocument.of(one) for (drafter, workload), one in baselines.items()}


def parsed(found: Mapping[str, BaselineDocument]) -> dict[StreamKey, Baseline]:
    keys = {name: name.rpartition("/") for name in found}
    return {(keys[name][0], _WORKLOADS[keys[name][2]]): one.baseline() for name, one in found.items()}


def frozen_baselines(path: Path | None) -> dict[StreamKey, Baseline]:
    """The baselines of the settings' file; none where there is no file. Raises ConfigError."""
    if path is None:
        return {}
    try:
        return parsed(_Frozen.model_validate_json(path.read_text(encoding="utf-8")).baselines)
    except (OSError, ValueError) as error:
        why = explained(error) if isinstance(error, ValidationError) else error
        raise ConfigError("fallback.baseline", str(path), f"a file of baselines ({why})") from None


class _ProbeBaselines(Document):
    prompts: str
    drafters: dict[DrafterName, BaselineDocument]


class ProbeBaselines:
    """What the frozen prompts showed while all was well, by drafter: what later probes are compared with. Any thread.
    What was learnt of other prompts is of no use for these."""

    def __init__(self, prompts: Sequence[FrozenPrompt]) -> None:
        self._prompts = hashlib.sha256(repr(tuple(prompts)).encode()).hexdigest()[:16]
        self._lock = threading.Lock()
        self._known: dict[DrafterName, Baseline] = {}
        self._age = 0  # how often it was forgotten

    @property
    def age(self) -> int:
        """To be asked before a probe begins, and given with what it taught."""
        with self._lock:
            return self._age

    def of(self, drafter: DrafterName) -> Baseline | None:
        with self._lock:
            return self._known.get(drafter)

    def learn(self, drafter: DrafterName, baseline: Baseline, age: int) -> None:
        """A probe that was under way while all was forgotten is of an old draft still, and teaches nothing."""
        with self._lock:
            if age == self._age:
                self._known[drafter] = baseline

    def forget(self) -> None:
        """The drafts with weights are others on purpose. Prompt lookup has none."""
        with self._lock:
            self._age += 1
            self._known = {kind: one for kind, one in self._known.items() if kind == PROMPT_LOOKUP}

    def document(self) -> dict[str, object]:
        """What JSON can hold, and `recall` reads."""
        with self._lock:
            known = {kind: BaselineDocument.of(one) for kind, one in self._known.items()}
        return _ProbeBaselines(prompts=self._prompts, drafters=known).model_dump(mode="json")

    def recall(self, document: object) -> None:
        """What an earlier run learnt. Raises ValueError, which names the field, its value and what is allowed; then
        nothing is recalled."""
        try:
            found = _ProbeBaselines.model_validate(document, strict=False)
        except ValidationError as error:
            raise explained(error, "probe_baselines") from None
        if found.prompts != self._prompts:
            return
        with self._lock:
            self._known = {kind: one.baseline() for kind, one in found.drafters.items()}


def learnt(prompts: Sequence[ProbedPrompt]) -> Baseline | None:
    """What the same prompts are to be compared with later. None where they showed too little."""
    samples = [one.sample for one in prompts if one.sample.reached]
    if len(samples) < 2:
        return None
    mean = sum(sample.accepted for sample in samples) / sum(sample.reached for sample in samples)
    between = sum((sample.acceptance - mean) ** 2 for sample in samples) / (len(samples) - 1)
    counting = sum(sample.acceptance * (1 - sample.acceptance) / sample.reached for sample in samples) / len(samples)
    return Baseline(mean, math.sqrt(max(0.0, between - counting)))
