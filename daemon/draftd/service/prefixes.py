"""The tokens that all texts have in common that begin with one prompt or with the same messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import takewhile

from draftd.engine.cache.pins import LEAST
from draftd.errors import InvalidRequest
from draftd.service.messages import Chat, Message
from draftd.service.request import Prompt, RawText, TokenIds

# The text that follows may become one token with the prompt's last characters, so these begin differently.
_CONTINUATIONS = ("\n", " and", "s", "1")
_FOLLOWING = ("Hello", "7 of them")


async def common_prefix(prompt: Prompt, encode: Callable[[Prompt], Awaitable[tuple[int, ...]]]) -> tuple[int, ...]:
    """Returns the tokens that begin `prompt`, whatever follows it. Token ids are returned as they are. Raises
    InvalidRequest for fewer than LEAST tokens, which the store would not look up, and what `encode` raises."""
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
            field,
            f"{len(tokens)} tokens",
            f"at least {LEAST} tokens that stay the same whatever text follows the prefix",
        )
    return tokens


def _append_message(chat: Chat, text: str) -> Chat:
    """Returns the chat with one more message. Its role differs from the last one's: many templates want user and
    assistant to take turns."""
    role = "assistant" if chat.messages[-1].role == "user" else "user"
    return replace(chat, messages=(*chat.messages, Message(role, text)), continues=False)
