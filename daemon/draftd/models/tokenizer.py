"""Converts text to token ids and back: what the server needs of mlx-lm's tokenizer."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftd.errors import ModelLoadError
from draftd.models.answer_format import GENERIC, NORMAL, AnswerFormat, ToolFormat, generic_format
from draftd.models.check import FETCH, read_json
from draftd.models.conversation import Messages, TemplateShape, render_unfinished
from draftd.models.grammar import Grammars
from draftd.models.tokenizer_file import BYTE_TOKEN, token_names

_NAMED = "put the template to use into chat_template.jinja in the folder"
_PENDING = 8  # tokens to wait for until they form text: a character has at most four


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template from a model's folder, and its variables besides the messages, in JSON values. `with_tools`: the
    template for conversations with tools, if it is another one. `generic_tools`: tools, calls and results are given as
    text."""

    source: str
    variables: Mapping[str, Any]
    with_tools: str | None = None
    generic_tools: bool = False


class Tokenizer:
    """Converts text to token ids and back, with mlx-lm's tokenizer. Any thread may read it."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self.vocab_size = 1 + max(wrapper.get_vocab().values())  # number of ids; some may have no token
        self.eos_ids = frozenset(int(i) for i in wrapper.eos_token_ids)
        self.end_tokens = {i: str(wrapper.decode([i])) for i in sorted(self.eos_ids)}
        self.has_chat_template = bool(wrapper.has_chat_template)
        self.tools, self.thinking = bool(wrapper.has_tool_calling), bool(wrapper.has_thinking)
        self.answers = _answers(wrapper)
        self.generic_tools = self.answers.tools is not None and self.answers.tools.family == GENERIC
        # None if there is none, or if other code than the model folder's renders the messages.
        template = _template(wrapper) if self.has_chat_template else None
        self.template = template and replace(template, generic_tools=self.generic_tools)
        self.special_tokens = _special_tokens(wrapper)

    def grammars(self, vocabulary: int) -> Grammars | None:
        """Returns the compiler of grammars for a model with this many ids; None if this tokenizer has none."""
        inner = getattr(self._wrapper, "_tokenizer", self._wrapper)
        if getattr(inner, "backend_tokenizer", None) is None:
            return None  # not from the tokenizers library
        return Grammars(inner, self.eos_ids, max(vocabulary, self.vocab_size))

    def encode(self, text: str) -> list[int]:
        """Returns the ids of raw text, with the beginning-of-text token if the model needs one and the text has
        none."""
        bos = self._wrapper.bos_token
        return list(self._wrapper.encode(text, add_special_tokens=bos is None or not text.startswith(bos)))

    def render_chat(
        self,
        messages: Messages,
        tools: Messages = (),
        arguments: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """Returns the ids of messages in the model's chat template, ready for the answer. `tools` and messages are in
        OpenAI's format; `arguments`: more variables of the template. `continues`: the answer continues the last
        message's text. Renders on this thread, however long it takes. Raises NotTaken, ValueError if the text cannot be
        continued, and any error of the template."""
        (shaped, tools), more = self._shape.fit(messages, tools), dict(arguments or {})
        if not continues:
            return list(self._apply(shaped, tools, tokenize=True, **more))
        more |= {"tokenize": False, "add_generation_prompt": False}
        return self.encode_rendered(render_unfinished(shaped, lambda marked: str(self._apply(marked, tools, **more))))

    @cached_property
    def _shape(self) -> TemplateShape:
        source = None if self.template is None else self.template.source + (self.template.with_tools or "")
        return TemplateShape(
            lambda messages, tools: str(self._apply(messages, tools, tokenize=False)),
            source,
            generic_tools=self.generic_tools,
        )

    def _apply(self, messages: Messages, tools: Messages, **more: Any) -> Any:
        if tools:
            more["tools"] = list(tools)
        more.setdefault("add_generation_prompt", True)
        return self._wrapper.apply_chat_template([dict(one) for one in messages], **more)

    def encode_rendered(self, text: str) -> list[int]:
        """Returns the ids of a chat that `template` rendered elsewhere."""
        return list(self._wrapper.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns a whole text, without end tokens."""
        return str(self._wrapper.decode([token for token in tokens if token not in self.eos_ids]))

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes that one token adds inside a text."""
        return self._written(token)

    @cached_property
    def _written(self) -> Callable[[int], bytes]:
        detokenizer = self.detokenizer()
        return self._added_bytes if isinstance(detokenizer, _Windowed) else detokenizer.bytes_of

    def _added_bytes(self, token: int) -> bytes:
        before = str(self._wrapper.decode(self._word))
        whole = str(self._wrapper.decode([*self._word, token]))
        added = whole.removeprefix(before) if whole.startswith(before) else str(self._wrapper.decode([token]))
        if added == "\ufffd" and (byte := BYTE_TOKEN.fullmatch(str(self._wrapper.convert_ids_to_tokens(token)))):
            return bytes.fromhex(byte[1])
        return added.encode()

    @cached_property
    def _word(self) -> list[int]:
        """A token with text that can precede others: many decoders drop a leading space of the first token. Empty if
        there is none."""
        several = (self._wrapper.encode(word, add_special_tokens=False)[-1:] for word in ("a", "1", "."))
        return next((list(tokens) for tokens in several if self.decode(tokens)), [])

    def vocabulary(self) -> list[bytes]:
        """Returns all tokens by id, named as in the vocabulary: tokenizers with equal lists are the same."""
        return [name.encode() for name in token_names(self._wrapper)]

    @cached_property
    def fingerprint(self) -> str:
        """Returns the SHA-256 of the vocabulary, without the model's padding beyond it."""
        digest = hashlib.sha256()
        for name in self.vocabulary():
            digest.update(len(name).to_bytes(4, "big") + name)
        return digest.hexdigest()

    def tokens_beyond(self, vocabulary: int) -> dict[int, str]:
        """Returns the tokens with ids of `vocabulary` or more, for which a model with so many embeddings has none."""
        if self.vocab_size <= vocabulary:  # nearly always; listing all tokens is slow
            return {}
        return {i: str(text) for text, i in self._wrapper.get_vocab().items() if i >= vocabulary}

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        """Returns a detokenizer for one text. `continues`: the text continues another, so a leading space belongs to
        it."""
        from draftd.models.mlx_lm import BPEStreamingDetokenizer, SPMStreamingDetokenizer

        # Only the token table of mlx-lm's own is used: they drop spaces at the start of a text or line, and unknown ids
        # become text or errors.
        own = self._wrapper.detokenizer
        if isinstance(own, BPEStreamingDetokenizer):
            return Detokenizer(_byte_level(own.tokenmap))
        if isinstance(own, SPMStreamingDetokenizer):
            return Detokenizer(_sentence_piece(own.tokenmap), strip=own.trim_space and not continues)
        return _Windowed(self.decode, self._word if continues else ())


