"""Text to token ids and back: what the server needs of mlx-lm's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template from a model's folder, and the variables that it sees beside the messages: values that JSON
    has."""

    source: str
    variables: Mapping[str, Any]


class Tokenizer:
    """Text to token ids and back, by mlx-lm's tokenizer. Safe to read from any thread."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self.vocab_size = len(wrapper.get_vocab())
        self.eos_ids = frozenset(int(i) for i in wrapper.eos_token_ids)
        self.end_tokens = {i: str(wrapper.decode([i])) for i in sorted(self.eos_ids)}
        self.has_chat_template = bool(wrapper.has_chat_template)
        self.tools, self.thinking = bool(wrapper.has_tool_calling), bool(wrapper.has_thinking)
        # None where there is none, or where code renders the messages that is not the model folder's.
        self.template = _template(wrapper) if self.has_chat_template else None

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, with the beginning-of-text token where the model wants one and the text has none."""
        bos = self._wrapper.bos_token
        return list(self._wrapper.encode(text, add_special_tokens=bos is None or not text.startswith(bos)))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of messages (role, content) in the model's chat template, ready for the answer. Renders here and now,
        however long the template takes."""
        rendered = self._wrapper.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=True, tokenize=True
        )
        return list(rendered)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a chat that `template` rendered elsewhere."""
        return list(self._wrapper.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """A whole text at once, without what ends it."""
        return str(self._wrapper.decode([token for token in tokens if token not in self.eos_ids]))

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self._wrapper.detokenizer)


def _template(wrapper: Any) -> ChatTemplate | None:
    """As mlx-lm and transformers would render it."""
    from transformers import PreTrainedTokenizerBase  # the wrapper's own: takes a second, and no command needs it

    inner = wrapper._tokenizer
    if wrapper._chat_template is not None or not hasattr(type(inner), "apply_chat_template"):
        return None  # mlx-lm's own code renders it
    if type(inner).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        return None  # that of the tokenizer's class does
    variables = {**inner.special_tokens_map, wrapper._thinking_kwarg: wrapper.has_thinking}
    return ChatTemplate(inner.get_chat_template(None, None), json.loads(json.dumps(variables, default=str)))


class Detokenizer:
    """Token ids to text, piece by piece. One instance serves one text."""

    def __init__(self, streaming: Any) -> None:
        self._streaming = streaming
        streaming.reset()

    def add(self, token: int) -> str:
        """The text that became certain with this token; empty while a character is unfinished."""
        self._streaming.add_token(token)
        return str(self._streaming.last_segment)

    def finish(self) -> str:
        """What remains; an unfinished character becomes U+FFFD."""
        self._streaming.finalize()
        return str(self._streaming.last_segment)
