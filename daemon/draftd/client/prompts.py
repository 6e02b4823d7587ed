"""Prompts from where they lie: the package's held-out ones, a file, the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from draftd.client.asking import Message
from draftd.core import CLASSES, WorkloadClass
from draftd.errors import DraftdError, FieldError


class PromptError(FieldError):
    """A prompt, or a file of them, is not as it should be."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a chat, and what is known of it."""

    name: str
    messages: tuple[Message, ...]
    workload: WorkloadClass
    max_tokens: int | None
    group: str = ""  # what it is reported under; empty is its workload class


def held_out(workload: WorkloadClass) -> list[Prompt]:
    """The package's prompts of one class, which the embedded pair has not been trained on."""
    resource = resources.files("draftd.models.nano") / "prompts" / f"{workload}.jsonl"
    try:
        text = resource.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DraftdError(f"this installation has no held-out prompts ({workload}.jsonl is missing)") from None
    return _parse(text, f"{workload}.jsonl")


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
    """Enough of a prompt to know it by."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` of the prompts, evenly from first to last: neighbours are often alike."""
    if count >= len(prompts):
        return list(prompts)
    return [prompts[i * len(prompts) // count] for i in range(count)]


def _parse(text: str, source: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise PromptError(place, line, f"a JSON object ({error.msg})") from None
        if not isinstance(entry, dict):
            raise PromptError(place, entry, "a JSON object")
        prompts.append(_prompt(entry, place))
    return prompts


def _prompt(entry: Mapping[str, object], place: str) -> Prompt:
    messages = entry.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PromptError(f"{place}: messages", messages, 'a list of {"role": …, "content": …}')
    chat: list[Message] = []
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise PromptError(f"{place}: messages", message, '{"role": …, "content": …}')
        chat.append((str(message["role"]), str(message["content"])))
    workload, max_tokens = entry.get("workload", WorkloadClass.UNSPECIFIED), entry.get("max_tokens")
    if workload not in list(WorkloadClass):
        raise PromptError(f"{place}: workload", workload, ", ".join(CLASSES))
    if max_tokens is not None and not isinstance(max_tokens, int):
        raise PromptError(f"{place}: max_tokens", max_tokens, "a whole number")
    group = entry.get("group", "")
    if not isinstance(group, str):
        raise PromptError(f"{place}: group", group, "text")
    name = str(entry.get("id") or shorten(chat[-1][1]))
    return Prompt(name, tuple(chat), WorkloadClass(str(workload)), max_tokens, group)
