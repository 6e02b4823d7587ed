"""The daemon's HTTP servers listen on every address of the host that the machine has, on one port."""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from draftd.errors import ConfigError
from draftd.listening import listening_sockets
from tests.http_front import fronted
from tests.webhook import Webhook, bearer, notification

LOOPBACK = ("127.0.0.1", "::1")


def _ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _ipv6(), reason="this machine has no IPv6")


def asked(host: str, port: int, method: str = "GET", path: str = "/health", **how: Any) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request(method, path, **how)
        return connection.getresponse().status
    finally:
        connection.close()


async def test_http_server_on_localhost_accepts_ipv4_and_ipv6() -> None:
    async with fronted(host="localhost") as front:
        for host in LOOPBACK:
            for path in ("/health", "/metrics", "/v1/models"):
                assert await asyncio.to_thread(asked, host, front.server.port, path=path) == 200, (host, path)


def test_webhook_on_localhost_accepts_ipv4_and_ipv6_and_frees_port_on_close() -> None:
    with Webhook(host="localhost") as first:
        for host in LOOPBACK:
            assert asked(host, first.port, "POST", "/v1/alerts", body=notification(), headers=bearer()) == 200
        assert first.counted == {"accepted": 2}
    with Webhook(host="localhost", port=first.port) as second:
        assert second.send().status == 200


@pytest.fixture
def bind(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, int], int | None]], None]:
    """Returns a function that makes sockets fail as a test decides: it gets the address and the port, and returns an
    errno or None."""

    def refuse(why: Callable[[str, int], int | None]) -> None:
        real = socket.create_server

        def create(address: Any, **how: Any) -> socket.socket:
            if (number := why(*address[:2])) is not None:
                raise OSError(number, os.strerror(number))
            return real(address, **how)

        monkeypatch.setattr(socket, "create_server", create)

    return refuse


def test_port_0_on_localhost_selects_one_port_free_on_both_ipv4_and_ipv6(bind: Callable[..., None]) -> None:
    tried: list[int] = []

    def refused(host: str, port: int) -> int | None:
        if host == "127.0.0.1":
            return None
        tried.append(port)
        return errno.EADDRINUSE if len(tried) < 3 else None

    bind(refused)
    sockets = listening_sockets("localhost", 0)
    assert [each_socket.getsockname()[:2] for each_socket in sockets] == [(host, tried[-1]) for host in LOOPBACK]
    assert len(tried) == 3
    for each_socket in sockets:
        each_socket.close()


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_localhost_listens_on_ipv4_alone_when_machine_lacks_ipv6(number: int, bind: Callable[..., None]) -> None:
    bind(lambda host, port: number if ":" in host else None)
    (made,) = listening_sockets("localhost", 0)
    assert made.getsockname()[0] == "127.0.0.1"
    made.close()
    with pytest.raises(OSError, match=os.strerror(number)):
        listening_sockets("::1", 0)


def test_localhost_port_taken_on_ipv6_alone_is_refused() -> None:
    """Clients that try the taken address first would reach the other program."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match="free"):
            Webhook(host="localhost", port=port)
        with socket.create_server(("127.0.0.1", port)):  # no socket stayed open
            pass


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("0.0.0.0", "0.0.0.0")])
def test_server_host_given_as_ip_address_binds_only_given_address(host: str, address: str) -> None:
    (made,) = listening_sockets(host, 0)
    assert made.getsockname()[0] == address
    made.close()
