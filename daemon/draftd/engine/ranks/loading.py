"""Reads a rank's share of a target, and makes the ranks agree on what they have. On the thread that will execute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftd.engine.cache.layouts import share
from draftd.engine.memory import free_bytes
from draftd.engine.ranks.caches import RankedModel
from draftd.engine.ranks.channel import RecordSender
from draftd.engine.ranks.group import RankGroup
from draftd.engine.ranks.part import Part
from draftd.engine.ranks.sharding import share_of
from draftd.models.blas import load_blas
from draftd.models.folder import ModelFolder, check_scales, parameters, read


def open_share(folder: ModelFolder, group: RankGroup) -> tuple[Part, dict[str, Any]]:
    """This rank's share, of which no weights have been read yet, and the model's configuration. Raises
    ModelLoadError: on all ranks alike where the ranks do not fit the model."""
    parts = list[Part]()

    def cut(opened: Callable[[], Any]) -> Any:
        with folder.told("it cannot be shared"):
            parts.append(share_of(opened, group))
        return parts[0].model

    _, config = folder.open(cut)
    return parts[0], config


def read_share(part: Part, name: str) -> None:
    """A few arrays at a time: MLX reads an array of the file whole before it takes this rank's slice, and lets go of
    the rest then. So what is held besides the share is about one array, and the layers of other ranks are not read at
    all. Raises ModelLoadError."""
    for _ in read(parameters(part.model), name):
        pass
    check_scales(part.model, name)


def lead(part: Part, sender: RecordSender) -> RankedModel:
    """Rank 0, once its weights are read: waits for the others. From then on what is done with the model's caches is
    done by all ranks."""
    refusals, taken = part.agree()
    (free,) = part.group.least([free_bytes()])
    ranks = RankedModel(part, sender, refusals, taken, free)
    share(part.model, ranks)
    return ranks


def attend(part: Part) -> None:
    """A follower's side of `lead`."""
    part.agree()
    part.group.least([free_bytes()])


def load_follower(
    model: str, group: RankGroup, *, adapter: Path | None = None, progress: Callable[[str], None] = print
) -> Part:
    """A follower's share of the target, ready for `follow`. Raises ModelLoadError, and RanksLost where another rank
    cannot load its own."""
    load_blas()
    folder = ModelFolder(model, adapter=adapter, progress=progress)
    progress(f"loading rank {group.rank} of {group.size} of {model}")
    part, _ = open_share(folder, group)
    read_share(part, folder.called)
    attend(part)
    progress("ready")
    return part
