"""Corrects tokenizers that the libraries make differently from the folder's files.

Many of transformers' classes take only the vocabulary from tokenizer.json, and rebuild the rest; which class does so
depends on names in the configuration. The tokenizers library gives added tokens the next free ids instead of those in
the files: if a vocabulary leaves ids out, these belong to other tokens.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from draftd.errors import ModelLoadError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a token for one byte of a character

_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_MODEL_OPTIONS = (
    "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"
)  # fmt: skip
_VOCABULARY = re.compile(r'"vocab"\s*:\s*[\[{]')
_HEAD_CHARACTERS = 1 << 20
_CONFIGURED = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_SAMPLES = (
    "Hello world", "don't we'll I'M THEY'VE it's", "12345 1,234.50 3rd 007", "  two  spaces   and    more ",
    "\n\n\tab\r\n", "日本語の文章です。", "한국어 文字", "naïve café", "cafe\u0301 o\u0308 a\u030a",
    "👩\u200d👩\u200d👧 🦙🏽 ✓", "def f(x):\n    return x**2  # ok\n",
    "a+=b[1]; c->d(); /* e */", "\x00\x07\x1b[0m\x7f\x85", "زمان שלום",
    "Привет, мир!", "नमस्ते ไทย", "ﬁ ① ㎏ Ⅷ ﾊﾝ", "İstanbul ß ẞ ŒUVRE", "<b class='x'>y</b>",
    "https://a.example/?q=1&r=%20", "snake_case camelCase", "SHOUTING words", "“quoted” – it’s…",
    "\u00a0\u3000\u200b\ufeff", "$5 @home #tag 50% ^_^ ~/.bashrc",
)  # fmt: skip
_JOINTS = ("", " ", "  ", "\n", " 1", "'s ", "\t\t")


def as_described(tokenizer: Any, folder: Path) -> str:
    """Makes transformers' tokenizer divide texts as in the folder's tokenizer.json, and gives added tokens the ids in
    the files. Returns a description of the changes; empty for most tokenizers. Raises ModelLoadError if an id is not
    possible."""
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return ""
    backend.no_truncation()  # transformers sets truncation and padding for each text
    backend.no_padding()
    own, changes, declared = backend, list[str](), dict[str, int]()
    for number, token in tokenizer.init_kwargs.get("added_tokens_decoder", {}).items():
        declared[str(token)] = int(number)
    file = folder / "tokenizer.json"
    if file.is_file():
        head = _head(file)
        repaired = tokenizer.init_kwargs.get("fix_mistral_regex")  # the configuration requires another pre-tokenizer
        declared |= {token["content"]: token["id"] for token in head.get("added_tokens") or ()}
        if not repaired and not _has_parts(backend, head):
            own = _from_file(file, backend, declared)
            texts = _texts(declared)
            if differing := sum(_ids(own, text) != _ids(backend, text) for text in texts):
                name = type(tokenizer).__name__
                changes.append(
                    f"{name} divides {differing} of {len(texts)} sample texts into other tokens than tokenizer.json "
                    "does: tokenizer.json is used"
                )
    if moved := _moved_ids(own, declared):
        changes.append(
            f"its vocabulary leaves ids out: {len(moved)} added tokens have the ids of their files, not those that the "
            "tokenizers library gives them"
        )
        own = Tokenizer.from_str(_with_ids(own, moved))
    if own is not backend:
        own.encode_special_tokens = backend.encode_special_tokens
        for role, token in tokenizer.special_tokens_map.items():
            if isinstance(token, str) and own.token_to_id(token) is None:
                setattr(tokenizer, role, None)
        tokenizer._tokenizer = own
    return "; ".join(changes)


def token_names(tokenizer: Any) -> list[str]:
    """Returns all tokens of a tokenizer by id, named as in the vocabulary; empty names for missing ids. There may be
    more ids than tokens."""
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    return [name or "" for name in tokenizer.convert_ids_to_tokens(list(range(size)))]


def without_holes(backend: Any) -> str:
    """Returns the tokenizer as JSON for readers that count its tokens: missing ids get special tokens, which occur in
    no text. Empty if no id is missing."""
    taken = set(backend.get_vocab().values())
    holes = set(range(max(taken, default=0))) - taken
    return _with_ids(backend, {f"<[no token {i}]>": i for i in sorted(holes)}) if holes else ""


def _head(file: Path) -> dict[str, Any]:
    """Returns tokenizer.json without vocabulary and merges, which are most of it and usually come last: parsing them
    takes longer than everything else here."""
    with file.open(encoding="utf-8") as source:
        text = source.read(_HEAD_CHARACTERS)
        if match := _VOCABULARY.search(text):
            with contextlib.suppress(ValueError):
                head: dict[str, Any] = json.loads(text[: match.start()] + '"vocab": {}}}')
                if head.keys() >= {*_PARTS, "post_processor", "model"}:
                    return head
        return dict(json.loads(text + source.read()))


def _has_parts(backend: Any, head: Mapping[str, Any]) -> bool:
    """Whether a tokenizer with the file's vocabulary has all of the file's other parts."""
    from tokenizers import Tokenizer

    described = head["model"]
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    shell = Tokenizer.from_str(json.dumps({**head, "model": empty, "added_tokens": [], "padding": None}))
    return (
        described.get("type") in (None, type(backend.model).__name__)
        and all(_option(backend.model, name) == (described.get(name) or None) for name in _MODEL_OPTIONS)
        and all(_state(getattr(backend, part)) == _state(getattr(shell, part)) for part in _PARTS)
        and _put_around(backend) == _put_around(shell)
    )


def _option(model: Any, name: str) -> Any:
    return getattr(model, name, None) or None


def _state(part: Any) -> Any:
    """Returns a part as JSON, without fields that affect neither ids nor text."""
    if part is None:
        return None
    state = re.sub(rb',"trim_offsets":(true|false)', b"", part.__getstate__())
    return "bytes" if state.startswith(b'{"type":"ByteLevel"') and "decoders" in type(part).__module__ else state


def _put_around(backend: Any) -> list[int]:
    """Returns the ids that are added around each text."""
    encoding = backend.encode("")
    return [i for i, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True) if special]


def _from_file(file: Path, backend: Any, declared: Iterable[str]) -> Any:
    """Returns the tokenizers library's own tokenizer, with the tokens that the configuration adds. A class's own
    default tokens are in no file, and unknown to the model."""
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(file))
    own.no_truncation()
    own.no_padding()
    texts = [path.read_text("utf-8") for name in _CONFIGURED if (path := file.parent / name).is_file()]
    contents = {*declared, *itertools.chain.from_iterable(_strings(json.loads(text)) for text in texts)}
    own.add_tokens(
        [token for _, token in sorted(backend.get_added_tokens_decoder().items()) if token.content in contents]
    )
    return own


def _strings(value: Any) -> Iterable[str]:
    """Yields all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _strings(item)


