"""The options of each stage. A run keeps them, so that a command that resumes the run need not repeat them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftd.client.client import ModelReply
from draftd.client.prompts import Prompt
from draftd.core import CLASSES, DrafterName
from draftd.errors import FieldError, wrong_field
from draftd_acceptance.ticks import Arm, Stage

TIERS = SHORT, MEDIUM, LONG = "short_control", "medium_reasoning", "long_context"
GROUPS = (*TIERS, *(str(kind) for kind in CLASSES))
"""Groups of prompts: three tiers by length, and the workload classes."""

LONGEST_BLOCK = 64
WINDOW_SECONDS = 60.0
STREAMS = 4
_SHORTEST_ANSWER = 8
_WEEK = 7 * 86_400.0

Block = Annotated[int, Field(strict=True, ge=1, le=LONGEST_BLOCK)]
BlockOrNone = Annotated[int, Field(strict=True, ge=0, le=LONGEST_BLOCK)]
Requests = Annotated[int, Field(strict=True, ge=1, le=256)]
Count = Annotated[int, Field(strict=True, ge=1, le=1000)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Temperature = Annotated[float, Field(ge=0, le=100)]


class OptionError(FieldError):
    """An option is out of bounds, or this daemon does not support it."""


class Options(BaseModel):
    """Base of the stages' options. `seed` draws orders and sampled answers."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    stage: ClassVar[Stage]

    seed: Seed = 0

    def plan(self) -> dict[str, Any]:
        """Returns the options in the form that a run's folder keeps."""
        return self.model_dump(mode="json")

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> Self:
        """Returns the options that a run began with, ignoring other entries of its plan. Raises OptionError."""
        return cls._validate(plan, f"{cls.stage}.json: ")

    @classmethod
    def resume(cls, plan: Mapping[str, Any] | None, **changes: Any) -> Self:
        """Returns `changes` that are not None over the run's own options, over the defaults. Raises OptionError."""
        begun = cls.from_plan(plan).plan() if plan is not None else {}
        return cls._validate(begun | {name: value for name, value in changes.items() if value is not None})

    @classmethod
    def _validate(cls, values: Mapping[str, Any], place: str = "") -> Self:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise OptionError(*wrong_field(error, place)) from None


class SweepOptions(Options):
    """One parameter varies at a time, from a base: `block_length` tokens a step, the first drafter, temperature 0, one
    request at a time. The autoregressive arm is measured at every temperature and concurrency.

    Arms that the daemon does not support are left out and reported.
    """

    stage: ClassVar[Stage] = Stage.SWEEP

    block_lengths: tuple[BlockOrNone, ...] = (0, 2, 3, 4, 6)
    block_length: Block = 4
    drafters: tuple[DrafterName, ...] | None = None  # None: all that the daemon offers
    temperatures: tuple[Temperature, ...] = (0.8,)  # besides 0
    concurrency: tuple[Requests, ...] = (2, 4)  # besides 1
    groups: tuple[str, ...] | None = None  # None: all that suit the model
    each: Count = 4  # prompts of each workload class; a tier is asked whole
    prompts: tuple[Prompt, ...] = ()  # the user's own, besides the groups
    repetitions: Count = 3
    max_tokens: Annotated[int, Field(strict=True, ge=2, lt=2**31)] | None = None  # None: each prompt's own
    cool_down: Annotated[float, Field(ge=0, le=3600)] = 0.1  # seconds between two requests
    heat_seconds: Annotated[float, Field(ge=0, le=86_400)] = 300.0  # longest wait for a machine that throttles

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for temperature in self.temperatures:
            if float(f"{temperature:g}") != temperature:
                raise OptionError("temperatures", temperature, "at most six significant digits")
        for name in ("block_lengths", "drafters", "temperatures", "concurrency", "groups"):
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise OptionError(name, values, "each no more than once")
        for group in self.groups or ():
            if group not in GROUPS:
                raise OptionError("groups", group, ", ".join(GROUPS))
        if self.groups == () and not self.prompts:
            allowed = f"at least one of {', '.join(GROUPS)}, or prompts of your own"
            raise OptionError("groups", self.groups, allowed)
        return self

    @property
    def longest_block(self) -> int:
        """The block length that a daemon must allow to measure every arm."""
        return max((self.block_length, *self.block_lengths))


