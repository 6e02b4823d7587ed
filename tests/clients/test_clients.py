"""Those clients that the development environment has. `make clients` runs all of them, and all checks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.catalog import ABORT, CLIENTS, SCRIPTS, TOOLS
from tests.clients.daemons import talking_daemon
from tests.clients.run import OK, run_script
from tests.clients.talker import SILENT, answer_to


@pytest.fixture(scope="module")
def talker() -> Iterator[str]:
    with talking_daemon() as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openai-python", "anthropic-python"])
def test_python_clients_call_a_tool_and_abort_a_stream(talker: str, name: str) -> None:
    (client,) = (client for client in CLIENTS if client.name == name)
    # Answers of a real model are tested elsewhere: those checks have no daemon here, and fail.
    found = run_script([sys.executable, str(SCRIPTS / client.script), talker, talker], (TOOLS, ABORT))
    assert found == {TOOLS: OK, ABORT: OK}


@pytest.mark.parametrize(
    ("conversation", "answer"),
    [
        ("<|bos|><|user|>Hello<|assistant|>", SILENT),
        ("<|user|>SAY one\\ntwo<|assistant|>", "one\ntwo"),
        ("<|user|>SAY one<|assistant|>one<|user|>notes\nSAY two\nnotes<|assistant|>", "two"),
        ("<|user|>SAY one<|assistant|>one<|user|>RECALL it<|assistant|>", "one"),
        ("<|user|>COUNT 3<|assistant|>", "1 2 3"),
        ('<|user|>CALL f {"a": 1}<|assistant|>', '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("<|user|>CALL f {}<|assistant|><tool_call>…</tool_call><|tool|>4<|assistant|>", "done: 4"),
        ("<|user|>CALL f {}<|assistant|>…<|tool|>4<|user|>SAY five<|assistant|>", "five"),
    ],
)
def test_scripted_test_model_obeys_commands_in_the_conversation(conversation: str, answer: str) -> None:
    assert answer_to(conversation) == answer


def test_documented_client_versions_equal_the_pinned_ones() -> None:
    page = Path("docs/http.md").read_text()
    missing = [client.name for client in CLIENTS if f"| {client.name} | {client.version}" not in page]
    assert missing == []
