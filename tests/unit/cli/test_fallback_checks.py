"""What the doctor finds of the fallback: its webhook's port, and its folder."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from draftd.cli.commands import doctor
from draftd.cli.commands.doctor import Verdict, check_state, check_webhook, examine
from draftd.fallback.store import StateFolder
from draftd.settings import Settings, load_settings
from tests.http_server import serving
from tests.unit.control.alerts import conftest
from tests.webhook import Webhook

certified = conftest.certified  # a certificate that has signed itself


def settings(**overrides: object) -> Settings:
    return load_settings(None, {name.replace("__", "."): value for name, value in overrides.items()}, {})


def webhook(**overrides: object) -> Settings:
    return settings(webhook__token="x" * 16, **{f"webhook__{name}": value for name, value in overrides.items()})


def test_a_webhook_that_is_off_is_only_noted() -> None:
    assert check_webhook(settings()).verdict is Verdict.NOTE


def test_a_port_for_alerts_is_free_a_daemons_already_or_somebody_elses() -> None:
    with Webhook() as ours:
        port = ours.port
        assert check_webhook(webhook(port=port)).verdict is Verdict.NOTE
    assert check_webhook(webhook(port=port)).verdict is Verdict.OK
    assert check_webhook(webhook(port=0)).verdict is Verdict.OK
    with serving(lambda request: (404, {})) as other:
        finding = check_webhook(webhook(port=int(other.rpartition(":")[2])))
    assert finding.verdict is Verdict.BAD
    assert "webhook.port" in finding.mend


def test_one_with_a_certificate_is_a_daemons_too(certified: tuple[Path, Path]) -> None:
    cert, key = certified
    with Webhook(tls_cert=cert, tls_key=key) as ours:
        assert check_webhook(webhook(port=ours.port, tls_cert=cert, tls_key=key)).verdict is Verdict.NOTE


def test_who_says_nothing_there_keeps_no_doctor_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert check_webhook(webhook(port=silent.getsockname()[1])).verdict is Verdict.BAD


def test_a_folder_for_the_state_is_there_will_be_made_or_cannot_be(tmp_path: Path) -> None:
    named = settings(fallback__state_dir=tmp_path / "a" / "b")
    assert check_state(named, {}).verdict is Verdict.OK
    assert "will be made" in check_state(named, {}).found
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
