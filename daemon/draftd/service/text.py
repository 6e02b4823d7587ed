"""Converts between text and token ids: tokenises prompts, detokenises answers, finds stop strings.

Text that may still become a stop string is held back, so that a client never sees a part of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from draftd.errors import InvalidRequest
from draftd.models.conversation import ToolsIgnored
from draftd.models.tokenizer import Tokenizer
from draftd.service.chat_template import ChatRenderer, tools_refusal
from draftd.service.messages import Chat, message_dict, tool_dicts
from draftd.service.request import Prompt, RawText, Request, ServedModel, TokenIds, check_length, template_refusal

# Longer texts are tokenised on another thread: a megabyte takes about a second.
_INLINE_CHARACTERS = 4096
_INLINE_TOKENS = 1024  # the same for tokens that become text
# No vocabulary has tokens this long: a text of more characters per token of context cannot fit.
_LONGEST_TOKEN = 512
_USUAL_TOKEN = 16  # few texts have more characters per token
_MARGIN = 64


async def tokenise(
    prompt: Prompt, tokenizer: Tokenizer, model: ServedModel, executor: Executor, renderer: ChatRenderer, client: str
) -> tuple[int, ...]:
    """Returns the prompt's tokens. Raises InvalidRequest if the prompt is empty or too long, or the template rejects
    the messages."""
    field = "prompt" if isinstance(prompt, RawText) else "chat"
    if isinstance(prompt, TokenIds):
        ids: Sequence[int] = prompt.ids
    else:
        text = prompt.text
        run, context_length = asyncio.get_running_loop().run_in_executor, model.info.context_length
        encode = partial(_encode, prompt, tokenizer)
        if isinstance(prompt, Chat) and tokenizer.template is not None:
            most = context_length * _LONGEST_TOKEN
            if len(text) <= most:
                rendered = await renderer.render(tokenizer.template, prompt, most, client)
                encode = partial(tokenizer.encode_rendered, rendered)
                text = rendered
        if len(text) <= _INLINE_CHARACTERS:
            ids = encode()
        else:
            if await run(executor, _surely_too_long, text, tokenizer, context_length):
                raise InvalidRequest(field, f"{len(text)} characters", f"1 to {context_length - 1} tokens")
            ids = await run(executor, encode)
    check_length(ids, prompt, model)
    if not isinstance(prompt, TokenIds) and (largest := max(ids)) >= (rows := model.info.vocab_size):
        shown = tokenizer.token_bytes(largest).decode(errors="replace")
        raise InvalidRequest(
            field, shown, f"text without the token {largest}: the model has embeddings only for ids below {rows}"
        )
    return tuple(ids)


def _surely_too_long(text: str, tokenizer: Tokenizer, context_length: int) -> bool:
    """Whether a text is far too long, judged by its beginning: tokenising all of it may take many seconds."""
    if len(text) > context_length * _LONGEST_TOKEN:
        return True
    head = text[: context_length * _USUAL_TOKEN]
    # A margin: the cut may divide a token, and a template may drop some text.
    return len(head) < len(text) and len(tokenizer.encode(head)) >= context_length + _MARGIN


def _encode(prompt: RawText | Chat, tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, RawText):
        return tokenizer.encode(prompt.text)
    messages, tools = list(map(message_dict, prompt.messages)), tool_dicts(prompt.shown_tools)
    try:
        return tokenizer.render_chat(messages, tools, prompt.template_arguments, prompt.continues)
    except ToolsIgnored:
        raise tools_refusal(prompt) from None
    except Exception as error:
        raise template_refusal(prompt.messages, f"accepts ({error})") from error


class StopScanner:
    """Finds the first stop string that becomes complete in a text that arrives in pieces.

    Of the strings complete at the same character, the longest counts. At most the longest beginning of a stop string is
    held back, so a long text costs no more per character than a short one."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string that matched is part of the text."""
        assert all(stops), "an empty stop string matches everywhere"
        self._stops, self._include = stops, include
        self._beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._pending = ""
        self.matched = ""
        self.after = ""  # text after the match

    def feed(self, text: str) -> str:
        """Returns the text that is now known to be outside any stop string; empty after a match."""
        if not self._stops:
            return text
        if self.matched:
            return ""
        whole, self._pending = self._pending + text, ""
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := whole.find(stop)) >= 0]
        if ends:
            end, _, self.matched = min(ends)
            self.after = whole[end:]
            return whole[: end if self._include else end - len(self.matched)]
        lengths = range(min(len(whole), self._longest), 0, -1)
        sure = len(whole) - next((one for one in lengths if whole[-one:] in self._beginnings), 0)
        self._pending = whole[sure:]
        return whole[:sure]

    def finish(self) -> str:
        """Returns the text that was held back: no stop string was completed."""
        rest, self._pending = self._pending, ""
        return rest


