"""Which tokens texts have in common that begin with a prompt or with messages, whatever follows there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import takewhile

from draftd.service.request import Chat, Message, Prompt, RawText, TokenIds

# What follows may become one token with the last characters: these differ in their first ones.
_CONTINUATIONS = ("\n", " and", "s", "1")
_FOLLOWING = ("Hello", "7 of them")


async def beginning(prompt: Prompt, encode: Callable[[Prompt], Awaitable[tuple[int, ...]]]) -> tuple[int, ...]:
    """`encode` raises what a request with such a prompt would be refused with. Token ids are used as they are."""
    if isinstance(prompt, TokenIds):
        return await encode(prompt)
    if isinstance(prompt, RawText):
        variants: list[Prompt] = [RawText(prompt.text + more) for more in _CONTINUATIONS]
    else:
        variants = [_followed(prompt, text) for text in _FOLLOWING]
    texts = [await encode(one) for one in variants]
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*texts, strict=False))
    return tuple(ids[0] for ids in alike)


def _followed(chat: Chat, text: str) -> Chat:
    """Many templates want user and assistant by turns."""
    role = "assistant" if chat.messages[-1].role == "user" else "user"
    return replace(chat, messages=(*chat.messages, Message(role, text)))
