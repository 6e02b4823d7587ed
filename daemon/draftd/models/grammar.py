"""Grammars that an answer must follow, compiled by llguidance for a tokenizer.

A grammar is a string: JSON, or Lark's notation as extended by llguidance
(https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from cachetools import LRUCache

from draftd.models.enforced import in_enforced_words
from draftd.models.idle_keywords import without_idle_keywords
from draftd.models.parameters import close_schema
from draftd.models.tokenizer_file import without_holes

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

    from draftd.models.answer_format import CallFormat

_KEPT_CHARACTERS = 2 << 20  # characters of grammars that stay compiled: some use 150 bytes of memory per character
# White space is fixed, so that more tokens are forced, and drafted at no cost. Most models were trained to write
# JSON in one line anyway.
_JSON: JsonCompileOptions = {
    "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": False
}  # fmt: skip


def json_schema(schema: str) -> str:
    """Returns the grammar of JSON that a schema allows. Raises ValueError if the schema is not a JSON object; `compile`
    reports other faults."""
    return _of_schema(_parsed_schema(schema))


def arguments(parameters: str) -> str:
    """Returns the grammar of a call's arguments. `parameters`: the JSON schema of the tool's parameters; empty if the
    tool has none. Raises ValueError."""
    return _of_schema(close_schema(_parsed_schema(parameters or "{}")))


def _of_schema(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON))


def _parsed_schema(text: str) -> dict[str, Any]:
    value = _parse_schema(text)
    if not isinstance(value, dict):
        raise ValueError("a JSON schema must be an object")
    try:
        rewritten = in_enforced_words(without_idle_keywords(value))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(rewritten, dict):
        raise ValueError("the keyword `not` excludes every value")
    return rewritten


def json_object() -> str:
    return json_schema('{"type": "object"}')


def regex(expression: str) -> str:
    """Returns the grammar of texts that match as a whole, in the syntax of Rust's regex crate."""
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_regex(expression))


def choice(texts: Sequence[str]) -> str:
    return _in_lark("start: " + " | ".join(map(json.dumps, texts)))


