"""What is asked of a stage: options that a run keeps, and that whoever goes on with it need not say again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self, cast

from pydantic import TypeAdapter, ValidationError

from draftd.acceptance.validation import first_fault
from draftd.errors import FieldError


class OptionError(FieldError):
    """An option is out of bounds, or nothing that this daemon can do."""


class Asked:
    """Mixed into a frozen dataclass whose bounds are checked as it is made. `stage` is how errors call it."""

    __slots__ = ()
    stage: ClassVar[str]

    def plan(self) -> dict[str, Any]:
        """As it lies in a run's folder."""
        return dict(TypeAdapter(type(self)).dump_python(self, mode="json"))

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> Self:
        """What a run began with; what else its plan says is left aside. Raises OptionError."""
        known = {field.name for field in fields(cast(Any, cls))}
        try:
            return TypeAdapter(cls).validate_python({name: plan[name] for name in known & plan.keys()})
        except ValidationError as error:
            raise OptionError(*first_fault(error, f"the plan of {cls.stage}")) from None

    @classmethod
    def resumed(cls, plan: Mapping[str, Any] | None, **given: Any) -> Self:
        """What is given and not None, else as the run began, else the default. Raises OptionError."""
        begun: Any = cls.from_plan(plan) if plan is not None else cls()
        return cast(Self, replace(begun, **{name: value for name, value in given.items() if value is not None}))
