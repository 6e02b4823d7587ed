"""Settings as a manifest tells them: each by its name, none of them secret, none that only one machine could have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP
from draftd.fronts.grpc.in_force import in_force
from draftd.settings import Settings

LABELS = {"model.path": "nano/target", "model.draft_path": "nano/draft"}


def leaves(section: BaseModel, place: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def changed(settings: Settings, dotted: str, value: object) -> Settings:
    section, name = dotted.split(".")
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update={name: value})})


def other(value: object) -> object:
    """Another value of the same kind, as far as telling it goes."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, Path):
        return None
    if isinstance(value, tuple):
        return value[1:]
    return f"{value}-other"


NAMES = [name for name, _ in leaves(Settings())]


def test_every_setting_is_told_by_its_dotted_name() -> None:
    assert list(in_force(Settings(), {})) == NAMES
    assert "engine.max_draft_tokens" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_that_is_another_is_told_otherwise_and_no_other_is(name: str) -> None:
    settings = Settings()
    before = in_force(settings, {})
    after = in_force(changed(settings, name, other(dict(leaves(settings))[name])), {})
    assert [key for key in before if before[key] != after[key]] == [name]


def test_a_secret_a_file_and_an_address_are_set_or_not() -> None:
    settings = Settings()
    for name, value in (
        ("server.token", SecretStr("hunter2")),
        ("annotations.grafana_token", SecretStr("hunter2")),
        ("server.tls_cert", Path("/home/hunter2/cert.pem")),
        ("fallback.state_dir", Path("/home/hunter2/state")),
        ("webhook.poll_url", "https://hunter2.example"),
    ):
        assert in_force(settings, {})[name] == "unset"
        settings = changed(settings, name, value)
        assert in_force(settings, {})[name] == "set"
    assert "hunter2" not in str(in_force(settings, {}))


def test_a_model_is_called_by_its_label_where_it_is_named_at_all() -> None:
    assert in_force(Settings(), LABELS)["model.path"] == "unset"
    settings = changed(Settings(), "model.path", "/home/me/models/nano/target")
    told = in_force(settings, LABELS)
    assert told["model.path"] == "nano/target"
    assert told["model.draft_path"] == "unset"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("fallback.canary_tolerance", 0.005, "0.005"),
        ("fallback.longest_wait_seconds", 7200.0, "7200"),
        ("fallback.dwell_seconds", 1234567.25, "1234567.25"),
        ("fallback.blocks", (6, 4), "6, 4"),
        ("fallback.lighter", (PROMPT_LOOKUP,), "prompt_lookup"),
        ("fallback.lighter", (), ""),
        ("fallback.guard", False, "false"),
        ("model.drafter", DRAFT_MODEL, "draft_model"),
    ],
)
def test_values_read_as_they_are_written(name: str, value: object, text: str) -> None:
    assert in_force(changed(Settings(), name, value), {})[name] == text
