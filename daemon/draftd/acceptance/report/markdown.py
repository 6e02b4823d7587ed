"""The same report for a terminal, a pull request or an archive: sentences and tables, the charts by what they say."""

from __future__ import annotations

from collections.abc import Iterator

from draftd.acceptance.report.blocks import Block, Cell, Charts, Column, Facts, Folded, Note, Page, Table, Tone

_SIGNS = {Tone.GOOD: "✓ ", Tone.BAD: "✗ ", Tone.UNPROVEN: "? ", Tone.ABSENT: "– ", Tone.EXCUSED: "○ "}


def markdown(page: Page) -> str:
    lines = [f"# {page.title}", "", " · ".join(page.about), ""]
    lines += [f"**{page.banner.word}.** {_plain(page.banner.sentence)}", ""]
    if page.banner.tally:
        lines += [" · ".join(_cell(one) for one in page.banner.tally), ""]
    lines += [f"- {tile.label}: **{tile.value}** ({tile.detail})" for tile in page.banner.tiles]
    for section in page.sections:
        lines += ["", f"## {section.title}", "", _plain(section.lead)]
        for block in section.blocks:
            lines += ["", *_block(block)]
    return "\n".join([*lines, "", "---", "", page.made_by, ""])


def _block(block: Block) -> Iterator[str]:
    match block:
        case Table():
            yield f"**{block.caption}**"
            yield ""
            yield from _table(block.columns, block.rows)
        case Charts():
            for chart in block.charts:
                yield f"- *{chart.title}*: {_plain(chart.description)}"
            if block.beside is not None:
                yield from _block(block.beside)
        case Note():
            yield f"> {_SIGNS.get(block.tone, '')}{_plain(block.text)}"
        case Facts():
            yield from (f"- {title}: {_cell(cell)}" for title, cell in block.pairs)
        case Folded():
            yield f"<details><summary>{block.title}</summary>"
            for inner in block.blocks:
                yield ""
                yield from _block(inner)
            yield ""
            yield "</details>"


def _table(columns: tuple[Column, ...], rows: tuple[tuple[Cell, ...], ...]) -> Iterator[str]:
    yield "| " + " | ".join(_joined(column.title, column.unit) for column in columns) + " |"
    yield "| " + " | ".join("---:" if column.figures and at else "---" for at, column in enumerate(columns)) + " |"
    for row in rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"


def _joined(title: str, unit: str) -> str:
    return _plain(f"{title}, {unit}" if unit else title)


def _cell(cell: Cell) -> str:
    sign = _SIGNS.get(cell.tone, "") if cell.text != "–" else ""
    detail = f" ({cell.detail})" if cell.detail and cell.text else cell.detail
    return _plain(f"{sign}{cell.text}{detail}")


def _plain(text: str) -> str:
    """Of what Markdown would take for its own, what can occur here."""
    for sign in ("\\", "|", "*", "_", "<", "`"):
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
