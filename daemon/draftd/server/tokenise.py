"""What a client sent, as token ids, without making any running stream wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from draftd.engine.model import Tokenizer
from draftd.errors import InvalidRequest
from draftd.server.convert import Chat, Limits, Prompt, RawText, TokenIds, check_length

# Longer texts are tokenised on another thread: a megabyte takes about a second.
_INLINE_CHARACTERS = 4096
# No vocabulary has tokens this long: a text of more characters per token of context cannot fit.
_LONGEST_TOKEN = 512


async def tokenise(prompt: Prompt, tokenizer: Tokenizer, limits: Limits, executor: Executor) -> tuple[int, ...]:
    """Raises InvalidRequest where the prompt is empty or too long, or the template turns the messages down."""
    if isinstance(prompt, TokenIds):
        ids: Sequence[int] = prompt.ids
    else:
        size = len(prompt.text) if isinstance(prompt, RawText) else sum(len(text) for _, text in prompt.messages)
        if size > limits.context_length * _LONGEST_TOKEN:
            field = "prompt" if isinstance(prompt, RawText) else "chat"
            raise InvalidRequest(field, f"{size} characters", f"at most {limits.context_length - 1} tokens")
        if size <= _INLINE_CHARACTERS:
            ids = _encode(prompt, tokenizer)
        else:
            ids = await asyncio.get_running_loop().run_in_executor(executor, _encode, prompt, tokenizer)
    check_length(ids, prompt, limits)
    return tuple(ids)


def _encode(prompt: RawText | Chat, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, RawText):
        return tokenizer.encode(prompt.text)
    messages = [{"role": role, "content": content} for role, content in prompt.messages]
    try:
        return tokenizer.render_chat(messages)
    except Exception as error:
        # Templates raise on what they do not take, each in its own way: roles out of order, no system message, …
        raise InvalidRequest(
            "chat.messages", ", ".join(m["role"] for m in messages), f"what the model's template takes ({error})"
        ) from error
