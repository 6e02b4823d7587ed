"""Settings: the order of sources, and the messages about wrong ones."""

from __future__ import annotations

import contextlib
import os
from dataclasses import fields
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from draftd.core import PROMPT_LOOKUP
from draftd.engine.limits import Limits
from draftd.errors import ConfigError
from draftd.settings import (
    EngineSettings,
    Settings,
    describe_settings,
    is_loopback,
    load_settings,
    secrets_of,
    state_dir,
)


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "draftd.toml"
    file.write_text(text)
    return file


def test_default_settings_serve_embedded_model_on_loopback() -> None:
    settings = load_settings(None, {}, {})
    assert settings.model.path is None
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 50551)
    assert settings.engine.max_draft_tokens == 4
    assert settings.flag.default_variant == "on"


def test_settings_precedence_is_flags_then_environment_then_file_then_defaults(tmp_path: Path) -> None:
    file = toml(tmp_path, "[engine]\nmax_batch = 2\nqueue_capacity = 20\nprefill_chunk = 200\n")
    environ = {"DRAFTD_ENGINE__MAX_BATCH": "3", "DRAFTD_ENGINE__QUEUE_CAPACITY": "30"}
    engine = load_settings(file, {"engine.max_batch": 4}, environ).engine
    assert (engine.max_batch, engine.queue_capacity, engine.prefill_chunk) == (4, 30, 200)
    assert engine.default_max_tokens == 4096


def test_command_flag_not_given_does_not_override_environment_variable() -> None:
    assert load_settings(None, {"server.port": None}, {"DRAFTD_SERVER__PORT": "7"}).server.port == 7


def test_settings_field_cannot_be_assigned_after_construction() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.server.port = 1


def test_settings_constructor_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTD_SERVER__PORT", "1")
    monkeypatch.setenv("SERVER", "{}")
    assert Settings().server.port == 50551


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("DRAFTD_SERVER__PORT", "seventy", "a whole number from 0 to 65535"),
        ("DRAFTD_SERVER__PORT", "65536", "a whole number from 0 to 65535"),
        ("DRAFTD_SERVER__DRAIN_SECONDS", "nan", "a number from 0 to 3600"),
        ("DRAFTD_ENGINE__MAX_DRAFT_TOKENS", "17", "a whole number from 0 to 16"),
        ("DRAFTD_FALLBACK__BLOCKS", "6, x", "whole numbers from 1 to 16, with commas between them"),
        ("DRAFTD_LOG__LEVEL", "", "debug, info, warning, error"),
        ("DRAFTD_SERVER__TLS_CERT", "/no/such/file", "an existing file"),
        ("DRAFTD_SERVER__REFLECTION", "perhaps", "true, false"),
        ("DRAFTD_HARDWARE__PERIOD_SECONDS", "0", "a number from 0.1 to 3600"),
        ("DRAFTD_HARDWARE__MEMORY_FLOOR_BYTES", "-1", f"a whole number from 0 to {2**50}"),
    ],
)
def test_invalid_environment_variable_error_names_variable_value_and_allowed_values(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, {variable: value})
    assert variable in caught.value.message
    assert caught.value.value == value
    assert caught.value.allowed == allowed


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("DRAFTD_SERVER__PRT", "DRAFTD_SERVER__PORT"),
        ("DRAFTD_ENGINE_MAX_BATCH", "DRAFTD_ENGINE__MAX_BATCH"),
        ("DRAFTD_TARGETT", "DRAFTD_TARGET"),
        ("DRAFTD_ENGINE__MAX_TOKENS", "DRAFTD_ENGINE__DEFAULT_MAX_TOKENS"),
    ],
)
def test_unknown_environment_variable_is_refused_with_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*did you mean {suggestion}\\?"):
        load_settings(None, {}, {name: "secret"})


def test_unknown_environment_variable_error_hides_value() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, {"DRAFTD_SERVER__TOKEM": "hunter2-of-the-tests"})
    assert "hunter2-of-the-tests" not in str(caught.value)


def test_settings_ignore_environment_variables_of_client_commands_and_other_programs() -> None:
    load_settings(None, {}, {"DRAFTD_TARGET": "x:1", "DRAFTD_TOKEN": "t", "PATH": "/bin", "XDRAFTD_A": "1"})
    # The environment of a shell that loaded Grafana's and the collector's set-up.
    load_settings(
        None, {}, {"DRAFTD_WEBHOOK_SECRET": "s", "DRAFTD_WEBHOOK_URL": "u", "DRAFTD_TRACE_SHARE_PERCENT": "5"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[serve]\nport = 1\n", "serve in .*did you mean server"),
        ("[server]\nprt = 1\n", "server.prt in .*did you mean server.port"),
        ("server = 1\n", "a table"),
        ("port = 1\n", "port in .*no setting has this name; did you mean server.port"),
        ("[server\n", "valid TOML: .*line 1"),
        ("[server]\nport = 'x'\n", r"server.port \(from .*draftd.toml\): got 'x'"),
    ],
)
def test_invalid_configuration_file_error_names_key_and_problem(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(toml(tmp_path, text), {}, {})


def test_missing_configuration_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(tmp_path / "none.toml", {}, {})


def test_unknown_setting_override_is_refused_with_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean server.port"):
        load_settings(None, {"server.prot": 1}, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "mini.local", "localhost.example.org"])
