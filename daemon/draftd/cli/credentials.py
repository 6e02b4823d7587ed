"""The certificates and tokens in use, and their reload on SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftd.client.signals import hangup_reloads
from draftd.errors import ConfigError, in_one_line
from draftd.fronts.daemon import Daemon
from draftd.settings import Settings, secrets_of
from draftd.settings.certificates import Certificates, certificate_files, load_certificates
from draftd.settings.load import variable_of

_TOKENS = (
    "server.token",
    "webhook.token",
    "webhook.secret",
    "webhook.poll_token",
    "remote.token",
    "annotations.grafana_token",
)

log = logging.getLogger(__name__)

#: Reads new credentials, and returns the call that puts them into use. Raises ConfigError.
Reloading = Callable[[Settings], Callable[[], Awaitable[None]]]


@dataclass(frozen=True, slots=True)
class CredentialChange:
    """Settings and certificates that were read again. `names`: credentials that differ from those in use. `later`:
    other settings that differ, which need a restart. `fixed`: environment variables that hold a token; they outrank the
    file, and do not change while the process runs."""

    settings: Settings
    certificates: Mapping[str, Certificates]
    names: tuple[str, ...]
    later: tuple[str, ...]
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = ", ".join(map(self._shown, self.names)) or "certificates and tokens are as before"
        if self.fixed:
            said += f"; {', '.join(self.fixed)} in the environment stands over the file, and needs a restart to change"
        return said

    def _shown(self, name: str) -> str:
        if name in self.certificates:
            return f"{name} ({self.certificates[name]})"
        valid = len(secrets_of(_value(self.settings, name))) if name in _TOKENS else 1
        return f"{name} ({valid} are valid)" if valid > 1 else name


class Credentials:
    """The credentials in use. `read` reads the settings again."""

    def __init__(self, settings: Settings, read: Callable[[], Settings]) -> None:
        """Raises ConfigError for certificates that cannot be used."""
        self._settings, self._read = settings, read
        self._certificates: Mapping[str, Certificates] = load_certificates(certificate_files(settings))
        _warn_of(self._certificates)

    def expiries(self) -> Mapping[str, float]:
        """Returns when each certificate expires: Unix time by setting."""
        return {setting: one.expires for setting, one in self._certificates.items()}

    def read_changes(self) -> CredentialChange:
        """Reads the settings and their files again, without putting them into use. Raises ConfigError."""
        read = self._read()
        settings, later = _with_credentials(self._settings, read)
        certificates = load_certificates(certificate_files(settings))
        names = [name for name in _TOKENS if _value(settings, name) != _value(self._settings, name)]
        names += [name for name, found in certificates.items() if found.differs(self._certificates[name])]
        fixed = [variable for name in _TOKENS if os.environ.get(variable := variable_of(name))]
        return CredentialChange(settings, certificates, tuple(names), tuple(later), tuple(fixed))

    def use(self, change: CredentialChange) -> None:
        """Puts the credentials of a change into use."""
        self._settings, self._certificates = change.settings, change.certificates
        _warn_of(change.certificates)


class Hangup:
    """Answers SIGHUP: drains the daemon if its terminal was closed. Otherwise reloads the credentials; `reopen` opens
    the log again."""

    def __init__(self, credentials: Credentials, reopen: Callable[[], None]) -> None:
        self._credentials, self._reopen = credentials, reopen
        self._reloads = hangup_reloads()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._daemon: Daemon | None = None
        self._parts: Sequence[Reloading] = ()
        self._lock = asyncio.Lock()
        self._tasks = set[asyncio.Task[None]]()

    def serving(self, daemon: Daemon, *parts: Reloading) -> None:
        """Sets the daemon and the parts to act on; called on the daemon's event loop."""
        self._loop, self._daemon, self._parts = asyncio.get_running_loop(), daemon, parts

    def __call__(self, *_: object) -> None:
        """Handles the signal."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._act)
        elif not self._reloads:  # there is nothing to drain yet
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGHUP)

    def _act(self) -> None:
        assert self._daemon is not None
        if self._daemon.stopping:
            return  # a closing terminal may send two signals: no reason to hurry
        if self._reloads:
            task = asyncio.create_task(self._reload())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            log.info("SIGHUP: the terminal was closed")
            self._daemon.stop()

    async def _reload(self) -> None:
        async with self._lock:
            self._reopen()
            try:
                change = await asyncio.to_thread(self._credentials.read_changes)
                for apply in [prepare(change.settings) for prepare in self._parts]:
                    await apply()
            except ConfigError as error:
                log.error("SIGHUP: %s; certificates and tokens stay as they were", error.message)
                return
            except Exception as error:  # a file that is gone, or no free descriptors
                log.error("SIGHUP: certificates and tokens could not be reloaded: %s", in_one_line(error))
                return
            self._credentials.use(change)
            log.info("SIGHUP: reloaded: %s", change)
            if change.later:
                log.warning("SIGHUP: %s changed; the change applies after a restart", ", ".join(change.later))


def _with_credentials(settings: Settings, read: Settings) -> tuple[Settings, list[str]]:
    """Returns the settings with the new credentials, and the names of other settings that differ. Those include
    credentials that were added or removed: only a start can add or remove what uses a credential."""
    later = []
    updates: dict[str, dict[str, Any]] = {}
    for section, values in read:
        for key, value in values:
            name, before = f"{section}.{key}", _value(settings, f"{section}.{key}")
            if value == before:
                continue
            credential = name in _TOKENS or key.startswith("tls_")
            if credential and value is not None and before is not None:
                updates.setdefault(section, {})[key] = value
            else:
                later.append(name)
    changed = {section: getattr(settings, section).model_copy(update=update) for section, update in updates.items()}
    return settings.model_copy(update=changed), later


def _value(settings: Settings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def _warn_of(certificates: Mapping[str, Certificates]) -> None:
    for setting, certificate in certificates.items():
        for warning in certificate.warnings:
            log.warning("%s: %s: %s: %s", setting, certificate.file.path, warning.text, warning.mend)
