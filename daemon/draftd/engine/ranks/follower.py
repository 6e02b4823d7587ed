"""A follower: executes what rank 0 tells it, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from draftd.engine.cache.base import CachedPrefix, Caches, KVSegment
from draftd.engine.cache.layouts import CacheLayout
from draftd.engine.memory import give_back
from draftd.engine.ranks.channel import RecordReceiver
from draftd.engine.ranks.group import lost_by
from draftd.engine.ranks.part import Part
from draftd.engine.ranks.records import Op, Record, RecordError, decoded, following

_GRACE_SECONDS = 0.05  # in which the next record of a busy group comes, with which the last forward is not waited for
_TIDY_FORWARDS = 256  # MLX keeps freed buffers for reuse: as on rank 0


def follow(part: Part, receiver: RecordReceiver) -> Follower:
    """Executes records until the group ends in order, and returns what did. Raises RanksLost where one cannot be
    executed. The thread that loaded the model only."""
    follower = Follower(part)
    try:
        while True:
            if not receiver.ready(_GRACE_SECONDS):
                follower.settle()
                receiver.executed(part.progress(follower.executed))
            if (data := receiver.receive()) is None:
                break
            follower.execute(data)
            receiver.executed(part.progress(follower.executed))
        follower.settle()
        receiver.executed(part.progress(follower.executed))
        return follower
    except Exception as error:
        raise lost_by(error, f"rank {part.group.rank}") from error


class Follower:
    """What was made by number: the caches, and the cached prefixes."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._caches: dict[int, Caches] = {}
        self._prefixes: dict[int, CachedPrefix] = {}
        self._under_way: mx.array | None = None  # what the last forward gives
        self._forwards = 0
        self._last = 0  # the last record's number
        self._records = 0
        self.executed = 0  # records, and what they began is computed
        self._do: dict[Op, Callable[..., None]] = {
            Op.NEW: self._new,
            Op.FRESH: self._fresh,
            Op.FORWARD: self._forward,
            Op.ROLLBACK: self._rollback,
            Op.SPLIT: self._split,
            Op.JOIN: self._join,
            Op.SELECT: self._select,
            Op.CLEAR: self._clear,
            Op.PRETEND: self._pretend,
            Op.EXTRACT: self._extract,
            Op.RESTORE: self._restore,
            Op.HALVE: self._halve,
            Op.DROP: self._drop,
            Op.GIVE_BACK: give_back,
        }

    @property
    def held(self) -> tuple[int, int]:
        """How many caches and prefixes."""
        return len(self._caches), len(self._prefixes)

    def execute(self, data: bytes) -> None:
        """One record. What it dispatches may still be computed when this returns, but no more than one forward."""
        record: Record = decoded(data)
        if record.number != following(self._last):
            raise RecordError(f"record {record.number} follows {self._last}")
        self._last = record.number
        self._do[record.op](*record.numbers, *record.lists)
        self._records += 1
        if self._under_way is None:
            self.executed = self._records

    def settle(self) -> None:
        """Waits for what was dispatched."""
        if self._under_way is not None:
            mx.eval(self._under_way)
        self._under_way, self.executed = None, self._records

    def _new(self, number: int, batched: int, apart: int, level: int, axes: int, call_cost: int, forwards: int) -> None:
        layout = CacheLayout(
            bool(batched), bool(apart), bool(level), axes, call_cost - 1 if call_cost else None, forwards
        )
        self._caches[number] = self._part.caches(layout)

    def _fresh(self, source: int, number: int, lengths: Sequence[int]) -> None:
        self._caches[number] = self._caches[source].fresh(*lengths)

    def _forward(self, number: int, width: int, each: int, widths: Sequence[int], read: Sequence[int]) -> None:
        tokens = mx.zeros((len(widths), width), dtype=mx.uint32)
        at = [read[n : n + each] for n in range(0, len(read), each)] if each else None
        logits = self._part.forward(self._caches[number], tokens, list(widths), at)
        self.settle()  # the one before: no more than one is under way
        self._under_way, self._forwards = logits, self._forwards + 1
        if self._forwards % _TIDY_FORWARDS == 0:
            mx.clear_cache()

    def _rollback(self, number: int, lengths: Sequence[int]) -> None:
        self._part.rollback(self._caches[number], list(lengths))

    def _split(self, source: int, number: int, rest: int, rows: Sequence[int]) -> None:
        self._caches[number] = self._caches[source].split(list(rows), rest=bool(rest))

    def _join(self, number: int, joining: int) -> None:
        self._caches[number].join(self._caches.pop(joining))

    def _select(self, number: int, rows: Sequence[int]) -> None:
        self._caches[number].select(list(rows))

    def _clear(self, number: int) -> None:
        self._caches[number].clear()

    def _pretend(self, number: int, lengths: Sequence[int]) -> None:
        self._caches[number].pretend(list(lengths))

    def _extract(self, number: int, prefix: int, row: int, start: int, end: int) -> None:
        if (found := self._part.extract(self._caches[number], row, start, end)) is not None:
            self._prefixes[prefix] = found[0]

    def _restore(self, number: int, prefixes: Sequence[int], lengths: Sequence[int]) -> None:
        kept = list[CachedPrefix]()
        for prefix, length in zip(prefixes, lengths, strict=True):
            value = self._prefixes[prefix]
            some = value.head(length) if isinstance(value, KVSegment) else value.cut(length)
            if some is None:
                raise RecordError(f"prefix {prefix} has no beginning of {length} tokens")
            kept.append(some)
        self._caches[number].restore(kept)

    def _halve(self, prefix: int, first: int, rest: int, length: int) -> None:
        value = self._prefixes[prefix]
        assert isinstance(value, KVSegment)
        self._prefixes[first], self._prefixes[rest] = value.split(length)

    def _drop(self, caches: Sequence[int], prefixes: Sequence[int]) -> None:
        for number in caches:
            if (gone := self._caches.pop(number, None)) is not None:
                gone.clear()  # or it keeps its arrays until the collector
        for number in prefixes:
            self._prefixes.pop(number, None)
