"""What is wrong with a command line, in the words in which all else is refused: typer has several others, and a box."""

from __future__ import annotations

import difflib
import re
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
    said = str(error.message)
    if (option := getattr(error, "option_name", None)) is not None:
        if "No such" in said:
            return f"{option}: no such option{_meant(option, _options(error.ctx))} ({command} --help)"
        return f"{option}: " + ("it takes no value" if "not take" in said else "a value must follow it")
    if found := re.match(r"No such command '(.*?)'", said):
        return f"{found[1]}: no such command{_meant(found[1], list(error.ctx.command.commands))} ({command} --help)"
    if found := re.match(r"Got unexpected extra argument.* \((.*)\)$", said):
        return f"{found[1]}: one argument too many ({command} --help)"
    return said


def _wrong_value(error: Any) -> str:
    first = error.__cause__.errors(include_url=False)[0]
    return FieldError(_name(error.param), first["input"], _allowed(error.param, first) or str(error.message)).message


def _name(param: Any) -> str:
    """The long name of an option, the name of an argument."""
    return max(param.opts, key=len) if param.param_type_name == "option" else str(param.name).upper()


def _allowed(param: Any, wrong: Any = None) -> str:
    """What a value may be; empty where anything may."""
    kind = "" if wrong is None else wrong["type"]
    said = wrong["msg"] if wrong is not None and "is not one of " in wrong["msg"] else _choices(param)
    if said:
        choices = re.findall(r"'(.*?)'", said.rpartition("is not one of ")[2])
        return ", ".join(one for one in choices if one != WorkloadClass.UNSPECIFIED)
    if not kind.startswith(("int", "float", "greater", "less")):
        return ""
    low, high = (getattr(param, name, None) for name in ("min", "max"))
    bound = low if low is not None else high
    whole = kind.startswith("int") or (not kind.startswith("float") and isinstance(bound, int))
    least = "" if low is None else f" from {low}"
    most = "" if high is None else f" to {high}" if least else f" up to {high}"
    return ("a whole number" if whole else "a number") + least + most


def _choices(param: Any) -> str:
    """Of an argument or option with a fixed set of values, as typer has them in other errors."""
    told = str(param.get_missing_message(ctx=None) or "").partition("Choose from:")[2]
    return "is not one of " + ", ".join(f"'{one.strip()}'" for one in told.split(",")) if told else ""


def _options(ctx: Any) -> list[str]:
    return [name for param in ctx.command.get_params(ctx) for name in param.opts]


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
