"""SIGHUP: certificates, tokens and the log file are changed under a daemon that serves, and nothing is lost; a daemon
whose terminal was closed drains."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import signal
import ssl
import termios
from functools import partial
from itertools import chain, count
from pathlib import Path

import grpc
import pytest

from draftd.cli.commands.serve import announcer
from draftd.cli.serve import run_daemon
from draftd.client.client import CallError, DraftdClient
from draftd.engine.pair import LoadedModels
from draftd.models.blas import load_blas
from draftd.settings import load_settings
from tests import forked_daemon
from tests.certificates import Authority
from tests.forked_daemon import Daemon
from tests.in_process_daemon import collect
from tests.wait_until import until
from tests.webhook import signed

OLD, NEW = "the-old-token-of-the-tests", "the-new-token-of-the-tests"
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))}


def main(config: str, terminal: str = "") -> int:
    """A daemon in a session of its own, which has no terminal unless one is named."""
    os.setsid()
    if terminal:
        fcntl.ioctl(os.open(terminal, os.O_RDWR), termios.TIOCSCTTY, 0)
    read = partial(load_settings, Path(config), {}, {})
    return run_daemon(read(), announce=announcer(), load=load, read=read)


def load(progress: object) -> LoadedModels:
    load_blas()
    from tests.scripted import scripted_models

    return scripted_models(0.7, step_seconds=0.005, context_length=4096)


class Configured:
    """A daemon's TOML file, and the credentials that clients have."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.log = folder, folder / "draftd.toml", folder / "draftd.log"
        self.tls = folder / "tls"
        self.tls.mkdir()

    def certify(self, name: str, end: float = 99) -> Authority:
        """Puts a certificate of a new authority, for so many days, where the daemon's is."""
        authority = Authority(self.folder, name, end=end)
        made = authority.issue("server", end=end)
        made.cert.replace(self.tls / "server.pem")
        made.key.replace(self.tls / "server.key")
        return authority

    def write(self, tokens: str) -> None:
        pair = f"tls_cert = '{self.tls}/server.pem'\ntls_key = '{self.tls}/server.key'\n"
        self.file.write_text(
            f"[server]\nport = 0\nhttp_port = 0\ntoken = '{tokens}'\n{pair}"
            f"[webhook]\nport = 0\ntoken = '{tokens}'\nsecret = '{tokens}'\n{pair}"
            f"[flag]\nfile = '{self.folder}/flags.json'\n[log]\nfile = '{self.log}'\n"
        )

    def logged(self, words: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if words in line] if self.log.exists() else []

    def hang_up(self, daemon: Daemon, words: str = "SIGHUP: ") -> str:
        """Sends SIGHUP to the daemon. What it logs about that."""
        self.log.rename(self.folder / "moved.log")  # as logrotate does
        daemon.child.send_signal(signal.SIGHUP)
        until(lambda: bool(self.logged(words)), 60, words)
        return self.logged(words)[0].partition("SIGHUP: ")[2]


class Ports:
    """Ways to reach a daemon on its three ports."""

    def __init__(self, daemon: Daemon) -> None:
        self._numbers, said = count(), "\n".join(daemon.lines)
        self.grpc = daemon.port
        self.http = int(said.partition("HTTP on https://127.0.0.1:")[2].partition("/")[0])
        self.webhook = int(said.partition("alerts are taken on port ")[2].partition(" ")[0])

    def answers(self, authority: Authority, token: str) -> list[object]:
        """Of gRPC, HTTP and the webhook: a status, or what went wrong with the connection."""
        return [self.call(authority, token), self.get(authority, token), *self.notify(authority, token)]

    def call(self, authority: Authority, token: str) -> object:
        with DraftdClient(f"localhost:{self.grpc}", token, authority.file) as client:
            try:
                client.model(timeout=60)
            except CallError as error:
                return {grpc.StatusCode.UNAUTHENTICATED: 401, grpc.StatusCode.UNAVAILABLE: "unverified"}[error.code]
        return 200

    def get(self, authority: Authority, token: str) -> object:
        return _status(authority, self.http, "GET", "/v1/models", {"Authorization": f"Bearer {token}"})

    def expiry(self, authority: Authority, token: str) -> float:
        """As Prometheus is told it."""
        connection = http.client.HTTPSConnection(
            "localhost", self.http, timeout=60, context=ssl.create_default_context(cafile=authority.file)
        )
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            text = connection.getresponse().read().decode()
        (line,) = (line for line in text.splitlines() if 'tls_certificate="server.tls_cert"' in line)
        assert line.startswith("draftd_tls_certificate_not_after_seconds{")
        return float(line.rpartition(" ")[2])

    def notify(self, authority: Authority, token: str) -> list[object]:
        number = str(next(self._numbers))  # a signature is accepted once
        body = json.dumps({"version": "4", "status": "firing", "alerts": [{"status": "firing", "fingerprint": number,
            "startsAt": "2026-01-31T12:00:00Z", "labels": {"alertname": "DraftdAbsent"}}]})  # fmt: skip
        by_token, by_secret = {"Authorization": f"Bearer {token}"}, signed(body.encode(), secret=token)
        return [_status(authority, self.webhook, "POST", "/v1/alerts", one, body) for one in (by_token, by_secret)]


