"""The doctor's findings and the remedies it names."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from draftd.cli.commands import doctor
from draftd.cli.commands.doctor import (
    check_blas,
    check_collectors,
    check_flag,
    check_log,
    check_port,
    check_state,
    check_webhook,
    examine,
)
from draftd.cli.commands.doctor_models import check_worth
from draftd.cli.findings import Finding, Severity
from draftd.cli.options import ServeOptions
from draftd.core import DRAFT_MODEL
from draftd.engine.assembly import cache_limit
from draftd.engine.cache import batched
from draftd.engine.depth.saved import DrafterWorth
from draftd.engine.pair import load_models
from draftd.fallback.store import StateFolder
from draftd.fronts.grpc import reply
from draftd.models import blas
from draftd.models.advice import small_model, without_draft
from draftd.protocol import plain
from draftd.service.request import ServedModel
from draftd.settings import Settings, load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.unit.engine.drafts import change_tokenizer, mamba
from tests.unit.models.checkpoints import rewrite


def settings(**overrides: object) -> Settings:
    return load_settings(None, {name.replace("__", "."): value for name, value in overrides.items()}, {})


@pytest.fixture
def model(nano_pair: NanoPair, tmp_path: Path) -> Callable[[str], Path]:
    """Returns a function that copies the embedded draft, which serves as a target too."""
    return lambda name: Path(shutil.copytree(nano_pair.draft, tmp_path / name))


def verdicts(findings: list[Finding]) -> dict[str, Severity]:
    return {finding.subject: finding.verdict for finding in findings}


def models_alone(findings: list[Finding]) -> dict[str, Severity]:
    """Returns the verdicts on the model folders and their pairs."""
    names = ("model", "draft model", "pair", "light draft", "light pair")
    return {subject: verdict for subject, verdict in verdicts(findings).items() if subject in names}


def said(findings: list[Finding], subject: str) -> list[str]:
    return [finding.text for finding in findings if finding.subject == subject]


def figures(findings: list[Finding]) -> dict[str, Any]:
    (told,) = (finding.figures for finding in findings if finding.figures is not None)
    return told


def pair(target: Path, draft: Path, **overrides: object) -> Settings:
    return settings(model__path=str(target), model__draft_path=str(draft), **overrides)


def test_doctor_reports_unwritable_log_file_as_bad(tmp_path: Path) -> None:
    assert check_log(Settings()) == []
    verdict = {name: check_log(settings(log__file=tmp_path / name))[0].verdict for name in ("a.log", "none/a.log", "")}
    assert verdict == {"a.log": Severity.OK, "none/a.log": Severity.BAD, "": Severity.BAD}


def test_doctor_reports_draft_size_as_percentage_of_target_bytes(model: Callable[[str], Path]) -> None:
    (found,) = said(check_models(pair(model("a"), model("b"))), "draft size")
    assert "100% of the target's bytes" in found


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "qwen3", "hidden_size": 4096}, "Qwen3-0.6B"),
        ({"model_type": "qwen3", "hidden_size": 1024}, ""),  # it is that model
        ({"model_type": "llama", "hidden_size": 4096, "vocab_size": 128_256}, "Llama-3.2-1B-Instruct"),
        ({"model_type": "llama", "hidden_size": 2048, "vocab_size": 49_152}, "SmolLM2-135M-Instruct"),
        ({"model_type": "llama", "hidden_size": 4096, "vocab_size": 32_000}, ""),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 2560}}, "gemma-3-270m-it"),
    ],
)
def test_small_model_advice_names_a_smaller_draft_model_of_the_same_family(config: dict[str, Any], named: str) -> None:
    assert small_model(config) == named


def test_missing_draft_advice_is_the_same_in_doctor_and_in_the_model_loading_log(
    model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = str(model("a"))
    found = check_models(settings(model__path=path))
    (told,) = (finding for finding in found if "draft_model" in finding.text or finding.subject == "draft model")
    assert told.mend.startswith("a small model of its family may draft for it, for faster answers (--draft-model): see")
    load_models(path, progress=lambda line: None)
    assert caplog.messages == [f"no draft model: {told.mend}"]
    assert without_draft({"model_type": "qwen3", "hidden_size": 4096}).startswith("Qwen3-0.6B may draft")
    assert without_draft({"model_type": "qwen3", "hidden_size": 1024}).startswith("none smaller of its family is known")


def test_doctor_reports_draft_model_speedup_measured_by_serve() -> None:
    dear, cheap = (DrafterWorth(DRAFT_MODEL, 4.86, 0.98, 1, speedup) for speedup in (0.41, 1.8))
    assert check_worth(None) == []
    (finding,) = check_worth(dear)
    assert (finding.verdict, finding.text) == (Severity.NOTE, dear.warning)
    assert "`draftd docs choosing-a-draft`" in finding.mend
    (finding,) = check_worth(cheap)
    assert (finding.verdict, finding.text) == (Severity.OK, "measured here: up to 1.80 times the speed without drafts")


def test_doctor_approves_target_and_draft_that_share_a_tokenizer(model: Callable[[str], Path]) -> None:
    found = check_models(pair(model("a"), model("b")))
    assert models_alone(found) == {"model": Severity.OK, "draft model": Severity.OK, "pair": Severity.OK}
    assert "llama" in found[0].text


def test_doctor_reports_prefix_cache_memory_in_bytes_and_tokens(model: Callable[[str], Path]) -> None:
    target, draft = model("a"), model("b")
    found = check_models(pair(target, draft, engine__prefix_cache_bytes=8_000_000))
    each = figures(found)["position_bytes"]
    assert said(found, "prefix cache") == [f"8 MB: room for {8_000_000 // each:,} tokens"]
    assert said(found, "memory")[0].endswith(" for KV cache and 8 MB for the prefix cache")
    (unset,) = said(check_models(pair(target, draft)), "prefix cache")
    assert unset.endswith(" tokens")
    none = check_models(pair(target, draft, engine__prefix_cache_bytes=0))
    assert said(none, "prefix cache") == ["off: engine.prefix_cache_bytes is 0"]


def test_doctor_and_model_loading_give_the_same_reason_for_a_draft_tokenizer_mismatch(
    model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = model("a"), model("b")
    change_tokenizer(draft)  # as many tokens as before
    found = check_models(pair(target, draft))
    assert models_alone(found) == {"model": Severity.OK, "draft model": Severity.OK, "pair": Severity.BAD}
    info = load_models(str(target), str(draft), progress=lambda line: None).info
    assert (why := info.why_no(DRAFT_MODEL))
    (told,) = (finding for finding in found if finding.subject == "pair")
    assert told.text == f"{why}; it is served without this draft"
    assert caplog.messages == [f"draft model: {draft}: {why}: {told.mend}"]
    assert said(found, "refused") == [f"requests for the drafter draft_model: {why}"]


def test_doctor_leaves_batching_of_recurrent_model_undecided_until_the_load_time_trial(
    model: Callable[[str], Path],
) -> None:
    found = check_models(pair(mamba(model("a")), model("b")))
    assert said(found, "layers") == ["mamba: 1 × recurrent state"]
    assert said(found, "batching") == ["requests share forward passes; a trial when the weights are loaded decides it"]
    assert said(found, "prefix reuse") == ["only of whole earlier texts"]
    assert (figures(found)["batched"], figures(found)["speculation_available"]) == (None, True)


def test_doctor_gives_the_same_reason_as_model_loading_for_missing_batching(
    model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "_factory", lambda made: None)
    target, draft = mamba(model("a")), model("b")
    found = check_models(pair(target, draft))
    info = load_models(str(target), str(draft), progress=lambda line: None).info
    assert said(found, "batching") == [f"none, each request has forward passes of its own: {info.batched_reason}"]
    assert info.drafters[0] == DRAFT_MODEL


def test_doctor_reports_kv_cache_too_small_for_one_request_as_bad(model: Callable[[str], Path]) -> None:
    findings = check_models(pair(model("a"), model("b"), engine__kv_cache_bytes=1))
    (cache,) = [finding for finding in findings if finding.subject == "KV cache"]
    assert cache.verdict is Severity.BAD
    assert "hold no request: one of 2 tokens needs " in cache.text


def test_doctor_figures_equal_the_get_model_reply(model: Callable[[str], Path]) -> None:
    made = pair(model("a"), model("b"), engine__kv_cache_bytes=2_000_000)
    found = check_models(made)
    models = load_models(str(made.model.path), str(made.model.draft_path), progress=lambda line: None)
    _, limit, info = cache_limit(models, made.engine.limits())
    engine = made.engine
    served = ServedModel(
        info, engine.default_max_tokens, engine.max_draft_tokens, engine.depth_mode, True, generic_tools=True
    )
    assert figures(found) == plain(reply.model(served)) | {"batched": None}
    documents = [finding.document() for finding in found]
    assert json.dumps(documents)
    assert {tuple(document) for document in documents} == {("subject", "found", "mend", "verdict", "figures")}
    assert info.batched
    assert 0 < info.largest_context < info.context_length
    (refused,) = said(found, "refused")
    assert refused.startswith(f"texts of more than {info.largest_context:,} tokens: {info.context_length:,} need ")
    assert refused.endswith(f" of KV cache, and {limit // 1_000_000} MB are there")


def test_doctor_reports_model_whose_forward_pass_fails_as_bad(
    model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_kernel(*_: object, **__: object) -> None:
        raise RuntimeError("[metal_kernel] No Metal back-end.")

    monkeypatch.setattr(llama.Model, "__call__", no_kernel)
    (found, *_) = check_models(settings(model__path=str(model("a"))))
    assert found.verdict is Severity.BAD
    assert found.text.endswith("mlx-lm cannot run 'llama' here: RuntimeError: [metal_kernel] No Metal back-end")


def test_doctor_checks_light_draft_model_and_its_tokenizer_match(model: Callable[[str], Path]) -> None:
    target, draft, light = model("a"), model("b"), model("c")
    made = pair(target, draft, model__light_draft_path=str(light))
    assert verdicts(check_models(made))["light pair"] is Severity.OK
    change_tokenizer(light)
    assert verdicts(check_models(made))["light pair"] is Severity.BAD
    (light / "config.json").unlink()
    found = verdicts(check_models(made))
    assert (found["light draft"], found["pair"]) == (Severity.BAD, Severity.OK)
    assert "light pair" not in found


def test_doctor_reports_missing_weights_of_both_target_and_draft(model: Callable[[str], Path]) -> None:
    target, draft = model("a"), model("b")
    for folder in (target, draft):
        (folder / "model.safetensors").unlink()
    assert models_alone(check_models(pair(target, draft))) == {"model": Severity.BAD, "draft model": Severity.BAD}


def told_alike(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the doctor's notes on the tokenizer, after it checked that `serve` logs the same."""
    caplog.clear()
    found = check_models(settings(model__path=str(folder)))
    load_models(str(folder), progress=lambda line: None)
    notes = [one for one in found if one.subject == "tokenizer"]
    logged = [record.message for record in caplog.records if record.name.startswith("draftd.")]
    assert logged == [f"model: {folder}: {one.text}: {one.mend}" for one in notes]
    assert {one.verdict for one in notes} <= {Severity.NOTE}
    return [f"{one.text}: {one.mend}" for one in notes]


