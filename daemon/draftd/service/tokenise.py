"""What a client sent, as token ids, without making any running stream wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from draftd.errors import InvalidRequest
from draftd.fronts.grpc.convert import Chat, Limits, Prompt, RawText, TokenIds, check_length
from draftd.models.tokenizer import Tokenizer

# Longer texts are tokenised on another thread: a megabyte takes about a second.
_INLINE_CHARACTERS = 4096
# No vocabulary has tokens this long: a text of more characters per token of context cannot fit.
_LONGEST_TOKEN = 512
_USUAL_TOKEN = 16  # few texts have more characters per token
_MARGIN = 64


async def tokenise(prompt: Prompt, tokenizer: Tokenizer, limits: Limits, executor: Executor) -> tuple[int, ...]:
    """Raises InvalidRequest where the prompt is empty or too long, or the template turns the messages down."""
    if isinstance(prompt, TokenIds):
        ids: Sequence[int] = prompt.ids
    else:
        text = prompt.text if isinstance(prompt, RawText) else "".join(content for _, content in prompt.messages)
        if len(text) <= _INLINE_CHARACTERS:
            ids = _encode(prompt, tokenizer)
        else:
            run = asyncio.get_running_loop().run_in_executor
            if await run(executor, _hopeless, text, tokenizer, limits.context_length):
                field = "prompt" if isinstance(prompt, RawText) else "chat"
                raise InvalidRequest(field, f"{len(text)} characters", f"1 to {limits.context_length - 1} tokens")
            ids = await run(executor, _encode, prompt, tokenizer)
    check_length(ids, prompt, limits)
    return tuple(ids)


def _hopeless(text: str, tokenizer: Tokenizer, context_length: int) -> bool:
    """Whether a text is far too long, found out from its beginning: tokenising all of it may take many seconds."""
    if len(text) > context_length * _LONGEST_TOKEN:
        return True
    head = text[: context_length * _USUAL_TOKEN]
    # A token may straddle the cut, and a template may drop some text: so a margin.
    return len(head) < len(text) and len(tokenizer.encode(head)) >= context_length + _MARGIN


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
