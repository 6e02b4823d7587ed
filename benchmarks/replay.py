"""How well do texts predict themselves? Replays recorded answers token by token through drafters without weights.

The texts are twelve sessions of a coding agent and 24 edits (benchmarks/recorded), one after the other as one caller's.
A step drafts up to a number of tokens; those that the recorded answer has are accepted, and one more token follows
them. Nothing is decoded, so only the time of the drafter itself is measured.

    ngrams     the latest place of the last three tokens, or else two, in the text alone: what prompt lookup used to be
    text       prompt lookup in the text alone, as for a caller whom the daemon does not know
    earlier    prompt lookup in the text and in the caller's earlier answers
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftd.engine.drafters.base import DraftSequence, Text, TextDrafter
from draftd.engine.drafters.prompt_lookup import PromptLookup
from draftd.engine.drafters.suffix_index import SLICE

RECORDED = Path(__file__).parent / "recorded"
DEPTHS = (4, 8, 16)
_SIZES = (3, 2)


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded answer and the prompt before it, as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


def turns_of(tokenizer: Any, messages: Sequence[dict[str, str]]) -> Iterator[Turn]:
    """Yields the turns of a conversation in the form of the tokenizer's chat template."""
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = tokenizer.render_chat(list(messages[:i]))
            yield Turn(prompt, [*tokenizer.encode(message["content"]), min(tokenizer.eos_ids)])


def recorded(tokenizer: Any) -> dict[str, list[Turn]]:
    """Returns the recorded turns: `sessions` and `edits`."""
    sessions = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((RECORDED / "sessions").glob("*.jsonl"))
    ]
    edits = [json.loads(line)["messages"] for line in (RECORDED / "edits.jsonl").read_text().splitlines()]
    return {
        name: [turn for messages in conversations for turn in turns_of(tokenizer, messages)]
        for name, conversations in (("sessions", sessions), ("edits", edits))
    }


class LatestNgram(TextDrafter):
    """Proposes what followed the latest earlier place of the last three tokens, or else of the last two."""

    def __init__(self) -> None:
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in _SIZES]
        self._indexed = 0

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        tokens = sequence.tokens
        for end in range(self._indexed + 1, len(tokens)):
            for size, ends in zip(_SIZES, self._ends, strict=True):
                if end >= size:
                    ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for size, ends in zip(_SIZES, self._ends, strict=True):
            if (at := ends.get(tuple(tokens[-size:]))) is not None:
                return tokens[at : at + depth]
        return []

    def leave(self, sequence: DraftSequence) -> None:
        self._ends, self._indexed = [{} for _ in _SIZES], 0


@dataclass
class Replay:
    """Sums over replayed turns. `seconds`: of the drafter in a step, for each token that came since the step before; at
    most 1,024 of a prompt."""

    steps: int = 0
    accepted: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def accepted_per_step(self) -> float:
        return self.accepted / self.steps

    def microseconds(self, share: float) -> float:
        """Returns the time for a token that this share of tokens does not exceed."""
        return 1e6 * sorted(self.seconds)[int(share * (len(self.seconds) - 1))]

    def add(self, drafter: TextDrafter, turn: Turn, depth: int, identity: str) -> None:
        """Replays a turn."""
        text, answer = Text(list(turn.prompt), identity=identity), turn.answer
        at = indexed = 0
        while at < len(answer):
            began = time.perf_counter()
            reach = drafter.reach(text, min(depth, len(answer) - at - 1))  # the engine asks twice, too
            draft = drafter.continuation(text, reach) if reach else []
            spent = time.perf_counter() - began
            inserted = min(len(text.tokens) - indexed, SLICE)
            indexed += inserted
            accepted = next((i for i, token in enumerate(draft) if token != answer[at + i]), len(draft))
            text.tokens += answer[at : at + accepted + 1]
            text.answered = at = at + accepted + 1
            self.steps, self.accepted = self.steps + 1, self.accepted + accepted
            self.seconds.append(spent / inserted)
        text.ended = True
        drafter.leave(text)


DRAFTERS: dict[str, tuple[type[TextDrafter], str]] = {
    "ngrams": (LatestNgram, ""),
    "text": (PromptLookup, ""),
    "earlier": (PromptLookup, "the caller"),
}


def replay(turns: Sequence[Turn], drafter: TextDrafter, depth: int, identity: str) -> Replay:
    """Replays turns one after the other as one caller's; an empty `identity` is an unknown caller."""
    total = Replay()
    for turn in turns:
        total.add(drafter, turn, depth, identity)
    return total


def measure(tokenizer: Any) -> dict[str, Replay]:
    """Replays all texts through all drafters. Returns the sums by text, drafter and depth, such as
    `edits text 16`."""
    texts = recorded(tokenizer)
    return {
        f"{name} {kind} {depth}": replay(turns, make(), depth, identity)
        for name, turns in texts.items()
        for depth in DEPTHS
        for kind, (make, identity) in DRAFTERS.items()
    }