def _ids(backend: Any, text: str) -> list[int] | None:
    """Returns the ids of a text; None if some part of it has no token, not even an unknown one."""
    try:
        return list(backend.encode(text).ids)
    except Exception:
        return None


def _texts(added: Iterable[str]) -> list[str]:
    """Returns a few hundred short texts of all kinds, which pre-tokenizers, normalizers and added tokens treat
    differently."""
    pairs = enumerate(itertools.product(_SAMPLES, repeat=2))
    mixed = [one + _JOINTS[i % len(_JOINTS)] + other for i, (one, other) in pairs if i % 3 == 0]
    return [*_SAMPLES, *mixed, *(f"a{token} {token}b" for token in itertools.islice(added, 50))]


def _moved_ids(backend: Any, declared: Mapping[str, int]) -> dict[str, int]:
    """Returns the correct ids of added tokens that have wrong ones. Tokens of the model's vocabulary keep its ids;
    others get their declared ids, or else any free ones."""
    model = backend.model
    outside = {
        token.content: number
        for number, token in sorted(backend.get_added_tokens_decoder().items())
        if model.token_to_id(token.content) is None
    }
    right = {name: declared[name] for name in outside if name in declared and model.id_to_token(declared[name]) is None}
    for name, number in outside.items():
        if name not in right:
            taken = number in right.values() or model.id_to_token(number) is not None
            right[name] = 1 + max(*right.values(), *backend.get_vocab().values()) if taken else number
    return {name: number for name, number in right.items() if number != outside[name]}


def _with_ids(backend: Any, ids: Mapping[str, int]) -> str:
    """Returns the tokenizer as JSON in which these special tokens have these ids; added tokens get those of the
    vocabulary if they are in it. Raises ModelLoadError."""
    described = json.loads(backend.to_str())
    described["truncation"] = described["padding"] = None
    vocabulary = described["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        token, number = next(iter(ids.items()))
        what = f"its tokenizer has ids without a token, and {token!r} cannot have its id {number}"
        raise ModelLoadError(what, "use the tokenizer's files as its model was published with them")
    vocabulary |= ids
    tokens = {token["content"]: token for token in described["added_tokens"]}
    for content, number in ids.items():
        if content in tokens:
            tokens[content]["id"] = number
        else:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            described["added_tokens"].append({"id": number, "content": content, "special": True, **flags})
    return json.dumps(described)
