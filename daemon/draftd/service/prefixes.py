"""Which tokens texts have in common that begin with a prompt or with messages, whatever follows there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import takewhile

from draftd.engine.cache.pins import LEAST
from draftd.errors import InvalidRequest
from draftd.service.messages import Chat, Message
from draftd.service.request import Prompt, RawText, TokenIds

# What follows may become one token with the last characters: these differ in their first ones.
_CONTINUATIONS = ("\n", " and", "s", "1")
_FOLLOWING = ("Hello", "7 of them")


async def common_prefix(prompt: Prompt, encode: Callable[[Prompt], Awaitable[tuple[int, ...]]]) -> tuple[int, ...]:
    """`encode` raises what a request with such a prompt would be refused with; token ids are used as they are. Raises
    InvalidRequest where so few are left that they would not be looked up."""
    if isinstance(prompt, TokenIds):
        field, variants = "tokens.ids", list[Prompt]([prompt])
    elif isinstance(prompt, RawText):
        field, variants = "prompt", [RawText(prompt.text + more) for more in _CONTINUATIONS]
    else:
        field, variants = "chat", [_append_message(prompt, text) for text in _FOLLOWING]
    texts = [await encode(one) for one in variants]
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*texts, strict=False))
    tokens = tuple(ids[0] for ids in alike)
    if len(tokens) < LEAST:
        raise InvalidRequest(
            field, f"{len(tokens)} tokens", f"at least {LEAST} tokens that do not depend on what follows"
        )
    return tokens


def _append_message(chat: Chat, text: str) -> Chat:
    """Many templates want user and assistant by turns."""
    role = "assistant" if chat.messages[-1].role == "user" else "user"
    return replace(chat, messages=(*chat.messages, Message(role, text)), continues=False)
