"""Baselines of acceptance: frozen ones from a file, and results of probes taken while nothing was wrong.

    {"version": 1, "baselines": {"draft_model/code": {"mean": 0.71, "spread": 0.18}}}

A name is a drafter and a workload class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator

from draftd.canaries.prompts import FrozenPrompt
from draftd.core import PROMPT_LOOKUP, DrafterName, WorkloadClass
from draftd.errors import ConfigError
from draftd.fallback.drift import AcceptanceSample, Baseline, StreamKey
from draftd.fallback.probes import ProbedPrompt
from draftd.fallback.store import Document, first_fault

_WORKLOADS = {workload.value: workload for workload in WorkloadClass}


def _key(name: object) -> StreamKey:
    if isinstance(name, tuple):
        return name
    drafter, _, workload = str(name).rpartition("/")
    if not drafter or workload not in _WORKLOADS:
        raise ValueError(f"DRAFTER/WORKLOAD, with a workload class of {', '.join(_WORKLOADS)}")
    return drafter, _WORKLOADS[workload]


_Key = Annotated[StreamKey, PlainValidator(_key), PlainSerializer(lambda key: f"{key[0]}/{key[1].value}")]
Baselines = dict[_Key, Baseline]  # the form of the document


class _Frozen(Document):
    version: Literal[1]
    baselines: Baselines = Field(default_factory=dict)


def frozen_baselines(path: Path | None) -> dict[StreamKey, Baseline]:
    """Reads the file of baselines that the settings name; none if `path` is None. Raises ConfigError."""
    if path is None:
        return {}
    try:
        return _Frozen.model_validate_json(path.read_text(encoding="utf-8")).baselines
    except (OSError, ValueError) as error:
        raise ConfigError("fallback.baseline", str(path), f"a file of baselines ({first_fault(error)})") from None


class ProbeBaselines(Document):
    """Probe results taken while nothing was wrong, for comparison with later probes. Any thread. `prompts`: the
    fingerprint of the frozen prompts; results of other prompts are not comparable."""

    prompts: str
    drafters: dict[DrafterName, Baseline] = Field(default_factory=dict)

    @classmethod
    def of(cls, prompts: Sequence[FrozenPrompt]) -> ProbeBaselines:
        return cls(prompts=hashlib.sha256(repr(tuple(prompts)).encode()).hexdigest()[:16])

    def forget(self) -> None:
        """Drops the baselines of drafters with weights, because an operator has replaced the weights. `drafters`
        becomes a new dictionary: a probe that still runs writes its result to the former one, where it is lost too."""
        self.drafters = {kind: baseline for kind, baseline in self.drafters.items() if kind == PROMPT_LOOKUP}

    def recall(self, earlier: ProbeBaselines) -> None:
        """Restores an earlier process's baselines, if they were measured with the same prompts."""
        if earlier.prompts == self.prompts:
            self.drafters = dict(earlier.drafters)


def learnt(prompts: Sequence[ProbedPrompt]) -> Baseline | None:
    """Returns the baseline for later runs of these prompts, or None if fewer than two prompts had judged tokens."""
    samples = [AcceptanceSample(prompt.counts.accepted, prompt.counts.rollbacks) for prompt in prompts]
    samples = [sample for sample in samples if sample.reached]
    if len(samples) < 2:
        return None
    return Baseline.learnt(
        samples, sum(prompt.accepted for prompt in samples) / sum(prompt.reached for prompt in samples)
    )
