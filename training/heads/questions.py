"""Forced tokens of the rows to draw: openings of questions for SmolLM2, generated prompts for the embedded target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from training.generator import documents
from training.heads.openings import CLASS_WEIGHTS, FREE_SHARE, OPENINGS
from training.heads.text import Row, Template

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def read_tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


def ids_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def chatml_template(tokenizer: Tokenizer) -> Template:
    """Returns the template of SmolLM2-Instruct with its default system message."""
    end = tokenizer.token_to_id("<|im_end|>")
    return Template(
        prefix=ids_of(tokenizer, f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"),
        between=ids_of(tokenizer, "<|im_end|>\n<|im_start|>assistant\n"),
        end=end,
        specials=frozenset(range(17)) - {end},
    )


def embedded_template(tokenizer: Tokenizer) -> Template:
    """Returns the embedded target's template. Its rows hold whole prompts, so that only answers are sampled."""
    end = tokenizer.token_to_id("<|end|>")
    ids = set(range(8)) - {end}
    return Template(
        prefix=ids_of(tokenizer, "<|bos|>"),
        between=(),
        end=end,
        specials=frozenset(ids),
        length=384,
        least_alive=0.05,
    )


@dataclass(frozen=True)
class Questions:
    """Makes rows whose user's turn begins with an opening, or freely; the target samples the rest."""

    model: Path
    rows: int
    seed: int

    def __call__(self, number: int) -> list[Row]:
        rng = Random(f"{self.seed}/{number}")
        tokenizer = read_tokenizer(self.model)
        prefix = chatml_template(tokenizer).prefix
        rows = []
        for i in range(self.rows):
            opening = ""
            if rng.random() >= FREE_SHARE:
                kind = rng.choices(list(CLASS_WEIGHTS), list(CLASS_WEIGHTS.values()))[0]
                opening = rng.choice(OPENINGS[kind])
            temperature = 0.8 if i % 2 else 0.0
            rows.append(Row([*prefix, *ids_of(tokenizer, opening)], temperature, user=len(prefix)))
        return rows


@dataclass(frozen=True)
class GeneratedPrompts:
    """Makes rows of the training generator's prompts, and whole documents of it, several for each prompt. Documents
    that it holds out are never used.

    Four chunks share one draw of prompts, by length, so that the rows of a chunk end at similar times."""

    model: Path
    rows: int
    seed: int
    longest: int = 256
    parts: int = 4
    whole: int = 5
    """Whole documents for each prompt that is answered: reading them costs a fraction of drawing an answer."""

    def __call__(self, number: int) -> list[Row]:
        tokenizer = read_tokenizer(self.model)
        end = embedded_template(tokenizer).end
        draw, part = divmod(number, self.parts)
        pairs: list[tuple[list[int], list[int]]] = []
        for document in documents(Random(f"{self.seed}/{draw}").getrandbits(48)):
            if not document.messages or document.messages[-1]["role"] != "assistant":
                continue
            prompt = list(ids_of(tokenizer, embedded_prompt(document.prompt())))
            answer = [*ids_of(tokenizer, document.messages[-1]["content"]), end]
            if len(prompt) <= self.longest and len(answer) <= self.longest:
                pairs.append((prompt, answer))
            if len(pairs) == self.rows * self.parts * (1 + self.whole):
                break
        drawn, whole = pairs[: self.rows * self.parts], pairs[self.rows * self.parts :]
        prompts = sorted((prompt for prompt, _ in drawn), key=len)[part * self.rows : (part + 1) * self.rows]
        rows = [Row(p, 0.8 if i % 2 else 0.0, user=1, answer=len(p)) for i, p in enumerate(prompts)]
        rows += [Row([*p, *a], 1.0, user=1, answer=len(p), done=True) for p, a in whole[part :: self.parts]]
        return rows


def chatml_prompt(messages: list[dict[str, str]]) -> str:
    """Renders messages up to the answer, with SmolLM2's default system message if there is none."""
    system = [] if messages[0]["role"] == "system" else [{"role": "system", "content": SYSTEM}]
    turns = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in [*system, *messages])
    return "".join(turns) + "<|im_start|>assistant\n"


def embedded_prompt(messages: list[dict[str, str]]) -> str:
    """Renders messages up to the answer in the embedded target's template."""
    return "<|bos|>" + "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages) + "<|assistant|>"
