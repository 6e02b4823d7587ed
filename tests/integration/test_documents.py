"""Each code block of the README and the documents runs as it stands, or says why it is not run here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from draftd.client.child import serve_command, serving
from tests.code_blocks import GRPC, HTTP, CodeBlock, Reader, code_blocks

BLOCKS = list(code_blocks())
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder, lines = tmp_path_factory.mktemp("reader"), list[str]()
    command = serve_command("--port", "0", "--http-port", "0")
    with serving(command, {**os.environ, "HOME": str(folder)}, timeout=300, on_line=lines.append) as daemon:
        (http,) = re.findall(r"HTTP on http://([^/\s]+)", "\n".join(lines))
        yield Reader(folder, {GRPC: daemon.address, HTTP: http}, daemon.model)


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.reason], ids=str)
def test_code_block_of_the_documentation_runs(block: CodeBlock, reader: Reader) -> None:
    reader.run(block)


def test_more_than_twenty_documentation_code_blocks_are_run() -> None:
    assert sum(not block.reason for block in BLOCKS) > 20
