"""What goes wrong between here and Grafana, as one sentence that says what to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from grafana_client.client import GrafanaException, GrafanaTimeoutError
from niquests import exceptions

from draftd.cli.grafana.errors import GrafanaError


@dataclass(frozen=True, slots=True)
class Asked:
    """What was being done ("list the data sources"), which permission it needs, and what must not be repeated."""

    what: str
    needs: str
    url: str
    timeout: float
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def scrubbed(self, text: str) -> str:
        """Servers and proxies like to repeat what they were sent."""
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return text


def explain(error: Exception, asked: Asked) -> GrafanaError:
    what, url = asked.what, asked.url
    if isinstance(error, (GrafanaTimeoutError, exceptions.Timeout)):
        return GrafanaError(
            f"could not {what}: {url} did not answer within {asked.timeout:g} s: --timeout gives it longer"
        )
    if isinstance(error, GrafanaException):
        return _refused(int(error.status_code or 0), asked.scrubbed(_said(error)), asked)
    if isinstance(error, exceptions.SSLError):
        cause = asked.scrubbed(_cause(error))
        if "certificate" in cause.lower():
            advice = "--tls-ca names the authority (PEM) that its certificate comes from"
        else:
            advice = "does it speak https there?"
        return GrafanaError(f"could not {what}: no TLS with {url} ({cause}): {advice}")
    if isinstance(error, exceptions.TooManyRedirects):
        return GrafanaError(
            f"could not {what}: {url} sends elsewhere: give the address it ends up at, which may be https, and one "
            "that no login page stands before"
        )
    if isinstance(error, exceptions.JSONDecodeError):
        return no_grafana(url)
    return GrafanaError(
        f"could not {what}: nothing answers at {url}: is Grafana running there, and is it the right address? "
        f"({asked.scrubbed(_cause(error))})"
    )


def no_grafana(url: str) -> GrafanaError:
    return GrafanaError(
        f"{url} answers, but is not a Grafana: give the address of its start page, with the path if it lives under one"
    )


def _refused(code: int, said: str, asked: Asked) -> GrafanaError:
    what, answer = asked.what, f"{code}: {said}" if said else str(code)
    if code == 401:
        line = f"Grafana does not accept the credentials ({answer}): is the token of this Grafana, and still valid?"
    elif code == 403:
        needed = f": give the account the permission {asked.needs}, or the role Admin" if asked.needs else ""
        line = f"not allowed to {what} ({answer}){needed}"
    elif code in (409, 412):
        line = f"could not {what}: it was changed meanwhile ({answer}): run this again"
    elif code == 404:
        line = f"could not {what}: there is no such thing ({answer})"
    elif code == 406:
        line = (
            f"could not {what}: it was saved in Grafana's newer format ({answer}): delete it there, and run this again"
        )
    elif code == 400:
        line = f"could not {what}: Grafana finds fault with it ({answer})"
    elif code == 429:
        line = f"could not {what}: too many requests ({answer}): wait a little, and run this again"
    else:
        line = f"could not {what}: Grafana failed ({answer}): its own log says why"
    return GrafanaError(line, code)


def _said(error: GrafanaException) -> str:
    response = error.response
    if isinstance(response, dict):
        return _short(str(response.get("message") or ""))
    return _short(response) if isinstance(response, str) and not response.lstrip().startswith("<") else ""


def _cause(error: BaseException) -> str:
    """The innermost reason: what wraps it repeats the address and the retries."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return _short(str(error) or type(error).__name__)


def _short(text: str, most: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
