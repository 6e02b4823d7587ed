"""What the webhook's settings refuse, at start-up and by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftd.config import load_settings
from draftd.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKEN", "two words"),
        ("TOKEN", "schlüssel"),
        ("SECRET", "line\nline"),
        ("POLL_TOKEN", "two words"),
        ("TIMESTAMP_HEADER", "X Time"),
        ("TIMESTAMP_HEADER", "X-Time:"),
        ("POLL_URL", "alertmanager:9093"),
        ("POLL_URL", "ftp://alertmanager"),
        ("POLL_URL", "http://"),
        ("POLL_URL", "http://[::1"),
        ("POLL_URL", "http://host:99999"),
        ("POLL_URL", "http://user:password@host"),
        ("POLL_URL", "http://host/?silenced=false"),
        ("HOST", "0.0.0.0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {}, {f"DRAFTD_WEBHOOK__{name}": value})
    assert refused.value.field.split()[0] == f"webhook.{name.lower()}"


def test_a_token_for_the_poll_does_not_travel_in_the_clear() -> None:
    polled = {"DRAFTD_WEBHOOK__POLL_TOKEN": "t", "DRAFTD_WEBHOOK__POLL_URL": "http://alertmanager:9093"}
    with pytest.raises(ConfigError, match="https beyond loopback") as refused:
        load_settings(None, {}, polled)
    assert refused.value.field == "webhook.poll_url"
    for url in ("https://alertmanager:9093", "http://127.0.0.1:9093", "http://[::1]:9093"):
        assert load_settings(None, {}, polled | {"DRAFTD_WEBHOOK__POLL_URL": url}).webhook.poll_url == url


def test_it_listens_once_it_can_tell_a_sender_from_another() -> None:
    assert not load_settings(None, {}, {}).webhook.listens
    empty = {"DRAFTD_WEBHOOK__TOKEN": "", "DRAFTD_WEBHOOK__SECRET": "", "DRAFTD_WEBHOOK__POLL_URL": ""}
    assert not load_settings(None, {}, empty).webhook.listens
    assert load_settings(None, {}, empty).webhook.poll_url is None
    assert load_settings(None, {}, {"DRAFTD_WEBHOOK__SECRET": "s"}).webhook.listens
    assert load_settings(None, {}, {"DRAFTD_WEBHOOK__TOKEN": "t"}).webhook.listens


def test_a_slash_at_the_end_of_the_polled_address_is_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "draftd.toml"
    file.write_text('[webhook]\npoll_url = "http://127.0.0.1:3000/api/alertmanager/grafana/"\n')
    assert load_settings(file, {}, {}).webhook.poll_url == "http://127.0.0.1:3000/api/alertmanager/grafana"
