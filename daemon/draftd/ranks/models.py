"""What rank 0 serves, as a value that a process hands on to another, which loads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftd.engine.pair import LoadedModels
    from draftd.ranks.plan import GroupPlan
    from draftd.settings import DistributedSettings


@dataclass(frozen=True, slots=True)
class Models:
    """Folders or hub ids, and how they are used."""

    model: str
    draft: str | None = None
    light_draft: str | None = None
    adapter: Path | None = None
    prompt_lookup: bool = True
    max_context: int | None = None

    def __call__(self, progress: Callable[[str], None], **more: Any) -> LoadedModels:
        """Loads them. `more`: as `load_models` has it. Raises ModelLoadError."""
        from draftd.engine.pair import load_models

        return load_models(
            self.model,
            self.draft,
            self.light_draft,
            adapter=self.adapter,
            prompt_lookup=self.prompt_lookup,
            max_context=self.max_context,
            progress=progress,
            **more,
        )


@dataclass(frozen=True, slots=True)
class Share:
    """Of the target, what rank 0 has: for its process, which has the listening socket of its daemon as `listener`.
    `group`: its id."""

    plan: GroupPlan
    group: str
    listener: int
    settings: DistributedSettings
