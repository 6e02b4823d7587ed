"""The registry of drafters: what each one needs, and how it is made. The composition root makes a registry and passes
it on; another drafter is another `register` there.

Imports no MLX: settings are checked against a registry before a model is loaded.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, GRAMMAR, LIGHT_DRAFT_MODEL, PEER, PROMPT_LOOKUP, TARGET, DrafterName
from draftd.errors import ConfigError

if TYPE_CHECKING:
    from draftd.engine.cache.prefix_store import PrefixCache
    from draftd.engine.drafters.base import Drafter
    from draftd.models.grammar import Grammars

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")  # used as a metric label, a setting and a field of the API


class DrafterNeeds(enum.Enum):
    """The requirements of a drafter."""

    NOTHING = "nothing"
    MODEL = "a model of its own"
    HEAD = "a head that drafts from the target's hidden states"


@dataclass(frozen=True, slots=True)
class DrafterParts:
    """The parts of a drafter. `vocabulary`: the target's, which proposals come from. `model`: mlx-lm's model with the
    drafter's own weights, or a draft head; None unless it needs one. `grammars`: compiles requests' grammars."""

    vocabulary: int
    prefix: PrefixCache | None = None
    model: Any | None = None
    grammars: Grammars | None = None


DrafterFactory = Callable[[DrafterParts], "Drafter"]


@dataclass(frozen=True, slots=True)
class RegisteredDrafter:
    make: DrafterFactory
    needs: DrafterNeeds


class DrafterRegistry:
    """The available drafters, in the order of registration."""

    def __init__(self) -> None:
        self._registered: dict[DrafterName, RegisteredDrafter] = {}

    def register(self, name: DrafterName, make: DrafterFactory, needs: DrafterNeeds = DrafterNeeds.NOTHING) -> None:
        """Adds a drafter. Raises ConfigError if the name is taken or cannot be a metric label."""
        if not _NAME.fullmatch(name):
            raise ConfigError("drafter", name, "lower-case letters, digits and underscores, a letter first, at most 40")
        if name in self._registered or name in (PEER, TARGET):  # names of the engine itself
            taken = ", ".join((*self.names, PEER, TARGET))
            raise ConfigError("drafter", name, f"a name other than those in use: {taken}")
        self._registered[name] = RegisteredDrafter(make, needs)

    @property
    def names(self) -> tuple[DrafterName, ...]:
        return tuple(self._registered)

    def get(self, name: DrafterName, field: str = "drafter") -> RegisteredDrafter:
        """Returns a drafter. Raises ConfigError, listing the registered names, if there is none. `field`: where the
        name was given."""
        if name not in self._registered:
            raise ConfigError(field, name, ", ".join(self._registered))
        return self._registered[name]


def built_in_drafters() -> DrafterRegistry:
    """Returns a new registry with draftd's own drafters."""

    def draft_model(provided: DrafterParts) -> Drafter:
        from draftd.engine.drafters.draft_model import DraftModel

        return DraftModel(provided.model, provided.vocabulary, provided.prefix)

    def draft_head(provided: DrafterParts) -> Drafter:
        from draftd.engine.drafters.heads import drafter_of

        assert provided.model is not None
        return drafter_of(provided.model)(provided.model, provided.vocabulary, provided.prefix)

    def prompt_lookup(provided: DrafterParts) -> Drafter:
        from draftd.engine.drafters.prompt_lookup import PromptLookup

        return PromptLookup()

    def grammar(provided: DrafterParts) -> Drafter:
        from draftd.engine.drafters.forced_tokens import ForcedTokens

        return ForcedTokens(provided.grammars, provided.vocabulary)

    registry = DrafterRegistry()
    registry.register(DRAFT_MODEL, draft_model, DrafterNeeds.MODEL)
    registry.register(DRAFT_HEAD, draft_head, DrafterNeeds.HEAD)
    registry.register(LIGHT_DRAFT_MODEL, draft_model, DrafterNeeds.MODEL)
    registry.register(PROMPT_LOOKUP, prompt_lookup)
    registry.register(GRAMMAR, grammar)
    return registry
