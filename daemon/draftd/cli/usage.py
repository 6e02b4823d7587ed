"""What is wrong with a command line, in the words in which all else is refused: typer has several others, and a box."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from draftd.core import WorkloadClass
from draftd.errors import FieldError

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all that typer raises for a command line; it has no public name."""


def in_our_words(error: Any) -> str:
    """One line of a `UsageError`."""
    command = error.ctx.command_path if error.ctx is not None else "draftd"
    param = getattr(error, "param", None)
    if param is not None and hasattr(error.__cause__, "errors"):
        return _wrong_value(error)
    if param is not None and error.message:
        return f"{_name(param)}: {error.message}"
    if param is not None:
        allowed = _allowed(error.param)
        return f"{_name(error.param)} is missing{f'; allowed: {allowed}' if allowed else ''} ({command} --help)"
    said, more = str(error.message), f"({command} --help)"
    if hasattr(error, "possibilities"):
        return f"{error.option_name}: no such option{_meant(error.possibilities)} {more}"
    if (option := getattr(error, "option_name", None)) is not None:
        return f"{option}: " + ("it takes no value" if "not take" in said else "a value must follow it")
    if match := re.match(r"No such command '(.*?)'", said):
        suggested = re.findall(r"Did you mean '(.*?)'", said)
        return f"{match[1]}: no such command{_meant(suggested)} {more}"
    if match := re.match(r"Got unexpected extra argument.* \((.*)\)$", said):
        return f"{match[1]}: one argument too many {more}"
    return said


def _wrong_value(error: Any) -> str:
    first = error.__cause__.errors(include_url=False)[0]
    return FieldError(
        _name(error.param), first["input"], _allowed(error.param, first["type"]) or str(error.message)
    ).message


def _name(param: Any) -> str:
    """The long name of an option, the name of an argument."""
    return max(param.opts, key=len) if param.param_type_name == "option" else str(param.name).upper()


def _allowed(param: Any, kind: str = "") -> str:
    """What a value may be; empty where anything may. `kind`: the error's, of a wrong value."""
    choices = str(param.get_missing_message(ctx=None) or "").partition("Choose from:")[2]
    if choices:
        return ", ".join(name for name in map(str.strip, choices.split(",")) if name != WorkloadClass.UNSPECIFIED)
    if not kind.startswith(("int", "float", "greater", "less")):
        return ""
    low, high = param.min, param.max
    bound = low if low is not None else high
    whole = kind.startswith("int") or (not kind.startswith("float") and isinstance(bound, int))
    least = "" if low is None else f" from {low}"
    most = "" if high is None else f" to {high}" if least else f" up to {high}"
    return ("a whole number" if whole else "a number") + least + most


def _meant(names: Sequence[str] | None) -> str:
    """The nearest of the names that typer suggests."""
    return f"; did you mean {names[0]}?" if names else ""