def _special_tokens(wrapper: Any) -> dict[int, str]:
    """Returns, by id, the spelling of tokens that structure a text without being part of it. Bytes and single
    characters count as text, even if one is declared as padding."""
    inner = wrapper._tokenizer
    ids = {i for i, token in getattr(inner, "added_tokens_decoder", {}).items() if token.special}
    ids |= set(getattr(inner, "all_special_ids", ()))
    names = {int(i): str(inner.convert_ids_to_tokens(int(i))) for i in ids if i is not None}
    return {i: name for i, name in names.items() if len(name) > 1 and not BYTE_TOKEN.fullmatch(name)}


def _template(wrapper: Any) -> ChatTemplate | None:
    """Returns the chat template that mlx-lm and transformers would use."""
    from transformers import PreTrainedTokenizerBase  # slow: takes a second, and no command needs it

    inner = wrapper._tokenizer
    if wrapper._chat_template is not None or not hasattr(type(inner), "apply_chat_template"):
        return None  # mlx-lm's own code renders it
    if type(inner).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        return None  # the tokenizer's class renders it
    variables = {**inner.special_tokens_map, wrapper._thinking_kwarg: wrapper.has_thinking}
    source, with_tools = inner.get_chat_template(None, None), inner.get_chat_template(None, [])
    kept = json.loads(json.dumps(variables, default=str))
    return ChatTemplate(source, kept, None if with_tools == source else with_tools)


def _answers(wrapper: Any) -> AnswerFormat:
    tools = None
    if wrapper.has_tool_calling:
        family = wrapper.tool_parser.__module__.rpartition(".")[2]
        template = wrapper._tokenizer.chat_template
        tools = ToolFormat(
            family, wrapper.tool_call_start, wrapper.tool_call_end, wrapper.tool_parser, str(template or "")
        )
    elif wrapper.has_chat_template and not wrapper.response_transitions:
        tools = generic_format()
    return AnswerFormat(
        thinking=(wrapper.think_start, wrapper.think_end) if wrapper.has_thinking else None,
        tools=tools,
        structural=wrapper.structural_markers,
        transitions=wrapper.response_transitions,
        initial=wrapper.response_initial_state or NORMAL,
    )


def template_of_processor(folder: Path) -> dict[str, str]:
    """Returns the chat template in chat_template.json, where older processors kept their only one, in transformers'
    form. Raises ModelLoadError."""
    file = folder / "chat_template.json"
    others = (folder / "chat_template.jinja", folder / "additional_chat_templates")
    if not file.is_file() or any(other.exists() for other in others) or _own_template(folder) is not None:
        return {}
    value = read_json(file)
    template = value.get("chat_template") if isinstance(value, dict) else None
    if not isinstance(template, str):
        raise ModelLoadError("chat_template.json has no chat_template, or it is not a string", _NAMED)
    return {"chat_template": template}


