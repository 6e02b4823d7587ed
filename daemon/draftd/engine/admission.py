"""Decides whether requests may begin: the key-value caches need room for them, beside a place in the batch.

A request reserves the most that it can need: its prompt, its longest answer, and the spare room of its arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from draftd.core import DecodeRequest
from draftd.engine.cache.groups import room
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.limits import Limits
from draftd.engine.sequence import DecodeSequence
from draftd.errors import InvalidRequest, NoMemory

_HEADROOM_SHARE = 0.75  # of the free memory once the model is loaded: drafts and forwards need some too
_MEMORY_SHARE = 1 / 8  # of the machine's memory, if the headroom is not known
_PREFIX_SHARE = 1 - _HEADROOM_SHARE
_LEAST_PREFIXES, _LEAST_SHARE = 256 * 2**20, 1 / 32
_RETRY_SECONDS = 10.0  # other programs may have freed memory by then


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of the caches of a target and its draft."""

    position_bytes: int  # of one position of one sequence
    context_length: int
    window_bytes: int = 0  # of one sequence, however long: for layers that keep a window of it

    def needed_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes at most, for sequences of these lengths."""
        return sum(room(length) for length in lengths) * self.position_bytes + len(lengths) * self.window_bytes

    def longest(self, limit: int) -> int:
        """Tokens of the longest text, prompt and answer, that fits in `limit` bytes; 0 is no limit."""
        lengths = range(self.context_length + 1)
        return (
            max(0, bisect_right(lengths, limit, key=lambda n: self.needed_bytes([n])) - 1)
            if limit
            else self.context_length
        )

    def longest_cached(self, limit: int) -> int:
        """Tokens of the longest text that the prefix cache can keep whole in `limit` bytes."""
        left = limit - self.window_bytes
        if left < 0 or not self.position_bytes:
            return self.context_length if left >= 0 else 0
        return left // self.position_bytes

    def cached_bytes(self, tokens: int) -> int:
        """Bytes of a text of `tokens` tokens in the prefix cache."""
        return tokens * self.position_bytes + self.window_bytes


def default_limit(layout: Layout, headroom: int | None, memory: int) -> int:
    """Returns the limit in bytes if the settings have none: three quarters of the headroom, or an eighth of the
    machine's `memory` if the headroom is unknown (None). The limit is enough for one text as long as the context,
    unless that takes more than an eighth of the memory."""
    share = memory * _MEMORY_SHARE if headroom is None else headroom * _HEADROOM_SHARE
    return max(1, int(share), min(layout.needed_bytes([layout.context_length]), int(memory * _MEMORY_SHARE)))


def default_prefix_limit(layout: Layout, limit: int, headroom: int | None, memory: int, texts: int) -> int:
    """Returns the prefix cache's limit in bytes if the settings have none. It is the smallest of: a quarter of the
    headroom; the headroom beyond the `limit` of running requests; an eighth of the machine's `memory`; the need of
    `texts` texts as long as the context. A small minimum applies, and is the limit if the headroom is unknown
    (None)."""
    least = min(_LEAST_PREFIXES, int(memory * _LEAST_SHARE))
    if headroom is None:
        return least
    share = min(int(headroom * _PREFIX_SHARE), headroom - limit)
    return max(least, min(share, int(memory * _MEMORY_SHARE), layout.needed_bytes([layout.context_length] * texts)))


class Admission:
    """Decides which sequences have memory to begin. Engine thread only, except `check` and `limit`."""

    def __init__(
        self,
        layout: Layout,
        limit: int,
        limits: Limits | None = None,
        prefix: PrefixCache | None = None,
    ) -> None:
        """`limit`: in bytes, 0 for none. `limits`: the memory that the machine has left. `prefix` is shrunk if that is
        too little."""
        self.layout, self.limit = layout, limit
        self._limits, self._prefix = limits or Limits(), prefix or PrefixCache()

    def check(self, request: DecodeRequest, cache_bytes: int = 0) -> None:
        """Raises InvalidRequest if the request would never fit, and NoMemory if its caches need more than the machine
        has left. `cache_bytes`: caches of all other sequences, which count as free because these sequences will end."""
        prompt = len(request.prompt)
        whole = min(prompt + request.max_tokens, self.layout.context_length)
        need = self.layout.needed_bytes([whole])
        if not self.limit or need <= self.limit:
            free = self._limits.available()
            if free is not None and need > (left := free + self._prefix.bytes + cache_bytes):
                what = f"a text of {whole} tokens, {prompt} of them the prompt, needs {need} bytes of key-value caches"
                raise NoMemory(f"{what}; the machine has {left} bytes of memory left", retry_after=_RETRY_SECONDS)
            return
        why = f"it needs {need} bytes, and key-value caches may take {self.limit} bytes (engine.kv_cache_bytes)"
        most = self.layout.longest(self.limit) - prompt
        if most < 1:
            longest = max(0, most + prompt - 1)
            raise InvalidRequest("prompt", f"{prompt} tokens", f"at most {longest} tokens: {why}")
        raise InvalidRequest(
            "max_tokens", request.max_tokens, f"at most {most} after a prompt of {prompt} tokens: {why}"
        )

    def keeps(self, tokens: int) -> bool:
        """Whether the prefix cache has room for a whole text of `tokens` while memory is not short. True if it is
        off."""
        return not self._prefix.limit or tokens <= self.layout.longest_cached(self._prefix.limit)

    def fits(
        self,
        sequence: DecodeSequence,
        prefilling: Sequence[DecodeSequence],
        running: Sequence[DecodeSequence],
        cache_bytes: int,
    ) -> bool:
        """Returns whether one more may begin beside the others, whose caches take `cache_bytes` now. Alone it always
        may: nothing would make room for it."""
        if not prefilling and not running:
            return True
        need = self.layout.needed_bytes([_whole(one) for one in (*running, *prefilling, sequence)])
        if self.limit and need > self.limit:
            return False
        headroom, more = self._limits.headroom(), max(0, need - cache_bytes)
        if headroom is None:
            return True
        if more > headroom:
            headroom += self._prefix.shed(max(0, self._prefix.bytes - (more - headroom)))
        return 0 < headroom >= more


def _whole(sequence: DecodeSequence) -> int:
    return len(sequence.request.prompt) + sequence.max_tokens
