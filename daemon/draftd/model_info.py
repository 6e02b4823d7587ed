"""The served model and its abilities."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from draftd.core import BUILT_IN_DRAFTERS, DRAFT_MODEL, GRAMMAR, MODEL_DRAFTERS, PROMPT_LOOKUP, DrafterName

_TEXT = 1000  # tokens of a text in "room for … texts"


def speculation(drafters: Collection[DrafterName], no_draft_model: str, max_draft_tokens: int) -> str:
    """Describes whether there will be speculation with these drafters, and if not, why. `no_draft_model`: why there is
    no draft model."""
    if not max_draft_tokens:
        return "none: engine.max_draft_tokens is 0"
    if not set(drafters) - {GRAMMAR}:
        return f"none: {no_draft_model or 'there is no drafter'}"
    most = f"up to {max_draft_tokens} draft tokens at a time"
    if set(MODEL_DRAFTERS) & set(drafters):
        return most
    others = ", ".join(name for name in drafters if name not in (GRAMMAR, PROMPT_LOOKUP))
    source = PROMPT_LOOKUP if PROMPT_LOOKUP in drafters else f"{others}, for requests that name it"
    return f"{most} from {source}; {no_draft_model or 'no draft model is loaded'}"


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
        return self.refused_drafters.get(drafter, "")

    def stand_in(self, drafter: DrafterName) -> DrafterName:
        """Returns the drafter that drafts where this one is meant: the draft head in place of a draft model that is not
        there, or the other way round; otherwise itself."""
        if drafter in self.drafters or drafter not in MODEL_DRAFTERS:
            return drafter
        return next((other for other in MODEL_DRAFTERS if other in self.drafters), drafter)

    def speculation(self, max_draft_tokens: int) -> str:
        """Describes whether it will speculate, and if not, why."""
        return speculation(self.drafters, self.why_no(DRAFT_MODEL), max_draft_tokens)

    def prefix_room(self, limit: int) -> str:
        """Describes what a prefix cache of `limit` bytes can keep."""
        return prefix_room(limit, self.position_bytes, self.sequence_bytes)

    @property
    def speculation_available(self) -> bool:
        return bool(set(self.drafters) - {GRAMMAR})  # `grammar` drafts only for some requests
