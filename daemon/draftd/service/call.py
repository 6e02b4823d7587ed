"""A request that the engine has taken, and its choices, each with what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftd.core import DecodeRequest
from draftd.service.answer import AnswerStream
from draftd.service.formats import Constraint
from draftd.service.request import Request, RequestStarted
from draftd.service.stream import TokenStream
from draftd.service.text_relay import TextRelay
from draftd.telemetry.spans import InferenceSpan


@dataclass(slots=True, eq=False)
class Choice:
    """One choice of a request: what the engine is asked, what comes of it, and what is made of that."""

    index: int
    decode: DecodeRequest
    stream: TokenStream
    answer: AnswerStream
    span: InferenceSpan


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request that the engine has taken. `constraint`: what its answers follow, compiled until they have ended, or
    the engine thread would have to. `arrived`: something has come of one of its choices. `relay`: another daemon has
    it; the engine has not, unless that goes: then `local_choice` goes on. `echo`: the text that its answers begin with,
    and where the prompt's tokens begin in it."""

    request: Request
    constraint: Constraint
    started: RequestStarted
    choices: list[Choice] = field(default_factory=list)
    relay: TextRelay | None = None
    local_choice: Choice | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    echo: tuple[str, Sequence[int]] = "", ()


async def stays_silent(choices: Sequence[Choice], arrived: asyncio.Event, seconds: float) -> bool:
    """Whether nothing has come of any of them, after waiting up to `seconds` for it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not any(one.stream.ready for one in choices):
                arrived.clear()
                await arrived.wait()
    return not any(one.stream.ready for one in choices)


async def next_choice(choices: list[Choice], arrived: asyncio.Event) -> Choice:
    """One that something has come of, each in its turn; the only one at once."""
    while len(choices) > 1:
        for i, choice in enumerate(choices):
            if choice.stream.ready:
                choices.append(choices.pop(i))
                return choice
        arrived.clear()
        await arrived.wait()
    return choices[0]
