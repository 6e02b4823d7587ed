"""The served model and its abilities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from draftd.core import (
    BUILT_IN_DRAFTERS,
    DRAFT_HEAD,
    DRAFT_MODEL,
    GRAMMAR,
    MODEL_DRAFTERS,
    PROMPT_LOOKUP,
    DrafterName,
    LadderLevel,
)

_TEXT = 1000  # tokens of a text in "room for … texts"


def speculation(drafters: Collection[DrafterName], no_draft_model: str, max_draft_tokens: int) -> str:
    """Describes whether there will be speculation with these drafters, and if not, why. `no_draft_model`: why there is
    neither a draft model nor a draft head."""
    if not max_draft_tokens:
        return "none: engine.max_draft_tokens is 0"
    if not set(drafters) - {GRAMMAR}:
        return f"none: {no_draft_model or 'there is no drafter'}"
    most = f"up to {max_draft_tokens} draft tokens at a time"
    if model_drafters(drafters):
        return most
    others = ", ".join(name for name in drafters if name not in (GRAMMAR, PROMPT_LOOKUP))
    source = PROMPT_LOOKUP if PROMPT_LOOKUP in drafters else f"{others}, for requests that name it"
    return f"{most} from {source}; {no_draft_model or 'no draft model is loaded'}"


def model_drafters(drafters: Collection[DrafterName]) -> tuple[DrafterName, ...]:
    """Returns those of the drafters that are a draft model or a draft head."""
    return tuple(name for name in MODEL_DRAFTERS if name in drafters)


def stand_in(drafter: DrafterName, drafters: Collection[DrafterName]) -> DrafterName:
    """Returns the drafter that drafts where this one is meant: the draft head in place of a draft model that is not
    among the available `drafters`, or the other way round; otherwise itself."""
    if drafter in drafters or drafter not in MODEL_DRAFTERS:
        return drafter
    return next(iter(model_drafters(drafters)), drafter)


def name_drafts(draft_model: str | None, drafters: Collection[DrafterName]) -> str:
    """Returns the draft model's name, and that there is a draft head; empty if neither drafts."""
    names = {DRAFT_MODEL: draft_model or DRAFT_MODEL, DRAFT_HEAD: "its draft head"}
    return " + ".join(names[name] for name in model_drafters(drafters))


def drafter_in_words(drafter: DrafterName) -> str:
    """Returns a drafter's name for people: "forced tokens" for `grammar`, the name itself for others."""
    return "forced tokens" if drafter == GRAMMAR else drafter


def prefix_room(limit: int, position_bytes: int, sequence_bytes: int) -> str:
    """Describes what a prefix cache of `limit` bytes can keep: tokens of all texts together, or the number of texts if
    each also takes `sequence_bytes`. Sliding windows and recurrent states take these, whatever the text's length."""
    if not sequence_bytes:
        return f"{limit // position_bytes:,} tokens" if position_bytes else ""
    tokens = f" of {_TEXT:,} tokens" if position_bytes else ""
    return f"{limit // (_TEXT * position_bytes + sequence_bytes):,} texts{tokens}"


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """A draft head that lies with the model. `kind`: mtp and the like; `family`: in words; `files`: their names;
    `file_bytes`: of its arrays there, `weight_bytes`: in memory. `form`: the one that it was found to have. In the
    trial of forms `accepted` (0 to 1) of `positions` drafts were the target's own tokens, and `chance` would have been
    by the most frequent token alone. `refusal`: why it does not draft; empty if it does."""

    kind: str
    family: str
    files: tuple[str, ...]
    file_bytes: int = 0
    weight_bytes: int = 0
    form: str = ""
    accepted: float | None = None
    chance: float = 0.0
    positions: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model and its abilities, loaded or not. `draft_weight_bytes`: the draft's at start; present values are
    in the engine's status."""

    model: str
    draft_model: str | None
    context_length: int
    vocab_size: int
    drafters: tuple[DrafterName, ...]
    weight_bytes: int
    draft_weight_bytes: int
    backend: str
    batched: bool = True  # one forward serves all sequences; if not, `batched_reason` says why
    light_draft_model: str | None = None
    registered_drafters: tuple[DrafterName, ...] = BUILT_IN_DRAFTERS
    batched_reason: str = ""
    refused_drafters: Mapping[DrafterName, str] = field(default_factory=dict)  # unavailable drafters, and why
    architecture: str = ""  # `model_type` of the model's configuration
    layers: Mapping[str, int] = field(default_factory=dict)  # number of layers by what they keep of a text, in words
    partial_prefixes: bool = False  # texts share common beginnings; if not, only whole texts are reused
    position_bytes: int = 0  # of the caches of target and draft, for one token of context
    sequence_bytes: int = 0  # more bytes per request, whatever its length: windows and states
    largest_context: int = 0  # tokens of the longest text that fits in memory, at most `context_length`
    end_tokens: Mapping[int, str] = field(default_factory=dict)  # each of them ends a text
    tools: bool = False  # the chat template takes tools, and the format of a call is known
    thinking: bool = False  # the vocabulary has tokens that mark thinking
    head: HeadInfo | None = None  # its draft head, used or refused; None without one
    left_out: str = ""  # inputs of the model that are not served: "vision", "vision, audio"

    def why_no(self, drafter: DrafterName) -> str:
        """Returns why this drafter is unavailable; empty if it is available or the reason is unknown."""
        if drafter == DRAFT_HEAD and drafter not in self.drafters:
            return self.refused_drafters.get(drafter, "the model has no draft head")
        return self.refused_drafters.get(drafter, "")

    @property
    def why_no_model_drafts(self) -> str:
        """Why neither a draft model nor a draft head drafts; empty if one does."""
        return "" if model_drafters(self.drafters) else self.why_no(DRAFT_MODEL)

    def stand_in(self, drafter: DrafterName) -> DrafterName:
        """Returns the drafter that drafts where this one is meant, by the function `stand_in`."""
        return stand_in(drafter, self.drafters)

    def with_stand_in(self, level: LadderLevel) -> LadderLevel:
        """Returns the level with the drafter that drafts at it."""
        return level if level.drafter is None else replace(level, drafter=self.stand_in(level.drafter))

    def speculation(self, max_draft_tokens: int) -> str:
        """Describes whether it will speculate, and if not, why."""
        return speculation(self.drafters, self.why_no_model_drafts, max_draft_tokens)

    def prefix_room(self, limit: int) -> str:
        """Describes what a prefix cache of `limit` bytes can keep."""
        return prefix_room(limit, self.position_bytes, self.sequence_bytes)

    @property
    def speculation_available(self) -> bool:
        return bool(set(self.drafters) - {GRAMMAR})  # `grammar` drafts only for some requests
