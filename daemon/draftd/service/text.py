"""Text on one side, token ids on the other: tokenising what came in, detokenising what goes out, stop strings.

Text that may yet become a stop string is held back, so that a client never sees a part of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial

from draftd.errors import InvalidRequest
from draftd.models.tokenizer import Tokenizer
from draftd.service.chat import ChatRenderer
from draftd.service.request import Chat, Prompt, RawText, ServedModel, TokenIds, check_length

# Longer texts are tokenised on another thread: a megabyte takes about a second.
_INLINE_CHARACTERS = 4096
# No vocabulary has tokens this long: a text of more characters per token of context cannot fit.
_LONGEST_TOKEN = 512
_USUAL_TOKEN = 16  # few texts have more characters per token
_MARGIN = 64


async def tokenise(
    prompt: Prompt, tokenizer: Tokenizer, model: ServedModel, executor: Executor, renderer: ChatRenderer, client: str
) -> tuple[int, ...]:
    """Raises InvalidRequest where the prompt is empty or too long, or the template turns the messages down."""
    if isinstance(prompt, TokenIds):
        ids: Sequence[int] = prompt.ids
    else:
        text = prompt.text if isinstance(prompt, RawText) else "".join(message.content for message in prompt.messages)
        run, context_length = asyncio.get_running_loop().run_in_executor, model.info.context_length
        encode = partial(_encode, prompt, tokenizer)
        if isinstance(prompt, Chat) and tokenizer.template is not None:
            most = context_length * _LONGEST_TOKEN
            if len(text) <= most:
                rendered = await renderer.render(tokenizer.template, prompt.messages, most, client)
                encode = partial(tokenizer.encode_rendered, rendered)
                text = rendered
        if len(text) <= _INLINE_CHARACTERS:
            ids = encode()
        else:
            if await run(executor, _hopeless, text, tokenizer, context_length):
                field = "prompt" if isinstance(prompt, RawText) else "chat"
                raise InvalidRequest(field, f"{len(text)} characters", f"1 to {context_length - 1} tokens")
            ids = await run(executor, encode)
    check_length(ids, prompt, model)
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
    try:
        return tokenizer.render_chat([message._asdict() for message in prompt.messages])
    except Exception as error:
        # Templates raise on what they do not take, each in its own way: roles out of order, no system message, …
        raise InvalidRequest(
            "chat.messages",
            ", ".join(m.role for m in prompt.messages),
            f"messages that the model's template accepts ({error})",
        ) from error


class StopScanner:
    """Finds the first stop string to be complete in a text that arrives in pieces.

    Of strings complete at the same character, the longest counts. The text ends before it. Knuth–Morris–Pratt, one
    state for each string: work per character does not depend on how long the strings are.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = sorted(stops, key=len, reverse=True)
        self._failures = [_failures(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""
        self.matched = ""

    def feed(self, text: str) -> str:
        """The text that is now known to be outside of any stop string. After a match, nothing."""
        if self.matched or not self._stops:
            return "" if self.matched else text
        whole = self._held + text
        for i, character in enumerate(text, len(self._held) + 1):
            for n, stop in enumerate(self._stops):
                state, failures = self._states[n], self._failures[n]
                while state and stop[state] != character:
                    state = failures[state - 1]
                if stop[state] == character:
                    state += 1
                if state == len(stop):
                    self.matched, self._held = stop, ""
                    return whole[: i - len(stop)]
                self._states[n] = state
        keep = max(self._states, default=0)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def finish(self) -> str:
        """What was held back: the text ended without the rest of a stop string."""
        held, self._held = self._held, ""
        return held


def _failures(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        table[i] = length
    return table


class TextStream:
    """The text of one answer, as its tokens arrive. End-of-text tokens have no text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._silent = tokenizer.eos_ids
        self._scanner = StopScanner(stops)

    @property
    def stop(self) -> str:
        """The stop string that ended the text; empty while none did."""
        return self._scanner.matched

    def add(self, tokens: Iterable[int]) -> list[str]:
        """The text that became certain with each token; empty while a character or a stop string is unfinished."""
        return [self._piece(token) for token in tokens]

    def finish(self) -> str:
        """The rest of the text."""
        return self._scanner.feed(self._detokenizer.finish()) + self._scanner.finish()

    def _piece(self, token: int) -> str:
        return "" if token in self._silent else self._scanner.feed(self._detokenizer.add(token))


class StopStrings:
    """`core.StopMatcher` over stop strings. Decodes the answer a second time, on the engine thread, where the decision
    must be made: requests without stop strings have none."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._text = TextStream(tokenizer, stops)

    def feed(self, tokens: Sequence[int]) -> int | None:
        for i, token in enumerate(tokens):
            self._text.add((token,))
            if self._text.stop:
                return i + 1
        return None
