"""Grammars that an answer must follow, as llguidance compiles them for a tokenizer.

A grammar travels as a string: JSON, or Lark's notation as llguidance extends it
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
from draftd.models.parameters import closed
from draftd.models.tokenizer_file import without_holes

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

    from draftd.models.answer_format import CallFormat

_KEPT_CHARACTERS = 2 << 20  # of grammars that stay compiled: some take 150 bytes of memory a character
# White space is given, so that what must follow is known, and proposed for nothing. So most models were taught to write
# JSON in one line.
_JSON: JsonCompileOptions = {
    "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": False
}  # fmt: skip


def json_schema(schema: str) -> str:
    """Of JSON that a schema allows. Raises ValueError where that is no JSON object; `compile` says what else is wrong
    with it."""
    return _of_schema(_parsed_schema(schema))


def arguments(parameters: str) -> str:
    """Of the arguments of a call, by the schema of the tool's parameters; empty, of one without. Raises ValueError."""
    return _of_schema(closed(_parsed_schema(parameters or "{}")))


def _of_schema(schema: dict[str, Any]) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON))


def _parsed_schema(text: str) -> dict[str, Any]:
    value = _parsed(text)
    if not isinstance(value, dict):
        raise ValueError("a JSON schema is an object")
    try:
        rewritten = in_enforced_words(without_idle_keywords(value))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(rewritten, dict):
        raise ValueError("not: nothing is allowed")
    return rewritten


def json_object() -> str:
    return json_schema('{"type": "object"}')


def regex(expression: str) -> str:
    """Of texts that match as a whole, in the syntax of Rust's regex crate."""
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_regex(expression))


def choice(texts: Sequence[str]) -> str:
    return _in_lark("start: " + " | ".join(map(json.dumps, texts)))


def lark(grammar: str) -> str:
    """In Lark's notation, or in GBNF. Raises ValueError where it is GBNF and cannot be read."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return _in_lark(any_to_lark(grammar))
    except Exception as error:  # it raises many kinds
        raise ValueError(f"it cannot be read: {error}") from None


def _in_lark(grammar: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": grammar}]})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledGrammar:
    """A grammar that is ready for as long as this is held."""

    matcher: Any  # at the beginning of a text


class Grammars:
    """Compiled for one tokenizer, once each, and copied for each sequence. Those that were used last stay, and all that
    are held. Any thread.

    llguidance bounds what compiling takes, in steps; the interpreter lock is free meanwhile.
    """

    def __init__(self, fast: Any, end_ids: Collection[int], vocabulary: int) -> None:
        """`fast`: a tokenizer of transformers built on the tokenizers library. `vocabulary`: ids that masks are
        of, at least all of the tokenizer's."""
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
        """Of an answer that is `body`, a grammar, where there is one, or a call of one of these tools, whose parameters
        are beside it; `several`: or more calls, one after the other. Before it may stand a
        `thought`, which is between these marks; the prompt may have `begun` it. Raises ValueError."""
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
            if closed.startswith("<["):  # one token, which no text has
                rules.append(f"thought: /(?s:.*)/ {closed}")
            else:
                rules.append(f"thought[stop={closed}]: /(?s:.*)/")
            inside = r"thought /[ \n]*/ answer"
            rules.append(f"start: {inside}" if begun else f"start: answer | {opened} {inside}")
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(reversed(rules))}, *parts]})

    def _literal(self, text: str) -> str:
        """A text in Lark's notation, by its tokens: marks are special ones in most vocabularies."""
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
        """Has it ready for `matcher`; the seconds that this took are 0 where it was. Raises ValueError with what is
        wrong with it, or why there are no grammars for this tokenizer."""
        began = time.perf_counter()
        with self._lock:
            if (kept := self._compiled.get(grammar)) is not None:
                self._keep(grammar, kept)
                return kept, 0.0
            tokenizer = self._ready()
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            error = _first_line(matcher.get_error())
            raise ValueError(_with_keyword(error) if '"json_schema"' in grammar else error)
        compiled = CompiledGrammar(matcher)
        with self._lock:
            self._compiled[grammar] = compiled
            self._keep(grammar, compiled)
        return compiled, time.perf_counter() - began

    def matcher(self, grammar: str) -> Any:
        """An LLMatcher at the beginning of a text. Raises ValueError as `compile` does."""
        compiled, _ = self.compile(grammar)
        with self._lock:
            return compiled.matcher.deep_copy()

    def _keep(self, grammar: str, compiled: CompiledGrammar) -> None:
        if len(grammar) <= _KEPT_CHARACTERS:
            self._kept[grammar] = len(grammar), compiled

    def prepare(self) -> None:
        """What the first grammar would wait for: with a large vocabulary it takes a second. Raises ValueError."""
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
    except Exception as error:  # it raises many kinds
        raise ValueError(f"there are no grammars for this model's tokenizer: {_first_line(str(error))}") from None


# How llguidance's errors begin that do not name the keyword of the schema, or name an option that requests cannot set.
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


def _first_line(text: str) -> str:
    """Where it says that an expression is wrong, with what is wrong in it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it is refused"]
    why = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0], *why[:1]])