def lark(grammar: str) -> str:
    """Returns the grammar for Lark's notation or GBNF. Raises ValueError for unreadable GBNF."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return _in_lark(any_to_lark(grammar))
    except Exception as error:  # llguidance raises many kinds
        raise ValueError(f"it cannot be read: {error}") from None


def _in_lark(grammar: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": grammar}]})


def _parse_schema(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledGrammar:
    """A grammar that stays compiled as long as this object lives."""

    matcher: Any  # at the beginning of a text


class Grammars:
    """Grammars of one tokenizer, compiled once each and copied for each sequence. The most recently used stay compiled,
    and all that are referenced. Any thread. llguidance limits the steps of compiling, and releases the interpreter lock
    meanwhile."""

    def __init__(self, fast: Any, end_ids: Collection[int], vocabulary: int) -> None:
        """`fast`: a transformers tokenizer built on the tokenizers library. `vocabulary`: ids in a mask, at least all
        of the tokenizer's."""
        self._fast, self.end_ids, self.vocabulary = fast, frozenset(end_ids), vocabulary
        self._tokenizer: Any = None
        self._compiled: WeakValueDictionary[str, CompiledGrammar] = WeakValueDictionary()
        self._kept: LRUCache[str, tuple[int, CompiledGrammar]] = LRUCache(
            _KEPT_CHARACTERS, getsizeof=lambda kept: kept[0]
        )
        self._lock = threading.Lock()

    def answer(
        self,
        body: str,
        calls: Sequence[tuple[CallFormat, str]] = (),
        *,
        several: bool = False,
        thought: tuple[str, str] | None = None,
        begun: bool = False,
    ) -> str:
        """Returns the grammar of an answer: `body`, if not empty, or a call of one of these tools with their
        parameters; with `several`, successive calls. A `thought` between these marks may precede it; the prompt may
        have `begun` it. Raises ValueError."""
        if not calls and thought is None:
            return body
        with self._lock:
            self._ready()
        parts, rules = list[dict[str, Any]](), list[str]()
        if body:
            parts.append({**json.loads(body)["grammars"][0], "name": "body"})
        for number, (written, parameters) in enumerate(calls):
            parts.append({**json.loads(arguments(parameters))["grammars"][0], "name": f"arguments{number}"})
            before, after = self._literal(written.start + written.before), self._literal(written.after + written.end)
            rules.append(f"call{number}: {before} @arguments{number} {after}")
        kinds = ["@body"] if body else []
        if calls:
            rules.append("call: " + " | ".join(f"call{number}" for number in range(len(calls))))
            kinds.append(r'call ("\n"? call)*' if several else "call")
        rules.append("answer: " + " | ".join(kinds))
        if thought is None:
            rules.append("start: answer")
        else:
            opened, closed = (self._literal(mark) for mark in thought)
            if closed.startswith("<["):  # one token, which occurs in no text
                rules.append(f"thought: /(?s:.*)/ {closed}")
            else:
                rules.append(f"thought[stop={closed}]: /(?s:.*)/")
            inside = r"thought /[ \n]*/ answer"
            rules.append(f"start: {inside}" if begun else f"start: answer | {opened} {inside}")
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(reversed(rules))}, *parts]})

    def _literal(self, text: str) -> str:
        """Returns a text in Lark's notation, by its tokens: marks are special tokens in most vocabularies."""
        pieces, plain = list[str](), b""
        for token in [*self._tokenizer.tokenize_str(text, parse_special=True), None]:
            special = token is None or self._tokenizer.is_special_token(token)
            if special and plain:
                pieces.append(json.dumps(plain.decode()))
                plain = b""
            if token is not None:
                if special:
                    pieces.append(f"<[{token}]>")
                else:
                    plain += self._tokenizer.decode_bytes([token])
        return " ".join(pieces)

    def compile(self, grammar: str) -> tuple[CompiledGrammar, float]:
        """Prepares a grammar for `matcher`. Returns it and the seconds that compiling took, 0 if it was compiled
        already. Raises ValueError with the fault, or the reason why this tokenizer has no grammars."""
        began = time.perf_counter()
        with self._lock:
            if (kept := self._compiled.get(grammar)) is not None:
                self._keep(grammar, kept)
                return kept, 0.0
            tokenizer = self._ready()
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            error = _shorten_error(matcher.get_error())
            raise ValueError(_with_keyword(error) if '"json_schema"' in grammar else error)
        compiled = CompiledGrammar(matcher)
        with self._lock:
            self._compiled[grammar] = compiled
            self._keep(grammar, compiled)
        return compiled, time.perf_counter() - began

    def matcher(self, grammar: str) -> Any:
        """Returns an LLMatcher at the beginning of a text. Raises ValueError like `compile`."""
        compiled, _ = self.compile(grammar)
        with self._lock:
            return compiled.matcher.deep_copy()

    def _keep(self, grammar: str, compiled: CompiledGrammar) -> None:
        if len(grammar) <= _KEPT_CHARACTERS:
            self._kept[grammar] = len(grammar), compiled

    def prepare(self) -> None:
        """Does the work that the first grammar would wait for: a second with a large vocabulary. Raises ValueError."""
        with self._lock:
            self._ready()

    def _ready(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._fast, sorted(self.end_ids), self.vocabulary)
        return self._tokenizer


def _tokenizer(fast: Any, end_ids: list[int], vocabulary: int) -> Any:
    from llguidance import LLTokenizer
    from llguidance.hf import from_tokenizer

    try:
        if described := without_holes(fast.backend_tokenizer):
            return LLTokenizer(described, n_vocab=vocabulary, eos_token=end_ids)
        return from_tokenizer(fast, vocabulary, end_ids)
    except Exception as error:  # llguidance raises many kinds
        raise ValueError(f"this model's tokenizer supports no grammars: {_shorten_error(str(error))}") from None


# Beginnings of llguidance's errors that do not name the schema's keyword, or name an option that requests cannot set.
_KEYWORDS = {
    "oneOf constraints": "oneOf: its branches may overlap, as far as can be told; use anyOf",
    "regex parse error": "pattern",
    "lookarounds not supported": "pattern",
    "Pointer ": "$ref",
    "Anchor ": "$ref",
    "Resource ": "$ref",
    "Failed to generate regex for": "minimum and maximum",
}


def _with_keyword(error: str) -> str:
    keyword_found = next((keyword for beginning, keyword in _KEYWORDS.items() if error.startswith(beginning)), "")
    return keyword_found if ":" in keyword_found else f"{keyword_found}: {error}" if keyword_found else error


def _shorten_error(text: str) -> str:
    """Returns an error's first line, and the first of its further lines that begins with `error:`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it is refused"]
    why = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0], *why[:1]])
