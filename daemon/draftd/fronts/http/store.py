"""Stores answers that a later request may continue. Limits their number and bytes, and drops the least recently used
first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftd.service.messages import Message

_MOST = 1024


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """One answer: the response that the client got, all messages up to its end without the instructions, and the items
    of its input. `size` is an estimate in bytes."""

    response: Mapping[str, Any]
    messages: tuple[Message, ...]
    size: int
    items: tuple[Mapping[str, Any], ...] = ()


class ResponseStore:
    """Keeps answers in memory until the daemon ends. Use it on one event loop."""

    def __init__(self, most_bytes: int, most: int = _MOST) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._kept: OrderedDict[str, StoredAnswer] = OrderedDict()
        self._holders: dict[str, list[str]] = {}  # by item: the names of the answers with it in their input or output
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, name: str, stored: StoredAnswer) -> None:
        """Keeps an answer, unless it is larger than the whole store may be."""
        if stored.size > self._most_bytes:
            return
        self._kept[name] = stored
        self.bytes += stored.size
        for item in dict.fromkeys(map(_name, _items(stored))):
            self._holders.setdefault(item, []).append(name)
        while self.bytes > self._most_bytes or len(self._kept) > self._most:
            self.drop(next(iter(self._kept)))

    def get(self, name: str) -> StoredAnswer | None:
        if (stored := self._kept.get(name)) is not None:
            self._kept.move_to_end(name)
        return stored

    def item(self, name: str) -> Mapping[str, Any] | None:
        """An item of the input or output of a stored answer; of several, the latest answer's."""
        stored = self.get(self._holders[name][-1]) if name in self._holders else None
        return None if stored is None else next(one for one in _items(stored) if one["id"] == name)

    def drop(self, name: str) -> bool:
        """Drops an answer. Returns whether there was one."""
        stored = self._kept.pop(name, None)
        if stored is not None:
            self.bytes -= stored.size
            for item in dict.fromkeys(map(_name, _items(stored))):
                self._holders[item].remove(name)
                if not self._holders[item]:
                    del self._holders[item]
        return stored is not None


def _items(stored: StoredAnswer) -> list[Mapping[str, Any]]:
    return [*stored.items, *stored.response.get("output", ())]


def _name(item: Mapping[str, Any]) -> str:
    return str(item["id"])