@pytest.mark.parametrize("end", [-1, [-1], 99_999, [1, 2**40]])
def test_end_token_without_embedding_is_ignored_and_reported_by_doctor_and_loading(
    model: Callable[[str], Path], caplog: pytest.LogCaptureFixture, end: object
) -> None:
    folder = model("a [4-bit]")
    rewrite(folder / "config.json", eos_token_id=end)
    (note,) = told_alike(folder, caplog)
    assert note.startswith("the end tokens that its configuration names have no embedding and are not used: [")
    assert "correct eos_token_id in config.json and generation_config.json" in note
    rewrite(folder / "tokenizer_config.json", eos_token=None)
    notes = told_alike(folder, caplog)
    assert len(notes) == 1 + (end != [1, 2**40])
    assert all("no token ends an answer: each goes on to a stop string" in one for one in notes[1:])
    assert all("set eos_token_id in generation_config.json" in one for one in notes[1:])


def test_added_token_without_embedding_is_reported_by_doctor_and_loading(
    model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = model("a")
    tokenizer, added = json.loads((folder / "tokenizer.json").read_text()), "<|im_start|>"
    token = {"id": 4096, "content": added, "special": True, "normalized": False}
    tokenizer["added_tokens"].append(token | dict.fromkeys(("single_word", "lstrip", "rstrip"), False))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (note,) = told_alike(folder, caplog)
    assert note.startswith(
        "tokens without an embedding: 1, such as <|im_start|> (4096); texts with one are refused: use"
    )
    rewrite(folder / "tokenizer_config.json", chat_template=added + "{{ messages[0].content }}")
    (note,) = told_alike(folder, caplog)
    assert "texts with one are refused, and the chat template writes one in each chat: use the tokenizer" in note


def test_chat_template_json_file_is_used_when_tokenizer_config_has_no_template(model: Callable[[str], Path]) -> None:
    folder = model("a")
    file = folder / "tokenizer_config.json"
    template = json.loads(file.read_text())["chat_template"]
    rewrite(file, chat_template=None)
    (told,) = (one for one in check_models(settings(model__path=str(folder))) if one.text.startswith("chats: "))
    assert told.text == "chats: this model has no chat template"
    assert "chat_template.jinja" in told.mend
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    expected = load_models(str(model("b")), progress=lambda line: None).tokenizer
    for more in ("", "x"):
        if more:  # other templates beside it
            (folder / "chat_template.json").unlink()
            rewrite(file, chat_template=template)
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
        found = check_models(settings(model__path=str(folder)))
        assert said(found, "template")[0].startswith("chat, ")
        own = load_models(str(folder), progress=lambda line: None).tokenizer
        chat = [{"role": "user", "content": "hi"}]
        assert own.render_chat(chat) == expected.render_chat(chat)


def test_doctor_reports_taken_server_port_as_bad_and_free_port_as_ok() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_port(settings(server__port=port))
        assert finding.verdict is Severity.BAD
        assert "server.port (--port): 0 picks a free one" in finding.mend
    assert check_port(settings(server__port=port)).verdict is Severity.OK
    assert check_port(settings(server__port=0)).verdict is Severity.OK


def test_doctor_reports_weights_larger_than_memory_as_bad_without_reading_them(model: Callable[[str], Path]) -> None:
    folder = model("a")
    config = json.loads((folder / "config.json").read_text())
    inner = 1 << 30
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": inner, "num_hidden_layers": 1}))
    made = llama.Model(llama.ModelArgs.from_dict(config | {"intermediate_size": inner, "num_hidden_layers": 1}))
    header, end = dict[str, Any](), 0
    for name, array in tree_flatten(made.parameters()):
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [end, end := end + 4 * array.size]}
    written = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as sparse:  # terabytes that take no disk
        sparse.write(len(written).to_bytes(8, "little") + written)
        sparse.truncate(8 + len(written) + end)
    found = check_models(settings(model__path=str(folder)))
    assert models_alone(found)["model"] is Severity.OK
    assert figures(found)["weight_bytes"] == end > 10**12
    assert verdicts(found)["memory"] is Severity.BAD
    assert verdicts(check_models(settings()))["memory"] is Severity.OK


