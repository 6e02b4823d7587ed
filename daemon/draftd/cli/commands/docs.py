"""`draftd docs`: the documents that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import draftd
from draftd.cli import options, output
from draftd.errors import ConfigError


@options.with_options("draftd docs", "draftd docs getting-started", "draftd docs configuration | less")
def command(
    name: Annotated[
        str | None, typer.Argument(help="Document to print, such as getting-started. Unset: list all.")
    ] = None,
) -> None:
    """List the documents that come with draftd, or print one as Markdown."""
    folder = Path(draftd.__file__).parent / "docs"
    documents = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    if name is not None:
        if (text := documents.get(name.removeprefix("docs/").removesuffix(".md"))) is None:
            raise ConfigError("document", name, ", ".join(documents))
        print(text, end="")
        return
    titles = ((one, text.partition("\n")[0].lstrip("# ")) for one, text in documents.items())
    output.print_fields(titles, max(map(len, documents)))
    output.say(f"draftd docs NAME prints one. The files are in {folder.resolve()}")
