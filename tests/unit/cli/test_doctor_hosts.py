"""What the doctor finds on the machines of a hostfile, and between them: real processes, links over loopback."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from draftd.cli.commands import doctor_hosts
from draftd.cli.commands.doctor_hosts import check_hosts
from draftd.cli.findings import Verdict
from draftd.errors import ConfigError
from draftd.ranks import hosts
from draftd.ranks.proof import Proof
from draftd.settings import Settings, load_settings

OWN = Proof(
    draftd="1", packages={"mlx": "0.32.4", "mlx-lm": "0.32.2"}, system="Linux", model="m", files={"w": 9}, same="a"
)


def settings(folder: Path, *entries: tuple[str, str], trusted: bool = True) -> Settings:
    path = folder / "hosts.json"
    path.write_text(json.dumps([{"ssh": name, "ips": [address]} for name, address in entries]))
    named = {"distributed.hostfile": str(path), "distributed.trusted_network": str(trusted).lower()}
    return load_settings(None, named, {})


def test_each_machine_and_link_is_told_with_what_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'mini: Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(hosts, "PINGS", 3)
    monkeypatch.setattr(doctor_hosts, "_STREAM_SECONDS", 0.02)
    entries = ("127.0.0.1", "127.0.0.1"), ("localhost", "192.0.2.7"), ("mini", "192.0.2.8")
    found = check_hosts(settings(tmp_path, *entries))
    said = {(one.subject, one.verdict): one for one in found}

    assert "answers here" in said["rank 1", Verdict.OK].found or "rank 0's" in said["rank 1", Verdict.OK].found
    refused = said["rank 2", Verdict.BAD]
    assert refused.found == "mini: mini: Permission denied (publickey)."
    assert "ssh-copy-id" in refused.mend
    wrong = said["link 0 → 1", Verdict.BAD]
    assert wrong.found.startswith("localhost cannot listen on 192.0.2.7: ")
    assert "hostfile" in wrong.mend
    link = next(one for one in found if one.subject == "link 1 → 0")
    assert link.figures is not None
    assert 0 < link.figures["round_trip_seconds"] < 10
    assert link.figures["bytes_per_second"] > 0


def test_a_network_that_is_not_trusted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: object) -> None:
        raise hosts.HostError("it cannot be started", gone=True)

    monkeypatch.setattr(doctor_hosts, "AskedHost", fails)
    found = check_hosts(settings(tmp_path, ("127.0.0.1", "10.0.0.1"), ("mini", "10.0.0.2"), trusted=False))
    assert "distributed.trusted_network" in next(one.found for one in found if one.subject == "network")


@pytest.mark.parametrize(
    ("other", "found", "mend"),
    [
        ({"packages": {"mlx": "0.31.0", "mlx-lm": "0.32.2"}}, "mlx 0.31.0, rank 0 has 0.32.4", "pip install"),
        ({"files": {"w": 8}}, "w: 8 bytes", "rsync"),
        ({"system": "macOS"}, "runs on macOS", "leave it out"),
    ],
)  # fmt: skip
def test_what_differs_from_rank_0_is_told(other: dict[str, object], found: str, mend: str) -> None:
    theirs = OWN.model_copy(update=other)
    assert found in doctor_hosts.difference(OWN, theirs, "rank 1")
    assert mend in doctor_hosts._alike_again(OWN, theirs, "mini")


def test_an_answer_follows_each_question_whatever_it_was() -> None:
    def no_model() -> hosts.OwnProof:
        raise ConfigError("model.path", "nowhere", "a folder")

    told: list[str] = []
    asked = ('{"ask": "report"}', '{"ask": "dance"}', "{}", '{"ask": "listen", "address": "192.0.2.1"}')
    hosts.answer(io.StringIO("\n".join(asked)), told.append, no_model, lambda: {"backends": ["ring"]})
    report, *errors = map(json.loads, told)
    assert (report["backends"], "nowhere" in report["model_error"]) == (["ring"], True)
    assert ["error" in one for one in errors] == [True, True, True]
