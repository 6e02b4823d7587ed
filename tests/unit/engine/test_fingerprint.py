"""A model's files are hashed whole, each once, and never in anybody's way."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from draftd.errors import NotNow, NotServing
from draftd.models import fingerprint
from draftd.models.fingerprint import Fingerprints, quantization
from draftd.models.folder import ModelFiles, model_files

TEMPLATE = "{% for m in messages %}{{ m['content'] }} ü{% endfor %}"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pair"
    made.mkdir()
    for name, content in {
        "model-00001-of-00002.safetensors": bytes(range(256)) * 9000,  # more than two pieces
        "model-00002-of-00002.safetensors": b"",
        "config.json": b'{"quantization": {"group_size": 64, "bits": 4}}',
        "generation_config.json": b"{}",
        "tokenizer.json": b"{}",
        "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE}).encode(),
        "merges.txt": b"a b",
        "chat_template.jinja": b"{{ bos }}",
        "README.md": b"not read by anybody",
        "consolidated.safetensors": b"nor is this",
    }.items():
        (made / name).write_bytes(content)
    (made / "tokenizer_images").mkdir()
    return made


class Reading(Fingerprints):
    """Notes which files it hashes."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.read: list[str] = []

    def _hash_file(self, file: Path, size: int) -> str:
        self.read.append(file.name)
        return super()._hash_file(file, size)


def test_fingerprint_lists_model_files_with_kind_size_and_sha256(folder: Path) -> None:
    taken = Fingerprints().of(folder)
    assert taken.quantization == "4 bits, groups of 64"
    kinds = {file.name: file.kind for file in taken.files}
    assert kinds == {
        "model-00001-of-00002.safetensors": "weights",
        "model-00002-of-00002.safetensors": "weights",
        "config.json": "config",
        "generation_config.json": "config",
        "chat_template.jinja": "chat_template",
        "tokenizer.json": "tokenizer",
        "tokenizer_config.json": "tokenizer",
        "merges.txt": "tokenizer",
        "tokenizer_config.json#chat_template": "chat_template",
    }
    for file in taken.files[:-1]:
        content = (folder / file.name).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), sha(content)), file.name
    embedded = taken.files[-1]
    assert (embedded.bytes, embedded.sha256) == (len(TEMPLATE.encode()), sha(TEMPLATE.encode()))


def test_model_file_is_hashed_once_until_it_changes(folder: Path) -> None:
    prints = Reading()
    before = prints.of(folder)
    assert len(prints.read) == 8
    prints.read.clear()
    assert prints.of(folder) == before
    assert prints.read == []
    os.utime(folder / "merges.txt", ns=(1, 1))
    assert prints.of(folder) == before
    assert prints.read == ["merges.txt"]


def test_replaced_model_file_of_same_size_and_time_is_hashed_again(folder: Path) -> None:
    prints, file = Fingerprints(), folder / "merges.txt"
    before, stat, noted = prints.of(folder), file.stat(), ModelFiles.of(folder)
    fresh = folder / "fresh"
    fresh.write_bytes(b"b a")
    os.utime(fresh, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    fresh.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = prints.of(folder)
    assert [a.name for a, b in zip(after.files, before.files, strict=True) if a != b] == ["merges.txt"]
    assert noted.changed


def test_model_file_hashed_by_another_process_is_not_hashed_again(folder: Path, tmp_path: Path) -> None:
    mine, theirs = (Reading(tmp_path / "state" / "fingerprints.json") for _ in range(2))
    assert theirs.of(folder) == mine.of(folder)
    assert len(theirs.read) == 8
    assert mine.read == []


def test_removed_model_files_disappear_from_fingerprint_and_its_cache(folder: Path, tmp_path: Path) -> None:
    prints = Fingerprints()
    prints.of(folder)
    (folder / "merges.txt").unlink()
    assert "merges.txt" not in {file.name for file in prints.of(folder).files}
    assert len(prints._digests) == 7
    folder.rename(tmp_path / "elsewhere")
    assert prints.of(folder) == fingerprint.ModelFingerprint("none", ())
    assert prints._digests == {}


def test_model_file_written_during_hashing_is_hashed_again(folder: Path) -> None:
    class Written(Reading):
        def _hash_file(self, file: Path, size: int) -> str:
            found = super()._hash_file(file, size)
            if file.name == "merges.txt" and self.read.count("merges.txt") == 1:
                file.write_bytes(b"c d e")
            return found

    prints = Written()
    files = {file.name: file for file in prints.of(folder).files}
    assert files["merges.txt"].sha256 == sha(b"c d e")
    assert prints.read.count("merges.txt") == 2


def test_fingerprint_of_model_file_that_keeps_growing_is_refused_by_file_name(folder: Path) -> None:
    class Growing(Fingerprints):
        def _hash_file(self, file: Path, size: int) -> str:
            if file.name == "merges.txt":
                with file.open("ab") as more:
                    more.write(b"more")
            return super()._hash_file(file, size)

    with pytest.raises(NotNow, match=r"merges\.txt is being written"):
        Growing().of(folder)


def test_fingerprint_reads_a_file_only_up_to_its_initial_size(folder: Path) -> None:
    assert Fingerprints()._hash_file(folder / "merges.txt", 2) == sha(b"a ")


def test_unreadable_model_file_is_refused_by_name_without_its_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, *args: object, **options: object) -> object:
        if path.name == "tokenizer.json":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(NotNow) as refused:
        Fingerprints().of(folder)
    assert refused.value.message == "tokenizer.json: Permission denied"