class SoakOptions(Options):
    """None stands for the daemon's own value; `settle` fills it in before the soak begins."""

    stage: ClassVar[Stage] = Stage.SOAK

    duration: Annotated[float, Field(ge=1, le=_WEEK)] = 600.0
    streams: Annotated[int, Field(strict=True, ge=1, le=64)] | None = None  # at most as many as the daemon decodes
    block_length: BlockOrNone | None = None  # 0 is autoregressive
    drafter: DrafterName | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=_SHORTEST_ANSWER, lt=2**31)] | None = None  # longest answer
    window_seconds: Annotated[float, Field(ge=0.1, le=_WEEK)] = WINDOW_SECONDS
    sample_seconds: Annotated[float, Field(ge=0.01, le=60)] = 1.0

    def settle(self, model: ModelReply, max_batch: int | None) -> Self:
        """Replaces None by the daemon's own values. Raises OptionError for options that the daemon does not support."""
        block = _choose_block(self.block_length, model)
        own = {
            "streams": self.streams or min(STREAMS, max_batch or STREAMS),
            "block_length": block,
            "drafter": _choose_drafter(self.drafter, model) if block else None,
            "max_tokens": self.max_tokens or max(_SHORTEST_ANSWER, min(256, model.context_length // 4)),
        }
        return self._validate(self.plan() | own)

    @property
    def arm(self) -> Arm:
        """The arm to soak; the options must be settled."""
        assert self.block_length is not None and self.streams is not None, self  # noqa: PT018
        return Arm(self.block_length, self.drafter, concurrency=self.streams)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The answers' lengths, mixed from an eighth of the longest up to the longest."""
        assert self.max_tokens is not None, self
        return tuple(max(1, self.max_tokens // share) for share in (8, 4, 2, 1))


class QualityOptions(Options):
    """None stands for the daemon's own value; `settle` fills it in before the run begins.

    Greedy answers are always the same, so each is requested once. A `temperature` adds `repeats` sampled answers, each
    with its own seed. `schemas` asks prompts for JSON again with their schema.
    """

    stage: ClassVar[Stage] = Stage.QUALITY

    block_length: Block | None = None
    drafter: DrafterName | None = None
    temperature: Temperature = 0.0
    repeats: Count = 3
    schemas: bool = True

    def frozen(self) -> dict[str, Any]:
        """Returns the options in the form that a run's folder keeps. If `schemas` is False it is left out, as in runs
        that are older than this option."""
        return self.model_dump(mode="json", exclude=None if self.schemas else {"schemas"})

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> Self:
        return super().from_plan({"schemas": False} | dict(plan))  # older runs have no schemas

    def settle(self, model: ModelReply) -> Self:
        """Replaces None by the daemon's own values. Raises OptionError for options that the daemon does not support."""
        if not model.drafters or not model.max_draft_tokens:
            raise OptionError("daemon", "no drafts", f"one that speculates: {model.speculation_reason}")
        own = {"block_length": _choose_block(self.block_length, model), "drafter": _choose_drafter(self.drafter, model)}
        return self._validate(self.plan() | own)

    @property
    def arms(self) -> tuple[tuple[Arm, Arm], ...]:
        """Pairs of an autoregressive arm and its speculative one. Raises OptionError if the options are not settled."""
        for name in ("block_length", "drafter"):
            if getattr(self, name) is None:
                raise OptionError(f"{self.stage}.json: {name}", None, "the value that the run began with")
        assert self.block_length, self
        greedy = Arm(self.block_length, self.drafter)
        both = (greedy, replace(greedy, temperature=self.temperature)) if self.temperature else (greedy,)
        return tuple((arm.baseline, arm) for arm in both)


def _choose_block(block_length: int | None, model: ModelReply) -> int:
    """Returns the requested block length, or the daemon's longest. Raises OptionError for a longer one."""
    most = model.max_draft_tokens if model.drafters else 0
    if block_length is not None and block_length > most:
        why = "" if model.drafters else f" (it does not speculate: {model.speculation_reason})"
        raise OptionError(
            "block_length", block_length, f"at most {most}, which is the most that this daemon drafts{why}"
        )
    return most if block_length is None else block_length


def _choose_drafter(drafter: DrafterName | None, model: ModelReply) -> DrafterName | None:
    """Returns the requested drafter, or the daemon's first. Raises OptionError for one that it does not offer."""
    offered = list(model.drafters)
    if drafter is not None and drafter not in offered:
        raise OptionError("drafter", drafter, f"one that this daemon offers: {', '.join(map(str, offered))}")
    return drafter or offered[0]
