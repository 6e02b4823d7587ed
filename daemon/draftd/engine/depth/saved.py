"""Measurements of a model pair on a machine, as a JSON document for the next process.

It has measured prices and acceptance counts, and the same for another daemon's target if this one drafted for it.
Guesses are not saved, nor how far steps were off the prices, which depends on other work of the machine. The caller
records which pair and machine it belongs to. Invalid documents are refused with the field's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftd.core import MODEL_DRAFTERS, DrafterName, WorkloadClass
from draftd.engine.depth.acceptance_rates import Acceptance, AcceptanceEvidence, expected_by_depth
from draftd.engine.depth.costs import DEEPEST, Batch, CalibratedCosts, CostSource, Offsets, StepCosts
from draftd.engine.depth.estimate import best_depth
from draftd.engine.sequence import Key
from draftd.errors import ConfigError, wrong_field

_ENOUGH_DRAFTS = 20.0  # recent drafts before a drafter may be reported as not paying
_AGED = 0.5  # share of saved counts that still counts: texts and weights may have changed

_Kind = Annotated[DrafterName, Field(min_length=1)]
_Workload = Annotated[WorkloadClass, Field(strict=False)]
_Count = Annotated[int, Field(ge=1, lt=1 << 31)]
_Depth = Annotated[int, Field(ge=1, le=DEEPEST)]
_DepthOrAll = Annotated[int, Field(ge=0, le=DEEPEST)]
_Seconds = Annotated[float, Field(ge=1e-9, le=1e6)]
_NotNegative = Annotated[float, Field(ge=0, le=1e6)]
_Counts = Annotated[tuple[_NotNegative, ...], Field(min_length=DEEPEST, max_length=DEEPEST)]


_Accepted = tuple[_Kind, bool, bool, _Workload | None, _Counts, _Counts]
"""Drafter, sampled, seeded, class of text (null: all), then by position: drafted, accepted."""


class RemoteLearnt(BaseModel):
    """Costs of another daemon's target in JSON form. `fingerprint`: of its model.

    Seconds: `forward` of a plain forward; `rest` of a plain step, besides the forward; `streaming` per token that the
    verifier decodes alone with its own drafter, by workload class (null: all); `draft` per drafted token here, by
    drafter. `wider`: by number of drafted tokens, a forward's seconds over those of a plain one."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    fingerprint: Annotated[str, Field(min_length=1)]
    forward: _Seconds
    rest: _NotNegative
    wider: tuple[tuple[_Depth, _Seconds], ...]
    streaming: tuple[tuple[_Workload | None, _Seconds], ...]
    draft: tuple[tuple[_Kind, _NotNegative], ...]
    acceptance: tuple[_Accepted, ...]

    def rates(self) -> Acceptance:
        """Returns the saved acceptance. All counts are multiplied by `_AGED`, because texts and weights may have
        changed."""
        return _rates({row[:4]: row[4:] for row in self.acceptance}, DEEPEST, _AGED)