def test_doctor_reports_unreachable_otel_collector_as_bad_and_reachable_one_as_ok() -> None:
    assert verdicts(check_collectors({})) == {"collector": Severity.NOTE}
    with socket.create_server(("127.0.0.1", 0)) as alive:
        endpoint = f"http://127.0.0.1:{alive.getsockname()[1]}"
        (finding,) = check_collectors({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
        assert finding.verdict is Severity.OK
    (finding,) = check_collectors({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})
    assert finding.verdict is Severity.BAD
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in finding.mend


def test_doctor_reports_malformed_otel_endpoint_url_as_bad() -> None:
    (finding,) = check_collectors({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"})
    assert finding.verdict is Severity.BAD


def test_doctor_reports_unreachable_flagd_as_bad() -> None:
    assert check_flag(settings(flag__provider="flagd", flag__port=1), {}).verdict is Severity.BAD


def test_doctor_accepts_flag_file_in_a_folder_yet_to_be_created_but_not_a_folder(tmp_path: Path) -> None:
    finding = check_flag(settings(flag__file=tmp_path / "a" / "b" / "flags.json"), {})
    assert finding.verdict is Severity.OK
    assert "all daemons with this file follow it" in finding.text
    assert check_flag(settings(flag__file=tmp_path), {}).verdict is Severity.BAD


def test_doctor_names_the_flag_file_its_fault_and_an_unused_legacy_flag_file(tmp_path: Path) -> None:
    environ, mine = {"XDG_STATE_HOME": str(tmp_path)}, settings(server__port=50551)
    own, old = tmp_path / "draftd" / "50551" / "flags.json", tmp_path / "draftd" / "flags.json"
    assert check_flag(mine, environ).text == f"{own} (will be written)"
    own.parent.mkdir(parents=True)
    old.touch()
    assert f"with the flags of {old}" in check_flag(mine, environ).text
    own.touch()
    finding = check_flag(mine, environ)
    assert finding.verdict is Severity.BAD
    assert f"{own}: not valid JSON" in finding.text
    own.write_text('{"flags": {}}')
    finding = check_flag(mine, environ)
    assert finding.verdict is Severity.NOTE
    assert f"remove {old}" in finding.mend
    assert "temporary" in check_flag(settings(server__port=0), environ).text


def test_doctor_reports_reference_blas_as_bad_and_recommends_libopenblas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "load_blas", lambda: "reference")
    finding = check_blas()
    assert finding.verdict is Severity.BAD
    assert "libopenblas" in finding.mend


def test_doctor_accepts_reference_blas_when_mlx_computes_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "load_blas", lambda: "reference")
    monkeypatch.setattr(blas, "compute_backend", lambda: "cuda")
    finding = check_blas()
    assert finding.verdict is Severity.OK
    assert finding.subject == "CUDA"


def test_doctor_reports_invalid_setting_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTD_SERVER__PORT", "x")
    assert verdicts(examine(ServeOptions().settings))["settings"] is Severity.BAD
    assert verdicts(examine(lambda: settings(model__drafter="nosuch")))["settings"] is Severity.BAD


def webhook(**overrides: object) -> Settings:
    return settings(webhook__token="x" * 16, **{f"webhook__{name}": value for name, value in overrides.items()})


def test_doctor_reports_disabled_webhook_as_note() -> None:
    assert check_webhook(settings()).verdict is Severity.NOTE


def test_doctor_reports_taken_webhook_port_as_bad_and_free_port_as_ok() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_webhook(webhook(port=port))
        assert finding.verdict is Severity.BAD
        assert "webhook.port" in finding.mend
    assert check_webhook(webhook(port=port)).verdict is Severity.OK
    assert check_webhook(webhook(port=0)).verdict is Severity.OK


def test_doctor_accepts_state_folder_that_can_be_created_and_rejects_one_that_cannot(tmp_path: Path) -> None:
    named = settings(fallback__state_dir=tmp_path / "a" / "b")
    assert check_state(named, {}).verdict is Severity.OK
    assert "will be created" in check_state(named, {}).text
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "b"):
        finding = check_state(settings(fallback__state_dir=path), {})
        assert finding.verdict is Severity.BAD
        assert "fallback.state_dir" in finding.mend


def test_doctor_reports_unwritable_state_folder_as_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)  # type: ignore[attr-defined]  # root may write anywhere
    assert check_state(settings(fallback__state_dir=tmp_path), {}).verdict is Severity.BAD