def test_server_host_beyond_loopback_requires_tls_and_token(host: str) -> None:
    with pytest.raises(ConfigError, match="server.token, server.tls_cert, server.tls_key"):
        load_settings(None, {"server.host": host}, {})


def test_server_host_beyond_loopback_is_accepted_only_with_tls_and_token(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("-")
    overrides = {"server.host": "0.0.0.0", "server.tls_cert": pem, "server.tls_key": pem}
    with pytest.raises(ConfigError, match="also set server.token"):
        load_settings(None, overrides, {})
    assert load_settings(None, overrides, {"DRAFTD_SERVER__TOKEN": "t" * 16}).server.host == "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_hosts_are_recognised_in_all_spellings(host: str) -> None:
    assert is_loopback(host)


def test_incomplete_server_tls_files_are_refused(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("-")
    with pytest.raises(ConfigError, match="server.tls_key"):
        load_settings(None, {"server.tls_cert": pem}, {})
    with pytest.raises(ConfigError, match="server.tls_client_ca"):
        load_settings(None, {"server.tls_client_ca": pem}, {})


def test_server_token_appears_neither_in_settings_repr_nor_in_error() -> None:
    settings = load_settings(None, {}, {"DRAFTD_SERVER__TOKEN": "hunter2-of-the-tests"})
    assert settings.server.token == SecretStr("hunter2-of-the-tests")
    assert "hunter2-of-the-tests" not in repr(settings)
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {}, {"DRAFTD_SERVER__TOKEN": "hunter2 of-the-tests"})
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", ["server.token", "webhook.token", "webhook.secret"])
def test_credential_setting_accepts_only_one_or_two_secrets_of_16_or_more_characters(name: str) -> None:
    variable, (section, key) = "DRAFTD_" + name.replace(".", "__").upper(), name.split(".")
    with pytest.raises(ConfigError, match="at least 16 characters") as caught:
        load_settings(None, {}, {variable: "fifteen-letters"})
    assert name in caught.value.field
    assert "fifteen" not in str(caught.value)
    token = "sixteen-letters-or-more"
    assert secrets_of(getattr(getattr(load_settings(None, {}, {variable: token}), section), key)) == (token.encode(),)
    both = getattr(getattr(load_settings(None, {}, {variable: f"{token} {token}-too"}), section), key)
    assert secrets_of(both) == (token.encode(), f"{token}-too".encode()), "while senders change from one to the other"
    for wrong in (
        f"{token} short",
        f"{token}  {token}",
        f"{token}\n{token}",
        f"{token} {token} {token}",
        f"{token} schlüssel-schlüssel",
    ):
        with pytest.raises(ConfigError, match="at least 16 characters"):
            load_settings(None, {}, {variable: wrong})


def test_empty_environment_variable_unsets_optional_setting(tmp_path: Path) -> None:
    file = toml(tmp_path, "[model]\ndrafter = 'prompt_lookup'\n")
    assert load_settings(file, {}, {}).model.drafter == PROMPT_LOOKUP
    assert load_settings(file, {}, {"DRAFTD_MODEL__DRAFTER": ""}).model.drafter is None


def test_light_draft_model_as_drafter_requires_its_path() -> None:
    with pytest.raises(ConfigError, match=r"model.drafter: got 'light_draft_model'; allowed: .*light_draft_path"):
        load_settings(None, {"model.drafter": "light_draft_model"}, {})


def test_draft_model_path_without_target_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="model.draft_path"):
        load_settings(None, {"model.draft_path": "somewhere"}, {})


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("SPAN_ONLY", True), ("no_content", False), ("", False)]
)
def test_content_capture_setting_follows_otel_genai_variable_unless_overridden(value: str, expected: bool) -> None:
    environ = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value}
    assert load_settings(None, {}, environ).telemetry.capture_content is expected
    assert not load_settings(
        None, {}, environ | {"DRAFTD_TELEMETRY__CAPTURE_CONTENT": "false"}
    ).telemetry.capture_content


def test_state_directory_follows_xdg_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir(os.environ) == tmp_path / "draftd"
    assert state_dir({"XDG_STATE_HOME": "relative"}).is_absolute()


def test_every_setting_has_unique_name_description_and_allowed_values() -> None:
    docs = list(describe_settings())
    assert len({doc.name for doc in docs}) == len(docs) >= 25
    for doc in docs:
        assert doc.description.endswith("."), doc
        assert doc.allowed, doc
        assert doc.variable == "DRAFTD_" + doc.name.replace(".", "__").upper()


