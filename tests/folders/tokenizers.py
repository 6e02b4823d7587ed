"""Folders whose tokenizer skips ids, or names a class that changes it; and folders that lack what chats and answers
need."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Fast
from transformers import PreTrainedTokenizerFast

from tests.folders.place import END, Asked, Case, Place, rewrite, samples
from tests.unit.models.test_tokenizers import TEXTS, byte_level, stripping, word_piece

_KEPT = 3  # tokens with the last ids, which would be other tokens if ids were counted
_TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"


def leave_out(file: Path, most: int) -> int:
    """Removes up to `most` tokens that occur in no sample text; the others keep their ids. Returns the number
    removed."""
    described = json.loads(file.read_text())
    vocabulary, merges = described["model"]["vocab"], described["model"].get("merges", [])
    whole, gone = Fast.from_file(str(file)), set[str]()
    used = {whole.id_to_token(i) for text in (*TEXTS, *samples(whole)) for i in whole.encode(text).ids}
    parts = Counter(part for merge in merges for part in merge)
    made = {"".join(merge): merge for merge in merges}
    for name in sorted(vocabulary, key=vocabulary.__getitem__, reverse=True)[_KEPT:]:
        if name not in used and not parts[name] and not name.startswith(("<", "[")):
            gone.add(name)
            parts.subtract(made.get(name, ()))
            if len(gone) == most:
                break
    described["model"]["vocab"] = {name: i for name, i in vocabulary.items() if name not in gone}
    if merges:
        described["model"]["merges"] = [merge for merge in merges if "".join(merge) not in gone]
    file.write_text(json.dumps(described))
    return len(gone)


def _holes(make: Callable[[], Fast] | None, least: int) -> Callable[[Place], Asked]:
    """Builds a case of skipped ids. `make` makes another tokenizer than the embedded pair's, whose end token has the
    last id."""

    def case(place: Place) -> Asked:
        folder = place.copy()
        if make is not None:
            made = make()
            made.add_tokens([AddedToken("<|late|>", special=True)])
            PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|late|>").save_pretrained(str(folder))
            rewrite(folder / "config.json", eos_token_id=made.token_to_id("<|late|>"))
        clean = Path(shutil.copytree(folder, place.path("clean")))
        assert leave_out(folder / "tokenizer.json", 600) >= least
        return Asked(folder, clean)

    return case


def _class(name: str, architecture: str = "") -> Callable[[Place], Asked]:
    """Builds a case in which tokenizer.json makes each space a token, but the named class does not."""

    def case(place: Place) -> Asked:
        read = {"rope_theta": 500.0, "rope_scaling": None}
        folder = place.random(architecture, read).model if architecture else place.copy()
        fast = Fast.from_file(str(folder / "tokenizer.json"))
        parts = pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)
        fast.pre_tokenizer = pre_tokenizers.Sequence([*parts])
        fast.save(str(folder / "tokenizer.json"))
        rewrite(folder / "tokenizer_config.json", tokenizer_class=name)
        return Asked(folder, said=f"{name} divides ")

    return case


_IDS = {
    "600 tokens left out": _holes(None, 600),
    "left out before added tokens": _holes(byte_level, 6),
    "left out of SentencePiece's": _holes(stripping, 5),
    "left out of WordPiece's": _holes(word_piece, 6),
}
_CLASSES = {
    "llama: GPT2Tokenizer": _class("GPT2Tokenizer"),
    "llama: GPTNeoXTokenizer": _class("GPTNeoXTokenizer"),
    "qwen3: GPT2Tokenizer": _class("GPT2Tokenizer", "qwen3"),
    "exaone4: GPT2Tokenizer": _class("GPT2Tokenizer", "exaone4"),
    "starcoder2: GPT2Tokenizer": _class("GPT2Tokenizer", "starcoder2"),
    "smollm3: GPTNeoXTokenizer": _class("GPTNeoXTokenizer", "smollm3"),
}


def _no_end(place: Place) -> Asked:
    folder = place.copy(eos_token_id=None)
    rewrite(folder / "tokenizer_config.json", eos_token=None)
    return Asked(folder, said="no token ends an answer", ends=frozenset())


def _end_below_zero(place: Place) -> Asked:
    return Asked(place.copy(eos_token_id=-1), said="have no embedding and are not used", ends=frozenset({END}))


def _end_of_no_kind(place: Place) -> Asked:
    return Asked(place.copy(eos_token_id="<|end|>"), refused="eos_token_id")


def _template_of_processor(place: Place) -> Asked:
    """Writes the chat template as older processors did, as the only one."""
    folder = place.copy()
    rewrite(folder / "tokenizer_config.json", chat_template=None)
    rewrite(folder / "chat_template.json", chat_template=_TEMPLATE)
    return Asked(folder, chat="<|user|>Hi<|assistant|>")


def _no_template(place: Place) -> Asked:
    folder = place.copy()
    rewrite(folder / "tokenizer_config.json", chat_template=None)
    return Asked(folder, said="this model has no chat template")


def _null_part(place: Place) -> Asked:
    return Asked(place.copy(text_config=None, vision_config=None), clean=Path(place.like))


def _null_part_inside(place: Place) -> Asked:
    """Builds a case of an architecture whose text model is a part of the configuration."""
    asked = place.random("gemma3", {"rope_theta": 500.0})
    rewrite(asked.model / "config.json", text_config=None)
    return Asked(asked.model, refused="arrays that config.json asks for")


def _beyond(place: Place) -> Asked:
    """Builds a case in which the chat template has a token without an embedding."""
    folder = place.copy()
    fast = Fast.from_file(str(folder / "tokenizer.json"))
    fast.add_tokens([AddedToken("<|turn|>", special=True)])
    fast.save(str(folder / "tokenizer.json"))
    rewrite(folder / "tokenizer_config.json", chat_template="<|turn|>" + _TEMPLATE)
    return Asked(
        folder,
        said="tokens without an embedding: 1, such as <|turn|> (4096)",
        chat="<|turn|><|user|>Hi<|assistant|>",
        request="4096",
    )


def _head(*names: str, as_draft: bool) -> Callable[[Place], Asked]:
    """Builds a case of a head that drafts from its target's hidden states, instead of a whole model."""

    def case(place: Place) -> Asked:
        folder = place.copy("head")
        weights = {name: mx.zeros((2, 4)) for name in names}
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
        if as_draft:
            return Asked(place.copy(), draft=folder, said="it lacks layers.0.mlp.down_proj.weight")
        return Asked(folder, refused="draft head (EAGLE)")

    return case


_LACKING = {
    "no end token": _no_end,
    "eos_token_id: -1": _end_below_zero,
    "eos_token_id is a text": _end_of_no_kind,
    "chat_template.json alone": _template_of_processor,
    "no chat template": _no_template,
    "text_config: null": _null_part,
    "text_config: null, and it is all": _null_part_inside,
    "a token beyond the embedding": _beyond,
    "an EAGLE head as a draft": _head("fc.weight", "layers.0.self_attn.q_proj.weight", as_draft=True),
    "an EAGLE head as a model": _head("midlayer.input_layernorm.weight", "d2t", as_draft=False),
}

TOKENIZERS = (
    *(Case("vocabulary", name, make) for name, make in _IDS.items()),
    *(Case("pre-tokenizer", name, make) for name, make in _CLASSES.items()),
    *(Case("what doctor says", name, make) for name, make in _LACKING.items()),
)
