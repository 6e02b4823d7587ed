"""What is asked is what is sent."""

from __future__ import annotations

import inspect

import pytest

from draftd.client.asking import Ask, connect
from draftd.client.client import DraftdClient
from draftd.errors import ConfigError


def test_a_question_has_the_fields_that_a_client_takes() -> None:
    taken = dict(inspect.signature(DraftdClient.generate).parameters)
    del taken["self"], taken["timeout"]
    assert set(vars(Ask())) == set(taken)


@pytest.mark.parametrize("target", ["127.0.0.1:65536", "[::1]:70000", "localhost:0"])
def test_a_port_that_there_is_not_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="--target: got .*a port from 1 to 65535"):
        connect(target, None, None)


@pytest.mark.parametrize("target", ["127.0.0.1:65535", "[::1]:1", "unix:/run/draftd.sock"])
def test_every_other_target_is_left_to_grpc(target: str) -> None:
    connect(target, None, None).close()
