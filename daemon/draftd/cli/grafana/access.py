"""Where the Grafana is, and as whom to ask it. Credentials come from the environment or a file, and are never shown."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from draftd.errors import ConfigError, FieldError


@dataclass(frozen=True, slots=True)
class Access:
    """One Grafana and one identity. `prefix` is the path it lives under, with its closing slash, or empty."""

    scheme: str
    host: str
    port: int | None
    prefix: str = ""
    token: str | None = field(default=None, repr=False)
    login: tuple[str, str] | None = field(default=None, repr=False)
    timeout: float = 10.0
    tls_ca: Path | None = None

    @property
    def url(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}/{self.prefix}".rstrip("/")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be printed."""
        return tuple(secret for secret in (self.token, self.login[1] if self.login else None) if secret)


def find_access(
    url: str | None,
    environ: Mapping[str, str],
    *,
    token_file: Path | None = None,
    insecure_http: bool = False,
    timeout: float = 10.0,
    tls_ca: Path | None = None,
) -> Access:
    """The token of `token_file`, else GRAFANA_TOKEN, else GRAFANA_USER and GRAFANA_PASSWORD."""
    token = _token(token_file, environ)
    scheme, host, port, prefix = _address(url)
    if scheme == "http" and not insecure_http and not _loopback(host):
        raise ConfigError(
            "url",
            f"{scheme}://{host}",
            "https beyond this machine: over http the credentials could be read on the way. --insecure-http says that "
            "this is meant",
        )
    if tls_ca is not None and not tls_ca.is_file():
        raise ConfigError("tls_ca", str(tls_ca), "an existing file")
    login = None
    user, password = environ.get("GRAFANA_USER"), environ.get("GRAFANA_PASSWORD")
    if token is None and user:
        if not password:
            raise FieldError("GRAFANA_PASSWORD", "", "the password of GRAFANA_USER")
        login = (user, password)
    if token is None and login is None:
        raise FieldError(
            "GRAFANA_TOKEN",
            "",
            "a service account's token, here or in --token-file; or GRAFANA_USER and GRAFANA_PASSWORD",
        )
    return Access(scheme, host, port, prefix, token, login, timeout, tls_ca)


def checked_url(name: str, url: str) -> str:
    """An http address without credentials in it, which would end up in logs and in process lists."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if fits and (parts.username or parts.password):
        raise ConfigError(name, f"{parts.scheme}://…@{parts.hostname}", "an address without user and password in it")
    if not fits or not url.isascii() or any(sign.isspace() for sign in url):
        raise ConfigError(name, _without_login(url), "an address such as https://grafana.example.org")
    return url


def _address(url: str | None) -> tuple[str, str, int | None, str]:
    if not url:
        raise ConfigError("url", "", "--url or GRAFANA_URL, such as https://grafana.example.org")
    parts = urlsplit(checked_url("url", url))
    host = parts.hostname or ""
    path = parts.path.strip("/")
    return parts.scheme, f"[{host}]" if ":" in host else host, parts.port, f"{path}/" if path else ""


def _token(file: Path | None, environ: Mapping[str, str]) -> str | None:
    if file is not None:
        name, token = str(file), file.read_text(encoding="utf-8").strip()
    else:
        name, token = "GRAFANA_TOKEN", environ.get("GRAFANA_TOKEN", "").strip()
        if not token:
            return None
    if not token or not all("!" <= sign <= "~" for sign in token):
        raise FieldError(name, "…", "one token of printable ASCII, and nothing else")
    return token


def _loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _without_login(url: str) -> str:
    """Even what is no address may hold a password."""
    return "…@" + url.rsplit("@", 1)[1] if "@" in url else url
