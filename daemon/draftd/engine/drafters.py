"""The drafters whose weights are held now, and how to hold others. Engine thread only, but for `held`."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from draftd.core import DrafterKind
from draftd.engine.drafting import Drafter, DraftModel, PromptLookup
from draftd.engine.folder import read
from draftd.engine.memory import give_back
from draftd.engine.model import LoadedModels
from draftd.engine.source import parameters, weight_bytes
from draftd.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Held:
    """Draft weights in memory."""

    drafters: frozenset[DrafterKind] = frozenset()
    weight_bytes: int = 0


class Drafters:
    """Owns the draft models. What it lets go of is gone: it must be the only one that refers to them."""

    def __init__(self, models: LoadedModels) -> None:
        self._vocabulary = models.info.vocab_size
        self._lookup = DrafterKind.PROMPT_LOOKUP in models.info.drafters
        self._sources = dict(models.sources)
        self._models: dict[DrafterKind, Any] = {}
        if models.draft is not None:
            self._models[DrafterKind.DRAFT_MODEL] = models.draft
        self.loadable = frozenset(self._sources)
        self.held = self._count()

    def make(self) -> dict[DrafterKind, Drafter]:
        """All drafters that can draft now, knowing no rows."""
        made: dict[DrafterKind, Drafter] = {kind: self.drafter(model) for kind, model in self._models.items()}
        if self._lookup:
            made[DrafterKind.PROMPT_LOOKUP] = PromptLookup(self._vocabulary)
        return made

    def drafter(self, model: Any) -> DraftModel:
        return DraftModel(model, self._vocabulary)

    def load(self, kind: DrafterKind) -> Generator[None, None, Any]:
        """Reads a draft's weights anew, in pieces; returns the model. Raises ModelLoadError where they are not to be
        had, or do not fit the target."""
        model = self._open(kind)
        yield from read(parameters(model), self._sources[kind].name)
        return model

    def check(self, kind: DrafterKind) -> Generator[None, None, int]:
        """The same, but no more than a piece is held at a time; returns their bytes."""
        model = self._open(kind)
        arrays, size = parameters(model), weight_bytes(model)
        del model
        yield from read(arrays, self._sources[kind].name)
        give_back()
        return size

    def hold(self, kind: DrafterKind, model: Any) -> None:
        """From now on this is the draft of that kind; the one before is let go."""
        self._models[kind] = model
        self.held = self._count()
        give_back()

    def release(self, kind: DrafterKind) -> None:
        """Lets the weights go, back to the system where it takes them."""
        self._models.pop(kind, None)
        self.held = self._count()
        give_back()

    def _open(self, kind: DrafterKind) -> Any:
        source = self._sources.get(kind)
        if source is None:
            raise ModelLoadError(f"no {kind.value.replace('_', ' ')} is configured that goes with the target")
        return source.open()

    def _count(self) -> Held:
        return Held(frozenset(self._models), sum(map(weight_bytes, self._models.values())))
