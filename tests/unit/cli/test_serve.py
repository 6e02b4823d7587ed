"""The engine that the settings give a daemon."""

from __future__ import annotations

import pytest

from draftd.cli.serve import group_plan_of
from draftd.errors import ConfigError
from draftd.settings.load import load_settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engine.prefix_dir", "/tmp/prefixes"),
        ("engine.prefix_disk_bytes", 1),
        ("engine.idle_unload_seconds", 60),
        ("verify.enabled", True),
        ("remote.enabled", True),
    ],
)
def test_rank_group_refuses_prefixes_on_disk_or_idle_unload_or_verifier_or_remote_setting(
    name: str, value: object
) -> None:
    more = {"remote.target": "127.0.0.1:1"} if name == "remote.enabled" else {}
    settings = load_settings(None, {name: value, **more}, {})
    assert group_plan_of(settings, {}) is None
    shared = load_settings(None, {name: value, "distributed.ranks": 2, **more}, {})
    with pytest.raises(ConfigError, match=name):
        group_plan_of(shared, {})


def test_distributed_ranks_setting_determines_the_rank_group_size() -> None:
    plan = group_plan_of(load_settings(None, {"distributed.ranks": 3}, {}), {})
    assert plan is not None
    assert plan.size == 3
