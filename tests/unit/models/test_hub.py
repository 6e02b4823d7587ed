"""Models of the hub: huggingface_hub's own client, and a hub on loopback that fails in each way that matters."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx2
import huggingface_hub.constants
import pytest

from draftd.cli.findings import Severity
from draftd.engine.pair import load_models
from draftd.errors import ModelLoadError
from draftd.models import download, hub
from draftd.models.folder import ModelFolder
from draftd.settings import load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.fake_hub import Fault, Hub, hub_for_tests

NAME = "org/name"
WEIGHTS = random.Random(1).randbytes(300_000)
FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "model.safetensors": WEIGHTS}
MLX = "look for an MLX version of it, as mlx-community has"
LATER = "what was downloaded is kept"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name, seconds in (("_FIRST_PAUSE_SECONDS", 0.01), ("_LOOK_SECONDS", 0.02)):
        monkeypatch.setattr(download, name, seconds)
    with hub_for_tests(monkeypatch, tmp_path) as made:
        made.models[NAME] = dict(FILES)
        yield made


def refused(path: str = NAME, adapter: str | None = None) -> ModelLoadError:
    with pytest.raises(ModelLoadError) as caught:
        ModelFolder(path, adapter=None if adapter is None else Path(adapter))
    return caught.value


def folder_of(**more: object) -> Path:
    return ModelFolder(NAME, **more).files().folder  # type: ignore[arg-type]


def interrupted(fake: Hub) -> None:
    """A download that Ctrl-C stops when 100,000 bytes of the weights have come."""

    def interrupt(line: str) -> None:
        if any(file.stat().st_size == 100_000 for file in blobs().glob("*.incomplete")):
            raise KeyboardInterrupt

    fake.faults = [Fault(LARGE, cut_after=100_000, times=1), Fault(LARGE, 503)]
    with pytest.raises(KeyboardInterrupt):
        folder_of(progress=interrupt)
    fake.faults = []


def code(status: int, path: str, error: str = "", **headers: str) -> Callable[[Hub], None]:
    named = {"X-Error-Code": error, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda fake: fake.faults.append(Fault(path, status, named))


def has(**files: bytes) -> Callable[[Hub], None]:
    return lambda fake: fake.models.update({NAME: {name.replace("__", "."): body for name, body in files.items()}})


API, SMALL, LARGE = "/revision/main", "/resolve/.*/config.json", "^/files/"
REFUSALS: dict[str, tuple[Callable[[Hub], object], str, str]] = {
    "gated, no token": (
        code(401, SMALL, "GatedRepo"),
        "accepted its licence",
        f"`hf auth login`, and accept it at http.*/{NAME}",
    ),
    "gated, another's token": (code(403, SMALL, "GatedRepo"), "your account has not", f"accept it at http.*/{NAME}"),
    "no such model": (lambda fake: fake.models.clear(), "the hub shows no such model", "correct the name, or run `hf"),
    "private": (code(401, API, "RepoNotFound"), "the hub shows no such model", "`hf auth login`"),
    "a wrong token": (
        code(401, API, X_Error_Message="Invalid credentials in Authorization header"),
        "does not take this machine's token",
        "`hf auth login` again",
    ),
    "a token without the right": (code(403, API), "your token may not read it", "give the token that right"),
    "no such revision": (code(404, API, "RevisionNotFound"), "no revision main", f"hf download {NAME} --revision"),
    "too many requests": (code(429, API, Retry_After="600"), "too many requests", "try again in 10 min"),
    "a fault of the hub": (code(500, API), "a fault of its own (500)", LATER),
    "a fault in a file": (code(503, LARGE), "a fault of its own (503)", LATER),
    "no answer": (lambda fake: fake.faults.append(Fault(API, silent=True)), "no answer within 0.1 s", LATER),
    "no listing": (lambda fake: fake.faults.append(Fault("/tree/", silent=True)), "the hub does not answer", LATER),
    "no answer to a file": (lambda fake: fake.faults.append(Fault(LARGE, silent=True)), "no answer within", LATER),
    "cut off at once": (lambda fake: fake.faults.append(Fault(LARGE, cut_after=0)), "the connection was cut", LATER),
    "nobody there": (lambda fake: fake.close(), "Connection refused", "look at the network"),
    "a cache that is a file": (
        lambda fake: Path(huggingface_hub.constants.HF_HUB_CACHE).write_text(""),
        "cannot be used (Not a directory)",
        "set HF_HOME",
    ),
    "a shorter file": (
        lambda fake: fake.faults.append(Fault(LARGE, body=WEIGHTS[:-1])),
        "another file than the model.safetensors of 300,000 bytes",
        "try again",
    ),
    "a longer file": (
        lambda fake: fake.faults.append(Fault(LARGE, body=WEIGHTS + b"1")),
        "another file than the model.safetensors",
        "try again",
    ),
    "another file": (
        lambda fake: fake.faults.append(Fault(LARGE, body=WEIGHTS[::-1])),
        "another file than the model.safetensors",
        "downloaded from its beginning",
    ),
    "only GGUF": (has(README__md=b"", q4__gguf=b"1"), "only GGUF files, such as q4.gguf", MLX),
    "only pickles": (has(config__json=b"{}", pytorch_model__bin=b"1"), "pickles, such as pytorch_model.bin", MLX),
    "an adapter": (has(adapter_config__json=b"{}", adapters__safetensors=b"1"), "this is an adapter", "--adapter-path"),
    "nothing": (has(README__md=b""), "no model*.safetensors among its files", MLX),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_hub_download_failures_are_one_line_with_a_remedy(
    fake: Hub, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail, what, cure = REFUSALS[case]
    monkeypatch.setattr(download, "_SILENT_SECONDS", 0.0)
    if case == "no listing":
        monkeypatch.setattr(download, "_SMALL_SECONDS", 0.1)
    for module in (hub, download) if what.startswith("no answer") else ():
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)
    fail(fake)
    error = refused()
    assert error.what.startswith(f"model: {NAME}: ")
    assert what in error.what
    assert re.search(cure, error.cure)
    assert "\n" not in error.message
    assert not re.search(r"huggingface_hub|httpx|Error|force_download", error.message)


@pytest.mark.parametrize(
    ("given", "what", "cure"),
    [
        (
            "https://huggingface.co/mlx-community/Qwen3-8B-4bit/tree/main",
            "a web address",
            "give mlx-community/Qwen3-8B-4bit",
        ),
        ("hf.co/org/name", "a web address", "give org/name"),
        ("hf://org/name", "a web address", "give org/name"),
        ("https://example.com/model.zip", "a web address", "give a folder"),
        ("qwen3:8b", "a name of Ollama's", MLX),
        ("library/qwen3:8b", "a name of Ollama's", MLX),
        ("org/name@v2", "only revision main", "hf download org/name --revision v2"),
        ("Qwen3-8B-4bit", "no such folder", "OWNER/NAME on the hub"),
        ("a/b/c", "no such folder", "OWNER/NAME on the hub"),
    ],
)
def test_invalid_model_name_is_refused_without_asking_the_hub(fake: Hub, given: str, what: str, cure: str) -> None:
    for error in (refused(given), refused(str(Path(__file__).parent), adapter=given)):
        assert what in error.what
        assert cure in error.cure.replace("(--adapter-path), or its", "")
    assert not fake.asked


def test_model_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    for name, what, cure in (("a.gguf", "a GGUF file", MLX), ("model.safetensors", "a file, where", str(tmp_path))):
        (tmp_path / name).write_bytes(b"1")
        error = refused(str(tmp_path / name))
        assert what in error.what
        assert cure in error.cure


def test_hub_download_skips_files_that_are_never_read(fake: Hub) -> None:
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors"}}
    fake.models[NAME] = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": WEIGHTS,
        "additional_chat_templates/tool.jinja": b"{{ 1 }}",
        "model.fp32.safetensors": WEIGHTS + b"1",  # the index does not name it
        "pytorch_model.bin": WEIGHTS,
        "model.q4.gguf": WEIGHTS,
        "modeling.py": b"1",
        "onnx/config.json": b"{}",
    }
    folder = folder_of()
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    read = {
        "config.json",
        "model.safetensors.index.json",
        "model-1.safetensors",
        "additional_chat_templates/tool.jinja",
    }
    assert found == read == {one.name for one in fake.sent}
    assert hub.find_cached(NAME).whole


def test_hub_download_includes_head_files_and_serves_a_cached_model_without_them(fake: Hub) -> None:
    folder = folder_of()
    config = json.dumps({"mtp_file": "extra.safetensors"}).encode()
    heads = {
        name: WEIGHTS + name.encode() for name in ("mtp.safetensors", "mtp/weights.safetensors", "extra.safetensors")
    }
    others = {"other/weights.safetensors": WEIGHTS + b"1", "other.safetensors": WEIGHTS + b"2"}
    fake.models[NAME] = FILES | {"config.json": config} | heads | others
    folder = folder_of()
    assert heads.keys() | FILES.keys() == {
        str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()
    }
    (folder / "mtp.safetensors").unlink()
    cached = hub.find_cached(NAME)
    assert (cached.whole, cached.headless) == (True, True)
    assert folder_of(offline=True) == folder
    assert (folder_of() / "mtp.safetensors").read_bytes() == heads["mtp.safetensors"]


def test_interrupted_hub_connection_resumes_download_within_one_run(fake: Hub) -> None:
    fake.faults = [
        Fault(LARGE, cut_after=100_000),
        Fault(API, 503, times=1),
        Fault(LARGE, 429, {"Retry-After": "0"}, 1),
    ]
    fake.faults[0].times = 2
    assert (folder_of() / "model.safetensors").read_bytes() == WEIGHTS
    assert fake.parts("model.safetensors") == [(0, 100_000), (100_000, 200_000), (200_000, 300_000)]


def test_hub_download_survives_failed_file_listing_and_closed_http_client(
    fake: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter((httpx2.ConnectError("Bad file descriptor"), httpx2.RemoteProtocolError("cut")))

    def list_files(*arguments: object, **options: object) -> object:
        for failure in failures:
            raise failure
        return model_info(*arguments, **options)

    model_info = huggingface_hub.HfApi.model_info
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", list_files)
    fake.bytes_per_second = 2e6
    # As huggingface_hub does when another thread cannot connect.
    assert folder_of(progress=lambda line: huggingface_hub.close_session()).name == fake.commit(NAME)
    assert fake.parts("model.safetensors") == [(0, len(WEIGHTS))]


def test_interrupted_hub_download_is_resumed_by_the_next_start(fake: Hub) -> None:
    interrupted(fake)
    assert hub.find_cached(NAME).bytes == 100_004  # and two small files
    lines = list[str]()
    assert (folder_of(progress=lines.append) / "model.safetensors").read_bytes() == WEIGHTS
    assert fake.parts("model.safetensors") == [(0, 100_000), (100_000, 300_000)]
    assert not list(blobs().glob("*.incomplete"))
    assert lines[0].startswith(f"downloading {NAME}: 100 of 300 KB")


def blobs() -> Path:
    return hub.storage_folder(NAME) / "blobs"


def test_model_changed_on_hub_after_interruption_is_downloaded_from_its_beginning(fake: Hub) -> None:
    interrupted(fake)
    fake.models[NAME]["model.safetensors"] = WEIGHTS[::-1]
    assert (folder_of() / "model.safetensors").read_bytes() == WEIGHTS[::-1]
    assert fake.parts("model.safetensors")[-1] == (0, len(WEIGHTS))


def test_hub_without_range_support_sends_interrupted_file_again(fake: Hub) -> None:
    fake.faults, fake.ranges = [Fault(LARGE, cut_after=100_000, times=1)], False
    assert (folder_of() / "model.safetensors").read_bytes() == WEIGHTS
    assert fake.parts("model.safetensors") == [(0, 100_000), (0, len(WEIGHTS))]


def test_concurrent_downloads_of_one_model_fetch_its_weights_once(fake: Hub) -> None:
    fake.bytes_per_second = 2e6
    lines, found = list[str](), list[Path]()
    threads = [threading.Thread(target=lambda: found.append(folder_of(progress=lines.append))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 2
    assert sum(end - begin for begin, end in fake.parts("model.safetensors")) == len(WEIGHTS)


def test_hub_download_progress_reports_bytes_rate_and_time_left(fake: Hub, caplog: pytest.LogCaptureFixture) -> None:
    fake.faults = [Fault(LARGE, cut_after=100_000, times=1), Fault(LARGE, 503)]
    lines = list[str]()

    def hear(line: str) -> None:
        lines.append(line)
        if ": 100 of" in line:  # the rest may come
            fake.faults = []

    with caplog.at_level(logging.INFO, "draftd"):
        folder_of(progress=hear)
    told = [re.fullmatch(rf"downloading {NAME}: (\d+) of 300 KB, \d\.\d MB/s, \d+ s left", line) for line in lines]
    assert "100" in {one[1] for one in told if one}
    assert re.fullmatch(rf"downloaded {NAME}: 300 KB in \d+ s", caplog.messages[-1])


def test_hub_download_is_refused_before_start_without_enough_disk_space(
    fake: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=299_000))
    error = refused()
    assert "300 KB are still to be downloaded, and 299 KB are free on the disk of" in error.what
    assert "HF_HOME" in error.cure
    assert not fake.parts("model.safetensors")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_hub_download_filling_the_disk_reports_needed_and_free_bytes(fake: Hub) -> None:
    import hashlib

    blobs().mkdir(parents=True)
    (blobs() / f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete").symlink_to("/dev/full")
    assert re.search(r"300 KB are still to be downloaded, and .* are free", refused().what)


def test_cached_hub_model_is_served_offline_or_when_hub_fails(
    fake: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, asked = folder_of(), len(fake.asked)
    assert folder_of(offline=True) == folder
    assert len(fake.asked) == asked
    fake.faults.append(Fault(API, 500))
    assert folder_of() == folder
    assert caplog.messages == [f"{NAME}: the hub has a fault of its own (500); the model's copy in the cache is served"]
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = refused()
    assert "HF_HUB_OFFLINE is set, and 0 of 300 KB are in the hub's cache" in error.what
    assert "unset HF_HUB_OFFLINE" in error.cure
    assert "it is not in the hub's cache" in refused("org/other").what


def test_missing_draft_or_adapter_is_reported_before_target_is_downloaded(fake: Hub) -> None:
    with pytest.raises(ModelLoadError, match="draft model: org/typo: no such folder"):
        load_models(NAME, "org/typo", progress=lambda line: None)
    assert "adapter org/typo: no such folder" in refused(NAME, adapter="org/typo").what
    assert not fake.sent


def test_damaged_cached_hub_model_is_refused_with_force_download_command(fake: Hub, nano_pair: NanoPair) -> None:
    fake.add(NAME, nano_pair.draft)
    os.truncate((folder_of() / "model.safetensors").resolve(), 1000)
    with pytest.raises(ModelLoadError, match=f"is cut off .*: run `hf download {NAME} --force-download`"):
        ModelFolder(NAME).check()


def test_hub_token_is_sent_to_the_hub_but_not_to_its_file_storage(fake: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder_of()
    tokens = {one.name: one.token for one in fake.sent}
    assert tokens == {
        "config.json": "Bearer hf_secret",
        "tokenizer.json": "Bearer hf_secret",
        "model.safetensors": None,
    }


def test_hub_adapter_is_downloaded_and_peft_adapter_is_refused(fake: Hub, nano_pair: NanoPair) -> None:
    fake.models["org/lora"] = {"adapter_config.json": b"{}", "adapters.safetensors": b"1", "README.md": b""}
    folder = ModelFolder(nano_pair.draft, adapter=Path("org/lora"))
    assert folder.name.endswith("+org/lora")
    adapter = folder.files().adapter
    assert adapter is not None
    assert sorted(file.name for file in adapter.iterdir()) == ["adapter_config.json", "adapters.safetensors"]
    fake.models["org/peft"] = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"1"}
    error = refused(nano_pair.draft, adapter="org/peft")
    assert (
        "adapter org/peft: no adapters.safetensors among its files; adapter_model.safetensors is PEFT's" in error.what
    )


def test_doctor_reports_cached_share_of_hub_model_without_network_requests(fake: Hub, nano_pair: NanoPair) -> None:
    def looked() -> tuple[Severity, str]:
        finding = check_models(load_settings(None, {"model.path": NAME}, {}))[0]
        return finding.verdict, finding.text

    fake.add(NAME, nano_pair.draft)
    assert looked() == (
        Severity.NOTE,
        f"{NAME}: no such folder, so a hub id: it is not in the hub's cache, and is downloaded when it is served",
    )
    interrupted(fake)
    asked = len(fake.asked)
    some = f"{NAME}: 0 of 2 MB are in the hub's cache; the rest is downloaded when it is served"
    assert looked() == (Severity.NOTE, some)
    assert len(fake.asked) == asked
    folder_of()
    asked = len(fake.asked)
    assert looked() == (Severity.OK, f"{NAME} (llama, 3 MB, in the hub's cache)")
    assert len(fake.asked) == asked
