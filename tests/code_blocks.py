"""Code blocks of the documents, and how each is run."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
NANO = ROOT / "daemon" / "draftd" / "models" / "nano"
NO_CODE = {"text", "mermaid"}
MARKER = re.compile(r"<!-- not run here: (.+?) -->\s*$")
# Written from a real run, block by block, by `python -m scripts.first_session`.
RECORDED = {"first-session.md"}
# The documents' names for the daemon and a reader's models, and what stands for the models here.
GRPC, HTTP = "127.0.0.1:50551", "127.0.0.1:8080"
MODELS = {"Qwen3-8B-4bit": NANO / "target", "Qwen3-0.6B-4bit": NANO / "draft"}
_PARSERS = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
# In place of `draftd serve`: other ports, and stopped once it serves.
_SERVE = """
import os, sys
from draftd.client.child import serve_command, serving
with serving(serve_command(*sys.argv[1:], "--port", "0", "--http-port", "off"), os.environ, timeout=300):
    pass
"""


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block. `reason` is the marker above it, which says why it is not run; empty if it is run."""

    document: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def code_blocks() -> Iterator[CodeBlock]:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name in RECORDED:
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for token in MarkdownIt("gfm-like").parse(text):
            if token.type == "fence" and token.map and token.info not in NO_CODE:
                above = next((line for line in reversed(lines[: token.map[0]]) if line.strip()), "")
                marker = MARKER.search(above)
                reason = marker[1] if marker else ""
                yield CodeBlock(path.name, token.map[0] + 1, token.info, token.content, reason)


def texts_of(document: str, language: str, word: str = "") -> list[str]:
    """Returns the document's blocks in a language, if they contain `word`."""
    blocks = (block for block in code_blocks() if (block.document, block.language) == (document, language))
    return [block.text for block in blocks if word in block.text]


class Reader:
    """Runs blocks as a reader of the documents would: in one folder, against one running daemon. `addresses` maps each
    address in the documents to the real one."""

    def __init__(self, folder: Path, addresses: Mapping[str, str], model: str) -> None:
        self._folder, self._addresses, self._model = folder, addresses, model
        for name, path in MODELS.items():
            (folder / name).symlink_to(path)
        commands = folder / "commands"
        commands.mkdir()
        (commands / "serve.py").write_text(_SERVE)
        (commands / "draftd").write_text(
            f'#!/bin/sh\ncase $1 in\n    serve) shift; exec "{sys.executable}" "{commands / "serve.py"}" "$@" ;;\n'
            f'    *) exec "{sys.executable}" -m draftd "$@" ;;\nesac\n'
        )
        (commands / "draftd").chmod(0o755)
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        # A reader stands in the clone, where `python -m benchmarks.ranks` is found.
        target = {"DRAFTD_TARGET": addresses[GRPC], "HOME": str(folder), "PATH": path, "PYTHONPATH": str(ROOT)}
        self._environ = {**{k: v for k, v in os.environ.items() if not k.startswith("DRAFTD_")}, **target}

    def run(self, block: CodeBlock) -> None:
        """Runs a block. Raises an exception that says what failed."""
        if block.language in ("sh", "console"):
            self._call(["bash", "-euo", "pipefail", "-c", self._adapt(_commands(block))])
        elif block.language == "python":
            self._call([sys.executable, "-c", self._adapt(block.text)])
        elif block.language == "ini":
            parser = configparser.ConfigParser()
            parser.optionxform = str  # type: ignore[assignment, method-assign]  # as systemd: case matters
            parser.read_string(block.text)
        else:
            _PARSERS[block.language](block.text)

    def _adapt(self, text: str) -> str:
        """Returns the text with this test's addresses, model name and commands."""
        for documented, here in self._addresses.items():
            text = text.replace(documented, here)
        text = text.replace(".venv/bin/", "")
        return re.sub(r"(?<![A-Z_])MODEL(?![A-Z_])", self._model, text)

    def _call(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"exited with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _commands(block: CodeBlock) -> str:
    """Returns the commands of a shell block; of a session, those after each prompt."""
    if block.language == "sh":
        return block.text
    return "\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ "))
