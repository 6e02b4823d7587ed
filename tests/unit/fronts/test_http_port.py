"""The default HTTP port: the one where clients of other servers look, if it is free."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import pytest

from draftd.settings import ServerSettings
from draftd.settings import serving as settings
from tests.in_process_daemon import serving
from tests.scripted import scripted_models


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port in place of 8080, which another program may use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = int(server.getsockname()[1])
    monkeypatch.setattr(settings, "HTTP_PORT", number)
    return number


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_http_port_defaults_to_8080_unless_off_or_grpc_port_is_zero() -> None:
    assert ServerSettings().http == 8080
    assert ServerSettings(port=0).http is None
    assert ServerSettings(http_port="off").http is None
    assert ServerSettings(http_port=9).http == 9


def test_http_root_page_names_the_server_on_the_default_port(tmp_path: Path, port: int) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7), server={"port": free()}) as served:
        assert served.daemon.http_port == port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        response = connection.getresponse()
        assert (response.status, response.getheader("Content-Type")) == (200, "text/plain; charset=utf-8")
        assert "draftd's HTTP server" in response.read().decode()
        connection.close()


def test_daemon_serves_grpc_only_if_the_default_http_port_is_taken(
    tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        serving(tmp_path, lambda: scripted_models(0.7), server={"port": free()}) as served,
    ):
        assert served.daemon.http_port == 0
        assert served.client.status().version
    assert f"HTTP is not served: port {port} is taken by another program" in caplog.text


def test_daemon_opens_no_http_port_if_http_port_is_off(tmp_path: Path, port: int) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7), server={"port": free(), "http_port": "off"}) as served:
        assert served.daemon.http_port == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