def test_engine_limits_have_settings_of_same_name() -> None:
    others = {"memory_share", "headroom", "available", "prefix_folder", "gather_seconds", "part_of_peer", "remote"}
    limit_names = {field.name for field in fields(Limits)} - others
    assert limit_names < set(EngineSettings.model_fields)
    limits = EngineSettings(max_batch=3, kv_cache_bytes=7).limits(headroom=lambda: 5)
    assert (limits.max_batch, limits.kv_cache_bytes, limits.headroom(), limits.memory_share()) == (3, 7, 5, 1.0)


@hypothesis.settings(deadline=None)
@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4))
def test_arbitrary_environment_yields_settings_or_config_error(
    names: dict[str, str],
) -> None:
    environ = {f"DRAFTD_{name}": value for name, value in names.items()}
    with contextlib.suppress(ConfigError):
        assert isinstance(load_settings(None, {}, environ), Settings)


def test_list_setting_is_comma_separated_and_may_be_empty() -> None:
    settings = load_settings(None, {}, {"DRAFTD_FALLBACK__BLOCKS": "5,3", "DRAFTD_FALLBACK__LIGHTER": ""})
    assert (settings.fallback.blocks, settings.fallback.lighter) == ((5, 3), ())


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
def test_unusable_webhook_setting_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(None, {}, {f"DRAFTD_WEBHOOK__{name}": value})
    assert refused.value.field.split()[0] == f"webhook.{name.lower()}"
    assert "password" not in str(refused.value)


def test_webhook_poll_token_requires_https_beyond_loopback() -> None:
    polled = {"DRAFTD_WEBHOOK__POLL_TOKEN": "t", "DRAFTD_WEBHOOK__POLL_URL": "http://alertmanager:9093"}
    with pytest.raises(ConfigError, match="https, unless it is on loopback") as refused:
        load_settings(None, {}, polled)
    assert refused.value.field == "webhook.poll_url"
    for url in ("https://alertmanager:9093", "http://127.0.0.1:9093", "http://[::1]:9093"):
        assert load_settings(None, {}, polled | {"DRAFTD_WEBHOOK__POLL_URL": url}).webhook.poll_url == url


def test_webhook_listens_only_when_token_or_secret_is_set() -> None:
    assert not load_settings(None, {}, {}).webhook.listens
    empty = {"DRAFTD_WEBHOOK__TOKEN": "", "DRAFTD_WEBHOOK__SECRET": "", "DRAFTD_WEBHOOK__POLL_URL": ""}
    assert not load_settings(None, {}, empty).webhook.listens
    assert load_settings(None, {}, empty).webhook.poll_url is None
    assert load_settings(None, {}, {"DRAFTD_WEBHOOK__SECRET": "s" * 16}).webhook.listens
    assert load_settings(None, {}, {"DRAFTD_WEBHOOK__TOKEN": "t" * 16}).webhook.listens


@pytest.mark.parametrize(
    ("ports", "owner"),
    [
        ({"server.port": 9000, "server.http_port": 9000}, "server.port"),
        ({"server.port": 8080}, "server.port"),  # the default of server.http_port
        ({"server.port": 50552, "webhook.token": "t" * 16}, "server.port"),
        ({"server.http_port": 50552, "webhook.token": "t" * 16}, "server.http_port"),
    ],
)
def test_listeners_that_would_share_a_port_are_refused_by_name(ports: dict[str, object], owner: str) -> None:
    with pytest.raises(ConfigError, match=f"allowed: another port than that of {owner}"):
        load_settings(None, ports, {})
    assert load_settings(None, {**ports, "server.port": 0, "server.http_port": "off"}, {})


def test_webhook_poll_url_drops_final_slash(tmp_path: Path) -> None:
    file = tmp_path / "draftd.toml"
    file.write_text('[webhook]\npoll_url = "http://127.0.0.1:3000/api/alertmanager/grafana/"\n')
    assert load_settings(file, {}, {}).webhook.poll_url == "http://127.0.0.1:3000/api/alertmanager/grafana"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("port = 9", "port in FILE: no setting has this name; did you mean server.port: the key port below [server]?"),
        ("[servr]\nport = 9", "servr in FILE: no setting has this name; did you mean server?"),
        (
            "[server\n",
            "--config: got 'FILE'; allowed: valid TOML: Expected ']' at the end of a table declaration "
            "(at line 1, column 8)",
        ),
    ],
)
def test_configuration_file_with_invalid_top_level_is_refused_with_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("a.toml")
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, {}, {})
    assert caught.value.message == told.replace("FILE", str(file))


def test_environment_variable_without_section_is_refused_with_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"did you mean DRAFTD_SERVER__PORT\?$"):
        load_settings(None, {}, {"DRAFTD_PORT": "1"})
