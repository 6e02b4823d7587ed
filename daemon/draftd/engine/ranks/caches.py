"""Rank 0's caches of a model that several ranks share: each operation is sent to the followers, then executed here.

What rank 0 decides from the caches (lengths, what a prefix cache may keep) is the same on all ranks, or agreed on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import mlx.core as mx

from draftd.engine.cache.base import CachedPrefix, Caches, CacheSnapshot, KVSegment, Positions
from draftd.engine.cache.batched import CacheLayout
from draftd.engine.cache.layouts import CacheBytes, share
from draftd.engine.limits import Limits
from draftd.engine.ranks.channel import Op, RanksLost, RecordSender, encode_record
from draftd.engine.ranks.group import lost_by
from draftd.engine.ranks.model_shard import ModelShard

_T = TypeVar("_T")


class RankedModel:
    """Rank 0's part of a model that several ranks share: numbers new caches and sends each operation. Engine thread
    only, except for `records`."""

    def __init__(
        self, part: ModelShard, sender: RecordSender, refusals: Sequence[str], taken: CacheBytes, free_bytes: int = 0
    ) -> None:
        """`refusals`, `taken`: as `ModelShard.agree` returns them, the same on all ranks. `free_bytes`: free memory at
        the start, of the rank that had least."""
        self.part, self._sender, self.refusals, self.taken = part, sender, refusals, taken
        #: Returns the free bytes of the rank with the least; None if unknown. Must not block.
        self.headroom: Callable[[], int | None] = lambda: free_bytes
        #: Called with an error on this rank after the followers were sent the same operation.
        self.on_lost: Callable[[RanksLost], None] = lambda lost: None
        self.records = 0  # sent
        self._last_number = 0  # the last number given to caches or a prefix
        self._dropped: tuple[list[int], list[int]] = [], []  # numbers of unreferenced caches and prefixes
        self._lost: RanksLost | None = None

    def caches(self, layout: CacheLayout) -> RankedCaches:
        number = self.number()
        caches = self.done(Op.NEW, number, asdict(layout), do=lambda: self.part.caches(layout))
        return RankedCaches(self, caches, number)

    def number(self) -> int:
        """Returns the next number for new caches or a new prefix."""
        self._last_number += 1
        return self._last_number

    def done(self, op: Op, *arguments: Any, do: Callable[[], _T]) -> _T:
        """Sends an operation to the followers and executes it here. Raises RanksLost, also if only rank 0 fails,
        because followers may have executed the operation or wait for it."""
        if any(self._dropped):
            self._send(Op.DROP, *map(_taken_from, self._dropped))
        self._send(op, *arguments)
        try:
            result = do()
        except Exception as error:
            self._lost = lost_by(error, f"rank 0 could not {op}")
            self.on_lost(self._lost)
            raise self._lost from error
        self._sender.report_progress(self.part.progress(self.records))
        return result

    def give_back(self) -> None:
        """Makes followers return freed memory to the system."""
        self.done(Op.GIVE_BACK, do=lambda: None)

    def limits_of_group(self, limits: Limits) -> Limits:
        """Returns the limits with the memory of the smallest rank."""

        def headroom() -> int | None:
            headrooms = [value for value in (limits.headroom(), self.headroom()) if value is not None]
            return min(headrooms, default=None)

        return replace(limits, headroom=headroom)

    def drops(self, owner: object, number: int, *, prefix: bool = False) -> None:
        """Makes followers drop this number, with the next record sent after the last reference to `owner` is gone."""
        weakref.finalize(owner, self._dropped[prefix].append, number).atexit = False

    def _send(self, op: Op, *arguments: Any) -> None:
        if self._lost is not None:
            raise self._lost
        record = encode_record(op, *arguments)
        try:
            self._sender.send(record)
        except Exception as error:
            self._lost = lost_by(error, "a record could not be sent")
            raise self._lost from error
        self.records += 1


def lead(part: ModelShard, sender: RecordSender) -> RankedModel:
    """Returns rank 0's part once its weights are read; waits for the others. From then on operations on the model's
    caches run on all ranks."""
    ranks = RankedModel(part, sender, *part.agree())
    share(part.model, ranks)
    return ranks


def _taken_from(numbers: list[int]) -> list[int]:
    """Empties the list and returns what was in it; the garbage collector may append meanwhile, on any thread."""
    dropped = numbers[:]
    del numbers[: len(dropped)]
    return dropped


class RankedCaches:
    """`Caches` of all ranks. Bytes are those of rank 0, except for `position_bytes`."""

    def __init__(self, ranks: RankedModel, local: Caches, number: int) -> None:
        self._ranks, self._local, self._number = ranks, local, number
        ranks.drops(self, number)

    @property
    def lengths(self) -> list[int]:
        return self._local.lengths

    @property
    def segmented(self) -> bool:
        return self._local.segmented

    @property
    def states(self) -> mx.array | None:
        return self._local.states

    def forward(self, tokens: mx.array, widths: Sequence[int], *, at: Positions | None = None) -> mx.array:
        part, local = self._ranks.part, self._local
        return self._done(Op.FORWARD, tokens.shape[1], widths, at, do=lambda: part.forward(local, tokens, widths, at))

    def rollback(self, lengths: Sequence[int]) -> list[int]:
        return self._done(Op.ROLLBACK, lengths, do=lambda: self._ranks.part.rollback(self._local, lengths))

    def fresh(self, *lengths: int) -> RankedCaches:
        number = self._ranks.number()
        caches = self._done(Op.FRESH, number, lengths, do=lambda: self._local.fresh(*lengths))
        return RankedCaches(self._ranks, caches, number)

    def split(self, rows: Sequence[int], *, rest: bool = False) -> RankedCaches:
        number = self._ranks.number()
        caches = self._done(Op.SPLIT, number, rows, rest, do=lambda: self._local.split(rows, rest=rest))
        return RankedCaches(self._ranks, caches, number)

    def join(self, joining: Caches) -> None:
        assert isinstance(joining, RankedCaches)
        self._done(Op.JOIN, joining._number, do=lambda: self._local.join(joining._local))

    def select(self, rows: Sequence[int]) -> None:
        self._done(Op.SELECT, rows, do=lambda: self._local.select(rows))

    def clear(self) -> None:
        self._done(Op.CLEAR, do=self._local.clear)

    def pretend(self, lengths: Sequence[int]) -> bool:
        return self._done(Op.PRETEND, lengths, do=lambda: self._local.pretend(lengths))

    def extract(self, row: int, start: int, end: int) -> CachedPrefix | None:
        ranks, number, local = self._ranks, self._ranks.number(), self._local
        extracted = self._done(
            Op.EXTRACT, number, row, start, end, do=lambda: ranks.part.extract(local, row, start, end)
        )
        if extracted is None:
            return None
        value, least = extracted
        if isinstance(value, KVSegment):
            return RankedSegment.of(ranks, value, number)
        return RankedSnapshot.of(ranks, value, number, least)

    def restore(self, kept: Sequence[CachedPrefix]) -> None:
        ours = [prefix for prefix in kept if isinstance(prefix, RankedSegment | RankedSnapshot)]
        assert len(ours) == len(kept)
        numbers, lengths = [prefix.number for prefix in ours], [prefix.length for prefix in ours]
        values = [prefix.local if isinstance(prefix, RankedSnapshot) else prefix for prefix in ours]
        self._done(Op.RESTORE, numbers, lengths, do=lambda: self._local.restore(values))

    def _done(self, op: Op, *arguments: Any, do: Callable[[], _T]) -> _T:
        """Executes an operation on these caches on all ranks."""
        return self._ranks.done(op, self._number, *arguments, do=do)

    @property
    def position_bytes(self) -> int:
        """Bytes per position, on the rank with the largest caches; 0 while the caches are empty."""
        return self._ranks.taken.position if self._local.position_bytes or self._local.nbytes else 0

    @property
    def window_bytes(self) -> int:
        return self._local.window_bytes

    def arrays(self) -> list[Any]:
        return self._local.arrays()

    @property
    def nbytes(self) -> int:
        return self._local.nbytes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RankedSegment(KVSegment):
    """Rank 0's part of a segment that all ranks store under `number`. `whole`: the segment that this one is the head
    of, or None."""

    ranks: RankedModel
    number: int
    whole: RankedSegment | None = None

    @classmethod
    def of(cls, ranks: RankedModel, local: KVSegment, number: int) -> RankedSegment:
        segment = cls(local.layers, local.length, ranks, number)
        ranks.drops(segment, number, prefix=True)
        return segment

    @property
    def nbytes(self) -> int:
        """Bytes on the rank with the largest caches."""
        return self.ranks.taken.position * self.length

    def split(self, n: int) -> tuple[KVSegment, KVSegment]:
        first, rest = self.ranks.number(), self.ranks.number()
        local = KVSegment(self.layers, self.length)
        parts = self.ranks.done(Op.HALVE, self.number, first, rest, n, do=lambda: local.split(n))
        return RankedSegment.of(self.ranks, parts[0], first), RankedSegment.of(self.ranks, parts[1], rest)

    def head(self, n: int) -> KVSegment:
        if n == self.length:
            return self
        layers = KVSegment(self.layers, self.length).head(n).layers
        return RankedSegment(layers, n, self.ranks, self.number, self.whole or self)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RankedSnapshot:
    """Rank 0's part of a snapshot that all ranks store under `number`. `least`: the fewest tokens to which every rank
    can cut its part. `whole`: the snapshot that this one was cut from, or None."""

    local: CacheSnapshot
    ranks: RankedModel
    number: int
    least: int
    whole: RankedSnapshot | None = None

    @classmethod
    def of(cls, ranks: RankedModel, local: CacheSnapshot, number: int, least: int) -> RankedSnapshot:
        snapshot = cls(local, ranks, number, least)
        ranks.drops(snapshot, number, prefix=True)
        return snapshot

    @property
    def length(self) -> int:
        return self.local.length

    @property
    def nbytes(self) -> int:
        """The bytes on rank 0, or `length` times the bytes per position on the rank with the largest caches if that is
        more."""
        return max(self.local.nbytes, self.ranks.taken.position * self.length)

    def cut(self, length: int) -> RankedSnapshot | None:
        local = self.local.cut(length) if length >= self.least else None
        return None if local is None else RankedSnapshot(local, self.ranks, self.number, self.least, self.whole or self)
