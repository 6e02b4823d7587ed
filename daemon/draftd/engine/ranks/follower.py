"""A follower rank: executes rank 0's operations and decides nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from draftd.engine.cache.base import CachedPrefix, Caches, KVSegment, Positions
from draftd.engine.cache.batched import CacheLayout
from draftd.engine.memory import give_back
from draftd.engine.ranks.channel import RecordError, RecordReceiver, decode_record
from draftd.engine.ranks.group import RankGroup, lost_by
from draftd.engine.ranks.model_shard import ModelShard, open_share, read_share
from draftd.models.blas import load_blas
from draftd.models.folder import ModelFolder

_GRACE_SECONDS = (
    0.05  # seconds within which a busy group's next record comes; until then the last forward is not awaited
)
_TIDY_FORWARDS = 256  # MLX keeps freed buffers for reuse: they are dropped as often as on rank 0


def load_follower(
    model: str, group: RankGroup, *, adapter: Path | None = None, progress: Callable[[str], None] = print
) -> ModelShard:
    """Loads a follower's share of the target, ready for `follow`. Raises ModelLoadError, and RanksLost if another rank
    cannot load its own."""
    load_blas()
    folder = ModelFolder(model, adapter=adapter, progress=progress)
    progress(f"loading rank {group.rank} of {group.size} of {model}")
    part, _ = open_share(folder, group)
    read_share(part, folder.called)
    part.agree()
    progress("ready")
    return part


def follow(part: ModelShard, receiver: RecordReceiver) -> FollowerCaches:
    """Executes records until the group ends normally, and returns the caches that executed them. Raises RanksLost if a
    record cannot be executed. Must run on the thread that loaded the model."""
    follower = FollowerCaches(part)
    try:
        while True:
            if not receiver.ready(_GRACE_SECONDS):
                follower.settle()
                receiver.report_progress(part.progress(follower.executed))
            if (data := receiver.receive()) is None:
                break
            follower.execute(data)
            receiver.report_progress(part.progress(follower.executed))
        follower.settle()
        receiver.report_progress(part.progress(follower.executed))
        return follower
    except Exception as error:
        raise lost_by(error, f"rank {part.group.rank}") from error


class FollowerCaches:
    """A follower's caches and cached prefixes by number, with a method for each operation (channel.Op)."""

    def __init__(self, part: ModelShard) -> None:
        self._part = part
        self._caches: dict[int, Caches] = {}
        self._prefixes: dict[int, CachedPrefix] = {}
        self._under_way: mx.array | None = None  # the result of the last forward
        self._forwards = 0
        self._begun = 0  # records that were begun
        self.executed = 0  # records whose computation is complete

    @property
    def held(self) -> tuple[int, int]:
        """Returns how many caches and how many prefixes there are."""
        return len(self._caches), len(self._prefixes)

    def execute(self, data: bytes) -> None:
        """Executes one record. At most one forward is still running when this returns."""
        op, arguments = decode_record(data)
        self._begun += 1
        getattr(self, op)(*arguments)
        if self._under_way is None:
            self.executed = self._begun

    def settle(self) -> None:
        """Waits for dispatched work."""
        if self._under_way is not None:
            mx.eval(self._under_way)
        self._under_way, self.executed = None, self._begun

    def new(self, number: int, layout: dict[str, Any]) -> None:
        self._caches[number] = self._part.caches(CacheLayout(**layout))

    def fresh(self, source: int, number: int, lengths: Sequence[int]) -> None:
        self._caches[number] = self._caches[source].fresh(*lengths)

    def forward(self, number: int, width: int, widths: Sequence[int], at: Positions | None) -> None:
        tokens = mx.zeros((len(widths), width), dtype=mx.uint32)
        logits = self._part.forward(self._caches[number], tokens, widths, at)
        self.settle()  # at most one forward may be running
        self._under_way, self._forwards = logits, self._forwards + 1
        if self._forwards % _TIDY_FORWARDS == 0:
            mx.clear_cache()

    def rollback(self, number: int, lengths: Sequence[int]) -> None:
        self._part.rollback(self._caches[number], lengths)

    def split(self, source: int, number: int, rows: Sequence[int], rest: bool) -> None:
        self._caches[number] = self._caches[source].split(rows, rest=rest)

    def join(self, number: int, joining: int) -> None:
        self._caches[number].join(self._caches.pop(joining))

    def select(self, number: int, rows: Sequence[int]) -> None:
        self._caches[number].select(rows)

    def clear(self, number: int) -> None:
        self._caches[number].clear()

    def pretend(self, number: int, lengths: Sequence[int]) -> None:
        self._caches[number].pretend(lengths)

    def extract(self, number: int, prefix: int, row: int, start: int, end: int) -> None:
        if (extracted := self._part.extract(self._caches[number], row, start, end)) is not None:
            self._prefixes[prefix] = extracted[0]

    def restore(self, number: int, prefixes: Sequence[int], lengths: Sequence[int]) -> None:
        kept = list[CachedPrefix]()
        for prefix, length in zip(prefixes, lengths, strict=True):
            value = self._prefixes[prefix]
            some = value.head(length) if isinstance(value, KVSegment) else value.cut(length)
            if some is None:
                raise RecordError(f"prefix {prefix} cannot be cut to {length} tokens")
            kept.append(some)
        self._caches[number].restore(kept)

    def halve(self, prefix: int, first: int, rest: int, length: int) -> None:
        value = self._prefixes[prefix]
        assert isinstance(value, KVSegment)
        self._prefixes[first], self._prefixes[rest] = value.split(length)

    def drop(self, caches: Sequence[int], prefixes: Sequence[int]) -> None:
        for number in caches:
            if (dropped := self._caches.pop(number, None)) is not None:
                dropped.clear()  # otherwise its arrays would stay until garbage collection
        for number in prefixes:
            self._prefixes.pop(number, None)

    def give_back(self) -> None:
        give_back()
