"""Reads a spec: a TOML file with the criteria for a candidate. Unknown content is an error, never ignored."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import AllowInfNan, BaseModel, ConfigDict, PlainValidator, Strict, StringConstraints, ValidationError

from draftd.core import DRAFT_MODEL, DrafterName, WorkloadClass
from draftd.errors import FieldError, wrong_field
from draftd_acceptance.gate.metrics import METRICS
from draftd_acceptance.options import LONGEST_BLOCK
from draftd_acceptance.ticks import Arm, Stage

SHIPPED = "production_candidate.toml"
_EXACT = 1e-9  # 0.995 - 0.99 is a little more than 0.005
_NARROWING = ("against", "group", "workload", "block_length", "temperature", "concurrency")  # of a sweep's metrics only


class SpecError(FieldError):
    """A spec is invalid. The message names the file, the line and the criterion."""


class Operator(StrEnum):
    AT_LEAST = ">="
    ABOVE = ">"
    AT_MOST = "<="
    BELOW = "<"
    EQUAL = "=="

    @property
    def direction(self) -> int:
        """The side on which a value passes: 1 above the threshold, -1 below it, 0 on it."""
        return {">": 1, "<": -1, "=": 0}[self.value[0]]

    def holds(self, value: float, threshold: float) -> bool:
        """Whether a value passes. Values that differ only by rounding are equal."""
        if abs(value - threshold) <= _EXACT * max(1.0, abs(threshold)):
            return "=" in self.value
        return (value - threshold) * self.direction > 0


def _block_length(value: Any) -> Any:
    if value != "knee" and not (type(value) is int and 1 <= value <= LONGEST_BLOCK):
        raise ValueError(f'"knee" or a whole number from 1 to {LONGEST_BLOCK}')
    return value


_Name = Annotated[str, MinLen(1)]
_Number = Annotated[float, Strict(), AllowInfNan(False)]
_Whole = Annotated[int, Strict()]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PromotionCandidate(_Table):
    """The configuration to promote. `knee` is the shortest block length whose throughput the sweep cannot tell from the
    best. The default `drafter` is the one whose block lengths were swept."""

    block_length: Annotated[int | Literal["knee"], PlainValidator(_block_length)] = "knee"
    drafter: Annotated[DrafterName, StringConstraints(pattern="^[a-z][a-z_]*$")] = DRAFT_MODEL

    @property
    def id(self) -> str:
        """The id of its arm; empty while the knee is not known."""
        return "" if self.block_length == "knee" else Arm(self.block_length, self.drafter).id


class Criterion(_Table):
    """One requirement. `metric` is a name of gate.metrics.METRICS; group, workload, block length, temperature and
    concurrency narrow a sweep's metric. The default `block_length` is the candidate's. `against` divides the value
    first: by this run's autoregressive arm, prompt by prompt, or by another run. `bound` is the worse end of the 95 %
    interval. `unreadable`: whether to excuse a metric that this machine or model cannot provide."""

    name: _Name
    metric: _Name
    comparison: Operator
    threshold: _Number
    against: Literal["autoregressive", "baseline"] | None = None
    min_samples: Annotated[_Whole, Ge(1)] = 1
    judge: Literal["estimate", "bound"] = "estimate"
    unreadable: Literal["fail", "excuse"] = "fail"
    group: _Name | None = None
    workload: WorkloadClass | None = None
    block_length: Annotated[_Whole, Ge(0), Le(LONGEST_BLOCK)] | None = None
    temperature: Annotated[_Number, Ge(0)] = 0.0
    concurrency: Annotated[_Whole, Ge(1)] = 1


class Spec(_Table):
    """The `criterion` entries are shown in their order here."""

    name: _Name
    description: str = ""
    candidate: PromotionCandidate = PromotionCandidate()
    criterion: Annotated[tuple[Criterion, ...], MinLen(1)]


def load_spec(path: Path | None = None) -> Spec:
    """Reads a spec; without a path the shipped one, for production candidates. Raises SpecError."""
    if path is None:
        return parse(shipped_text(), SHIPPED)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(str(path), error.strerror, "a TOML file that can be read") from None
    except UnicodeDecodeError as error:
        raise SpecError(str(path), error.reason, "a TOML file in UTF-8") from None
    return parse(text, str(path))


def shipped_text() -> str:
    """Returns the text of the spec that comes with the package."""
    return (resources.files("draftd_acceptance.gate") / SHIPPED).read_text(encoding="utf-8")


def parse(text: str, source: str) -> Spec:
    """Parses a spec. `source` is for messages. Raises SpecError, with the line if it is known."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(source, None, f"valid TOML ({error})") from None
    place = partial(_place, text=text, source=source, document=document)
    try:
        spec = Spec.model_validate(document)
    except ValidationError as error:
        raise _spec_error(error, place) from None
    seen: set[str] = set()
    for number, criterion in enumerate(spec.criterion):
        if wrong := _contradiction(criterion):
            field, value, allowed = wrong
            raise SpecError(place(("criterion", number, field)), value, allowed)
        if criterion.name in seen:
            raise SpecError(place(("criterion", number, "name")), criterion.name, "a name that no other has")
        seen.add(criterion.name)
    return spec


