"""Draft weights: where they come from, so that they can be let go and had again, and which are held now.

Imports no MLX: models are opened here before anything else needs it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from draftd.core import DRAFT_MODEL, DrafterName
from draftd.engine.drafters.registry import Needs, Provided
from draftd.engine.memory import give_back
from draftd.errors import ModelLoadError
from draftd.models.folder import ModelFiles, ModelFolder, check_scales, read

if TYPE_CHECKING:
    from draftd.engine.cache.prefix_store import PrefixCache
    from draftd.engine.drafters.base import Drafter
    from draftd.engine.pair import LoadedModels


OTHER_DRAFT = "use a draft of the same family, or --drafter prompt_lookup"


class Unfit(ModelLoadError):
    """A draft that can be loaded, and does not go with the target."""


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Where a draft is had from, called on the engine thread. `name`: as errors call it. `open` gives a model whose
    weights may not have been read yet; it raises ModelLoadError, or Unfit. `files`: as they are now; None of a model
    that was made in memory, which letting go frees nothing of."""

    name: str
    open: Callable[[], Any]
    files: Callable[[], ModelFiles | None] = lambda: None


def in_folder(folder: ModelFolder, target_tokenizer: Any) -> DraftSource:
    """What opens fits the target: the same tokens by id. The tokenizer is mlx-lm's."""
    fitting = ""  # digest of the tokenizer that was last found to be the target's

    def opened() -> Any:
        nonlocal fitting
        model, config = folder.open()
        digest = folder.tokenizer_digest()
        if digest != fitting:
            if complaint := mismatch(target_tokenizer, folder.tokenizer(config)):
                raise Unfit(complaint, OTHER_DRAFT)
            fitting = digest
        return model

    return DraftSource(folder.called, opened, folder.files)


def parameters(model: Any) -> list[Any]:
    """A model's arrays, in the order in which it uses them, last first: `folder.read` takes them from the end."""
    from mlx.utils import tree_flatten

    return [array for _, array in reversed(tree_flatten(model.parameters()))]


def try_out(model: Any, name: str) -> None:
    """Looks at a model whose weights were read: at its packed scales, and in a short trial, which is remembered, at how
    its sequences can share forwards. Raises ModelLoadError, naming the model, where a scale or what it computes is not
    finite."""
    from draftd.engine.cache.layouts import why_not_batched

    check_scales(model, name)
    try:
        why_not_batched(model)
    except ModelLoadError as error:
        raise ModelLoadError(f"{name}: {error.what}", error.cure) from None


def weight_bytes(model: Any) -> int:
    return sum(array.nbytes for array in parameters(model))


def mismatch(target: Any, draft: Any) -> str:
    """Compares two tokenizers by id. Empty when every token that both have means the same, and neither has more."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return ""
    tokens = ours.keys() | theirs.keys()
    differing = sum(1 for token in tokens if ours.get(token) != theirs.get(token))
    return f"the draft's tokenizer is not the target's ({differing:,} of {len(tokens):,} tokens differ)"


@dataclass(frozen=True, slots=True)
class Held:
    """Draft weights in memory. `sizes` and `files` are of each draft that was held at some time, as it was last: bytes,
    and what it was read from."""

    drafters: frozenset[DrafterName] = frozenset()
    weight_bytes: int = 0
    sizes: Mapping[DrafterName, int] = field(default_factory=dict)
    files: Mapping[DrafterName, ModelFiles] = field(default_factory=dict)


class Drafters:
    """Owns the draft models, on the engine thread; `held` may be read on any. What it lets go of is gone: it must be
    the only one that refers to them."""

    def __init__(self, models: LoadedModels, prefix: PrefixCache | None = None) -> None:
        """What sequences leave is kept in `prefix`."""
        self._prefix, self._vocabulary, self._grammars = prefix, models.info.vocab_size, models.grammars
        registry = models.registry
        self._registered = {name: registry.get(name) for name in registry.names if name in models.info.drafters}
        self._sources = dict(models.sources)
        self._models: dict[DrafterName, Any] = {}
        if models.draft is not None:
            self._models[DRAFT_MODEL] = models.draft
        self._read: dict[DrafterName, ModelFiles] = {}  # of weights that were read and are not held yet
        self.loadable = frozenset(self._sources)
        self.held = Held(files=models.files.drafts)
        self._changed({})

    def make(self) -> dict[DrafterName, Drafter]:
        """All drafters that can draft now, knowing no sequences."""
        made = {name: self.drafter(name, model) for name, model in self._models.items()}
        weightless = [name for name, one in self._registered.items() if one.needs is Needs.NOTHING]
        return made | {name: self.drafter(name) for name in weightless}

    def drafter(self, name: DrafterName, model: Any | None = None) -> Drafter:
        """A new one of that name, which knows no sequences. `model`: its weights, where it needs some."""
        provided = Provided(self._vocabulary, self._prefix, model, self._grammars)
        return self._registered[name].make(provided)

    def load(self, kind: DrafterName) -> Generator[None, None, Any]:
        """Reads a draft's weights anew, in pieces; returns the model. Raises ModelLoadError where they are not to be
        had, or do not fit the target."""
        source = self._source(kind)
        files, model = source.files(), source.open()
        yield from read(parameters(model), source.name)
        try_out(model, source.name)
        if files is not None:
            self._read[kind] = files
        return model

    def check(self, kind: DrafterName) -> Generator[None, None, int]:
        """The same, but no more than a piece is held at a time; returns their bytes."""
        model = self._source(kind).open()
        arrays, size = parameters(model), weight_bytes(model)
        del model
        yield from read(arrays, self._sources[kind].name)
        give_back()
        return size

    def hold(self, kind: DrafterName, model: Any) -> None:
        """From now on this is the draft of that kind; the one before is let go."""
        self._models[kind] = model
        self._changed({kind: self._read.pop(kind)} if kind in self._read else {})

    def release(self, kind: DrafterName) -> None:
        """Lets the weights go, back to the system where it takes them."""
        self._models.pop(kind, None)
        files = self.held.files.get(kind)
        self._changed({} if files is None else {kind: replace(files, stamps=None)})

    def _source(self, kind: DrafterName) -> DraftSource:
        source = self._sources.get(kind)
        if source is None:
            raise ModelLoadError(f"no {kind.replace('_', ' ')} is configured that goes with the target")
        return source

    def _changed(self, files: Mapping[DrafterName, ModelFiles]) -> None:
        """Other weights are held, which were read from `files`; what went is given back."""
        sizes, held = {kind: weight_bytes(model) for kind, model in self._models.items()}, self.held
        self.held = Held(frozenset(sizes), sum(sizes.values()), {**held.sizes, **sizes}, {**held.files, **files})
        give_back()
