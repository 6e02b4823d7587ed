"""The account that a real daemon on the embedded pair gives of its files, while they change and while it serves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftd.client.child import clean_environ
from draftd.client.client import CallError, DraftdClient
from draftd_acceptance.folder import to_json
from draftd_acceptance.manifest import Manifest, differences, take_manifest
from tests import forked_daemon
from tests.conftest import NanoPair

TOKEN = "a-token-that-is-told-to-no-client"
SPARSE_BYTES, CUT_BYTES = 1 << 34, 1 << 20


@dataclass(frozen=True)
class Pair:
    """A daemon on a copy of the embedded pair."""

    folder: Path
    client: DraftdClient

    def manifest(self) -> Manifest:
        return take_manifest(self.client)

    @property
    def draft_weights(self) -> Path:
        return self.folder / "draft" / "model.safetensors"

    def replace(self, content: bytes) -> None:
        """In one step, as whoever deploys a draft does."""
        fresh = self.draft_weights.with_name("fresh")
        fresh.write_bytes(content)
        fresh.replace(self.draft_weights)


@pytest.fixture(scope="module")
def pair(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    shutil.copytree(nano_pair.target, folder / "target")
    shutil.copytree(nano_pair.draft, folder / "draft")
    arguments = (
        "serve", "--port", "0", "--model", str(folder / "target"), "--draft-model", str(folder / "draft"),
        "--set=engine.max_batch=2", f"--set=fallback.state_dir={folder / 'state'}",
    )  # fmt: skip
    environ = {**clean_environ(str(folder / "flags.json")), "DRAFTD_SERVER__TOKEN": TOKEN}
    with (
        forked_daemon.serving(forked_daemon.command, *arguments, environ=environ) as daemon,
        DraftdClient(daemon.address, TOKEN) as client,
    ):
        yield Pair(folder, client)


def sha256sum(file: Path) -> str:
    """By the system's own program where there is one."""
    if program := shutil.which("sha256sum"):
        said = subprocess.run([program, str(file)], capture_output=True, text=True, check=True)
        return said.stdout.split()[0]
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_manifest_checksums_equal_sha256sum_of_each_model_file(pair: Pair) -> None:
    found = pair.manifest()
    assert set(found.models) == {"target", "draft", "draft_head"}
    assert not found.models["draft_head"].files, "they are the target's"
    assert found.models["draft_head"].kind == "mtp"
    for role in ("target", "draft"):
        model, folder = found.models[role], pair.folder / role
        files = {file.name: file for file in model.files}
        template = files.pop("tokenizer_config.json#chat_template")
        assert {name: file.kind for name, file in files.items()} == {
            "model.safetensors": "weights",
            "config.json": "config",
            "tokenizer.json": "tokenizer",
            "tokenizer_config.json": "tokenizer",
        } | ({} if role == "draft" else {"mtp.safetensors": "weights"})
        for file in files.values():
            assert file.sha256 == sha256sum(folder / file.name), file.name
            assert file.bytes == (folder / file.name).stat().st_size
        text = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
        assert template.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert template.kind == "chat_template"
        assert not model.changed_since_load
        assert model.quantization == "none"
    status = pair.client.status()
    assert sum(model.weight_bytes for model in found.models.values()) == status.weight_bytes
    assert found.backend == status.backend
    assert found.settings["engine.max_batch"] == "2"
    assert found.load_seconds is not None
    assert found.load_seconds > 0
    if sys.platform == "linux":
        library = status.backend.removeprefix("cpu (").removesuffix(")")
        assert found.blas.lower().startswith(library) or library == "mkl"


def test_manifest_contains_no_token_and_no_local_path(pair: Pair) -> None:
    told = to_json(pair.manifest())
    assert TOKEN not in told
    assert str(pair.folder) not in told
    assert str(Path.home()) not in told or str(Path.home()) == "/"


def test_manifest_of_an_unchanged_daemon_is_the_same_twice(pair: Pair) -> None:
    assert [one.field for one in differences(pair.manifest(), pair.manifest()) if one.field != "created"] == []


def test_manifest_marks_a_touched_draft_as_changed_until_its_reload(pair: Pair) -> None:
    before = pair.manifest()
    os.utime(pair.draft_weights)
    touched = pair.manifest()
    assert [(one.field, one.right) for one in differences(before, touched) if one.matters] == [
        ("models.draft.changed_since_load", "true")
    ]
    pair.client.reload_draft()
    assert not any(one.matters for one in differences(before, pair.manifest()))


def test_manifest_marks_a_replaced_draft_by_checksum_and_as_changed_until_reload(pair: Pair) -> None:
    before, good = pair.manifest(), pair.draft_weights.read_bytes()
    other = good[:-2] + bytes([good[-2] ^ 1, good[-1]])  # a bit of a weight
    try:
        pair.replace(other)
        replaced = pair.manifest()
        assert [one.field for one in differences(before, replaced) if one.matters] == [
            "models.draft.changed_since_load",
            "models.draft.files.model.safetensors.sha256",
        ]
        pair.client.reload_draft()
        loaded = pair.manifest()
        assert not loaded.models["draft"].changed_since_load
        assert [one.field for one in differences(before, loaded) if one.matters] == [
            "models.draft.files.model.safetensors.sha256"
        ]
        sha = {file.name: file.sha256 for file in loaded.models["draft"].files}["model.safetensors"]
        assert sha == sha256sum(pair.draft_weights)
        # What cannot be loaded leaves in use what was: the file is not that.
        pair.replace(good[:1000])
        with pytest.raises(CallError):
            pair.client.reload_draft()
        assert pair.manifest().models["draft"].changed_since_load
    finally:
        pair.replace(good)
    assert pair.manifest().models["draft"].changed_since_load  # its bytes are as at first; what is in use is the other
    pair.client.reload_draft()
    assert not any(one.matters for one in differences(before, pair.manifest()))


def test_manifest_marks_target_and_its_head_as_changed_if_a_file_of_theirs_is_touched(pair: Pair) -> None:
    before, config = pair.manifest(), pair.folder / "target" / "config.json"
    stat = config.stat()
    os.utime(config)
    changed = differences(before, pair.manifest())
    in_folder = ["models.draft_head.changed_since_load", "models.target.changed_since_load"]
    assert [one.field for one in changed if one.matters] == in_folder
    os.utime(config, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not pair.manifest().models["target"].changed_since_load


def test_daemon_answers_requests_while_it_hashes_model_files(pair: Pair) -> None:
    """Sixteen gigabytes, and none of them on the disk: what is asked meanwhile is answered. Then the file is cut, or
    hashing it would take as long as the machine is slow."""
    large = pair.folder / "target" / "model-large.safetensors"
    with large.open("wb") as file:
        file.truncate(SPARSE_BYTES)
    try:
        with ThreadPoolExecutor(1) as pool, DraftdClient(pair.client.target, TOKEN) as asking:
            asking.status()  # connected
            manifest = pool.submit(take_manifest, asking)
            assert pair.client.status().version
            assert list(pair.client.generate("Count with me.", max_tokens=4))[-1].HasField("finished")
            assert not manifest.done()
            os.truncate(large, CUT_BYTES)
            found = manifest.result()
    finally:
        large.unlink()
    sizes = {file.name: file.bytes for file in found.models["target"].files}
    assert sizes[large.name] == CUT_BYTES
    assert found.models["target"].changed_since_load  # it was not there when the target was loaded
    assert not pair.manifest().models["target"].changed_since_load
