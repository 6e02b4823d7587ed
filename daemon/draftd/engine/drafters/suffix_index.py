"""Finds earlier occurrences of a text's end, and predicts what comes next from what followed them.

As in suffix decoding (arXiv 2411.04975, section 3) the longest end that occurred before counts, and of what followed it
the most frequent. A suffix tree has a node for each length; here are tables for a few lengths, each with chains from a
place to the one before it, as in LZ77 coders: a token takes some 200 bytes. Equal hashes of different tokens may cost
acceptance, never a text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

SIZES = (1, 2, 4, 8)  # lengths of ends in tokens, the shortest first
NEARBY = 0  # in place of a length: the last token alone, near the place that was copied from before
SLICE = 1024  # tokens indexed at a time, about 3 ms: the other sequences of a step wait for it
END = -1  # ends each of several texts in one list

_MOST_PLACES = 4  # latest occurrences that are compared
_BACK, _SOON = 2, 32  # tokens before and after a place that are near it


class SuffixIndex:
    """The places of a growing text by the n-grams that end there. A place is the number of tokens before it."""

    def __init__(self) -> None:
        # For each size: the latest place by an n-gram's hash; by place - 1 the place before with the same n-gram, or 0.
        self._tables: list[tuple[int, dict[int, int], array[int]]] = [(size, {}, array("i")) for size in SIZES]
        self._indexed = 0

    def grow(self, tokens: Sequence[int], final: int, most: int = SLICE) -> int:
        """Indexes up to `most` more of the first `final` tokens; later ones may still change. Returns how many more it
        could have indexed."""
        first, last = self._indexed + 1, min(final, self._indexed + most)
        if last < first:
            return most
        for end in range(first, last + 1):
            for size, latest, before in self._tables:
                if end >= size:
                    key = hash(tuple(tokens[end - size : end]))
                    before.append(latest.get(key, 0))
                    latest[key] = end
                else:
                    before.append(0)
        self._indexed = last
        return most - (last + 1 - first)

    def place(self, table: int, key: int) -> int:
        """Returns the latest place after the n-gram of SIZES[table] tokens with this key; 0 if it has none."""
        return self._tables[table][1].get(key, 0)

    def place_before(self, table: int, place: int) -> int:
        """Returns the place before this one after the same n-gram of SIZES[table] tokens; 0 if it was the first."""
        return self._tables[table][2][place - 1]


Source = tuple[Sequence[int], SuffixIndex]
"""Tokens and their index."""

Place = tuple[Sequence[int], int]
"""Tokens, and the number of them before the place."""


class Continuation(NamedTuple):
    """Tokens that may follow a text. `size`: of the text's end that occurred before; NEARBY for its last token alone,
    near the place that was copied before. `source`: where the tokens were copied from."""

    tokens: list[int]
    size: int
    source: Place


def continuation(
    text: Sequence[int], sources: Sequence[Source], depth: int, latest: Place | None = None
) -> Continuation | None:
    """Returns up to `depth` tokens: the most frequent continuation of the text's longest end that occurs in the
    sources, of which the text may be one; None if none does. `latest`: the place up to which the last draft was right.
    A single token occurs in many places, so one soon after this one is preferred: an edit goes on there."""
    ends, table = [0] * len(sources), -1
    for longer, size in enumerate(SIZES):
        if size > len(text):
            break
        key = hash(tuple(text[-size:]))
        latest_places = [index.place(longer, key) for _, index in sources]
        if not any(latest_places):
            break
        ends, table = latest_places, longer
    if table < 0:
        return None
    if SIZES[table] == 1 and latest is not None and (nearby := _nearby(text, latest)):
        return _follow(text, [nearby], depth, NEARBY)
    places: list[Place] = []
    for (tokens, index), place in zip(sources, ends, strict=True):
        while place and len(places) < _MOST_PLACES:
            places.append((tokens, place))
            place = index.place_before(table, place)
    return _follow(text, places, depth, SIZES[table])


def _nearby(text: Sequence[int], latest: Place) -> Place | None:
    """Returns the place after the text's last token soon after the latest one: that with the longest equal end, then
    the nearest."""
    tokens, at = latest
    candidates, last, first = list[tuple[int, int, int]](), text[-1], max(1, at - _BACK)
    for place, token in enumerate(tokens[first : min(at + _SOON, len(tokens) - (tokens is text))], first):
        if token == last:
            size = 1
            while size < min(SIZES[-1], len(text)) and size <= place and tokens[place - size] == text[-1 - size]:
                size += 1
            candidates.append((size, -abs(place - at), place + 1))
    return (tokens, max(candidates)[-1]) if candidates else None


def _follow(text: Sequence[int], places: Sequence[Place], depth: int, size: int) -> Continuation | None:
    """Returns what most often follows these places, token by token; of equally frequent tokens the first place's."""
    following, at = [_tokens_after(text, place, depth) for place in places], 0
    while 2 * following.count(following[0]) <= len(following):  # else most have the first one's tokens
        tokens = [own[at] for own in following]
        if tokens.count(tokens[0]) < len(tokens):
            token = max(dict.fromkeys(tokens), key=tokens.count)
            places = [place for place, other in zip(places, tokens, strict=True) if other == token]
            following = [own for own in following if own[at] == token]
        at += 1
    drafted = following[0]
    if END in drafted:
        drafted = drafted[: drafted.index(END)]
    return Continuation(drafted, size, places[0]) if drafted else None


def _tokens_after(text: Sequence[int], place: Place, depth: int) -> list[int]:
    """Returns the next `depth` tokens, or END in place of those that are missing. A text that repeats itself goes on
    repeating."""
    tokens, at = place
    following = list(tokens[at : at + depth])
    if len(following) < depth:
        rest = following if tokens is text and following else [END]
        following = (following + rest * depth)[:depth]
    return following
