"""Models with the draft heads that benchmarks compare: trained, of random weights, or told what to draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from draftd.core import DRAFT_HEAD


def loaded(model: str, draft: str | None = None, *, lookup: bool = True, registry: Any = None) -> Callable[[], Any]:
    def load() -> Any:
        from draftd.engine.pair import load_models

        return load_models(model, draft, prompt_lookup=lookup, registry=registry, progress=lambda line: None)

    return load


def with_random_head(model: str) -> Callable[[], Any]:
    """Loads a model with its head, and draws the head's weights anew after the trial of forms has accepted it."""

    def load() -> Any:
        import mlx.core as mx
        from mlx.utils import tree_map

        models = loaded(model)()
        assert models.head is not None, models.info.head
        mx.random.seed(7)
        models.head.update(tree_map(lambda w: mx.random.normal(w.shape) * 0.02, models.head.trainable_parameters()))
        mx.eval(models.head.parameters())
        return models

    return load


def without_head(model: str) -> Callable[[], Any]:
    """Loads a model as if it had no head."""

    def load() -> Any:
        from draftd.engine import pair
        from draftd.engine.drafters.sources import NO_HEAD

        with patch.object(pair, "_load_head", lambda *given: NO_HEAD):
            return loaded(model)()

    return load


def with_head_of_kind(model: str, kind: str, drafter: Callable[[Any], Any] | None = None) -> Callable[[], Any]:
    """Loads a model with a head of random weights of this kind (tests.rigged_head), without a trial. `drafter`: makes
    another drafter than the head's own, from the parts that the registry provides."""

    def load() -> Any:
        from draftd.engine import pair
        from draftd.engine.drafters.registry import DrafterNeeds, DrafterRegistry
        from draftd.engine.drafters.sources import LoadedHead
        from tests.rigged_head import random_head

        registry = None
        if drafter is not None:
            registry = DrafterRegistry()
            registry.register(DRAFT_HEAD, drafter, DrafterNeeds.HEAD)

        def load_head(folders: Any, target: Any, *given: Any) -> LoadedHead:
            return LoadedHead(head=random_head(target.model, kind))

        with patch.object(pair, "_load_head", load_head):
            return loaded(model, lookup=False, registry=registry)()

    return load


class Script:
    """Answers for rigged drafters, which draft each of their tokens with the probability `right`, else another one."""

    def __init__(self, right: float) -> None:
        self._right, self._texts = right, dict[tuple[int, ...], Sequence[int]]()
        self.tell({})

    def tell(self, answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        """Takes the answers by prompt. All other texts, such as those of calibration, get any token."""
        self._texts.clear()
        self._texts.update({prompt: [*prompt, *answer] for prompt, answer in answers.items()})
        self._texts[()] = [1]

    def drafter(self, kind: str) -> Callable[[Any], Any]:
        """Returns a maker of drafters for heads of this kind that draft by the script, and take as long as the head."""

        def make(provided: Any) -> Any:
            from draftd.engine.drafters.draft_head import DraftHead
            from tests.rigged_head import rigged

            class Scripted(rigged(kind)):  # type: ignore[misc]
                """Keeps nothing of what it is fed."""

                feed = DraftHead.feed

                def note_drafted(self, sequences: Any, drafted: Any) -> None:
                    return

            drafter = Scripted(provided.model, provided.vocabulary, provided.prefix)
            drafter.right, drafter.answers = self._right, self._texts
            return drafter

        return make
