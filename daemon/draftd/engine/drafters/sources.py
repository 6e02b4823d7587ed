"""Sources of draft weights, which can be released and loaded again, and checks that a draft fits the target.

Imports no MLX: models are opened here before anything else needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftd.errors import ModelLoadError
from draftd.model_info import HeadInfo
from draftd.models.folder import ModelFiles, ModelFolder, check_scales

OTHER_DRAFT = "use a draft of the same family, or --drafter prompt_lookup"


class Unfit(ModelLoadError):
    """The error for a draft that can be loaded but does not fit the target."""


@dataclass(frozen=True, slots=True)
class DraftSource:
    """The source of a draft model, called on the engine thread. `name` is for errors.

    `open` returns a model whose weights may not have been read yet; it raises ModelLoadError, or Unfit. `files`: the
    files as they are now; None for a model made in memory, where a release frees nothing."""

    name: str
    open: Callable[[], Any]
    files: Callable[[], ModelFiles | None] = lambda: None


@dataclass(frozen=True, slots=True)
class HeadSource:
    """The source of a draft head. `open` takes the target and returns the head, which shares some of its weights, or
    raises ModelLoadError; the head must not outlive the target in memory. `files`: as in `DraftSource`."""

    name: str
    open: Callable[[Any], Any]
    files: Callable[[], ModelFiles | None] = lambda: None

    def over(self, target: Callable[[], Any]) -> DraftSource:
        """Returns the source of the head over the target that is in memory when it is opened."""

        def open_over_target() -> Any:
            if (model := target()) is None:
                raise ModelLoadError(f"{self.name}: its target is not loaded", "send a request, then try again")
            return self.open(model)

        return DraftSource(self.name, open_over_target, self.files)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A draft head, or why it does not draft; empty without one. `head`: in memory; `source`: where it can be loaded
    from again; `files`: those that it was read from."""

    info: HeadInfo | None = None
    head: Any | None = None
    source: HeadSource | None = None
    files: ModelFiles | None = None


NO_HEAD = LoadedHead()
NOT_WITH_RANKS = "it needs the target's hidden states, which several ranks do not give yet"  # why a head is refused


def in_folder(folder: ModelFolder, target_tokenizer: Any) -> DraftSource:
    """Returns the source of a draft in a folder; `open` compares its tokens with the target's. The tokenizer is
    mlx-lm's."""
    fitting = ""  # digest of the last tokenizer that was found to fit

    def open_fitting() -> Any:
        nonlocal fitting
        model, config = folder.open()
        digest = folder.tokenizer_digest()
        if digest != fitting:
            if complaint := mismatch(target_tokenizer, folder.tokenizer(config)):
                raise Unfit(complaint, OTHER_DRAFT)
            fitting = digest
        return model

    return DraftSource(folder.called, open_fitting, folder.files)


def try_out(model: Any, name: str) -> None:
    """Checks a model whose weights were read: the scales of quantized weights, and how its sequences can share
    forwards. A short trial finds out how, and its result is stored on the model. Raises ModelLoadError, which names the
    model, if a scale or an output is not finite."""
    from draftd.engine.cache.layouts import why_not_batched

    check_scales(model, name)
    try:
        why_not_batched(model)
    except ModelLoadError as error:
        raise ModelLoadError(f"{name}: {error.what}", error.cure) from None


def mismatch(target: Any, draft: Any) -> str:
    """Returns how two tokenizers differ, by id; empty if they have the same tokens."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return ""
    tokens = ours.keys() | theirs.keys()
    differing = sum(1 for token in tokens if ours.get(token) != theirs.get(token))
    return f"the draft's tokenizer is not the target's ({differing:,} of {len(tokens):,} tokens differ)"
