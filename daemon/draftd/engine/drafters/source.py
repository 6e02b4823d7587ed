"""Where a draft's weights come from, so that they can be let go and had again."""

from __future__ import annotations

from typing import Any, Protocol

from draftd.errors import ModelLoadError
from draftd.models.folder import ModelFiles, ModelFolder


class Unfit(ModelLoadError):
    """A draft that can be loaded, and does not go with the target."""


class DraftSource(Protocol):
    """Called on the engine thread."""

    @property
    def name(self) -> str:
        """As errors call it."""
        ...

    def files(self) -> ModelFiles | None:
        """As they are now; None where there are none."""
        ...

    def open(self) -> Any:
        """A model whose weights may not have been read yet. Raises ModelLoadError, or Unfit."""
        ...


class DraftFolder:
    """A folder or hub id. What opens fits the target: the same tokens by id, and a cache that can be rolled back."""

    def __init__(self, path: str, role: str, target_tokenizer: Any) -> None:
        """`role` is how errors call it; the tokenizer is mlx-lm's."""
        self._folder, self._target = ModelFolder(path, role), target_tokenizer
        self._checked = ""  # digest of the tokenizer that was last found to be the target's
        self._limit: int | None = None
        self.name = f"{role}: {path}"
        self.label = self._folder.name

    def files(self, *, noted: bool = True) -> ModelFiles:
        """As they are now, or only where they lie."""
        return self._folder.files(noted=noted)

    def open(self) -> Any:
        from draftd.engine.cache.layouts import cannot_trim, rollback_limit

        model, config = self._folder.open()
        digest = self._folder.tokenizer_digest()
        if digest != self._checked:
            if complaint := mismatch(self._target, self._folder.tokenizer(config)):
                raise Unfit(complaint)
            first, self._checked = not self._checked, digest
            if first:
                self._limit = rollback_limit(model)
        if fixed := cannot_trim(model):
            raise Unfit(f"the draft model's cache cannot be rolled back ({fixed})")
        if rollback_limit(model) != self._limit:  # plans are made by what it was at start
            raise Unfit("the draft's cache is of another size than it was at start")
        return model


class HeldDraft:
    """A model made in memory: there is nowhere else to have it from, and letting it go frees nothing."""

    name = "draft model"

    def __init__(self, model: Any) -> None:
        self._model = model

    def files(self) -> None:
        return None

    def open(self) -> Any:
        return self._model


def parameters(model: Any) -> list[Any]:
    """A model's arrays, in the order in which it uses them, last first: `folder.read` takes them from the end."""
    from mlx.utils import tree_flatten

    return [array for _, array in reversed(tree_flatten(model.parameters()))]


def weight_bytes(model: Any) -> int:
    return sum(array.nbytes for array in parameters(model))


def mismatch(target: Any, draft: Any) -> str:
    """Compares two tokenizers by id. Empty when every token that both have means the same, and neither has more."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return ""
    differing = sum(1 for token, i in ours.items() if theirs.get(token) != i)
    differing += sum(1 for token in theirs if token not in ours)
    return f"the draft's tokenizer is not the target's ({differing} of {max(len(ours), len(theirs))} tokens differ)"
