"""Functions that the Python clients' scripts share. `python SCRIPT.py REAL_URL TALKER_URL` prints a line of JSON per
check.

Runs in the clients' own environment, and imports nothing of draftd.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel

REAL, TALKER = sys.argv[1:3]
"""URLs, without a path: of a daemon with a real model, and of one whose model writes what the conversation asks for."""
REAL_MODEL, TALKER_MODEL = "SmolLM2-135M-Instruct", "scripted"

QUESTION, ANSWER = "What is the capital of Canada?", "Ottawa"
CALL, RESULT = 'CALL add {"a": 2, "b": 3}', "done: 5"
COUNT = "COUNT 4000"  # takes many seconds, unless it is aborted
FIRST, SECOND, RECALLED = "SAY apples and pears", "RECALL it", "apples and pears"

_ACTIVE = re.compile(r"^draftd_engine_active_requests\{.*\} (\S+)$", re.MULTILINE)
_SECONDS = 10.0


class City(BaseModel):
    """The schema of the answers: so small that any model completes it."""

    city: Literal["Ottawa", "Oslo"]
    is_capital: bool


def check(name: str) -> Callable[[Callable[[], object]], None]:
    """Runs the function and prints whether it raised."""

    def run(function: Callable[[], object]) -> None:
        try:
            detail, ok = str(function() or ""), True
        except Exception as error:
            detail, ok = f"{type(error).__name__}: {error}", False
        print(json.dumps({"name": name, "ok": ok, "detail": detail[:2000]}), flush=True)

    return run


def expect(value: object, wanted: object) -> None:
    """Raises AssertionError unless they are equal."""
    assert value == wanted, f"got {value!r}, not {wanted!r}"


def expect_answer(text: str | None, pieces: int | None = None) -> str:
    """Checks an answer to QUESTION. `pieces` is the number of chunks that the stream had."""
    assert text, f"got {text!r}"
    assert ANSWER in text, f"got {text!r}"
    assert pieces is None or pieces > 2, f"got {text!r} in {pieces} pieces"
    return text


def active_requests() -> float:
    """Returns how many requests the talker's daemon decodes now."""
    with urllib.request.urlopen(f"{TALKER}/metrics", timeout=10) as response:
        match = _ACTIVE.search(response.read().decode())
    assert match, "/metrics shows no draftd_engine_active_requests"
    return float(match[1])


def expect_running() -> None:
    """Checks, within a stream, that the daemon counts its request."""
    expect(active_requests(), 1.0)


def expect_idle() -> str:
    """Waits until the daemon counts no request. Returns the time that took."""
    began = time.monotonic()
    while active := active_requests():
        assert time.monotonic() < began + _SECONDS, f"{active:g} requests run {_SECONDS:g} s after the abort"
        time.sleep(0.05)
    return f"idle after {time.monotonic() - began:.2f} s"
