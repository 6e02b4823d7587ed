"""Credentials come from the environment or a file, reach Grafana, and appear nowhere else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from draftd.cli.grafana import client as real
from draftd.cli.grafana.client import GrafanaError
from draftd.cli.grafana.push import Webhook
from tests.grafana import Grafana
from tests.unit.cli.grafana.conftest import SECRET, Push, Site

PASSWORD = "password-of-the-tests"


def test_grafana_push_sends_the_token_of_the_environment_as_bearer_token(site: Site, push: Push) -> None:
    push()
    assert {request.headers["authorization"] for request in site.grafana.requests} == {f"Bearer {site.grafana.token}"}


def test_grafana_push_prefers_token_file_over_token_variable_over_password(
    site: Site, push: Push, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{site.grafana.token}\n")
    login = {"GRAFANA_USER": "admin", "GRAFANA_PASSWORD": "wrong"}
    assert push("--token-file", str(file), GRAFANA_TOKEN="wrong", **login).code == 0
    assert push(**login).code == 0


def test_grafana_push_signs_in_with_user_and_password(site: Site, push: Push) -> None:
    assert push(GRAFANA_TOKEN=None, GRAFANA_USER="admin", GRAFANA_PASSWORD=PASSWORD).code == 0
    basic = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    assert site.grafana.requests[-1].headers["authorization"] == f"Basic {basic}"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"GRAFANA_TOKEN": None}, "GRAFANA_TOKEN: got ''; allowed: a service account's token"),
        ({"GRAFANA_TOKEN": None, "GRAFANA_USER": "admin"}, "the password of GRAFANA_USER"),
        ({"GRAFANA_TOKEN": "two words-of-secret"}, "one token of printable ASCII"),
        ({"GRAFANA_TOKEN": "line\nX-Header: secret"}, "one token of printable ASCII"),
    ],
)
def test_grafana_push_refuses_missing_or_malformed_credentials(
    site: Site, push: Push, environ: dict[str, str | None], told: str
) -> None:
    ran = push(**environ)
    assert ran.code == 2
    assert told in ran.err
    assert "secret" not in ran.err
    assert site.grafana.requests == []


def test_grafana_push_names_a_missing_token_file(push: Push, tmp_path: Path) -> None:
    ran = push("--token-file", str(tmp_path / "none"))
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "none: No such file" in ran.err


@pytest.mark.parametrize("option", ["--url", "--webhook-url"])
@pytest.mark.parametrize("url", ["https://me:hunter2@host.example", "me:hunter2@host.example", "ftp://x:hunter2@h"])
def test_grafana_push_refuses_a_url_containing_a_password_and_does_not_print_it(
    push: Push, option: str, url: str
) -> None:
    ran = push(option, url)
    assert ran.code == 2
    assert "hunter2" not in ran.out + ran.err


def _echo(grafana: Grafana) -> None:
    """A proxy that repeats what it was sent."""
    said = f"<html>{grafana.token} {SECRET} {PASSWORD}</html>"
    grafana.answers[("POST", "/api/folders")] = (502, {"message": said})


def _echo_as_text(grafana: Grafana) -> None:
    grafana.answers[("GET", "/api/datasources")] = (400, f"what is {grafana.token}, {PASSWORD} or {SECRET}?")


def _broken_contact_point(grafana: Grafana) -> None:
    point = json.dumps({"hmacConfig": {"secret": SECRET}})
    grafana.answers[("POST", "/api/v1/provisioning/contact-points")] = (400, {"message": f"invalid: {point}"})


def _refused(grafana: Grafana) -> None:
    grafana.denied = {"datasources:read"}


@pytest.mark.parametrize("wrong", [None, _echo, _echo_as_text, _broken_contact_point, _refused])
@pytest.mark.parametrize("arguments", [("--dry-run",), ("--renew-secret",)])
@pytest.mark.parametrize("basic", [False, True])
def test_grafana_push_output_never_contains_token_password_or_webhook_secret(
    site: Site, push: Push, wrong: Callable[[Grafana], None] | None, arguments: tuple[str, ...], basic: bool
) -> None:
    login: dict[str, str | None] = {"GRAFANA_TOKEN": None, "GRAFANA_USER": "admin", "GRAFANA_PASSWORD": PASSWORD}
    if wrong is not None:
        wrong(site.grafana)
    for _ in range(2):
        ran = push(*arguments, **(login if basic else {}))
        for secret in (SECRET, *((PASSWORD,) if basic else (site.grafana.token,))):
            assert secret not in ran.out + ran.err
        assert "Traceback" not in ran.err


def test_grafana_error_does_not_chain_the_original_exception(site: Site) -> None:
    client = real.Grafana(site.url, {"GRAFANA_TOKEN": "wrong"})
    with pytest.raises(GrafanaError) as caught:
        client.get_list("list the rules", "/v1/provisioning/alert-rules")
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_repr_of_grafana_client_and_webhook_hides_credentials() -> None:
    access = real.Grafana("https://host", {"GRAFANA_USER": "me", "GRAFANA_PASSWORD": PASSWORD})
    assert PASSWORD not in repr(access)
    assert "token-1" not in repr(real.Grafana("https://host", {"GRAFANA_TOKEN": "token-1"}))
    assert SECRET not in repr(Webhook("http://host", SECRET))
