"""`draftd prefix` against a daemon on the embedded draft: a pinned chat is what chats read that begin so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftd.client.client import CallError
from draftd.engine.pair import LoadedModels, load_models
from draftd.v1 import control_pb2 as pb
from tests.conftest import NanoPair
from tests.in_process_daemon import Served, collect, serving
from tests.unit.cli.conftest import Ran, in_process

SYSTEM = "You answer for the harbour office. Ships come and go by the tide, and nobody waits for them. " * 3


@pytest.fixture
def draftd(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    return lambda *words: in_process([*words, "--target", served.target], monkeypatch, capsys)


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tmp_path = tmp_path_factory.mktemp("served")

    def load() -> LoadedModels:
        return load_models(nano_pair.draft, None, progress=lambda line: None)

    engine = {"prefix_cache_bytes": 64 << 20, "prefix_dir": tmp_path / "prefixes"}
    with serving(tmp_path, load, engine=engine) as served:
        yield served


def test_pinned_chat_prefix_is_read_from_cache_by_chats_with_the_same_system_message(
    served: Served, draftd: Callable[..., Ran], tmp_path: Path
) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "system", "content": SYSTEM}]))
    assert "office: " in draftd("prefix", "pin", "office", "--chat", str(chat)).out
    (pinned,) = served.client.prefixes().prefixes
    assert pinned.tokens > 40

    for question in ("When is high water?", "Who waits?"):
        messages = [("system", SYSTEM), ("user", question)]
        answer = collect(served.client.generate(messages=messages, max_tokens=4))
        assert answer.finished is not None
        assert pinned.tokens <= answer.finished.usage.cache_read_tokens < answer.finished.usage.input_tokens
    status = served.client.status().prefix_cache
    assert (status.pins, status.disk_files, status.hits) == (1, 1, 2)
    assert status.pinned_bytes == status.disk_bytes == pinned.bytes

    assert f"{pinned.tokens} tokens" in draftd("prefix", "list").out
    assert draftd("prefix", "drop", "office").code == 0
    assert "no prefix is pinned" in draftd("prefix", "list").out
    assert served.client.status().prefix_cache.disk_files == 0


def test_invalid_prefix_pin_request_is_refused_naming_the_wrong_field(
    served: Served, draftd: Callable[..., Ran], tmp_path: Path
) -> None:
    def refused(**fields: object) -> str:
        with pytest.raises(CallError) as caught:
            served.client.pin_prefix(pb.PinPrefixRequest(**fields))  # type: ignore[arg-type]
        assert caught.value.code.name == "INVALID_ARGUMENT"
        return caught.value.details

    assert refused(name="ü", prompt=SYSTEM).startswith("name: got 'ü'; allowed: 1 to 64 letters")
    assert refused(name="a").startswith("input: got 'nothing'")
    assert refused(name="a", prompt="short").startswith("prompt: got")
    assert refused(name="a", chat={"messages": [{"role": "nobody", "content": "x"}]}).startswith(
        "chat.messages[0].role"
    )
    assert refused(name="a", tokens={"ids": [1 << 20] * 20}).startswith("tokens.ids[0]: got 1048576")

    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"message": 1}')
    ran = draftd("prefix", "pin", "a", "--chat", str(wrong))
    assert ran.code == 2
    assert "--chat" in ran.err
    assert draftd("prefix", "pin", "a").code == 2
