"""Tokenizers are what their files describe, also where the libraries make others of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Fast
from transformers import PreTrainedTokenizerFast

from draftd.engine.pair import load_models
from draftd.errors import ModelLoadError
from draftd.models.folder import ModelFolder
from draftd.models.grammar import regex
from draftd.models.tokenizer import Tokenizer
from tests.conftest import NanoPair
from tests.unit.models.checkpoints import rewrite
from tests.unit.models.test_tokenizers import TEXTS, byte_level, folder, metaspace, not_stripping, stripping, word_piece

__all__ = ["folder"]

LATE = AddedToken("<|late|>", special=True)
SOURCE = "In 2024: 12345  words, don't  stop!\n\n\tcafe\u0301 日本 🦙 <|call|>x <|late|>"


def write(folder: Path, made: Fast, **config: Any) -> None:
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(str(folder))
    rewrite(folder / "tokenizer_config.json", chat_template=None, **config)


def opened(folder: Path) -> tuple[Tokenizer, str]:
    """draftd's tokenizer of a folder, and what was changed."""
    model = ModelFolder(str(folder))
    wrapper = model.tokenizer()
    return Tokenizer(wrapper), model.tokenizer_changes


def leave_out_ids(file: Path) -> set[int]:
    """Takes tokens that no text of these tests needs out of the vocabulary. The others keep their ids."""
    described = json.loads(file.read_text())
    vocabulary = described["model"]["vocab"]
    read = Fast.from_file(str(file))
    used = {i for text in [*TEXTS, SOURCE] for i in read.encode(text).ids}
    merges, gone = described["model"].get("merges", []), set[int]()
    for name, i in sorted(vocabulary.items(), key=lambda item: -item[1]):
        added = name.startswith(("<", "[")) or name == "a"  # as tokens of their own; and for a text to continue
        if i not in used and not added and not any(name in merge for merge in merges):
            gone.add(vocabulary.pop(name))
            merges = [merge for merge in merges if "".join(merge) != name]
    if merges:
        described["model"]["merges"] = merges
    file.write_text(json.dumps(described))
    return gone


@pytest.mark.parametrize("make", [byte_level, stripping, not_stripping, word_piece])
def test_tokenizer_with_gaps_in_its_ids_treats_remaining_tokens_as_if_without_gaps(
    make: Callable[[], Fast], folder: Path
) -> None:
    made = make()
    made.add_tokens([LATE])
    write(folder, made, eos_token="<|late|>")
    whole, _ = opened(folder)
    gone = leave_out_ids(folder / "tokenizer.json")
    assert len(gone) > 5
    tokenizer, changes = opened(folder)
    assert "added tokens have the ids of their files" in changes
    assert (tokenizer.eos_ids, tokenizer.vocab_size) == (whole.eos_ids, whole.vocab_size)
    assert tokenizer.special_tokens == whole.special_tokens
    for token in range(whole.vocab_size):
        assert tokenizer.token_bytes(token) == (b"" if token in gone else whole.token_bytes(token)), token
    for i, (ours, theirs) in enumerate(zip(tokenizer.vocabulary(), whole.vocabulary(), strict=True)):
        assert ours == (b"" if i in gone else theirs)
    for text in [*TEXTS, SOURCE]:
        tokens = whole.encode(text)
        assert tokenizer.encode(text) == tokens
        stream = tokenizer.detokenizer()
        streamed = [stream.add(token) for token in [*tokens, *gone] if token not in whole.eos_ids]
        assert "".join(streamed) + stream.finish() == whole.decode(tokens) == tokenizer.decode(tokens)


def allowed(tokenizer: Tokenizer, size: int, expression: str) -> set[int]:
    grammars = tokenizer.grammars(size)
    assert grammars is not None
    mask = allocate_token_bitmask(1, size)
    fill_next_token_bitmask(grammars.matcher(regex(expression)), mask)
    return {i for i in range(size) if mask[0, i // 32] >> (i % 32) & 1}


def test_grammar_permits_all_matching_tokens_of_tokenizer_with_gaps_in_its_ids(folder: Path) -> None:
    write(folder, byte_level(), eos_token="<|call|>")
    whole, _ = opened(folder)
    gone = leave_out_ids(folder / "tokenizer.json")
    tokenizer, _ = opened(folder)
    for expression in ("[a-z ]+", "(?s:.)+"):
        expected = allowed(whole, whole.vocab_size + 8, expression)
        assert max(expected - gone) > len(whole.vocabulary()) - len(gone)
        assert allowed(tokenizer, whole.vocab_size + 8, expression) == expected - gone


def test_added_token_whose_id_cannot_be_honoured_is_refused(folder: Path) -> None:
    write(folder, metaspace())
    described = json.loads((folder / "tokenizer.json").read_text())
    described["added_tokens"][-1]["id"] += 5
    described["model"]["vocab"] = described["model"]["vocab"][:-5]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ModelLoadError, match="cannot have its id") as caught:
        opened(folder)
    assert "\n" not in caught.value.message


def test_tokenizer_from_vocab_and_merges_files_uses_listed_added_token_ids(folder: Path) -> None:
    """Of a vocabulary, merges and added tokens in files of their own, as GPT-2 was published."""
    made = byte_level()
    write(folder, made, eos_token="<|call|>", pad_token="<|pad|>", tokenizer_class="GPT2Tokenizer")
    leave_out_ids(folder / "tokenizer.json")
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(described["model"]["vocab"]))
    (folder / "merges.txt").write_text("\n".join(map(" ".join, described["model"]["merges"])))
    added = {token["content"]: token["id"] for token in described["added_tokens"]}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    rewrite(folder / "config.json", model_type="gpt2")
    tokenizer, changes = opened(folder)
    assert "added tokens have the ids of their files" in changes
    for content, number in added.items():
        assert tokenizer.encode(content) == [number]
        assert tokenizer.token_bytes(number) == content.encode()
    assert tokenizer.eos_ids == {added["<|call|>"]}
    (pad,) = tokenizer.encode("<|pad|>")  # no file gives it an id
    assert pad not in {*added.values(), *described["model"]["vocab"].values()}