def test_closing_fingerprints_stops_hashing_after_current_piece(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is larger than any piece: it is not read to its end."""
    prints, hashed = Fingerprints(), list[int]()

    class Sha:
        def update(self, piece: memoryview) -> None:
            hashed.append(len(piece))
            prints.close()

    monkeypatch.setattr(hashlib, "sha256", Sha)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            prints.of(folder)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert [type(error) for error in raised] == [NotServing]
    assert len(hashed) == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"group_size": 64, "bits": 4}, "4 bits, groups of 64"),
        ({"group_size": 64, "bits": 4, "mode": "affine"}, "4 bits, groups of 64"),
        ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, "4 bits, groups of 32, mxfp4"),
        (
            {"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}, "embed": False},
            "4 bits, groups of 64, some layers otherwise",
        ),
        ({"quant_method": "fp8", "weight_block_size": [32, 32]}, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "4 bits, groups of 128, gptq"),
        ({}, "unknown"),
    ],
)
def test_quantisation_settings_are_described_in_words(config: dict[str, object], words: str) -> None:
    assert quantization(config) == words


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"quantization_config": {"quant_method": "bitnet"}}', "bitnet"),
        ('{"text_config": {"quantization": {"bits": 8, "group_size": 32}}}', "8 bits, groups of 32"),
        ('{"torch_dtype": "bfloat16"}', "none"),
        ('{"text_config": null, "quantization": null}', "none"),
        ("[]", "none"),
        ("{ this is no JSON", "none"),
    ],
)
def test_fingerprint_finds_quantisation_in_model_config_file(folder: Path, config: str, words: str) -> None:
    (folder / "config.json").write_text(config)
    assert Fingerprints().of(folder).quantization == words


def test_fingerprint_hashes_list_of_chat_templates_regardless_of_key_order(folder: Path) -> None:
    def template(found: list[dict[str, str]]) -> str:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
        return Fingerprints().of(folder).files[-1].sha256

    one = template([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}])
    assert template([{"template": "a", "name": "default"}, {"name": "tool_use", "template": "b"}]) == one
    assert template([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "c"}]) != one


def test_model_files_report_a_change_when_any_read_file_changes(folder: Path) -> None:
    noted = ModelFiles.of(folder)
    assert not noted.changed
    (folder / "README.md").write_text("rewritten")
    assert not noted.changed
    assert not ModelFiles(folder).changed
    for change in (
        lambda: os.utime(folder / "config.json", ns=(1, 1)),
        lambda: (folder / "merges.txt").write_bytes(b"longer than it was"),
        lambda: (folder / "vocab.json").write_bytes(b"{}"),
        lambda: (folder / "model-00002-of-00002.safetensors").unlink(),
    ):
        noted = ModelFiles.of(folder)
        assert not noted.changed
        change()
        assert noted.changed
    folder.rename(folder.with_name("gone"))
    assert noted.changed


def test_fingerprint_follows_symlinks_to_model_files(folder: Path, tmp_path: Path) -> None:
    """As a hub's snapshot has them."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file, _ in model_files(folder):
        (snapshot / file.name).symlink_to(file)
    assert Fingerprints().of(snapshot) == Fingerprints().of(folder)
    noted = ModelFiles.of(snapshot)
    os.utime(folder / "config.json", ns=(1, 1))
    assert noted.changed
