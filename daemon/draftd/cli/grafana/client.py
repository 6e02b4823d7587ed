"""A Grafana: where it is, as whom to ask it, and its HTTP API through grafana-client. Every error is one sentence that
says what to do. Credentials come from the environment or a file, and are never shown.

Grafana 13 calls these paths legacy and keeps them; their successors under /apis are not in grafana-client.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grafana_client.client import GrafanaClient, GrafanaException, GrafanaTimeoutError
from niquests import exceptions

from draftd.errors import ConfigError, DraftdError, FieldError

_OLDEST = (12, 0)  # signs webhooks with HMAC
_PAGE = 1000
_LONGEST_TEXT = 300


class GrafanaError(DraftdError):
    """Something between here and Grafana is wrong. `code` is the HTTP status, where there was an answer."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """One Grafana and one identity: a token, or user and password."""

    url: str
    auth: str | tuple[str, str] = field(repr=False)
    timeout: float = 10.0
    tls_ca: Path | None = None

    @property
    def secret(self) -> str:
        """What must not be printed."""
        return self.auth if isinstance(self.auth, str) else self.auth[1]


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
    if not url:
        raise ConfigError("url", "", "--url or GRAFANA_URL, such as https://grafana.example.org")
    parts = urlsplit(checked_url("url", url))
    if parts.scheme == "http" and not insecure_http and not _loopback(parts.hostname or ""):
        raise ConfigError(
            "url",
            f"{parts.scheme}://{parts.hostname}",
            "https beyond this machine: over http the credentials could be read on the way. --insecure-http says that "
            "this is meant",
        )
    if tls_ca is not None and not tls_ca.is_file():
        raise ConfigError("tls_ca", str(tls_ca), "an existing file")
    user, password = environ.get("GRAFANA_USER"), environ.get("GRAFANA_PASSWORD")
    if token is None and user and not password:
        raise FieldError("GRAFANA_PASSWORD", "", "the password of GRAFANA_USER")
    if token is None and not (user and password):
        allowed = "a service account's token, here or in --token-file; or GRAFANA_USER and GRAFANA_PASSWORD"
        raise FieldError("GRAFANA_TOKEN", "", allowed)
    return Access(url.rstrip("/"), token or (str(user), str(password)), timeout, tls_ca)


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
        shown = "…@" + url.rsplit("@", 1)[1] if "@" in url else url  # even what is no address may hold a password
        raise ConfigError(name, shown, "an address such as https://grafana.example.org")
    return url


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
    try:
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Grafana:
    """One Grafana. Raises GrafanaError only; its messages repeat none of the secrets.

    `what` says in an error what was being done ("list the data sources"), `needs` the permission for it.
    """

    def __init__(self, access: Access, secrets: Sequence[str] = ()) -> None:
        self.access, self._secrets = access, (access.secret, *secrets)
        parts = urlsplit(access.url)
        path, host = parts.path.strip("/"), parts.hostname or ""
        self._http: Any = GrafanaClient(
            access.auth,
            host=f"[{host}]" if ":" in host else host,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            verify=True if access.tls_ca is None else str(access.tls_ca),
            timeout=access.timeout,
        )
        self._http.s.max_redirects = 0  # a redirect could carry the credentials elsewhere, or to a login page

    def version(self) -> str:
        """What it says it is; GrafanaError when it is not a Grafana, or one too old. Some keep their version secret."""
        health = self.find("see whether it is a Grafana", "", "/health")
        if not isinstance(health, dict) or "database" not in health:
            raise self._no_grafana()
        version = health.get("version")
        if not version:
            settings = self.find("ask for the version", "", "/frontend/settings")
            version = settings.get("buildInfo", {}).get("version") if isinstance(settings, dict) else None
        numbers = re.match(r"(\d+)\.(\d+)", str(version or ""))
        if numbers and tuple(map(int, numbers.groups())) < _OLDEST:
            raise GrafanaError(
                f"{self.access.url} is Grafana {version}; the oldest that signs alerts for the daemon is "
                f"{_OLDEST[0]}.{_OLDEST[1]}: upgrade it"
            )
        return str(version or "of unknown version")

    def get_list(self, what: str, needs: str, path: str, **parameters: Any) -> list[Any]:
        found = self.send("GET", what, needs, path, params=parameters)
        if not isinstance(found, list):
            raise self._no_grafana()
        return found

    def get_pages(self, what: str, needs: str, path: str, **parameters: Any) -> list[Any]:
        """All pages of a list."""
        found: list[Any] = []
        while True:
            page = self.get_list(what, needs, path, **parameters, limit=_PAGE, page=len(found) // _PAGE + 1)
            found += page
            if len(page) < _PAGE:
                return found

    def find(self, what: str, needs: str, path: str, method: str = "GET") -> Any:
        """None where there is no such thing."""
        try:
            return self.send(method, what, needs, path)
        except GrafanaError as error:
            if error.code == 404:
                return None
            raise

    def send(
        self,
        method: str,
        what: str,
        needs: str,
        path: str,
        body: Any = None,
        *,
        locked: bool = True,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        """What it answers, parsed. Alerting objects that are written `locked` cannot be edited in Grafana's pages."""
        headers = {} if locked else {"X-Disable-Provenance": "true"}
        try:
            return getattr(self._http, method)(path, json=body, params=params, headers=headers, accept_empty_json=True)
        except (GrafanaException, exceptions.RequestException) as error:
            problem = self._explain(error, what, needs)
        raise problem  # not from within the handler: what it was made from may hold the credentials

    def _explain(self, error: Exception, what: str, needs: str) -> GrafanaError:
        url = self.access.url
        if isinstance(error, (GrafanaTimeoutError, exceptions.Timeout)):
            line = f"{url} did not answer within {self.access.timeout:g} s: --timeout gives it longer"
        elif isinstance(error, GrafanaException):
            return self._refused(error, what, needs)
        elif isinstance(error, exceptions.SSLError):
            cause = self._cause(error)
            advice = "does it speak https there?"
            if "certificate" in cause.lower():
                advice = "--tls-ca names the authority (PEM) that its certificate comes from"
            line = f"no TLS with {url} ({cause}): {advice}"
        elif isinstance(error, exceptions.TooManyRedirects):
            line = (
                f"{url} sends elsewhere: give the address it ends up at, which may be https, and one that no login "
                "page stands before"
            )
        elif isinstance(error, exceptions.JSONDecodeError):
            return self._no_grafana()
        else:
            line = (
                f"nothing answers at {url}: is Grafana running there, and is it the right address? "
                f"({self._cause(error)})"
            )
        return GrafanaError(f"could not {what}: {line}")

    def _refused(self, error: GrafanaException, what: str, needs: str) -> GrafanaError:
        code, said = int(error.status_code or 0), error.response
        if isinstance(said, dict):
            said = str(said.get("message") or "")
        elif not isinstance(said, str) or said.lstrip().startswith("<"):
            said = ""
        answer = f"{code}: {self._scrubbed(said)}" if said else str(code)
        if code == 401:
            line = f"Grafana does not accept the credentials ({answer}): is the token of this Grafana, and still valid?"
            return GrafanaError(line, code)
        if code == 403:
            needed = f": give the account the permission {needs}, or the role Admin" if needs else ""
            return GrafanaError(f"not allowed to {what} ({answer}){needed}", code)
        meaning = {
            400: f"Grafana finds fault with it ({answer})",
            404: f"there is no such thing ({answer})",
            406: f"it was saved in Grafana's newer format ({answer}): delete it there, and run this again",
            409: f"it was changed meanwhile ({answer}): run this again",
            412: f"it was changed meanwhile ({answer}): run this again",
            429: f"too many requests ({answer}): wait a little, and run this again",
        }
        line = meaning.get(code, f"Grafana failed ({answer}): its own log says why")
        return GrafanaError(f"could not {what}: {line}", code)

    def _no_grafana(self) -> GrafanaError:
        return GrafanaError(
            f"{self.access.url} answers, but is not a Grafana: give the address of its start page, with the path if it "
            "lives under one"
        )

    def _cause(self, error: BaseException) -> str:
        """The innermost reason: what wraps it repeats the address and the retries."""
        while (inner := error.__cause__ or error.__context__) is not None:
            error = inner
        return self._scrubbed(str(error) or type(error).__name__)

    def _scrubbed(self, text: str) -> str:
        """Cut, and without the secrets: servers and proxies like to repeat what they were sent."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        text = " ".join(text.split())
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
