"""What is wrong with a document that does not fit its type."""

from __future__ import annotations

from pydantic import ValidationError


def first_fault(error: ValidationError, place: str) -> tuple[str, object, str]:
    """The first of them as a FieldError takes it: the field, after the place it is in; its value; what is allowed."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{place}: {where}".rstrip(": "), first["input"], first["msg"]
