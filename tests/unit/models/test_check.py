"""Each damage that happens to a model's folder is told in one line, which names the file and what to do; by `doctor`
and by `serve` in the same words."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftd.cli.findings import Severity
from draftd.core import DRAFT_MODEL
from draftd.engine.drafters.sources import mismatch
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import LoadedModels, load_models
from draftd.errors import ModelLoadError, NotServing, in_one_line
from draftd.models.folder import ModelFolder
from draftd.settings import load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.unit.cli.conftest import in_process, logging_as_it_was
from tests.unit.engine.drafts import change_weights
from tests.wait_until import loaded

__all__ = ["logging_as_it_was"]

WEIGHTS, INDEX, TOKENIZER, CONFIG = (
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "config.json",
)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 21389528\n"
SHARDS = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def rewritten(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def cut(length: int) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / WEIGHTS, length)


def configured(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text()) | values
        (folder / CONFIG).write_text(json.dumps(config))

    return change


def lengthened(folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"\n")


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(os.getpid))


def of_type(dtype: str) -> Callable[[Path], object]:
    """Another one in the header; the bytes stay."""

    def change(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(content.replace(b'"BF16"', f'"{dtype}"'.encode().ljust(6), 1))

    return change


def of_whole_numbers(folder: Path) -> None:
    """As FP8 comes without what mlx-lm needs to make numbers of it."""
    import mlx.core as mx

    name = "model.layers.0.mlp.up_proj.weight"
    change_weights(folder, lambda one, array: array.astype(mx.uint8) if one == name else array)


def without_a_shard(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / SHARDS[0])
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))


def with_the_index_alone(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))


def copied_beside(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder / "model.fp16.safetensors")


def with_weights(*names: str, **config: object) -> Callable[[Path], object]:
    """Only these, as a head has them that drafts for another model."""

    def change(folder: Path) -> None:
        import mlx.core as mx

        mx.save_safetensors(str(folder / WEIGHTS), {name: mx.zeros((2, 4)) for name in names})
        configured(**config)(folder)

    return change


def an_adapter_alone(*names: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for file in folder.iterdir():
            file.unlink()
        for name in ("adapter_config.json", *names):
            (folder / name).write_text("{}")

    return change


def of_tokenizer(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def lacking(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        del config[name]
        (folder / CONFIG).write_text(json.dumps(config))

    return change


LAYER = "layers.0.self_attn.q_proj.weight"
DAMAGE = {
    "pointer": (rewritten(WEIGHTS, POINTER), "model.safetensors is a Git LFS pointer", "git lfs pull"),
    "tokenizer's pointer": (rewritten(TOKENIZER, POINTER), "tokenizer.json is a Git LFS pointer", "git lfs pull"),
    "no configuration": (without(CONFIG), "no config.json in this folder", "mlx_lm.convert"),
    "broken configuration": (rewritten(CONFIG, "{"), "config.json is not JSON (Expecting", "fetch"),
    "no kind": (rewritten(CONFIG, "[]"), "config.json names no model_type", "fetch"),
    "code of its own": (configured(model_file="x.py"), "config.json needs code from the folder (x.py)", "architecture"),
    "unknown architecture": (configured(model_type="zzz"), "has no architecture 'zzz'", "newer mlx-lm"),
    "no architecture": (configured(model_type="cache"), "has no architecture 'cache'", "newer mlx-lm"),
    "a missing package": (configured(model_type="olmo"), "cannot run 'olmo' here: To run olmo install", "newer mlx-lm"),
    "no weights": (without(WEIGHTS), "no model*.safetensors in this folder", "mlx_lm.convert"),
    "no shard": (without_a_shard, f"missing: {SHARDS[1]}, of 2 files that {INDEX} lists", "fetch"),
    "no shards": (with_the_index_alone, f"missing: {SHARDS[0]} and 1 more, of 2 files that {INDEX} lists", "fetch"),
    "cut off": (cut(400_000), "model.safetensors is cut off: it has 400,000 of 1,427,360 bytes", "fetch"),
    "cut off in the header": (cut(100), "model.safetensors is cut off after 100 bytes", "fetch"),
    "empty": (cut(0), "model.safetensors is cut off after 0 bytes", "fetch"),
    "a page": (rewritten(WEIGHTS, "<!DOCTYPE html><html>"), "model.safetensors is no safetensors file", "fetch"),
    "no header": (rewritten(WEIGHTS, "\2" + "\0" * 7 + "[]"), "its header cannot be read", "fetch"),
    "too long": (lengthened, "model.safetensors is too long: it has 1,427,361 bytes", "fetch"),
    "pickle": (pickled, "in this folder; pytorch_model.bin is of a kind that draftd never reads", "mlx_lm.convert"),
    "arrays twice": (copied_beside, "is in model.fp16.safetensors and in model.safetensors", "take the other file out"),
    "another type": (of_type("F32"), "is damaged: ", "fetch"),
    "whole numbers": (of_whole_numbers, "mlp.up_proj.weight is uint8, but its layer needs floating", "fetch"),
    "broken generation": (rewritten("generation_config.json", "{"), "generation_config.json is not JSON", "fetch"),
    "broken template": (
        rewritten("chat_template.jinja", "{{ messages }"),
        "its chat template cannot be used: unexpected '}' (line 1)",
        "fetch",
    ),
    "no tokenizer": (without(TOKENIZER), "no tokenizer (tokenizer.json or the like)", "fetch"),
    "broken tokenizer": (rewritten(TOKENIZER, '{"model": {}}'), "its tokenizer cannot be loaded", "fetch"),
    "another model's weights": (
        configured(hidden_size=64),
        "has the shape (4096, 128), and config.json asks for",
        "fetch",
    ),
    "too few weights": (configured(num_hidden_layers=2), "its weights lack 9 arrays that config.json asks", "fetch"),
    "another form of end": (configured(eos_token_id="1"), 'eos_token_id is "1", and must be an id or', "correct it"),
    "an end that is none": (rewritten("generation_config.json", '{"eos_token_id": [null]}'), "is [null]", "correct it"),
    "another generation": (rewritten("generation_config.json", "[]"), "generation_config.json is no JSON obj", "fetch"),
    "a byte order mark": (rewritten(CONFIG, "\ufeff{}"), "config.json is not JSON (Unexpected UTF-8 BOM", "fetch"),
    "a key too few": (lacking("hidden_size"), "config.json lacks hidden_size, which its model_type needs", "fetch"),
    "a part too few": (configured(model_type="gemma3"), "config.json lacks text_config", "fetch"),
    "an empty part": (configured(model_type="gemma3", text_config={}), "text_config in config.json lacks", "fetch"),
    "a list for a part": (configured(text_config=[1], model_type="gemma3"), "is [1], and must be an object", "correct"),
    "null for a number": (configured(rms_norm_eps=None), "rms_norm_eps is null, and must be a number", "correct it"),
    "no layers": (
        configured(num_hidden_layers=0),
        "num_hidden_layers is 0, and must be a number above 0",
        "correct it",
    ),
    "text for a number": (configured(rope_theta="1e4"), 'rope_theta is "1e4", and must be a number', "correct it"),
    "transformers refuses": (configured(rope_scaling="x"), 'rope_scaling is "x", which transformers', "correct rope_s"),
    "a packing": (configured(quantization_config={"quant_method": "gptq"}), "are packed by 'gptq'", "mlx_lm.convert"),
    "no token": (of_tokenizer(eos_token=1), "tokenizer_config.json: eos_token must be the text of a token", "write it"),
    "tokenizer's list": (rewritten(TOKENIZER, "[]"), "tokenizer.json is no JSON object", "fetch"),
    "no default": (
        of_tokenizer(chat_template=[{"name": "rag", "template": "x"}]),
        "of its chat templates (rag) none is the default",
        "chat_template.jinja",
    ),
    "no template": (of_tokenizer(chat_template=3), "its chat template 'default' is no text", "chat_template.jinja"),
    "broken for tools": (
        of_tokenizer(chat_template=[{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{{ x }"}]),
        "its chat template cannot be used: unexpected '}' (line 1)",
        "correct it",
    ),
    "EAGLE": (with_weights("fc.weight", LAYER), "this is a draft head (EAGLE), which drafts from its", "whole model"),
    "EAGLE 3": (with_weights("midlayer.x", "d2t"), "this is a draft head (EAGLE)", "a head that was made for it"),
    "EAGLE by name": (configured(model_type="x", architectures=["EagleModel"]), "draft head (EAGLE)", "whole model"),
    "Medusa": (with_weights("0.0.linear.weight"), "draft head (Medusa)", "whole model"),
    "Medusa by key": (with_weights("a", model_type=None, medusa_num_heads=3), "draft head (Medusa)", "whole model"),
    "MTP": (with_weights("mtp.fc.weight", f"mtp.{LAYER}"), "draft head (MTP)", "whole model"),
    "an adapter": (an_adapter_alone("adapters.safetensors"), "this is an adapter", "`mlx_lm.fuse`"),
    "PEFT's adapter": (an_adapter_alone("adapter_model.safetensors"), "this is an adapter", "merge_and_unload"),
    "nothing": (shutil.rmtree, "no such folder", "give"),
}


@pytest.fixture
def folder(nano_pair: NanoPair, tmp_path: Path) -> Path:
    """A whole model."""
    return Path(shutil.copytree(nano_pair.draft, tmp_path / "model"))


def refused(path: Path | str) -> ModelLoadError:
    """As `serve` hears it."""
    with pytest.raises(ModelLoadError) as caught:
        load_models(str(path), progress=lambda line: None)
    return caught.value


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_model_folder_is_described_in_one_line_alike_by_serve_and_doctor(folder: Path, damage: str) -> None:
    change, what, cure = DAMAGE[damage]
    change(folder)
    message = refused(folder).message
    finding, memory = check_models(load_settings(None, {"model.path": str(folder)}, {}))
    assert memory.subject == "memory"
    assert finding.verdict is Severity.BAD
    assert message == f"model: {finding.text}: {finding.mend}"
    assert message.startswith(f"model: {folder}: ")
    assert what in finding.text
    assert cure in finding.mend
    assert "\n" not in message
    assert len(message) < len(str(folder)) * 2 + 400


@pytest.mark.parametrize(
    "change",
    [
        configured(model_type="mistral"),  # decoded as a Llama
        rewritten(INDEX, json.dumps({"weight_map": {"a": SHARDS[0]}})),  # of the files that it was converted from
        rewritten(INDEX, json.dumps({"weight_map": {"a": WEIGHTS, "b": "mtp.safetensors"}})),  # which mlx-lm leaves
        rewritten(INDEX, "{"),
        configured(text_config=None, vision_config=None, quantization=None),
        configured(quantization={}),
        lambda folder: (folder / "chat_template.jinja").mkdir(),
        rewritten("notes.json", POINTER),  # nothing is read from it
    ],
)
def test_model_check_accepts_unusual_folders_that_mlx_lm_loads(folder: Path, change: Callable[[Path], object]) -> None:
    change(folder)
    ModelFolder(str(folder)).open()


def test_model_folder_with_symbolic_links_is_read_through_them(nano_pair: NanoPair, tmp_path: Path) -> None:
    for file in Path(nano_pair.draft).iterdir():
        (tmp_path / file.name).symlink_to(file)
    ModelFolder(str(tmp_path)).open()
    (tmp_path / WEIGHTS).unlink()
    (tmp_path / WEIGHTS).symlink_to(tmp_path / "gone")
    assert "no model*.safetensors" in refused(tmp_path).message


def test_damaged_draft_model_is_reported_before_the_target_is_loaded(folder: Path, nano_pair: NanoPair) -> None:
    cut(100)(folder)
    told: list[str] = []
    with pytest.raises(ModelLoadError, match="draft model: .* is cut off"):
        load_models(nano_pair.target, str(folder), progress=told.append)
    assert not [line for line in told if line.startswith("loading")]


def test_serve_and_doctor_commands_exit_1_with_the_cause_and_cure_of_bad_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(WEIGHTS, POINTER)(folder)
    own = ("--port", "0", "--set", f"flag.file={tmp_path / 'flags.json'}")
    served = in_process(("serve", "--model", str(folder), *own), monkeypatch, capsys)
    assert served.code == 1
    what = f"{folder}: model.safetensors is a Git LFS pointer, not the file"
    cure = f"run `git lfs pull` in {folder}"
    said = [line.partition(" ")[2] for line in served.err.splitlines()]  # each begins with its time
    assert said[-1] == f"draftd: error: model: {what}: {cure}"
    assert all(line.startswith("draftd: ") for line in said)
    looked = in_process(("doctor", "--model", str(folder), *own), monkeypatch, capsys)
    assert looked.code == 1
    assert f"model        {what}\n" in looked.out
    assert f"to do: {cure}\n" in looked.out


def test_model_name_without_owner_is_refused_as_missing_folder() -> None:
    assert "no such folder" in refused("Qwen3-8B-4bit").message


def test_long_library_error_is_shortened_to_its_first_sentence_on_one_line() -> None:
    error = ValueError("Missing 2 parameters:\n  a.weight,\n  b.weight.\nPlease convert it.\n")
    assert in_one_line(error) == "ValueError: Missing 2 parameters: a.weight, b.weight"
    assert in_one_line(KeyError()) == "KeyError"
    assert len(in_one_line(RuntimeError("x " * 1000))) < 300


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_model_load_failure_logs_its_traceback_only_at_debug_level(
    level: int, caplog: pytest.LogCaptureFixture
) -> None:
    def load(_: object) -> LoadedModels:
        raise RuntimeError("out of memory\nat 0x1\nat 0x2")

    with caplog.at_level(level, "draftd"):
        worker = EngineWorker(load)
        worker.start()
        with pytest.raises(NotServing) as caught:
            loaded(worker, 30)
    assert caught.value.message.startswith("the models could not be loaded: RuntimeError: out of memory at 0x1")
    assert "\n" not in caught.value.message
    assert [bool(record.exc_info) for record in caplog.records] == [True] * (level == logging.DEBUG)


def test_draft_with_different_tokenizer_is_refused_with_count_of_differing_tokens(
    folder: Path, nano_pair: NanoPair
) -> None:
    from tests.unit.engine.drafts import change_tokenizer

    change_tokenizer(folder)
    info = load_models(nano_pair.draft, str(folder), progress=lambda line: None).info
    assert DRAFT_MODEL not in info.drafters
    assert info.why_no(DRAFT_MODEL) == "the draft's tokenizer is not the target's (2 of 4,096 tokens differ)"
    assert info.speculation(4) == f"up to 4 draft tokens at a time from prompt_lookup; {info.why_no(DRAFT_MODEL)}"


def test_tokenizer_mismatch_counts_no_more_tokens_than_both_vocabularies_have() -> None:
    ours, theirs = {"a": 0, "b": 1, "c": 2}, {"b": 0, "x": 1, "y": 2, "z": 3}
    pair = (SimpleNamespace(get_vocab=vocabulary.copy) for vocabulary in (ours, theirs))
    assert mismatch(*pair) == "the draft's tokenizer is not the target's (6 of 6 tokens differ)"