def _own_template(folder: Path) -> Any:
    """Returns the template in tokenizer_config.json; None if there is none."""
    file = folder / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    return config.get("chat_template") if isinstance(config, dict) else None


def complete_templates(wrapper: Any, folder: Path) -> None:
    """Adds the template of tokenizer_config.json as the default one if the folder's other files have only named
    templates: transformers then ignores tokenizer_config.json's. Raises ModelLoadError if no template is the default
    one, for chats without tools, or a template is not text."""
    templates = getattr(wrapper._tokenizer, "chat_template", None)
    if isinstance(templates, dict) and "default" not in templates and isinstance(own := _own_template(folder), str):
        templates["default"] = own
    named = templates if isinstance(templates, dict) else {"default": templates}
    if "default" not in named:
        raise ModelLoadError(f"of its chat templates ({', '.join(sorted(named))}) none is the default", _NAMED)
    if wrong := [name for name, template in named.items() if not isinstance(template, str | None)]:
        raise ModelLoadError(f"its chat template {wrong[0]!r} is no text", _NAMED)
    if templates == "":  # the same as none
        wrapper._tokenizer.chat_template = None
        wrapper.has_chat_template = wrapper._chat_template is not None


def check_template(wrapper: Any) -> None:
    """Raises ModelLoadError if a template cannot be used. Templates are only parsed: compiling would compute their
    constants, however large."""
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    template = _template(wrapper) if wrapper.has_chat_template else None
    if template is not None:
        # transformers' extension of the language: a tag around the model's own words.
        for source in filter(None, (template.source, template.with_tools)):
            source = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", source)
            try:
                ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
            except TemplateSyntaxError as error:
                what = f"its chat template cannot be used: {error.message} (line {error.lineno})"
                raise ModelLoadError(what, f"correct it, or {FETCH}") from None


class Detokenizer:
    """Converts token ids to text piece by piece, with the same result as for the whole. One instance serves one text.
    `length`: characters so far."""

    def __init__(self, bytes_of: Callable[[int], bytes], *, strip: bool = False) -> None:
        """For tokenizers in which every token is some bytes. `strip`: a leading space is not part of the text."""
        self.bytes_of, self._strip = bytes_of, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.length = 0

    def begins_at(self, token: int) -> int:
        """Returns the index of the character that the next token begins, or begins within."""
        unfinished, first = self._decoder.getstate()[0], self.bytes_of(token)[:1]
        if not first or _is_utf8_so_far(unfinished + first):
            return self.length
        return self.length + len(unfinished.decode(errors="replace"))

    def add(self, token: int) -> str:
        """Returns the text that this token completes; empty while a character is unfinished."""
        return self._strip_space(self._decoder.decode(self.bytes_of(token)))

    def finish(self) -> str:
        """Returns the rest; an unfinished character becomes U+FFFD."""
        return self._strip_space(self._decoder.decode(b"", final=True))

    def _strip_space(self, text: str) -> str:
        if self._strip and text:
            self._strip, text = False, text.removeprefix(" ")
        self.length += len(text)
        return text


def _is_utf8_so_far(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _byte_level(pieces: Sequence[str | None]) -> Callable[[int], bytes]:
    from draftd.models.mlx_lm import byte_characters

    table = byte_characters()

    def bytes_of(token: int) -> bytes:
        piece = (pieces[token] if token < len(pieces) else None) or ""
        try:
            return bytes([table[character] for character in piece])
        except KeyError:  # an added token: its spelling
            return piece.encode()

    return bytes_of


def _sentence_piece(pieces: Sequence[bytes]) -> Callable[[int], bytes]:
    space = "\u2581".encode()
    return lambda token: pieces[token].replace(space, b" ") if token < len(pieces) else b""


class _Windowed(Detokenizer):
    """A detokenizer for all other tokenizers: the text that a token adds to that of the tokens just before it."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """`before`: tokens that precede the text without being part of it."""
        self._decode = decode
        self._tokens = list(before)
        # The number of tokens already returned as text, and that text.
        self._before, self._shown = len(before), decode(before) if before else ""
        self.length = 0

    def begins_at(self, token: int) -> int:
        return self.length

    def add(self, token: int) -> str:
        self._tokens.append(token)
        return self._added_text(final=len(self._tokens) - self._before >= _PENDING)

    def finish(self) -> str:
        return self._added_text(final=True)

    def _added_text(self, *, final: bool) -> str:
        text = self._decode(self._tokens)
        piece = text[len(self._shown) :]
        if not final and (not piece or text.endswith("\ufffd")):
            return ""
        del self._tokens[: self._before]
        self._before, self._shown = len(self._tokens), self._decode(self._tokens)
        self.length += len(piece)
        return piece