def _contradiction(criterion: Criterion) -> tuple[str, str, str] | None:
    """Returns a field that contradicts another one: its name, its value, and what is allowed."""
    metric = METRICS.get(criterion.metric)
    if metric is None:
        return "metric", criterion.metric, _allowed_names(criterion.metric, list(METRICS))
    if metric.stage is not Stage.SWEEP:
        for field in _NARROWING:
            value = getattr(criterion, field)
            if field in criterion.model_fields_set and value != "baseline":
                return field, str(value), f"no value: {criterion.metric} is measured by the {metric.stage}"
    if criterion.judge == "bound" and not metric.has_interval:
        return "judge", "bound", f"estimate: {criterion.metric} has no interval"
    if criterion.against is not None and not metric.divisible:
        return "against", criterion.against, f"no value: {criterion.metric} is not a ratio"
    if criterion.against == "autoregressive" and not metric.autoregressive:
        return "against", criterion.against, f"baseline, or nothing: {criterion.metric} is of drafts"
    return None


def _spec_error(error: ValidationError, place: Callable[[tuple[str | int, ...]], str]) -> SpecError:
    errors = error.errors(include_url=False)
    # An unknown key is often a missing one, misspelt: report it first.
    if unknown := next((fault for fault in errors if fault["type"] == "extra_forbidden"), None):
        *table, key = where = unknown["loc"]
        kind = Criterion if "criterion" in table else PromotionCandidate if "candidate" in table else Spec
        return SpecError(place(where), unknown["input"], _allowed_names(str(key), list(kind.model_fields)))
    _, value, allowed = wrong_field(error)
    return SpecError(place(errors[0]["loc"]), value, allowed)


def _allowed_names(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return ", ".join(names) + (f"; did you mean {near[0]}?" if near else "")


def _place(where: tuple[str | int, ...], text: str, source: str, document: Mapping[str, Any]) -> str:
    """Returns a field's place in the file, for people."""
    line, field = _line(where, text), ".".join(map(str, where))
    if len(where) > 1 and where[0] == "criterion":
        number = int(where[1])
        entry = document["criterion"][number]
        name = entry.get("name") if isinstance(entry, Mapping) else None
        named = f" ({name})" if isinstance(name, str) and name else ""
        field = ": ".join([f"criterion {number + 1}{named}", *map(str, where[2:3])])
    return f"{source}{f', line {line}' if line else ''}: {field}"


def _line(where: tuple[str | int, ...], text: str) -> int | None:
    """Returns the key's line, from 1; its table's line if the key is missing."""
    *table, key = where
    wanted = (table[0], table[1] if len(table) > 1 else 0) if table else ("", 0)
    here, header = ("", 0), None
    counted: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if table_header := re.match(r"\s*\[+\s*([\w-]+)\s*\]+", line):
            here = table_header[1], counted[table_header[1]]
            counted[table_header[1]] += 1
            if where == (table_header[1],):
                return number
            header = number if here == wanted else header
        elif here == wanted and re.match(rf'\s*"?{re.escape(str(key))}"?\s*=', line):
            return number
    return header
