"""Certificates and tokens of a daemon under faults, and what its clients need to connect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from draftd.client.client import DraftdClient
from tests.certificates import Authority, Certified

_YEARS = {"begin": -3650.0, "end": 3650.0}  # days: the daemon's clock may be anywhere
SPOILT = ("expired", "another key", "gone", "no certificate")
OWN_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200))


@dataclass(frozen=True)
class Access:
    """Data that a client needs to connect. `ca` is the authorities that it trusts."""

    address: str
    token: str
    ca: Path

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    def client(self) -> DraftdClient:
        return DraftdClient(self.address, self.token, self.ca)

    def channel(self) -> grpc.Channel:
        """Opens a connection that no other channel shares."""
        trusted = grpc.ssl_channel_credentials(self.ca.read_bytes())
        return grpc.secure_channel(self.address, trusted, OWN_CHANNEL)


class Credentials:
    """The files of one daemon. Two authorities alternate, so that a client which trusts one of them sees which
    certificate it met. Only the main thread changes them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._authorities = [Authority(folder, name, **_YEARS) for name in ("first", "second")]
        self._folder, self._number, self._tokens = folder, 0, 0
        self.cert, self.key, self.settings = folder / "server.pem", folder / "server.key", folder / "draftd.toml"
        self.both = folder / "both.pem"
        self.both.write_bytes(b"".join(one.file.read_bytes() for one in self._authorities))
        self.tokens: tuple[str, ...] = ()
        self.renew()
        self.set_tokens(self.new_token())

    @property
    def environ(self) -> dict[str, str]:
        return {"DRAFTD_SERVER__TLS_CERT": str(self.cert), "DRAFTD_SERVER__TLS_KEY": str(self.key)}

    @property
    def trusted(self) -> Path:
        """Returns the authority of the current certificate."""
        return self._authorities[self._number % 2].file

    @property
    def other(self) -> Path:
        """Returns the authority of the previous certificate."""
        return self._authorities[(self._number + 1) % 2].file

    def renew(self) -> None:
        """Writes a new certificate and key, of the other authority."""
        self._number += 1
        self._put(self._issued(f"server-{self._number}", **_YEARS))

    def spoil(self, kind: str) -> None:
        """Replaces the current certificate by an unusable one; `restore` puts it back."""
        if kind == "expired":
            self._put(self._issued("expired", begin=-3650.0, end=-3000.0))
        elif kind == "another key":
            self.key.write_bytes(self._issued("another", **_YEARS).key.read_bytes())
        elif kind == "gone":
            self.cert.unlink()
        else:
            self.cert.write_bytes(b"-----BEGIN CERTIFICATE-----\nMIIB\n")

    def restore(self) -> None:
        name = f"{self._authority_name}-server-{self._number}"
        self._put(Certified(self._folder / f"{name}.pem", self._folder / f"{name}.key"))

    def new_token(self) -> str:
        self._tokens += 1
        return f"a-token-of-the-faults-{self._tokens}"

    def set_tokens(self, *tokens: str) -> None:
        """Sets the tokens that are valid from the next reload on."""
        self.tokens = tokens
        self._replace(self.settings, f'[server]\ntoken = "{" ".join(tokens)}"\n'.encode())

    @property
    def _authority_name(self) -> str:
        return ("first", "second")[self._number % 2]

    def _issued(self, name: str, **dates: float) -> Certified:
        return self._authorities[self._number % 2].issue(name, **dates)

    def _put(self, made: Certified) -> None:
        for file, source in ((self.key, made.key), (self.cert, made.cert)):
            self._replace(file, source.read_bytes())

    def _replace(self, file: Path, content: bytes) -> None:
        fresh = file.with_suffix(".fresh")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        fresh.replace(file)
