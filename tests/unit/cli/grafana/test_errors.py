"""Errors between here and a Grafana: one line each, which says what to do and what was already done."""

from __future__ import annotations

import copy
import datetime
import ipaddress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from draftd.cli.grafana.client import Grafana
from draftd.errors import FieldError
from tests.http_server import serving
from tests.unit.cli.grafana.conftest import RULES, Push, Site

HEALTH = ("GET", "/api/health")
HTML = "<html>Welcome</html>"


def _fails(push: Push, told: str, *arguments: str, code: int = 1, **environ: str | None) -> str:
    ran = push(*arguments, **environ)
    assert ran.code == code, ran
    assert told in ran.err
    assert ran.err.startswith("draftd: ")
    assert ran.err.count("\n") == 1
    return ran.err


def test_grafana_push_reports_that_no_server_answers(push: Push) -> None:
    _fails(push, "nothing answers at http://127.0.0.1:1: is Grafana running there", "--url", "http://127.0.0.1:1")


def test_grafana_push_reports_an_unknown_host(push: Push) -> None:
    _fails(push, "nothing answers at https://no-such-host.invalid", "--url", "https://no-such-host.invalid")


def test_grafana_push_times_out_when_grafana_does_not_answer(site: Site, push: Push) -> None:
    site.grafana.delay = 1.0
    _fails(push, "did not answer within 0.2 s: --timeout gives it longer", "--timeout", "0.2")


def test_grafana_push_over_https_to_a_plain_http_server_explains_the_failure(site: Site, push: Push) -> None:
    _fails(push, "does it use https?", "--url", site.url.replace("http", "https"))


def test_grafana_push_trusts_a_self_signed_certificate_given_by_tls_ca(site: Site, push: Push, tmp_path: Path) -> None:
    with serving(site.grafana.answer, _self_signed(tmp_path / "own.pem")) as url:
        complaint = _fails(push, f"no TLS with {url} (", "--url", url)
        assert "--tls-ca names the authority (PEM) that its certificate comes from" in complaint
        assert site.grafana.requests == []
        assert push("--url", url, "--tls-ca", str(tmp_path / "own.pem")).code == 0
    _fails(push, "tls_ca: got ", "--tls-ca", str(tmp_path / "none.pem"), code=2)