@dataclass(frozen=True, slots=True)
class StopConditions:
    """The conditions that end an answer, besides the model's own end tokens. `include`: the text includes the string or
    token that ended it."""

    strings: Sequence[str] = ()
    ids: Sequence[int] = ()
    include: bool = False


@dataclass(frozen=True, slots=True)
class TextForm:
    """How an answer's tokens become text. `continues`: the answer continues another text, such as a raw prompt, so a
    space at its beginning is kept. `special`: the text includes special tokens that the model chose. `before`:
    characters that precede the answer in the text, such as an echoed prompt."""

    continues: bool = False
    special: bool = False
    before: int = 0


class TextStream:
    """The text of one answer, as its tokens arrive. Stop strings are not removed. End tokens and special tokens have no
    text."""

    def __init__(
        self, tokenizer: Tokenizer, ends: StopConditions, form: TextForm, reads: Callable[[str], bool]
    ) -> None:
        """`reads`: whether a special token has a text after all, because a parser looks for it."""
        self._detokenizer = tokenizer.detokenizer(continues=form.continues)
        silent = not ends.include and ends.ids
        self._silent = tokenizer.eos_ids.union(ends.ids) if silent else tokenizer.eos_ids
        self._special = {} if form.special else tokenizer.special_tokens
        self._before, self._shown_ids = form.before, ends.ids
        self._reads = reads

    def offset(self, token: int) -> int:
        """Returns the number of characters before the next token, `token`, in the text."""
        begun = self._detokenizer.length if self._is_silent(token) else self._detokenizer.begins_at(token)
        return self._before + begun

    def add(self, token: int) -> str:
        """Returns the text that became certain with the token; empty while a character is unfinished."""
        return "" if self._is_silent(token) else self._detokenizer.add(token)

    def finish(self) -> str:
        return self._detokenizer.finish()

    def _is_silent(self, token: int) -> bool:
        if token in self._silent:
            return True
        special = self._special.get(token)
        return special is not None and token not in self._shown_ids and not self._reads(special)


async def echoed_prompt(
    request: Request, ids: Sequence[int], tokenizer: Tokenizer, executor: Executor
) -> tuple[str, Sequence[int]]:
    """Returns the prompt's text that the answer begins with. With log-probabilities, also returns where each token of
    the prompt begins in it. Both are empty if the request does not echo."""
    if not request.echo:
        return "", ()
    prompt_text = request.prompt.text if isinstance(request.prompt, RawText) else None
    if prompt_text is not None and request.logprobs is None:
        return prompt_text, ()
    make, run = partial(text_of_prompt, tokenizer, ids, prompt_text), asyncio.get_running_loop().run_in_executor
    text, offsets = make() if len(ids) <= _INLINE_TOKENS else await run(executor, make)
    return text, () if request.logprobs is None else offsets


def text_of_prompt(tokenizer: Tokenizer, ids: Sequence[int], prompt_text: str | None) -> tuple[str, list[int]]:
    """Returns the prompt's text, and for each token the number of characters before it. `prompt_text`: the text that
    was tokenised; None for token ids. A special token that is not in `prompt_text`, such as a beginning-of-text token
    that the tokenizer added, gets no text."""
    stream, special = tokenizer.detokenizer(), tokenizer.special_tokens
    pieces, offsets = [], []
    for token in ids:
        shown = prompt_text is None or token not in special or prompt_text.startswith(special[token], stream.length)
        offsets.append(stream.begins_at(token) if shown else stream.length)
        pieces.append(stream.add(token) if shown else "")
    text = "".join([*pieces, stream.finish()]) if prompt_text is None else prompt_text
    return text, [min(offset, len(text)) for offset in offsets]


def occurs_in(texts: Iterable[str], part: str) -> bool:
    return any(part in text for text in texts)