def test_doctor_reports_unusable_default_state_folder_as_note(tmp_path: Path) -> None:
    (tmp_path / "draftd").touch()
    assert check_state(settings(), {"XDG_STATE_HOME": str(tmp_path)}).verdict is Severity.NOTE
    assert check_state(settings(), {"XDG_STATE_HOME": str(tmp_path / "other")}).verdict is Severity.OK
    assert check_state(settings(server__port=0), {}).verdict is Severity.NOTE


def test_doctor_reports_state_folder_locked_by_a_running_daemon_as_note(tmp_path: Path) -> None:
    used = StateFolder(tmp_path)
    assert check_state(settings(fallback__state_dir=tmp_path), {}).verdict is Severity.NOTE
    used.close()
    assert check_state(settings(fallback__state_dir=tmp_path), {}).verdict is Severity.OK


def test_doctor_findings_include_webhook_and_state_folder() -> None:
    assert {"webhook", "state"} <= {finding.subject for finding in examine(ServeOptions().settings)}


def test_doctor_reports_unreachable_remote_verifier_as_bad() -> None:
    remote = {"remote__enabled": True, "remote__target": "127.0.0.1:1", "remote__connect_seconds": 10}
    findings = [finding for finding in examine(lambda: settings(**remote)) if finding.subject == "remote"]
    assert [(one.verdict, one.text) for one in findings] == [(Severity.BAD, "127.0.0.1:1: nothing listens there")]
    assert findings[0].mend == "start the verifier, or correct remote.target"


def test_doctor_warns_when_tokenizer_class_splits_text_differently_than_tokenizer_json(
    model: Callable[[str], Path],
) -> None:
    folder = model("a")
    assert said(check_models(pair(folder, model("b"))), "tokenizer") == []
    rewrite(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    (told,) = said(check_models(pair(folder, model("c"))), "tokenizer")
    assert "GPT2Tokenizer divides" in told