class _Document(BaseModel):
    """The document's fields, with tables as lists of rows because JSON keys are strings."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    version: Literal[1] = 1
    context: Annotated[int, Field(ge=0, lt=1 << 31)]
    plain: tuple[tuple[_Count, _Seconds], ...]  # batch size, seconds
    drafted: tuple[tuple[_Kind, _Count, _Depth, _Seconds], ...]
    growth: tuple[tuple[_DepthOrAll, _NotNegative], ...]
    prefill: tuple[tuple[_Kind, _Seconds], ...]
    acceptance: tuple[_Accepted, ...]
    remote: RemoteLearnt | None = None


Counted = Mapping[Key, tuple[tuple[float, ...], tuple[float, ...]]]
"""Tokens drafted, and those accepted, by position."""


def to_counted(acceptance: Acceptance) -> Counted:
    return {key: (tuple(e.drafted), tuple(e.accepted)) for key, e in acceptance.evidence.items()}


def rows(acceptance: Counted) -> tuple[_Accepted, ...]:
    return tuple((*key, *counts) for key, counts in acceptance.items())


def _rates(acceptance: Counted, deepest: int, share: float) -> Acceptance:
    restored = {key: AcceptanceEvidence.from_saved(key, *counts, share) for key, counts in acceptance.items()}
    return Acceptance(deepest, restored)


@dataclass(frozen=True, slots=True)
class DrafterWorth:
    """A drafter's worth to a request that is alone. `cost`: time of a step that drafts one token, over that of a plain
    step. `acceptance`: share of those drafted tokens that were accepted; None if too few were drafted. `speedup`:
    tokens per second at the best `depth`, over those without drafts; if `acceptance` is None, full acceptance is
    assumed."""

    drafter: DrafterName
    cost: float
    acceptance: float | None
    depth: int
    speedup: float

    @property
    def warning(self) -> str:
        """A warning for people; empty if the drafter pays."""
        if self.speedup >= 1:
            return ""
        accepted = "even if all" if self.acceptance is None else f"and {self.acceptance:.0%} of"
        return (
            f"{self.drafter} does not pay: a step that drafts one token takes {self.cost:.2f} times as long as one "
            f"that drafts none, {accepted} these tokens are accepted; at best {self.speedup:.2f} times the speed "
            "without drafts"
        )


class DepthCost(NamedTuple):
    """Cost of a step of `batch` greedy sequences with one drafter. `plain`: seconds of a step without drafts, None if
    unmeasured; `ratios`: cost over that, by depth from 1; `source`: the origin of these."""

    drafter: DrafterName
    batch: int
    plain: float | None
    ratios: Sequence[float]
    source: CostSource


class DepthYield(NamedTuple):
    """The share of one drafter's tokens that is accepted in one kind of text, by position, with the recent drafts that
    `tried` it. `depth`: the best for such a request alone, 0 if none pays."""

    drafter: DrafterName
    sampled: bool
    seeded: bool
    workload: WorkloadClass
    acceptance: Sequence[float]
    tried: Sequence[float]
    depth: int


@dataclass(frozen=True, slots=True)
class LearntCosts:
    """The learnt prices and acceptance. `prices` and `acceptance` outlive the process; `offsets`, `speed` and `sources`
    are its present state: `StepCosts.offsets`, `StepCosts.speed`, and the origin of each price. `measured`: whether
    this process measured plain steps."""

    prices: CalibratedCosts
    acceptance: Counted = field(default_factory=dict)
    remote: RemoteLearnt | None = None
    offsets: Offsets = field(default_factory=dict)
    speed: float = 0.0
    sources: Mapping[tuple[DrafterName, int], CostSource] = field(default_factory=dict)
    measured: bool = False

    def costs(self) -> StepCosts:
        """Returns step costs as they were when this was read. After a restart only `prices` remain, as a prior."""
        costs = StepCosts(self.prices)
        costs.restore(self.offsets, self.speed, measured=self.measured)
        return costs

    def rates(self, deepest: int, share: float = _AGED) -> Acceptance:
        """Returns the acceptance up to position `deepest`, with counts reduced to `share`."""
        return _rates(self.acceptance, deepest, share)

    def worth(self, drafter: DrafterName, most: int) -> DrafterWorth | None:
        """Returns a drafter's worth at up to `most` tokens a step, or None if too little is known. Costs alone may show
        that it cannot pay: a parked drafter would never gather enough acceptance counts."""
        texts = [key for key in self.acceptance if key[0] == drafter and key[3] is None]
        key = max(texts, key=lambda text: self.acceptance[text][0][0], default=None)
        if drafter not in self.prices.drafted or not most:
            return None
        costs, batch = self.costs(), Batch(min(self.prices.plain, default=1), self.prices.context)
        ratios = [seconds / costs.plain(batch) for seconds in costs.by_depth(drafter, batch, most)]
        if judged := key is not None and self.acceptance[key][0][0] >= _ENOUGH_DRAFTS:
            rates = self.rates(most, share=1.0).rates(key)
        else:
            rates = [1.0] * most
        expected = expected_by_depth(rates, 1.0, most)
        depth = 1 + best_depth(expected[1:], ratios[1:])
        speedup = expected[depth] / ratios[depth]
        if not judged and speedup >= 1:
            return None
        return DrafterWorth(drafter, ratios[1], rates[0] if judged else None, depth, speedup)

    def best_worth(self, most: int) -> DrafterWorth | None:
        """Returns the worth of the draft model or the draft head, of the one that pays more, as `worth` does. Depth
        control uses the faster one, so only its worth calls for a warning."""
        worths = [worth for drafter in MODEL_DRAFTERS if (worth := self.worth(drafter, most)) is not None]
        return max(worths, key=lambda worth: worth.speedup, default=None)

    def depths(self, most: int) -> tuple[list[DepthCost], list[DepthYield]]:
        """Returns costs and acceptance at up to `most` drafted tokens a step, and the depth that follows from them."""
        costs, context, yields = self.costs(), self.prices.context, list[DepthYield]()
        sizes, table = sorted(self.prices.plain) or [1], list[DepthCost]()
        ratios = dict[tuple[DrafterName, int], list[float]]()
        for drafter in sorted({*self.prices.drafted, *(key[0] for key in self.acceptance)}):
            for batch in sizes:
                plain = costs.plain(Batch(batch, context))
                curve = [seconds / plain for seconds in costs.by_depth(drafter, Batch(batch, context), most)]
                ratios[drafter, batch] = curve
                source = self.sources.get((drafter, batch), CostSource.GUESSED)
                table.append(DepthCost(drafter, batch, plain if costs.measured else None, curve[1:], source))
        acceptance = self.rates(max(1, most), share=1.0)
        for key in sorted(self.acceptance, key=str):
            if key[3] is None:  # all classes together, used for rarely seen ones
                continue
            rates = acceptance.rates(key)[:most]
            depth = best_depth(expected_by_depth(rates, 1.0, most), ratios[key[0], sizes[0]])
            yields.append(DepthYield(*key[:3], key[3], rates, self.acceptance[key][0][:most], depth))
        return table, yields

    def to_document(self) -> dict[str, Any]:
        """Returns the document in JSON values."""
        prices = self.prices
        document = _Document(
            context=prices.context,
            plain=tuple(sorted(prices.plain.items())),
            drafted=tuple(
                (kind, batch, depth, seconds)
                for kind, costs in sorted(prices.drafted.items())
                for (batch, depth), seconds in sorted(costs.items())
            ),
            growth=tuple(sorted(prices.growth.items())),
            prefill=tuple(sorted(prices.prefill.items())),
            acceptance=rows(self.acceptance),
            remote=self.remote,
        )
        return document.model_dump(mode="json")

    @classmethod
    def of_document(cls, document: object) -> Self:
        """Reads what `to_document` wrote. Raises ConfigError, naming the field, if it is not valid."""
        try:
            read = _Document.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise ConfigError(*wrong_field(error, "learnt.")) from None
        drafted: dict[DrafterName, dict[tuple[int, int], float]] = {}
        for kind, batch, depth, seconds in read.drafted:
            drafted.setdefault(kind, {})[batch, depth] = seconds
        return cls(
            CalibratedCosts(dict(read.plain), drafted, dict(read.growth), read.context, dict(read.prefill)),
            {row[:4]: row[4:] for row in read.acceptance},
            read.remote,
        )