def _status(authority: Authority, port: int, method: str, path: str, headers: dict[str, str], body: str = "") -> object:
    context = ssl.create_default_context(cafile=authority.file)
    connection = http.client.HTTPSConnection("localhost", port, timeout=60, context=context)
    with contextlib.closing(connection):
        try:
            connection.request(method, path, body or None, headers)
        except ssl.SSLCertVerificationError:
            return "unverified"
        return connection.getresponse().status


def test_sighup_replaces_credentials_without_ending_a_running_request(tmp_path: Path) -> None:
    given = Configured(tmp_path)
    first = given.certify("first")
    given.write(OLD)
    with forked_daemon.serving(main, str(given.file), environ=ENVIRON) as daemon:
        ports = Ports(daemon)
        assert ports.answers(first, OLD) == [200] * 4
        assert ports.answers(first, NEW) == [401] * 4
        with DraftdClient(f"localhost:{ports.grpc}", OLD, first.file) as client:
            stream = client.generate("x", max_tokens=300)
            begun = next(stream)
            before = ports.expiry(first, OLD)
            second = given.certify("second", end=199)
            given.write(f"{NEW} {OLD}")
            told = given.hang_up(daemon, "SIGHUP: reloaded")
            for name in (
                "server.token (2 are valid)",
                "webhook.token (2",
                "webhook.secret (2",
                "server.tls_cert (ECDSA",
            ):
                assert name in told
            assert ports.answers(second, OLD) == ports.answers(second, NEW) == [200] * 4, "both while clients change"
            assert ports.answers(first, OLD) == ["unverified"] * 4, "new connections see the new certificate"
            assert round(ports.expiry(second, OLD) - before, -3) == 100 * 86400
            given.write(NEW)
            assert "server.token" in given.hang_up(daemon, "SIGHUP: reloaded")
            assert ports.answers(second, NEW) == [200] * 4
            assert ports.answers(second, OLD) == [401] * 4
            with pytest.raises(CallError, match="bearer token"):
                client.model()
            assert len(collect(chain([begun], stream)).tokens) == 300, (
                "what had begun goes on, over the connection that it has"
            )


def test_sighup_names_unusable_files_and_keeps_the_old_credentials(tmp_path: Path) -> None:
    given = Configured(tmp_path)
    authority = given.certify("ca")
    given.write(NEW)
    with forked_daemon.serving(main, str(given.file), environ=ENVIRON) as daemon:
        ports, text = Ports(daemon), given.file.read_text()
        assert given.hang_up(daemon) == "reloaded: certificates and tokens are as before"
        given.file.write_text(text.replace("port = 0", "port = 1", 1).replace("[log]", "[log]\nlevel = 'debug'"))
        assert given.hang_up(daemon, "restart") == "server.port, log.level changed; the change applies after a restart"
        (given.tls / "server.key").write_text("half of a k")
        given.write(OLD)
        stays = "certificates and tokens stay as they were"
        assert given.hang_up(daemon).startswith("server.tls_key: got ")
        assert given.logged(stays)
        given.file.write_text("[server")
        assert given.hang_up(daemon).startswith("--config: got ")
        given.file.unlink()
        assert given.hang_up(daemon).endswith(f"a readable TOML file (No such file or directory); {stays}")
        assert ports.answers(authority, NEW) == [200] * 4
        assert ports.answers(authority, OLD) == [401] * 4
    assert [line for line in daemon.lines if "SIGHUP" in line] == [], "stderr has announcements alone"
    assert given.log.stat().st_mode & 0o777 == 0o600


def follower(*arguments: str) -> None:
    """In a session of its own, deaf to SIGHUP until it answers it, as the command is from its first line."""
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    forked_daemon.command("follow", *arguments)


def test_follower_rank_reopens_its_log_on_sighup(tmp_path: Path) -> None:
    given = Configured(tmp_path)
    given.file.write_text(f"[log]\nfile = '{given.log}'\n")
    whole = {**ENVIRON, "DRAFTD_CONFIG": str(given.file)}
    child = forked_daemon.start(follower, "--address", "127.0.0.1:1", "--rank", "1", environ=whole)
    try:
        until(lambda: bool(given.logged("the log is in")), 60)
        given.log.rename(tmp_path / "moved.log")

        def reopened() -> bool:
            child.send_signal(signal.SIGHUP)
            return bool(given.logged("SIGHUP: the log was reopened"))

        until(reopened, 60)
        assert child.poll() is None
        child.terminate()
        assert child.wait(90) == 0
    finally:
        child.kill()


def test_daemon_whose_terminal_is_closed_drains_and_exits_zero(tmp_path: Path) -> None:
    config = tmp_path / "draftd.toml"
    config.write_text(f"[server]\nport = 0\n[flag]\nfile = '{tmp_path}/flags.json'\n")
    ours, theirs = pty.openpty()
    with (
        forked_daemon.daemon(main, str(config), os.ttyname(theirs), environ=ENVIRON) as daemon,
        DraftdClient(daemon.address) as client,
    ):
        os.close(theirs)
        stream = client.generate("x", max_tokens=200)
        begun = next(stream)
        os.close(ours)  # the kernel sends SIGHUP to the session's leader
        daemon.child.send_signal(signal.SIGHUP)  # and so may a shell
        assert len(collect(chain([begun], stream)).tokens) == 200
        assert daemon.wait(90) == 0
    assert any("SIGHUP: the terminal was closed" in line for line in daemon.lines)
