"""Each code block of the README and the documents runs as it stands, or says why it is not run here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from draftd.client.child import serve_command, serving
from tests.code_blocks import GRPC, HTTP, CodeBlock, Reader, code_blocks
from tests.remote.daemons import free_port

BLOCKS = list(code_blocks())
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    http = f"127.0.0.1:{free_port()}"
    environ = {**os.environ, "HOME": str(folder)}
    command = serve_command("--port", "0", "--http-port", http.partition(":")[2])
    with serving(command, environ, timeout=300) as daemon:
        yield Reader(folder, {GRPC: daemon.address, HTTP: http}, daemon.model)


@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.reason], ids=str)
def test_code_block_of_a_document_runs(block: CodeBlock, reader: Reader) -> None:
    reader.run(block)


def test_most_code_blocks_are_run_here() -> None:
    assert sum(not block.reason for block in BLOCKS) > 20
