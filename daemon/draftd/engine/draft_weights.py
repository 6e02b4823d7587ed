"""Which draft weights are in memory, and the drafters that use them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, DrafterName
from draftd.engine.drafters.registry import DrafterNeeds, DrafterParts
from draftd.engine.drafters.sources import DraftSource, try_out
from draftd.engine.memory import give_back
from draftd.engine.pair import LoadedModels
from draftd.errors import ModelLoadError
from draftd.models.folder import ModelFiles, parameters, read, weight_bytes

if TYPE_CHECKING:
    from draftd.engine.cache.prefix_store import PrefixCache
    from draftd.engine.drafters.base import Drafter


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """Draft weights in memory. `sizes` (bytes) and `files` have the latest figures of each draft that was ever held."""

    drafters: frozenset[DrafterName] = frozenset()
    weight_bytes: int = 0
    sizes: Mapping[DrafterName, int] = field(default_factory=dict)
    files: Mapping[DrafterName, ModelFiles] = field(default_factory=dict)


class DraftWeights:
    """Owns the draft models, on the engine thread; any thread may read `loaded`. Nothing else may refer to the models,
    or a release would free nothing."""

    def __init__(
        self, models: LoadedModels, prefix: PrefixCache | None = None, target: Callable[[], Any] = lambda: None
    ) -> None:
        """`prefix` keeps the caches of ended sequences. `target` returns the target's current model."""
        self._prefix, self._vocabulary, self._grammars = prefix, models.info.vocab_size, models.grammars
        registry = models.registry
        self._registered = {name: registry.get(name) for name in registry.names if name in models.info.drafters}
        self._sources = dict(models.sources)
        if models.head_source is not None:
            self._sources[DRAFT_HEAD] = models.head_source.over(target)
        in_memory = {DRAFT_MODEL: models.draft, DRAFT_HEAD: models.head}
        self._models: dict[DrafterName, Any] = {kind: one for kind, one in in_memory.items() if one is not None}
        self._read: dict[DrafterName, ModelFiles] = {}  # of weights that were read and are not loaded yet
        self.loadable = frozenset(self._sources)
        self.loaded = HeldWeights(files=models.files.drafts)
        self._update({})

    def make(self) -> dict[DrafterName, Drafter]:
        """New drafters, without sequences, for all names that can draft now."""
        with_weights = {name: self.drafter(name, model) for name, model in self._models.items()}
        weightless = [name for name, one in self._registered.items() if one.needs is DrafterNeeds.NOTHING]
        return with_weights | {name: self.drafter(name) for name in weightless}

    def drafter(self, name: DrafterName, model: Any | None = None) -> Drafter:
        """A new drafter, without sequences. `model`: its weights, if it needs some."""
        provided = DrafterParts(self._vocabulary, self._prefix, model, self._grammars)
        return self._registered[name].make(provided)

    def load(self, kind: DrafterName) -> Generator[None, None, Any]:
        """Reads a draft's weights again, in pieces; returns the model. Raises ModelLoadError if they are not available
        or do not fit the target."""
        source = self._source(kind)
        files, model = source.files(), source.open()
        yield from read(parameters(model), source.name)
        try_out(model, source.name)
        if files is not None:
            self._read[kind] = files
        return model

    def check(self, kind: DrafterName) -> Generator[None, None, int]:
        """Reads a draft's weights without keeping them, a piece at a time; returns their bytes. Raises as `load`."""
        model = self._source(kind).open()
        arrays, size = parameters(model), weight_bytes(model)
        del model
        yield from read(arrays, self._sources[kind].name)
        give_back()
        return size

    def hold(self, kind: DrafterName, model: Any) -> None:
        """Makes `model` the draft of that name, and releases the one before."""
        self._models[kind] = model
        self._update({kind: self._read.pop(kind)} if kind in self._read else {})

    def release(self, kind: DrafterName) -> None:
        """Frees the weights, and returns their memory to the system."""
        self._models.pop(kind, None)
        files = self.loaded.files.get(kind)
        self._update({} if files is None else {kind: replace(files, stamps=None)})

    def _source(self, kind: DrafterName) -> DraftSource:
        source = self._sources.get(kind)
        if source is None:
            raise ModelLoadError(f"no {kind.replace('_', ' ')} is configured that goes with the target")
        return source

    def _update(self, files: Mapping[DrafterName, ModelFiles]) -> None:
        """Updates `loaded` after a change of models; `files`: those that new weights were read from."""
        sizes, before = {kind: weight_bytes(model) for kind, model in self._models.items()}, self.loaded
        self.loaded = HeldWeights(
            frozenset(sizes), sum(sizes.values()), {**before.sizes, **sizes}, {**before.files, **files}
        )
        give_back()
