"""Tokenizers of each kind: what is streamed is what the whole text would be. Nothing from a folder is ever run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Fast
from transformers import PreTrainedTokenizerFast

from draftd.errors import ModelLoadError
from draftd.models.answer_format import AnswerFormat
from draftd.models.folder import ModelFolder
from draftd.models.tokenizer import Tokenizer
from tests.conftest import NanoPair
from tests.unit.models.checkpoints import rewrite

TEXTS = [
    " def f(x):\n    return x  # é 🦙\n\n\tdone\n  two words",
    "日本語 and naïve café,\n don't stop. <|call|> a <tool é> b",
    "👩‍👩‍👧 ok\n",
]
ADDED = [AddedToken("<|call|>", special=True), AddedToken("<tool é>"), AddedToken("日本", normalized=False)]
SIZE = 400


def trained(model: Any, trainer: Any, *, before: Any, decoder: Any, normalizer: Any = None) -> Fast:
    made = Fast(model)
    made.pre_tokenizer, made.decoder = before, decoder
    if normalizer is not None:
        made.normalizer = normalizer
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_tokens(ADDED)
    return made


def byte_level() -> Fast:
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(), trainer, before=before, decoder=decoders.ByteLevel())


def sentencepiece(decoder: Any) -> Fast:
    """As converted ones are: spaces as ▁, what is not in the vocabulary as bytes."""
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
        limit_alphabet=40,
    )
    model = models.BPE(unk_token="<unk>", byte_fallback=True)
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    before = pre_tokenizers.Split("▁", "merged_with_next")
    return trained(model, trainer, before=before, decoder=decoder, normalizer=normalizer)


def stripping() -> Fast:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return sentencepiece(decoders.Sequence(parts))


def not_stripping() -> Fast:
    return sentencepiece(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))


def metaspace() -> Fast:
    """A decoder that mlx-lm has no class for, which drops the space of the first token."""
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    return trained(models.Unigram(), trainer, before=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())


def word_piece() -> Fast:
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=["[UNK]"], show_progress=False)
    before = pre_tokenizers.BertPreTokenizer()
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, before=before, decoder=decoders.WordPiece())


KINDS = [byte_level, stripping, not_stripping, metaspace, word_piece]


@pytest.fixture
def folder(nano_pair: NanoPair, tmp_path: Path) -> Path:
    """A whole model."""
    return Path(shutil.copytree(nano_pair.draft, tmp_path / "model"))


def opened(folder: Path, made: Fast) -> tuple[Tokenizer, Any]:
    """draftd's and mlx-lm's, of a folder with this one."""
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(str(folder))
    wrapper = ModelFolder(str(folder)).tokenizer({"eos_token_id": 10**6})
    return Tokenizer(wrapper), wrapper


@pytest.mark.parametrize("make", KINDS)
def test_detokenizer_streams_exactly_the_text_of_whole_decoding(make: Callable[[], Fast], folder: Path) -> None:
    tokenizer, wrapper = opened(folder, make())
    dice = random.Random(5)
    known = [i for token, i in wrapper.get_vocab().items() if not token.startswith("<0x")]
    several = [tokenizer.encode(text) for text in TEXTS] + [dice.choices(known, k=60) for _ in range(20)]
    for tokens in several:
        stream = tokenizer.detokenizer()
        pieces = [stream.add(token) for token in tokens]
        assert "".join(pieces) + stream.finish() == wrapper.decode(tokens), tokens
        assert stream.finish() == ""
    assert sum(map(bool, pieces)) > len(pieces) / 3  # it comes as it is made


@pytest.mark.parametrize("make", KINDS)
def test_continuing_detokenizer_keeps_the_leading_space(make: Callable[[], Fast], folder: Path) -> None:
    tokenizer, wrapper = opened(folder, make())
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        whole = wrapper.decode(tokens)
        for cut in range(1, len(tokens)):
            before = wrapper.decode(tokens[:cut])
            if before.endswith("\ufffd") or not whole.startswith(before) or not before.strip():
                continue  # within a character
            stream = tokenizer.detokenizer(continues=True)
            found = "".join(map(stream.add, tokens[cut:])) + stream.finish()
            assert found == whole[len(before) :], (text, cut)


@pytest.mark.parametrize("make", [stripping, not_stripping, metaspace])
def test_continuing_detokenizer_gives_a_single_word_token_with_its_space(
    make: Callable[[], Fast], folder: Path
) -> None:
    tokenizer, wrapper = opened(folder, make())
    vocabulary = wrapper.get_vocab()
    words = [word for word in vocabulary if word.startswith("▁")]
    assert len(words) > 3
    for word in words:
        token, text = vocabulary[word], word.replace("▁", " ")
        stream = tokenizer.detokenizer(continues=True)
        assert stream.add(token) + stream.finish() == text
        assert tokenizer.token_bytes(token) == text.encode()


@pytest.mark.parametrize("make", KINDS)
def test_token_bytes_concatenate_to_the_streamed_text(make: Callable[[], Fast], folder: Path) -> None:
    tokenizer, _ = opened(folder, make())
    for text in TEXTS:
        stream, tokens = tokenizer.detokenizer(continues=True), tokenizer.encode(text)
        assert (
            b"".join(map(tokenizer.token_bytes, tokens)).decode() == "".join(map(stream.add, tokens)) + stream.finish()
        )


def test_tokenizer_without_byte_fusing_decoder_reports_raw_token_bytes(folder: Path) -> None:
    unfused = sentencepiece(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]))
    tokenizer, wrapper = opened(folder, unfused)
    tokens = [wrapper.get_vocab()[f"<0x{byte:02X}>"] for byte in "é\n".encode()]
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == "é\n"


@pytest.mark.parametrize("make", KINDS)
def test_detokenizer_token_offset_is_length_of_the_text_before_it(make: Callable[[], Fast], folder: Path) -> None:
    tokenizer, wrapper = opened(folder, make())
    for text in TEXTS:
        stream, tokens = tokenizer.detokenizer(), tokenizer.encode(text)
        for i, token in enumerate(tokens):
            assert stream.begins_at(token) == len(wrapper.decode(tokens[:i]).rstrip("\ufffd")), (text, i)
            stream.add(token)


def test_tokenizer_special_tokens_exclude_byte_tokens_and_ordinary_letters(folder: Path) -> None:
    opened(folder, stripping())
    rewrite(folder / "tokenizer_config.json", pad_token="o")
    wrapper = ModelFolder(str(folder)).tokenizer({"eos_token_id": 10**6})
    tokenizer = Tokenizer(wrapper)
    names = {wrapper.get_vocab()["<|call|>"]: "<|call|>", wrapper.get_vocab()["<unk>"]: "<unk>"}
    assert tokenizer.special_tokens == names
    assert [tokenizer.token_bytes(token).decode() for token in names] == list(names.values())


@pytest.mark.parametrize("make", KINDS)
def test_detokenizer_gives_no_text_for_ids_without_a_token(make: Callable[[], Fast], folder: Path) -> None:
    """Models have more logits than their tokenizers have tokens."""
    tokenizer, _ = opened(folder, make())
    stream = tokenizer.detokenizer()
    tokens = tokenizer.encode("ok two words")
    pieces = [stream.add(token) for token in (tokens[0], 5000, *tokens[1:], 5001)]
    assert ("".join(pieces) + stream.finish()).strip() == tokenizer.decode(tokens).strip()


def test_detokenizer_holds_back_an_incomplete_character_for_at_most_a_few_tokens(folder: Path) -> None:
    unfused = sentencepiece(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]))
    tokenizer, wrapper = opened(folder, unfused)
    byte = wrapper.get_vocab()["<0xF0>"]
    stream = tokenizer.detokenizer()
    assert any(stream.add(byte) for _ in range(9))


def test_bare_sentencepiece_model_file_is_loaded_as_tokenizer(folder: Path) -> None:
    import sentencepiece as spm

    (folder / "tokenizer.json").unlink()
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(TEXTS * 30))
    spm.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), vocab_size=340, model_type="bpe",
        byte_fallback=True, minloglevel=2,
    )  # fmt: skip
    rewrite(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer", chat_template=None)
    wrapper = ModelFolder(str(folder)).tokenizer()
    tokenizer = Tokenizer(wrapper)
    tokens = tokenizer.encode("two words\n  🦙")
    stream = tokenizer.detokenizer()
    assert "".join(map(stream.add, tokens)) + stream.finish() == wrapper.decode(tokens)


# code of the folder


def test_loading_model_folder_never_runs_its_python_code_or_prompts_the_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> str:
        raise AssertionError("it asks")

    monkeypatch.setattr("builtins.input", ask)
    for name in ("tokenization_own", "modeling_own", "configuration_own"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    own = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    rewrite(folder / "config.json", auto_map=own)
    rewrite(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_own.Own", None]})
    ModelFolder(str(folder)).open()
    assert ModelFolder(str(folder)).tokenizer().encode("a")  # a class of transformers' own is there
    rewrite(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer")
    rewrite(folder / "config.json", model_type="own")
    with pytest.raises(ModelLoadError) as caught:
        ModelFolder(str(folder)).tokenizer()
    assert caught.value.message.startswith(f"model: {folder}: its tokenizer needs code from the folder, which draftd")
    assert "\n" not in caught.value.message
    assert not (tmp_path / "run").exists()


# templates


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": f"{{{{ '{name}' }}}}"} for name in names]


def test_chat_template_file_overrides_template_in_tokenizer_config(folder: Path) -> None:
    rewrite(folder / "tokenizer_config.json", chat_template="within")
    assert Tokenizer(ModelFolder(str(folder)).tokenizer()).template.source == "within"
    (folder / "chat_template.jinja").write_text("beside{% generation %}{% break %}{% endgeneration %}")
    found = Tokenizer(ModelFolder(str(folder)).tokenizer()).template
    assert found is not None
    assert found.source.startswith("beside")
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("tools")
    again = Tokenizer(ModelFolder(str(folder)).tokenizer()).template
    assert again == replace(found, with_tools="tools")


def test_default_chat_template_is_used_among_named_templates(folder: Path) -> None:
    rewrite(folder / "tokenizer_config.json", chat_template=named("tool_use", "default"))
    found = Tokenizer(ModelFolder(str(folder)).tokenizer()).template
    assert found is not None
    assert found.source == "{{ 'default' }}"


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{% for m in messages %}\n{{ m.content }", "its chat template cannot be used: unexpected '}' (line 2)"),
        ("{% if messages %}", "its chat template cannot be used: Unexpected end of template"),
        (named("tool_use", "rag"), "of its chat templates (rag, tool_use) none is the default: put"),
    ],
)
def test_unusable_chat_template_is_refused_in_one_line(folder: Path, template: Any, what: str) -> None:
    rewrite(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(ModelLoadError) as caught:
        ModelFolder(str(folder)).tokenizer()
    assert caught.value.message.startswith(f"model: {folder}: {what}")
    assert "\n" not in caught.value.message


def test_loading_a_chat_template_does_not_execute_it(folder: Path) -> None:
    rewrite(folder / "tokenizer_config.json", chat_template="{{ 'x' * 10 ** 11 }}")
    assert Tokenizer(ModelFolder(str(folder)).tokenizer()).template is not None
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]


# answers


@pytest.mark.parametrize(
    ("template", "config", "family", "start", "end"),
    [
        ("<tool_call>{{ tool_call.name }}", {}, "json_tools", "<tool_call>", "</tool_call>"),
        ("[TOOL_CALLS][ARGS]", {}, "mistral", "[TOOL_CALLS]", ""),
        ("{{ messages }}", {"tool_parser_type": "laguna"}, "glm47", "<tool_call>", "</tool_call>"),
    ],
)
def test_reasoning_and_tool_call_format_is_derived_from_tokenizer_and_template(
    folder: Path, template: str, config: dict[str, str], family: str, start: str, end: str
) -> None:
    made = byte_level()
    made.add_tokens([AddedToken("<think>", special=True), AddedToken("</think>", special=True)])
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(str(folder))
    rewrite(folder / "tokenizer_config.json", chat_template=template, **config)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = Tokenizer(ModelFolder(str(folder)).tokenizer({"eos_token_id": 10**6}))
    answers = tokenizer.answers
    assert answers.thinking == ("<think>", "</think>")
    assert answers.tools is not None
    assert (answers.tools.family, answers.tools.start, answers.tools.end) == (family, start, end)
    forced = answers.tools.call_format("f")
    assert (forced is None) == (family == "glm47")
    assert forced is None or forced.before in ('\n{"name": "f", "arguments": ', "f[ARGS]")
    stream = tokenizer.detokenizer()
    assert "".join(map(stream.add, tokenizer.encode("<think>a</think>"))) == "<think>a</think>"


def test_model_without_reasoning_or_tool_marks_answers_in_plain_text(folder: Path) -> None:
    tokenizer = Tokenizer(ModelFolder(str(folder)).tokenizer())
    assert replace(tokenizer.answers, tools=None) == AnswerFormat()
    assert not tokenizer.answers.has_parts
    assert tokenizer.generic_tools
    assert not tokenizer.tools