def _self_signed(file: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "grafana")])
    now = datetime.datetime.now(datetime.UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    builder = builder.add_extension(host, False).add_extension(x509.BasicConstraints(True, None), True)
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    secret = key.private_bytes(serialization.Encoding.PEM, *plain)
    file.write_bytes(secret + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file


@pytest.mark.parametrize(
    "answer",
    [(200, HTML), (200, {"status": "UP"}), (404, HTML), (404, {"message": "Not found"}), (200, []), (200, b"{")],
    ids=str,
)
def test_grafana_push_refuses_a_server_that_is_not_grafana(site: Site, push: Push, answer: tuple[int, Any]) -> None:
    site.grafana.answers[HEALTH] = answer
    _fails(push, "answers, but is not a Grafana: give the address of its start page")


def test_grafana_push_keeps_the_path_of_the_given_url(site: Site, push: Push) -> None:
    _fails(push, "/grafana answers, but is not a Grafana", "--url", f"{site.url}/grafana/")
    assert site.grafana.requests[0].path == "/grafana/api/health"


def test_grafana_push_does_not_follow_redirects(site: Site, push: Push) -> None:
    site.grafana.answers[HEALTH] = (302, f"{site.url}/login")
    _fails(push, "redirects: give the final address")
    assert [request.path for request in site.grafana.requests] == ["/api/health"]


@pytest.mark.parametrize("version", ["11.6.2", "9.5.0"])
def test_grafana_push_refuses_a_grafana_version_that_is_too_old(site: Site, push: Push, version: str) -> None:
    site.grafana.version = version
    _fails(push, f"is Grafana {version}; the oldest that signs alerts for the daemon is 12.0: upgrade it")


@pytest.mark.parametrize("version", ["12.0.0", "12.4.0-pre", "13.1.0+security-01", ""])
def test_grafana_push_accepts_a_new_enough_or_unknown_grafana_version(site: Site, push: Push, version: str) -> None:
    site.grafana.version = version
    assert push("--dry-run").code == 0


def test_grafana_push_reports_credentials_rejected_with_401(site: Site, push: Push) -> None:
    complaint = "does not accept the credentials (401: Invalid API key): is the token of this Grafana, and still valid?"
    _fails(push, complaint, GRAFANA_TOKEN="wrong")
    _fails(push, "401", GRAFANA_TOKEN=None, GRAFANA_USER="admin", GRAFANA_PASSWORD="wrong")


@pytest.mark.parametrize(
    "permission", ["datasources:read", "folders:read", "dashboards:read", "alert.provisioning:read", "folders:create"]
)
def test_grafana_push_names_the_permission_the_account_lacks(site: Site, push: Push, permission: str) -> None:
    site.grafana.denied = {permission}
    complaint = _fails(push, "it is not allowed (403: ")
    assert f"{permission}): give the account that permission, or the role Admin" in complaint
    assert site.grafana.writes in ([], ["POST /api/folders"])


def test_grafana_push_rerun_after_a_partial_failure_makes_the_remaining_changes(site: Site, push: Push) -> None:
    site.grafana.denied = {"alert.provisioning:write"}
    ran = push()
    assert ran.code == 1
    assert "Permissions needed: alert.provisioning:write" in ran.err
    assert ran.err.endswith("; 3 of 5 changes were made\n")
    assert len(ran.out.splitlines()) == 3
    site.grafana.denied = set()
    assert push().out.splitlines()[-1] == "2 created, 3 as shipped"


def test_grafana_push_reports_internal_server_error_of_grafana(site: Site, push: Push) -> None:
    site.grafana.answers[("GET", "/api/folders/draftd")] = (500, {"message": "database is locked"})
    _fails(push, "could not read the folder: Grafana failed (500: database is locked): its own log says why")


def test_grafana_push_explains_a_dashboard_saved_in_the_newer_grafana_format(site: Site, push: Push) -> None:
    push()
    said = "dashboard api version not supported, use /apis/dashboard.grafana.app/v2/… instead"
    site.grafana.answers[("GET", "/api/dashboards/uid/draftd-overview")] = (406, {"message": said})
    _fails(
        push, f"could not read dashboard draftd-overview: it was saved in Grafana's newer format (406: {said}): delete"
    )


def test_grafana_push_quotes_the_message_of_a_400_rejection(site: Site, push: Push) -> None:
    site.change(RULES, lambda content: content["groups"][0].update(interval="15s"))
    complaint = "could not save rule group draftd: Grafana rejects it (400: invalid alert rule group: interval (15)"
    assert complaint in push().err


def test_grafana_push_does_not_overwrite_a_dashboard_changed_during_the_push(site: Site, push: Push) -> None:
    push()
    site.model["title"] = "drifted"

    def another_save() -> None:
        site.model.update(version=site.model["version"] + 1, title="by another")

    site.grafana.answers[("POST", "/api/dashboards/db")] = another_save
    _fails(push, "could not save dashboard draftd-overview: it was changed meanwhile (412: ")
    assert site.model["title"] == "by another"


def test_grafana_push_does_not_overwrite_a_dashboard_created_during_the_push(site: Site, push: Push) -> None:
    theirs = {
        "dashboard": {"id": 1, "uid": "draftd-machine", "title": "theirs", "version": 1},
        "meta": {"folderUid": ""},
    }

    def another_save() -> None:
        site.grafana.dashboards["draftd-machine"] = copy.deepcopy(theirs)

    site.grafana.answers[("POST", "/api/dashboards/db")] = another_save
    ran = push()
    assert ran.code == 1
    assert "it was changed meanwhile (412: " in ran.err
    assert site.grafana.dashboards["draftd-machine"] == theirs


def test_grafana_push_does_not_overwrite_a_rule_group_changed_during_the_push(site: Site, push: Push) -> None:
    push()
    site.grafana.rules["draftd-absent"]["for"] = "10m"
    path = "/api/v1/provisioning/folder/draftd/rule-groups/draftd"
    reads = iter([False, True])

    def another_save() -> None:
        if next(reads):
            site.grafana.rules["theirs"] = {**site.grafana.rules["draftd-absent"], "uid": "theirs", "labels": {}}

    site.grafana.answers[("GET", path)] = another_save
    _fails(push, "rule group draftd was changed meanwhile: run this again")
    assert "theirs" in site.grafana.rules
    assert site.grafana.writes == []


def test_grafana_push_does_not_overwrite_notification_policies_changed_during_the_push(site: Site, push: Push) -> None:
    reads = iter([False, True])

    def another_save() -> None:
        if next(reads):
            site.grafana.policies["group_wait"] = "99s"

    site.grafana.answers[("GET", "/api/v1/provisioning/policies")] = another_save
    ran = push("--route")
    assert "the notification policies were changed meanwhile: run this again" in ran.err
    assert site.grafana.policies == {
        "receiver": "grafana-default-email",
        "group_by": ["grafana_folder"],
        "group_wait": "99s",
    }


def test_grafana_push_requires_a_choice_among_several_prometheus_data_sources(site: Site, push: Push) -> None:
    site.grafana.add_datasource("prometheus", "prom-2", "Long term")
    _fails(push, "--prometheus UID picks one of prom-1 (Prometheus), prom-2 (Long term)")
    error = (
        "prometheus: got 'prom-3'; allowed: the uid of one of Grafana's prometheus data sources: prom-1 (Prometheus), "
    )
    _fails(push, error, "--prometheus", "prom-3", code=2)
    _fails(push, "got 'prom-1'", "--prometheus", "prom-1", "--tempo", "prom-1", code=2)
    assert push("--prometheus", "prom-2").code == 0
    site.grafana.datasources.clear()
    _fails(push, "has no Prometheus data source: add one")


@pytest.mark.parametrize(
    ("url", "insecure", "allowed"),
    [
        ("http://127.0.0.1:3000", False, True),
        ("http://localhost:3000/grafana/", False, True),
        ("http://[::1]:3000", False, True),
        ("https://grafana.example.org", False, True),
        ("http://grafana.example.org", False, False),
        ("http://localhost.example.org", False, False),
        ("http://10.0.0.1:3000", False, False),
        ("http://10.0.0.1:3000", True, True),
        ("ftp://localhost", True, False),
        ("localhost:3000", True, False),
        ("https://", True, False),
        ("https://host:port", True, False),
        ("", True, False),
    ],
)
def test_grafana_client_refuses_plain_http_to_other_hosts_unless_allowed(
    url: str, insecure: bool, allowed: bool
) -> None:
    if allowed:
        assert Grafana(url, {"GRAFANA_TOKEN": "t"}, insecure_http=insecure).url == url.rstrip("/")
    else:
        with pytest.raises(FieldError, match="url"):
            Grafana(url, {"GRAFANA_TOKEN": "t"}, insecure_http=insecure)
