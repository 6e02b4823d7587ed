"""The tokenizer of both models: byte-level BPE with single digits, and its chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.corpus import SPECIALS
from training.generator import documents
from training.library import library_files, read
from training.model import CONTEXT

SEED = 11
DOCUMENTS = 40_000
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _texts() -> Iterator[str]:
    yield from (read(path) for path in library_files(held_out=False)[::2])
    for document in islice(documents(SEED, stage=0), DOCUMENTS):
        yield from (m["content"] for m in document.messages)
        yield document.raw


def train(vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json`, and the `tokenizer_config.json` that transformers and mlx-lm read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[1],
        "pad_token": SPECIALS[2],
        "unk_token": SPECIALS[7],
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def ensure(folder: Path, vocab: int) -> Tokenizer:
    """Returns the tokenizer in `folder`; trains it first if there is none."""
    if not (folder / "tokenizer.json").exists():
        save(train(vocab), folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
