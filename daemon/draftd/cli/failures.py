"""Errors as one line and an exit code. An error that is a bug keeps its traceback."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from draftd.core import WorkloadClass
from draftd.errors import DraftdError, FieldError

FAILED = 1
ASKED_WRONGLY = 2

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of typer's errors for a command line; it has no public name."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A line for a person, and the exit code that goes with it."""

    message: str
    code: int


def explain(error: BaseException) -> Failure | None:
    """Returns how to report an error; None for one that is a bug."""
    client = sys.modules.get("draftd.client.client")  # if it was never imported, the error is not its own
    if client is not None and isinstance(error, client.CallError):
        return _of_call(error.code.name, error.details, answered=bool(error.reason))
    if isinstance(error, UsageError):
        return Failure(_in_our_words(error), ASKED_WRONGLY)
    if isinstance(error, FieldError):
        return Failure(error.message, ASKED_WRONGLY)
    if isinstance(error, DraftdError):
        return Failure(error.message, FAILED)
    if isinstance(error, OSError) and error.filename is not None:
        return Failure(f"{error.filename}: {error.strerror}", FAILED)
    if isinstance(error, UnicodeError):
        return Failure("the text is not UTF-8", ASKED_WRONGLY)
    if isinstance(error, TimeoutError):
        return Failure(str(error) or "timed out", FAILED)
    if isinstance(error, ModuleNotFoundError) and (package := str(error.name).partition(".")[0]) in _REMEDIES:
        missing = f"this needs {package.replace('_', '-')}, which is not installed"
        return Failure(f"{missing}: {_REMEDIES[package]} (see `draftd docs getting-started`)", ASKED_WRONGLY)
    return None


_REMEDIES = {
    "matplotlib": "install draftd with its extra report",
    "grafana_client": "install draftd with its extra grafana",
    "draftd_acceptance": "install draftd again",
}
"""The packages that only some commands import, and how to install them."""


_UNAVAILABLE = {
    r"http1\.x server|parsing HTTP/2": (
        "an HTTP server answers there, and this command speaks gRPC: give the daemon's other port, 50551 by default"
    ),
    r"^(socket closed|connection reset|recvmsg:|broken pipe|goaway|stream removed)": (
        "the connection ended: the daemon stopped or was killed; its log says why"
    ),
    r"socket closed|handshake|certificate": (
        "the address answers, but not as expected: does the daemon use TLS, or not?"
    ),
    r"errors resolving|resolution|misformatted": "the target's host has no address: is its name spelt right?",
    r"failed to connect|connection refused": "no daemon answers: is `draftd serve` running there?",
}
"""Patterns of gRPC's messages about a connection, and their meaning; the first match counts."""

_LAST = re.compile(r"^failed to connect to all addresses; last error: \w+: (ipv4:)?|: \[field:.*")
"""What gRPC writes around an address and its error."""

_TLS = {
    "certificate_expired": "the daemon's certificate is not valid now: renew server.tls_cert there",
    "wrong_name": "the daemon's certificate has another name: use one of its names in the target",
    "unknown_authority": (
        "the daemon's certificate is of an authority that is not trusted here: name it in DRAFTD_TLS_CA"
    ),
    "tls_not_spoken": "the daemon speaks no TLS: leave out DRAFTD_TLS_CA",
}
"""Explanations by `LinkFailure`."""


def _of_call(status: str, details: str, *, answered: bool) -> Failure:
    """Explains a failed call. `answered`: the details are a daemon's, not gRPC's own."""
    if status == "INVALID_ARGUMENT":
        return Failure(details, ASKED_WRONGLY)
    if status == "UNAVAILABLE" and not answered:
        from draftd.verifier_client.failures import parse_failure  # imported here: most commands do not fail

        if (failure := parse_failure(details)) in _TLS:
            return Failure(f"{_TLS[failure]} ({details})", FAILED)
        for sign, meaning in _UNAVAILABLE.items():
            if re.search(sign, details, re.IGNORECASE):
                return Failure(f"{meaning} ({_LAST.sub('', details)})", FAILED)
    if status == "UNAUTHENTICATED":
        return Failure(f"{details}: give the daemon's token in DRAFTD_TOKEN", FAILED)
    if status == "CANCELLED":
        return Failure("cancelled", FAILED)
    if answered and details:
        return Failure(details, FAILED)
    readable = status.lower().replace("_", " ")
    return Failure(f"{readable}: {details}" if details else readable, FAILED)


def _in_our_words(error: Any) -> str:
    """Rewords a `UsageError` like draftd's other errors, without typer's box."""
    command = error.ctx.command_path if error.ctx is not None else "draftd"
    param = getattr(error, "param", None)
    if param is not None and hasattr(error.__cause__, "errors"):
        first = error.__cause__.errors(include_url=False)[0]
        allowed = _allowed_values(param, first["type"]) or str(error.message)
        return FieldError(_name(param), first["input"], allowed).message
    if param is not None and error.message:
        return f"{_name(param)}: {error.message}"
    if param is not None:
        allowed = _allowed_values(param)
        return f"{_name(param)} is missing{f'; allowed: {allowed}' if allowed else ''} ({command} --help)"
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


def _name(param: Any) -> str:
    """Returns the long name of an option, or the name of an argument."""
    return max(param.opts, key=len) if param.param_type_name == "option" else str(param.name).upper()


def _allowed_values(param: Any, kind: str = "") -> str:
    """Describes the allowed values; empty if any is allowed. `kind`: of the validation error."""
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
    """Suggests the nearest name, if typer has one."""
    return f"; did you mean {names[0]}?" if names else ""
