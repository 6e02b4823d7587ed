"""What is asked: three tiers of prompts that travel with the package, the four workload classes, and one's own.

A tier says how long the prompt is: a short control, a problem of several steps, a question over retrieved passages. Of
the passages there are as many as the model's context lets in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from draftd.acceptance.freezing import prompt_checksum
from draftd.client.prompts import Prompt, held_out, spread
from draftd.core import CLASSES, WorkloadClass

SHORT, MEDIUM, LONG = "short_control", "medium_reasoning", "long_context"
TIERS = (SHORT, MEDIUM, LONG)
GROUPS = (*TIERS, *(str(kind) for kind in CLASSES))

CHARACTERS_A_TOKEN = 3.0  # an estimate on the safe side: English has four and more in a large vocabulary
_SYSTEM = "You answer questions from passages that were found for you. Say nothing that they do not say."


def group(name: str, context_length: int, each: int) -> list[Prompt]:
    """The prompts of one of GROUPS. `each` is how many of a workload class; a tier comes whole."""
    if name in (SHORT, MEDIUM):
        return [
            Prompt(
                line["id"],
                tuple((message["role"], message["content"]) for message in line["messages"]),
                WorkloadClass.UNSPECIFIED,
                line["max_tokens"],
                name,
            )
            for line in _lines(name)
        ]
    if name == LONG:
        return [_over_passages(line, context_length) for line in _lines(LONG)]
    return [replace(prompt, group=name) for prompt in spread(held_out(WorkloadClass(name)), each)]


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The same with a name each that no other has: what is measured of a prompt is found again by it."""
    seen: set[str] = set()
    found = []
    for prompt in prompts:
        name, number = prompt.name, 1
        while name in seen:
            number += 1
            name = f"{prompt.name} #{number}"
        seen.add(name)
        found.append(replace(prompt, name=name, group=prompt.group or str(prompt.workload)))
    return found


def checksums(prompts: Iterable[Prompt]) -> dict[str, str]:
    """Of each group, for the manifest."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.group, []).append(prompt)
    return {name: prompt_checksum(group) for name, group in groups.items()}


def tokens_of(prompt: Prompt) -> int:
    """About how many, at most."""
    return round(sum(len(content) for _, content in prompt.messages) / CHARACTERS_A_TOKEN)


def _over_passages(line: dict[str, Any], context_length: int) -> Prompt:
    """Those passages that the question needs, and as many of the others as fit into half of the context."""
    passages = _lines("passages")
    needed = [p for p in passages if p["id"] in line["passages"]]
    others = [p for p in passages if p["id"] not in line["passages"]]
    space = context_length * CHARACTERS_A_TOKEN / 2
    chosen = needed
    for passage in others:
        with_it = [*chosen, passage]
        if len(_SYSTEM) + len(_question(line["question"], with_it)) <= space:
            chosen = with_it
    kept = {p["id"] for p in chosen}
    text = _question(line["question"], [p for p in passages if p["id"] in kept])
    return Prompt(
        line["id"], (("system", _SYSTEM), ("user", text)), WorkloadClass.UNSPECIFIED, line["max_tokens"], LONG
    )


def _question(question: str, passages: Sequence[dict[str, Any]]) -> str:
    found = "\n\n".join(f"[{number}] {p['title']}\n{p['text']}" for number, p in enumerate(passages, 1))
    return f"Passages:\n\n{found}\n\nQuestion: {question}"


@cache
def _lines(name: str) -> tuple[dict[str, Any], ...]:
    text = (resources.files("draftd.acceptance") / "prompt_sets" / f"{name}.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines() if line.strip())
