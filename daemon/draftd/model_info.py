"""What is served, and what can be had with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from draftd.core import BUILT_IN_DRAFTERS, DRAFT_MODEL, GRAMMAR, DrafterName

_TEXT = 1000  # tokens, where it is said how many texts there is room for


def speculation(drafters: Collection[DrafterName], no_draft_model: str, max_draft_tokens: int) -> str:
    """Whether there will be speculation with these drafters, and if not, why. `no_draft_model`: why there is none."""
    if not max_draft_tokens:
        return "none: engine.max_draft_tokens is 0"
    if not set(drafters) - {GRAMMAR}:
        return f"none: {no_draft_model or 'there is no drafter'}"
    most = f"up to {max_draft_tokens} draft tokens at a time"
    if DRAFT_MODEL in drafters:
        return most
    always = ", ".join(name for name in drafters if name != GRAMMAR)
    return f"{most} from {always}; {no_draft_model or 'no draft model is loaded'}"


def drafter_in_words(drafter: DrafterName) -> str:
    """As people call it: `grammar` proposes what a response format leaves no choice about."""
    return "forced tokens" if drafter == GRAMMAR else drafter


def prefix_room(limit: int, position_bytes: int, sequence_bytes: int) -> str:
    """How much a prefix cache of `limit` bytes keeps, for people: tokens of all texts together, or how many texts if
    each takes `sequence_bytes` besides, as windows and states do."""
    if not sequence_bytes:
        return f"{limit // position_bytes:,} tokens" if position_bytes else ""
    tokens = f" of {_TEXT:,} tokens" if position_bytes else ""
    return f"{limit // (_TEXT * position_bytes + sequence_bytes):,} texts{tokens}"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served, and what can be had with it, loaded or not. `draft_weight_bytes`: of the draft at start. What is
    held now is the engine's status."""

    model: str
    draft_model: str | None
    context_length: int
    vocab_size: int
    drafters: tuple[DrafterName, ...]
    weight_bytes: int
    draft_weight_bytes: int
    backend: str
    batched: bool = True  # one forward serves all sequences; where not, `batched_reason` says why
    light_draft_model: str | None = None
    registered_drafters: tuple[DrafterName, ...] = BUILT_IN_DRAFTERS
    batched_reason: str = ""
    refused_drafters: Mapping[DrafterName, str] = field(default_factory=dict)  # why those cannot be had
    architecture: str = ""  # `model_type` of the model's configuration
    layers: Mapping[str, int] = field(default_factory=dict)  # how many keep what of a text, in words for people
    partial_prefixes: bool = False  # texts that begin alike share that part; where not, only whole texts are reused
    position_bytes: int = 0  # of key-value caches, target and draft: for one token of context
    sequence_bytes: int = 0  # besides, for one request however long its text: windows and states
    largest_context: int = 0  # tokens of the longest text that there is memory for, at most `context_length`
    end_tokens: Mapping[int, str] = field(default_factory=dict)  # any of them ends a text
    tools: bool = False  # the chat template takes tools, and the format of a call is known
    thinking: bool = False  # the vocabulary has tokens around what it thinks before an answer
    left_out: str = ""  # of a model that takes more than text, what is not served: "vision", "vision, audio"

    def why_no(self, drafter: DrafterName) -> str:
        """Why this drafter cannot be had; empty where it can, or where the reason is not known."""
        return self.refused_drafters.get(drafter, "")

    def speculation(self, max_draft_tokens: int) -> str:
        """Whether it will speculate, and if not, why: for people."""
        return speculation(self.drafters, self.why_no(DRAFT_MODEL), max_draft_tokens)

    def prefix_room(self, limit: int) -> str:
        """How much a prefix cache of so many bytes keeps: for people."""
        return prefix_room(limit, self.position_bytes, self.sequence_bytes)

    @property
    def speculation_available(self) -> bool:
        return bool(set(self.drafters) - {GRAMMAR})  # which drafts for some requests alone
