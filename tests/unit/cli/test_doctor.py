"""What the doctor finds, and what it says to do about it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from draftd.cli.commands import doctor
from draftd.cli.commands.doctor import (
    Finding,
    Verdict,
    check_blas,
    check_collectors,
    check_flag,
    check_memory,
    check_models,
    check_port,
    check_state,
    check_webhook,
    examine,
)
from draftd.engine.pair import load_models
from draftd.fallback.store import StateFolder
from draftd.models import blas
from draftd.settings import Settings, load_settings
from tests.conftest import NanoPair
from tests.unit.engine.drafts import change_tokenizer, mamba


def settings(**overrides: object) -> Settings:
    return load_settings(None, {name.replace("__", "."): value for name, value in overrides.items()}, {})


@pytest.fixture
def model(nano_pair: NanoPair, tmp_path: Path) -> Callable[[str], Path]:
    """Copies the embedded draft, to be a target as well."""
    return lambda name: Path(shutil.copytree(nano_pair.draft, tmp_path / name))


def verdicts(findings: list[Finding]) -> dict[str, Verdict]:
    return {finding.subject: finding.verdict for finding in findings}


def pair(target: Path, draft: Path, **overrides: object) -> Settings:
    return settings(model__path=str(target), model__draft_path=str(draft), **overrides)


def test_a_pair_of_one_tokenizer_is_well(model: Callable[[str], Path]) -> None:
    found = check_models(pair(model("a"), model("b")))
    assert verdicts(found) == {"model": Verdict.OK, "draft model": Verdict.OK, "pair": Verdict.OK}
    assert "llama" in found[0].found


def test_a_pair_is_told_as_serve_tells_it(model: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    target, draft = model("a"), model("b")
    change_tokenizer(draft)  # as many tokens as before
    found = check_models(pair(target, draft))
    assert verdicts(found) == {"model": Verdict.OK, "draft model": Verdict.OK, "pair": Verdict.BAD}
    info = load_models(str(target), str(draft), progress=lambda line: None).info
    assert info.speculation_reason
    assert found[-1].found == f"{info.speculation_reason}; it is served without this draft"
    assert caplog.messages == [f"draft model: {draft}: {info.speculation_reason}: {found[-1].mend}"]


def test_what_cannot_be_rolled_back_takes_no_draft(model: Callable[[str], Path]) -> None:
    target, draft = mamba(model("a")), model("b")
    found = check_models(pair(target, draft))
    assert verdicts(found) == {"model": Verdict.OK, "draft model": Verdict.OK, "pair": Verdict.BAD}
    info = load_models(str(target), str(draft), progress=lambda line: None).info
    assert found[-1].found == f"{info.speculation_reason}; it is served without drafts"


def test_a_light_draft_is_looked_at_as_the_draft_is(model: Callable[[str], Path]) -> None:
    target, draft, light = model("a"), model("b"), model("c")
    made = pair(target, draft, model__light_draft_path=str(light))
    assert verdicts(check_models(made))["light pair"] is Verdict.OK
    change_tokenizer(light)
    assert verdicts(check_models(made))["light pair"] is Verdict.BAD
    (light / "config.json").unlink()
    found = verdicts(check_models(made))
    assert (found["light draft"], found["pair"]) == (Verdict.BAD, Verdict.OK)
    assert "light pair" not in found


def test_a_bad_target_does_not_hide_a_bad_draft(model: Callable[[str], Path]) -> None:
    target, draft = model("a"), model("b")
    for folder in (target, draft):
        (folder / "model.safetensors").unlink()
    assert verdicts(check_models(pair(target, draft))) == {"model": Verdict.BAD, "draft model": Verdict.BAD}


def test_a_hub_id_is_only_noted() -> None:
    (finding,) = check_models(settings(model__path="mlx-community/Qwen3-8B-4bit"))
    assert finding.verdict is Verdict.NOTE


def test_a_port_in_use_is_bad_and_a_free_one_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_port(settings(server__port=port))
        assert finding.verdict is Verdict.BAD
        assert "--port" in finding.mend
    assert check_port(settings(server__port=port)).verdict is Verdict.OK
    assert check_port(settings(server__port=0)).verdict is Verdict.OK


def test_more_weights_than_memory_is_bad(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as sparse:
        sparse.truncate(1 << 43)  # eight terabytes that take no disk
    assert check_memory(settings(model__path=str(tmp_path))).verdict is Verdict.BAD
    assert check_memory(settings()).verdict is Verdict.OK


def test_a_dead_collector_is_bad_and_a_live_one_well() -> None:
    assert verdicts(check_collectors({})) == {"collector": Verdict.NOTE}
    with socket.create_server(("127.0.0.1", 0)) as alive:
        endpoint = f"http://127.0.0.1:{alive.getsockname()[1]}"
        (finding,) = check_collectors({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
        assert finding.verdict is Verdict.OK
    (finding,) = check_collectors({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})
    assert finding.verdict is Verdict.BAD
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in finding.mend


def test_a_broken_endpoint_is_bad() -> None:
    (finding,) = check_collectors({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://"})
    assert finding.verdict is Verdict.BAD


def test_an_unreachable_flagd_is_bad() -> None:
    assert check_flag(settings(flag__provider="flagd", flag__port=1)).verdict is Verdict.BAD


def test_a_flag_file_in_a_new_folder_is_well(tmp_path: Path) -> None:
    assert check_flag(settings(flag__file=tmp_path / "a" / "b" / "flags.json")).verdict is Verdict.OK
    assert check_flag(settings(flag__file=tmp_path)).verdict is Verdict.BAD


def test_a_slow_blas_is_bad_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "load_blas", lambda: "reference")
    finding = check_blas()
    assert finding.verdict is Verdict.BAD
    assert "libopenblas" in finding.mend


def test_wrong_settings_are_a_finding_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTD_SERVER__PORT", "x")
    assert verdicts(examine(None, {}))["settings"] is Verdict.BAD


def webhook(**overrides: object) -> Settings:
    return settings(webhook__token="x" * 16, **{f"webhook__{name}": value for name, value in overrides.items()})


def test_a_webhook_that_is_off_is_only_noted() -> None:
    assert check_webhook(settings()).verdict is Verdict.NOTE


def test_a_port_for_alerts_is_free_or_anothers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_webhook(webhook(port=port))
        assert finding.verdict is Verdict.BAD
        assert "webhook.port" in finding.mend
    assert check_webhook(webhook(port=port)).verdict is Verdict.OK
    assert check_webhook(webhook(port=0)).verdict is Verdict.OK


def test_a_folder_for_the_state_is_there_will_be_made_or_cannot_be(tmp_path: Path) -> None:
    named = settings(fallback__state_dir=tmp_path / "a" / "b")
    assert check_state(named, {}).verdict is Verdict.OK
    assert "will be created" in check_state(named, {}).found
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "b"):
        finding = check_state(settings(fallback__state_dir=path), {})
        assert finding.verdict is Verdict.BAD
        assert "fallback.state_dir" in finding.mend


def test_one_that_cannot_be_written_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)  # root may write anywhere
    assert check_state(settings(fallback__state_dir=tmp_path), {}).verdict is Verdict.BAD


def test_the_users_own_folder_can_be_done_without(tmp_path: Path) -> None:
    (tmp_path / "draftd").touch()
    assert check_state(settings(), {"XDG_STATE_HOME": str(tmp_path)}).verdict is Verdict.NOTE
    assert check_state(settings(), {"XDG_STATE_HOME": str(tmp_path / "other")}).verdict is Verdict.OK
    assert check_state(settings(server__port=0), {}).verdict is Verdict.NOTE


def test_one_that_a_daemon_uses_is_noted(tmp_path: Path) -> None:
    used = StateFolder.open(tmp_path)
    assert check_state(settings(fallback__state_dir=tmp_path), {}).verdict is Verdict.NOTE
    used.close()
    assert check_state(settings(fallback__state_dir=tmp_path), {}).verdict is Verdict.OK


def test_the_doctor_looks_at_both() -> None:
    assert {"webhook", "state"} <= {finding.subject for finding in examine(None, {})}
