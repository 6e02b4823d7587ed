"""What a report is made of, before it is HTML or Markdown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

NOTHING = "–"


class Tone(StrEnum):
    """How a value stands: said by a word and a sign everywhere, by colour only in addition."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    UNPROVEN = "unproven"  # measured, and too little to tell
    ABSENT = "absent"  # not measured
    EXCUSED = "excused"


@dataclass(frozen=True, slots=True)
class Cell:
    """`detail` is what stands small below: an interval, a reason."""

    text: str
    detail: str = ""
    tone: Tone = Tone.PLAIN

    @property
    def known(self) -> bool:
        return self.text not in ("", NOTHING) or bool(self.detail)


@dataclass(frozen=True, slots=True)
class Column:
    """`figures` are set flush right, digit below digit."""

    title: str
    unit: str = ""
    figures: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. `stacked`: on a narrow page each row is a card of its own; without, a table
    that is too wide is scrolled. `strong` are the numbers of the rows that stand out."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    stacked: bool = False
    strong: frozenset[int] = frozenset()

    def trimmed(self) -> Table:
        """Without the columns of which no row knows anything."""
        known = [at for at in range(len(self.columns)) if not at or any(row[at].known for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[at] for at in known),
            rows=tuple(tuple(row[at] for at in known) for row in self.rows),
        )


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a chart's legend. `ink` is a name of the palette; `mark`: line (with its points), plain, broken,
    dashed, dotted, dot, ring or bar."""

    label: str
    ink: str
    mark: str = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """`title` says what is shown, `reading` what to conclude from it, `description` both to who cannot see it."""

    id: str
    title: str
    reading: str
    description: str
    svg: str
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence or two that stand by themselves."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, in two columns."""

    pairs: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True)
class Charts:
    """Side by side where there is room; `beside` is what else stands there."""

    charts: tuple[Chart, ...]
    beside: Facts | None = None


@dataclass(frozen=True, slots=True)
class Folded:
    """What most readers pass over: opened by a click, always open in print."""

    title: str
    blocks: tuple[Table | Note | Facts, ...]


Block = Table | Charts | Note | Facts | Folded


@dataclass(frozen=True, slots=True)
class Section:
    """`lead` is what the section comes to, in a sentence or two."""

    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the few figures at the top."""

    label: str
    value: str
    detail: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Banner:
    """The verdict. `word` is the shortest way to say it, `sentence` the whole."""

    tone: Tone
    word: str
    sentence: str
    tally: tuple[Cell, ...] = ()
    tiles: tuple[Tile, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The whole report. `about` is one line: the pair, the machine, when."""

    title: str
    about: tuple[str, ...]
    banner: Banner
    sections: tuple[Section, ...]
    made_by: str
