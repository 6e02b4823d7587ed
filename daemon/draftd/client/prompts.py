"""Reads prompts from the package's held-out sets, from a file or from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, Field, StrictInt

from draftd.canaries.prompts import PromptError, json_lines
from draftd.client.client import Message
from draftd.core import CLASSES, WorkloadClass
from draftd.errors import DraftdError

EMBEDDED = "nano/target"
"""The name of the embedded pair's model."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a chat with its name, workload class and limits."""

    name: str
    messages: tuple[Message, ...]
    workload: WorkloadClass
    max_tokens: int | None
    group: str = ""  # the heading that reports use; empty: its workload class


def held_out(workload: WorkloadClass) -> list[Prompt]:
    """The package's prompts of one class. The embedded pair has not been trained on them, nor at all to edit."""
    if workload is WorkloadClass.EDIT:
        folder = resources.files("draftd.client") / "prompt_sets"  # written by us, not by the pair's training
    else:
        folder = resources.files("draftd.models.nano") / "prompts"
    resource = folder / f"{workload}.jsonl"
    try:
        text = resource.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DraftdError(f"this installation has no held-out prompts ({workload}.jsonl is missing)") from None
    return _parse(text, f"{workload}.jsonl")


def suited_classes(model: str) -> tuple[WorkloadClass, ...]:
    """The workload classes to show a model with. The embedded pair gets all but EDIT, which it has not learnt."""
    return tuple(kind for kind in CLASSES if model != EMBEDDED or kind is not WorkloadClass.EDIT)


def from_file(path: Path) -> list[Prompt]:
    """A .jsonl file of `{"messages": […]}` lines, or a text file with one prompt a line. Their group is the line's own,
    else the file's name."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        prompts = _parse(text, str(path))
    else:
        prompts = from_texts([line for line in text.splitlines() if line.strip()])
    if not prompts:
        raise PromptError(str(path), "no prompt", "at least one line")
    return [prompt if prompt.group else replace(prompt, group=path.stem) for prompt in prompts]


def from_texts(texts: Sequence[str]) -> list[Prompt]:
    return [Prompt(shorten(text), (("user", text),), WorkloadClass.UNSPECIFIED, None) for text in texts]


def shorten(text: str, width: int = 24) -> str:
    """The beginning of a prompt, on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` of the prompts, evenly from first to last: neighbours are often alike."""
    if count >= len(prompts):
        return list(prompts)
    return [prompts[i * len(prompts) // count] for i in range(count)]


class _Message(BaseModel):
    role: str
    content: str


class _Line(BaseModel):
    """One line of a .jsonl file of prompts."""

    messages: list[_Message] = Field(min_length=1)
    id: str | int = ""
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    max_tokens: StrictInt | None = None
    group: str = ""


def _parse(text: str, source: str) -> list[Prompt]:
    prompts = []
    for _, entry in json_lines(text, source, _Line):
        chat = tuple((message.role, message.content) for message in entry.messages)
        name = str(entry.id or shorten(chat[-1][1]))
        prompts.append(Prompt(name, chat, entry.workload, entry.max_tokens, entry.group))
    return prompts