# pre-tokenizers


def with_digits() -> Fast:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


def with_bos() -> Fast:
    """A text begins with a token that the class does not know of."""
    made = byte_level()
    token = made.token_to_id("<|call|>")
    made.post_processor = processors.TemplateProcessing("<|call|> $A", None, [("<|call|>", token)])
    return made


def with_two_spaces() -> Fast:
    """A model option: a word that is in the vocabulary is a token, whichever merges there are."""
    made = byte_level()
    described = json.loads(made.to_str())
    described["model"] |= {"ignore_merges": True, "merges": []}
    return Fast.from_str(json.dumps(described))


def with_normalizer() -> Fast:
    made = byte_level()
    made.normalizer = normalizers.Lowercase()
    return made


def ids(made: Any, texts: Iterable[str]) -> list[list[int]]:
    return [made.encode(text).ids for text in texts]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "exaone4", "starcoder2", "smollm3"])
@pytest.mark.parametrize("name", ["GPT2Tokenizer", "GPTNeoXTokenizer"])
def test_tokenizer_class_does_not_replace_pre_tokenizer_of_tokenizer_file(name: str, kind: str, folder: Path) -> None:
    write(folder, with_digits(), tokenizer_class=name, pad_token=None)
    rewrite(folder / "config.json", model_type=kind)
    tokenizer, changes = opened(folder)
    assert f"{name} divides " in changes
    assert "tokenizer.json is used" in changes
    reference = Fast.from_file(str(folder / "tokenizer.json"))
    texts = [*TEXTS, SOURCE, "a<|padding|>b", "1" * 9]
    assert [tokenizer.encode(text) for text in texts] == ids(reference, texts)


@pytest.mark.parametrize("make", [with_bos, with_two_spaces, with_normalizer, stripping, not_stripping])
@pytest.mark.parametrize("name", ["GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer", "GemmaTokenizer"])
def test_tokenizer_class_replaces_no_other_component_of_tokenizer_file(
    name: str, make: Callable[[], Fast], folder: Path
) -> None:
    write(folder, make(), tokenizer_class=name)
    rewrite(folder / "config.json", model_type="gpt_neox")
    tokenizer, _ = opened(folder)
    reference = Fast.from_file(str(folder / "tokenizer.json"))
    texts = [*TEXTS, SOURCE, "Words THAT do"]
    assert [tokenizer.encode(text) for text in texts] == ids(reference, texts)
    for tokens in ids(reference, texts):
        assert tokenizer.decode(tokens) == reference.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize("make", [byte_level, stripping, not_stripping, metaspace, word_piece])
def test_tokenizer_is_not_altered_when_libraries_already_load_it_as_its_file_says(
    make: Callable[[], Fast], folder: Path, nano_pair: NanoPair
) -> None:
    write(folder, make())
    assert opened(folder)[1] == ""
    assert opened(Path(nano_pair.target))[1] == ""


def test_tokenizer_is_not_altered_when_its_class_builds_an_identical_one(folder: Path) -> None:
    write(folder, byte_level(), tokenizer_class="GPT2Tokenizer")
    rewrite(folder / "config.json", model_type="gpt2")
    assert opened(folder)[1] == ""


def test_tokenizer_file_with_reordered_keys_is_read_completely(folder: Path) -> None:
    write(folder, with_digits(), tokenizer_class="GPT2Tokenizer")
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(dict(reversed(described.items())), indent=1))
    tokenizer, changes = opened(folder)
    assert "GPT2Tokenizer divides" in changes
    assert tokenizer.encode("12") == Fast.from_file(str(folder / "tokenizer.json")).encode("12").ids


def test_tokens_added_only_by_tokenizer_config_remain_special_tokens(folder: Path) -> None:
    write(folder, with_digits(), tokenizer_class="GPT2Tokenizer", pad_token="<|pad|>")
    tokenizer, changes = opened(folder)
    assert changes
    (token,) = tokenizer.encode("<|pad|>")
    assert tokenizer.special_tokens[token] == "<|pad|>"


def test_log_reports_that_tokenizer_file_overrides_its_class(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    rewrite(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    models = load_models(str(folder), progress=lambda line: None)
    assert f"model: {folder}: GPT2Tokenizer divides" in caplog.text
    assert models.tokenizer.encode("12 34") == Fast.from_file(str(folder / "tokenizer.json")).encode("12 34").ids
