"""A Grafana's address, credentials and HTTP API, through grafana-client. Every error is one sentence that says what to
do. Credentials come from the environment or a file, and are never shown.

Grafana 13 calls these paths legacy and keeps them; their successors under /apis are not in grafana-client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from grafana_client.client import GrafanaClient, GrafanaException, GrafanaTimeoutError
from niquests import exceptions
from pydantic import TypeAdapter, ValidationError

from draftd.errors import ConfigError, DraftdError, FieldError
from draftd.settings import is_loopback
from draftd.settings.kinds import Address

_OLDEST = (12, 0)  # signs webhooks with HMAC
_LONGEST_TEXT = 300
_MEANING = {
    400: "Grafana rejects it ({})",
    401: "Grafana does not accept the credentials ({}): is the token of this Grafana, and still valid?",
    403: "it is not allowed ({}): give the account that permission, or the role Admin",
    404: "it does not exist ({})",
    406: "it was saved in Grafana's newer format ({}): delete it there, and run this again",
    409: "another one has taken its place, or it was changed meanwhile ({}): check it in Grafana, and run this again",
    412: "it was changed meanwhile ({}): run this again",
    429: "too many requests ({}): wait a little, and run this again",
}


class GrafanaError(DraftdError):
    """A call to Grafana failed. `code`: the HTTP status, None without an answer."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


def checked_url(name: str, url: str) -> str:
    """Returns the URL without a slash at its end. Raises ConfigError if it is invalid or has credentials, which would
    end up in logs and process lists."""
    try:
        return TypeAdapter(Address).validate_python(url)
    except ValidationError:
        shown = "…@" + url.rsplit("@", 1)[1] if "@" in url else url  # an invalid address may hold a password, too
        raise ConfigError(
            name, shown, "an address such as https://grafana.example.org, with no user or password in it"
        ) from None


def _credentials(file: Path | None, environ: Mapping[str, str]) -> str | tuple[str, str]:
    name = "GRAFANA_TOKEN" if file is None else str(file)
    token = (environ.get(name, "") if file is None else file.read_text(encoding="utf-8")).strip()
    if token or file is not None:
        if not token or not all("!" <= sign <= "~" for sign in token):
            raise FieldError(name, "…", "one token of printable ASCII, and nothing else")
        return token
    user, password = environ.get("GRAFANA_USER"), environ.get("GRAFANA_PASSWORD")
    if not user:
        allowed = "a service account's token, here or in --token-file; or GRAFANA_USER and GRAFANA_PASSWORD"
        raise FieldError(name, "", allowed)
    if not password:
        raise FieldError("GRAFANA_PASSWORD", "", "the password of GRAFANA_USER")
    return user, password


