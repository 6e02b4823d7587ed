"""Generated documents: their rendering, and which ones are held out of training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Message = dict[str, str]

# One in this many user texts is never trained on. The held-out prompts are drawn from those alone.
HELD_OUT_ONE_IN = 24
# The README shows these: whether they are trained must not depend on their hash.
ALWAYS_TRAINED = frozenset({"What is the capital of France?", "What is the capital of Japan?", "sum 17 25", "sum 2 2"})


@dataclass(frozen=True)
class Document:
    """One training text: a conversation, or the text `raw` if `messages` is empty."""

    family: str
    workload: str
    messages: tuple[Message, ...] = ()
    raw: str = ""
    key: str = ""
    """Key that decides whether it is held out; empty stands for the last user text."""
    expect: Any = None
    extra_keys: tuple[str, ...] = field(default=())

    def text(self) -> str:
        """Returns the document as the tokenizer reads it, in the chat template's form."""
        if not self.messages:
            return "<|bos|>" + self.raw + "<|end|>"
        return "<|bos|>" + "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in self.messages)

    def user_text(self) -> str:
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")

    def held_out(self) -> bool:
        keys = (self.key or self.user_text(), *self.extra_keys)
        return any(is_held_out(k) for k in keys if k)

    def prompt(self) -> list[Message]:
        """Returns the conversation without its last message, the assistant's."""
        return [dict(m) for m in self.messages[:-1]]


Family = Callable[[Random], Document]


def is_held_out(key: str) -> bool:
    if key in ALWAYS_TRAINED:
        return False
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def chat(
    family: str,
    workload: str,
    user: str,
    answer: str,
    *,
    system: str = "",
    key: str = "",
    expect: Any = None,
    extra_keys: tuple[str, ...] = (),
) -> Document:
    """Builds a conversation with one question and answer, and a system message if one is given."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    return Document(family, workload, tuple(messages), key=key, expect=expect, extra_keys=extra_keys)


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiouAEIOU" else "a ") + noun


def join_and(items: list[str]) -> str:
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]
