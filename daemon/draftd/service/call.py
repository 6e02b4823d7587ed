"""A request that the engine has accepted, and its choices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftd.core import DecodeRequest
from draftd.engine.observer import EngineStatus, PromptProgress
from draftd.service.answer import AnswerStream
from draftd.service.formats import Constraint
from draftd.service.request import Request, RequestStarted
from draftd.service.stream import TokenStream
from draftd.service.text_relay import TextRelay
from draftd.telemetry.spans import InferenceSpan


@dataclass(slots=True, eq=False)
class Choice:
    """One choice of a request: the engine's request, its token stream, the parsed answer, and its span."""

    index: int
    decode: DecodeRequest
    stream: TokenStream
    answer: AnswerStream
    span: InferenceSpan


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request that the engine has accepted. `constraint`: the grammar of its answers; holding it keeps the grammar
    compiled, so that the engine thread need not compile it. `arrived`: set when a choice has something to take.
    `relay`: another daemon answers the request; if that daemon is lost, the engine gets `local_choice`. `echo`: the
    text that each answer begins with, and the offsets of the prompt's tokens in it."""

    request: Request
    constraint: Constraint
    started: RequestStarted
    choices: list[Choice] = field(default_factory=list)
    relay: TextRelay | None = None
    local_choice: Choice | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    echo: tuple[str, Sequence[int]] = "", ()

    def prompt_progress(self, status: Callable[[], EngineStatus]) -> PromptProgress | None:
        """Returns the progress of the choice whose prompt is furthest. None if no prefill has begun, or the request
        does not ask for progress. `status`: of the engine."""
        if not self.request.return_progress:
            return None
        ids = {choice.decode.id for choice in self.choices}
        prompts = [prompt for prompt in status().prompts if prompt.request in ids]
        return max(prompts, key=lambda prompt: prompt.processed_tokens, default=None)


async def stays_silent(choices: Sequence[Choice], arrived: asyncio.Event, seconds: float) -> bool:
    """Waits up to `seconds` until one of the choices has something to take; returns whether none has."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not any(one.stream.ready for one in choices):
                arrived.clear()
                await arrived.wait()
    return not any(one.stream.ready for one in choices)


async def next_choice(choices: list[Choice], arrived: asyncio.Event) -> Choice:
    """Waits for a choice that has something to take; the choices take turns. The only choice is returned at once."""
    while len(choices) > 1:
        for i, choice in enumerate(choices):
            if choice.stream.ready:
                choices.append(choices.pop(i))
                return choice
        arrived.clear()
        await arrived.wait()
    return choices[0]