class Grafana:
    """One Grafana with one set of credentials. Its methods raise only GrafanaError, whose messages have neither the
    credentials nor the webhook's secret.

    `what` names the action in an error ("list the data sources").
    """

    def __init__(
        self,
        url: str | None,
        environ: Mapping[str, str],
        *,
        token_file: Path | None = None,
        insecure_http: bool = False,
        timeout: float = 10.0,
        tls_ca: Path | None = None,
    ) -> None:
        """Takes the token of `token_file`, else GRAFANA_TOKEN, else GRAFANA_USER and GRAFANA_PASSWORD. `timeout`:
        seconds for each call. Raises FieldError."""
        if not url:
            raise ConfigError("url", "", "--url or GRAFANA_URL, such as https://grafana.example.org")
        self.url, self._timeout = checked_url("url", url), timeout
        parts = urlsplit(self.url)
        if parts.scheme == "http" and not insecure_http and not is_loopback(parts.hostname or ""):
            allowed = "https beyond this machine: over http the credentials could be read on the way"
            raise ConfigError("url", f"http://{parts.hostname}", f"{allowed}. --insecure-http allows unencrypted HTTP")
        if tls_ca is not None and not tls_ca.is_file():
            raise ConfigError("tls_ca", str(tls_ca), "an existing file")
        auth = _credentials(token_file, environ)
        secrets = (auth if isinstance(auth, str) else auth[1], environ.get("DRAFTD_WEBHOOK_SECRET"))
        self._secrets = [one for one in secrets if one]
        self._http: Any = GrafanaClient(auth, verify=True if tls_ca is None else str(tls_ca), timeout=timeout)
        self._http.url = f"{self.url}/api"
        self._http.s.max_redirects = 0  # a redirect could carry the credentials elsewhere, or to a login page

    def check(self) -> None:
        """Raises GrafanaError if the server is no Grafana, or too old. One that hides its version passes."""
        health = self.find("see whether it is a Grafana", "/health")
        if not isinstance(health, dict) or "database" not in health:
            raise self._no_grafana()
        numbers = re.match(r"(\d+)\.(\d+)", version := str(health.get("version") or ""))
        if numbers and tuple(map(int, numbers.groups())) < _OLDEST:
            oldest = f"the oldest that signs alerts for the daemon is {_OLDEST[0]}.{_OLDEST[1]}: upgrade it"
            raise GrafanaError(f"{self.url} is Grafana {version}; {oldest}")

    def get_list(self, what: str, path: str) -> list[Any]:
        items = self.send("GET", what, path)
        if not isinstance(items, list):
            raise self._no_grafana()
        return items

    def find(self, what: str, path: str) -> Any:
        """Returns what is at `path`, or None if there is nothing."""
        try:
            return self.send("GET", what, path)
        except GrafanaError as error:
            if error.code == 404:
                return None
            raise

    def send(self, method: str, what: str, path: str, body: Any = None, *, locked: bool = True) -> Any:
        """Returns the parsed answer. Alerting objects that are written `locked` cannot be edited in Grafana's pages."""
        headers = {} if locked else {"X-Disable-Provenance": "true"}
        try:
            return getattr(self._http, method)(path, json=body, headers=headers, accept_empty_json=True)
        except (GrafanaException, exceptions.RequestException) as error:
            problem = self._to_grafana_error(error, what)
        raise problem  # outside the handler: the original error may hold the credentials

    def _to_grafana_error(self, error: Exception, what: str) -> GrafanaError:
        url, code = self.url, None
        if isinstance(error, (GrafanaTimeoutError, exceptions.Timeout)):
            line = f"{url} did not answer within {self._timeout:g} s: --timeout gives it longer"
        elif isinstance(error, GrafanaException):
            code = int(error.status_code or 0)
            answer = ": ".join(filter(None, (str(code), self._scrub(_message(error.response)))))
            line = _MEANING.get(code, "Grafana failed ({}): its own log says why").format(answer)
        elif isinstance(error, exceptions.SSLError):
            cause = self._cause(error)
            untrusted = "certificate" in cause.lower()
            advice = "--tls-ca names the authority (PEM) that its certificate comes from"
            line = f"no TLS with {url} ({cause}): {advice if untrusted else 'does it use https?'}"
        elif isinstance(error, exceptions.TooManyRedirects):
            line = f"{url} redirects: give the final address, without a login page before it"
        elif isinstance(error, exceptions.JSONDecodeError):
            return self._no_grafana()
        else:
            cause = self._cause(error)
            line = f"nothing answers at {url}: is Grafana running there, and is it the right address? ({cause})"
        return GrafanaError(f"could not {what}: {line}", code)

    def _no_grafana(self) -> GrafanaError:
        advice = "give the address of its start page, with its path, if it has one"
        return GrafanaError(f"{self.url} answers, but is not a Grafana: {advice}")

    def _cause(self, error: BaseException) -> str:
        """Returns the innermost error's text; the outer ones repeat the address and the retries."""
        while (inner := error.__cause__ or error.__context__) is not None:
            error = inner
        return self._scrub(str(error) or type(error).__name__)

    def _scrub(self, text: str) -> str:
        """Shortens a text and removes the secrets: servers and proxies may repeat what they received."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        text = " ".join(text.split())
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def _message(answer: object) -> str:
    """Returns Grafana's own message, which names a missing permission; empty if the answer is a web page."""
    if isinstance(answer, dict):
        return str(answer.get("message") or "")
    return answer if isinstance(answer, str) and not answer.lstrip().startswith("<") else ""
