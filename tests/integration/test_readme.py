"""What the README says to type answers a question."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from google.protobuf import json_format
from typer.testing import CliRunner

from draftd.cli.main import build_app
from draftd.client.client import DraftdClient
from draftd.client.gathering import gather
from draftd.engine.pair import load_models
from draftd.v1 import inference_pb2 as pb
from tests.code_blocks import texts_of
from tests.conftest import NanoPair
from tests.in_process_daemon import Served, serving

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
GRPC, HTTP = "127.0.0.1:50551", "http://127.0.0.1:8080/v1"
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = partial(load_models, str(nano_pair.target), str(nano_pair.draft), progress=lambda line: None)
    with serving(tmp_path_factory.mktemp("readme"), models, server={"http_port": 0}) as served:
        yield served


def arguments(word: str) -> list[str]:
    """Of the one command that begins so, in any block."""
    commands = [line for block in texts_of("README.md", "sh") for line in block.replace("\\\n", "").splitlines()]
    (command,) = [line for line in commands if line.startswith(word)]
    return shlex.split(command)


def test_readme_generate_command_answers_as_a_chat(served: Served) -> None:
    (line,) = re.findall(r"^\$ \.venv/bin/draftd (generate .*)$", README, re.MULTILINE)
    ran = CliRunner().invoke(build_app(), shlex.split(line), env={"DRAFTD_TARGET": served.target})
    assert ran.stdout.startswith(ANSWER)


def test_readme_python_examples_answer_as_a_chat_and_as_a_completion(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    chat, completion = texts_of("README.md", "python")
    answers = []
    for block in (chat, completion):
        assert GRPC in block
        exec(block.replace(GRPC, served.target), {})
        answers.append(capsys.readouterr().out)
    assert answers[0] == f"{ANSWER}\n"
    with DraftdClient(served.target) as client:
        assert answers[1] == gather(client.generate("The capital of France is", max_tokens=32)).text + "\n"
    assert answers[1] != answers[0]


def test_grpcurl_command_of_the_readme_is_answered(served: Served) -> None:
    called = arguments("grpcurl")
    assert called[-2:] == [GRPC, f"{pb.DESCRIPTOR.services_by_name['InferenceService'].full_name}/Generate"]
    request = json_format.Parse(called[called.index("-d") + 1], pb.GenerateRequest())
    with DraftdClient(served.target) as client:
        assert gather(client.generate_raw(request)).text == ANSWER


def test_curl_command_of_the_readme_is_answered(served: Served) -> None:
    called = arguments("curl")
    header, body = (called[called.index(option) + 1] for option in ("-H", "-d"))
    assert called[1].startswith(HTTP)
    request = urllib.request.Request(called[1].replace(HTTP, served.daemon.url), body.encode())
    request.add_header(*header.split(": "))
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["choices"][0]["message"]["content"] == ANSWER
