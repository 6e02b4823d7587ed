"""The README, as an index shows it: without the repository beside it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from draftd.cli.main import COMMANDS, find

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OURS = re.compile(r"https://(?:github\.com/draftd/draftd/blob|raw\.githubusercontent\.com/draftd/draftd)/main/(.+)")


def tokens() -> Iterator[Token]:
    for block in MarkdownIt("gfm-like").parse(README):
        yield from block.children or [block]


def test_readme_links_and_images_are_absolute_and_exist() -> None:
    links = {str(token.attrs[name]) for token in tokens() for name in ("href", "src") if name in token.attrs}
    assert not [link for link in links if not link.startswith("https://")]
    paths = [found[1] for link in links if (found := OURS.match(link))]
    assert len(paths) > 20
    assert not [path for path in paths if not (ROOT / path).is_file()]
    assert not [token.content for token in tokens() if token.type == "text" and "](" in token.content + "]["]


def test_readme_command_table_lists_every_command() -> None:
    rows = README.partition("| command | |\n")[2].partition("\n\n")[0]
    listed = re.findall(r"`draftd ([a-z ]+)`", "\n".join(row.split("|")[1] for row in rows.splitlines()))
    assert len(listed) == len(set(listed))
    assert set(listed) == set(_commands())


def test_readme_map_lists_every_package_and_folder() -> None:
    lines = README.partition("## A map")[2].partition("```text\n")[2].partition("```")[0]
    folders = set(re.findall(r"([\w-]+)/", lines))
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    top = {path.split("/")[0] for path in tracked if "/" in path and not path.startswith(".")}
    packages = {path.split("/")[2] for path in tracked if path.startswith("daemon/draftd/") and path.count("/") > 2}
    assert (top | packages) <= folders


def _commands() -> Iterator[str]:
    for name in COMMANDS:
        spec = find(name)
        yield from [name] if callable(spec) else (f"{name} {sub}".strip() for sub in spec)
