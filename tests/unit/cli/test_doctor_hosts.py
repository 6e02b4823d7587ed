"""The doctor's findings on a hostfile's machines and the links between them: real followers, over loopback."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from draftd.cli.commands import doctor_hosts
from draftd.cli.commands.doctor_hosts import check_hosts
from draftd.cli.findings import Finding, Severity
from draftd.ranks import doctor, neighbours
from draftd.ranks.doctor import RankFindings
from draftd.ranks.proof import Proof
from draftd.settings import Settings, load_settings
from tests.fake_ranks import taken_port

OWN = Proof(
    draftd="1", packages={"mlx": "0.32.4", "mlx-lm": "0.32.2"}, system="Linux", model="m", files={"w": 9}, same="a"
)


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_PINGS", 3)
    monkeypatch.setattr(neighbours, "_STREAM_SECONDS", 0.02)


def settings(folder: Path, *entries: tuple[str, str], port: int = 7490, **named: str) -> Settings:
    path = folder / "hosts.json"
    path.write_text(json.dumps([{"ssh": name, "ips": [address]} for name, address in entries]))
    named = {"hostfile": str(path), "port": str(port), "trusted_network": "true", **named}
    return load_settings(None, {f"distributed.{name}": value for name, value in named.items()}, {})


def free_ports(count: int) -> int:
    """Returns the first of so many consecutive free ports of loopback."""
    while True:
        with ExitStack() as stack:
            held, first = taken_port()
            stack.enter_context(held)
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first


def by_subject(findings: list[Finding]) -> dict[tuple[str, Severity], Finding]:
    return {(finding.subject, finding.verdict): finding for finding in findings}


def test_doctor_reports_each_host_and_link_of_the_hostfile_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'mini: Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    entries = ("127.0.0.1", "127.0.0.1"), ("localhost", "192.0.2.7"), ("mini", "192.0.2.8")
    findings = by_subject(check_hosts(settings(tmp_path, *entries, port=free_ports(4))))

    assert "the files of" in findings["rank 1", Severity.OK].text
    refused = findings["rank 2", Severity.BAD]
    assert refused.text == "mini: mini: Permission denied (publickey)."
    assert "ssh-copy-id" in refused.mend
    wrong = findings["link 0 → 1", Severity.BAD]
    assert wrong.text.startswith("localhost cannot listen on 192.0.2.7: ")
    assert "hostfile" in wrong.mend
    figures = next(finding for (subject, _), finding in findings.items() if subject == "link 1 → 0").figures
    assert figures is not None
    assert 0 < figures["round_trip_seconds"] < 10
    assert figures["bytes_per_second"] > 0


def test_doctor_finds_no_fault_in_working_rank_group_but_reports_a_taken_group_port(tmp_path: Path) -> None:
    """Over the ports that serving would use; they are free again afterwards."""
    both = ("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")
    asked = settings(tmp_path, *both, port=free_ports(3), trusted_network="false")
    findings = check_hosts(asked)
    assert [finding for finding in findings if finding.verdict is Severity.BAD] == []
    assert {"rank 0", "rank 1", "link 0 → 1", "link 1 → 0"} <= {finding.subject for finding in findings}
    with socket.create_server(("127.0.0.1", asked.distributed.port)):
        taken = by_subject(check_hosts(asked))["ranks' port", Severity.BAD]
    assert taken.text.startswith(f"distributed.port: got {asked.distributed.port}; allowed: a port of 127.0.0.1")


def test_doctor_prints_the_follow_command_for_a_follower_that_never_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor._CONNECT_SECONDS, doctor.Start.BY_HAND, 0.1)  # type: ignore[attr-defined]
    port = free_ports(3)
    both = ("127.0.0.1", "127.0.0.1"), ("mini", "127.0.0.1")
    missing = by_subject(check_hosts(settings(tmp_path, *both, port=port, start="false")))["rank 1", Severity.BAD]
    assert missing.text == f"mini: it has not connected to 127.0.0.1:{port}"
    assert missing.mend == f"on mini: draftd follow --address 127.0.0.1:{port} --rank 1 --model MODEL"


def test_doctor_reports_untrusted_network_between_hosts_as_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_hosts, "look_at_group", lambda *_: ([RankFindings(0, proof=OWN)], []))
    entries = ("127.0.0.1", "10.0.0.1"), ("mini", "10.0.0.2")
    findings = by_subject(check_hosts(settings(tmp_path, *entries, trusted_network="false")))
    assert "distributed.trusted_network" in findings["network", Severity.BAD].text


@pytest.mark.parametrize(
    ("other", "text", "mend"),
    [
        ({"packages": {"mlx": "0.31.0", "mlx-lm": "0.32.2"}}, "mlx 0.31.0, rank 0 has 0.32.4", "pip install"),
        ({"files": {"w": 8}}, "w: 8 bytes", "rsync"),
        ({"system": "macOS"}, "runs on macOS", "leave it out"),
    ],
)  # fmt: skip
def test_doctor_gives_remedy_for_rank_whose_packages_files_or_system_differ_from_rank_0(
    other: dict[str, object], text: str, mend: str
) -> None:
    theirs = OWN.model_copy(update=other)
    assert text in doctor.difference(OWN, theirs, "rank 1")  # type: ignore[attr-defined]
    assert mend in doctor_hosts._mend_difference(OWN, theirs, "mini")
