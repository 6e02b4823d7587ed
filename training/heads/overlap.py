"""Drops drawn rows that share a run of 20 tokens with a benchmark's prompts, or with the target's answers to them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import multiprocessing

from training.heads.target import Target
from training.heads.text import Batch, Row, Template

RUN = 20
ANSWER_TOKENS = 128
REPOSITORY = Path(__file__).parents[2]
PROMPT_FOLDERS = (
    "daemon/draftd/models/nano/prompts",
    "daemon/draftd/client/prompt_sets",
    "acceptance/draftd_acceptance/prompt_sets",
)
"""Folders of `.jsonl` files whose prompts the benchmarks and acceptance checks use."""

Gram = tuple[int, ...]
Conversation = list[dict[str, str]]


def token_runs(tokens: Sequence[int], length: int = RUN) -> Iterable[Gram]:
    """Yields every run of `length` consecutive tokens."""
    for start in range(len(tokens) - length + 1):
        yield tuple(tokens[start : start + length])


@dataclass(frozen=True)
class Overlap:
    """The forbidden runs of tokens."""

    runs: frozenset[Gram]

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]]) -> Overlap:
        return cls(frozenset(run for text in texts for run in token_runs(text)))

    def touches(self, tokens: Sequence[int]) -> bool:
        return any(run in self.runs for run in token_runs(tokens))

    def split(self, rows: Iterable[Row], template: Template) -> tuple[list[Row], int]:
        """Returns the rows without a forbidden run in a turn, and the number of the others."""
        kept, dropped = [], 0
        for row in rows:
            question = row.tokens[row.user : row.answer - len(template.between)]
            if self.touches(question) or self.touches(row.tokens[row.answer :]):
                dropped += 1
            else:
                kept.append(row)
        return kept, dropped


def benchmark_records(repository: Path = REPOSITORY) -> list[dict[str, Any]]:
    """Returns every record of the benchmarks' prompt files."""
    files = [path for folder in PROMPT_FOLDERS for path in sorted((repository / folder).glob("*.jsonl"))]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [json.loads(line) for line in lines]


def benchmark_conversations(repository: Path = REPOSITORY) -> list[Conversation]:
    """Returns the messages of every benchmark prompt that has messages."""
    return [record["messages"] for record in benchmark_records(repository) if "messages" in record]


def benchmark_texts(repository: Path = REPOSITORY) -> list[str]:
    """Returns every distinct message, passage and question of the benchmark prompts."""
    texts: set[str] = set()
    for record in benchmark_records(repository):
        texts.update(message["content"] for message in record.get("messages", ()))
        texts.update(record[key] for key in ("text", "question") if key in record)
    return sorted(texts)


@dataclass(frozen=True)
class Answering:
    """Greedy answers of up to 128 tokens to a few prompts of similar lengths, given as token ids."""

    model: Path
    template: Template
    prompts: list[list[int]]

    def __call__(self) -> list[list[int]]:
        batch = [Row(list(prompt), 0.0, answer=len(prompt)) for prompt in self.prompts]
        longest = max(map(len, self.prompts)) + ANSWER_TOKENS
        limits = replace(
            self.template,
            prefix=self.template.prefix[:1],
            length=longest,
            answer_limit=ANSWER_TOKENS,
            least_alive=0.0,
        )
        Batch(Target(self.model, longest), batch, limits, seed=0).run()
        return [row.tokens[row.answer :] for row in batch]


def run_one(work: Answering) -> list[list[int]]:
    answers = work()
    print(f"greedy answers: {len(answers)} more", flush=True)
    return answers


def greedy_answers(model: Path, template: Template, prompts: list[list[int]], rows: int = 80) -> list[list[int]]:
    """Returns the target's greedy answers to all prompts, in the order of the prompts' lengths. Uses two processes of
    one thread each."""
    ordered = sorted(prompts, key=len)
    parts = [Answering(model, template, ordered[i : i + rows]) for i in range(0, len(ordered), rows)]
    with multiprocessing.get_context("spawn").Pool(2, torch.set_num_threads, (1,)) as pool:
        return [answer for answers in pool.map(run_one, parts, chunksize=1) for answer in answers]


def benchmark_overlap(model: Path, template: Template, prompts: list[list[int]], stored: Path) -> Overlap:
    """Returns the runs of all benchmark texts and greedy answers; reads the answers from `stored` if it exists."""
    if not stored.exists():
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.with_suffix(".part").write_text(json.dumps(greedy_answers(model, template, prompts)))
        stored.with_suffix(".part").replace(stored)
    answers: list[list[int]] = json.loads(stored.read_text())
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = [e.ids for e in tokenizer.encode_batch(benchmark_texts(), add_special_tokens=False)]
    return Overlap.of([*texts, *answers])
