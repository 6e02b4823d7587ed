"""The source of the flags: flagd's provider on a file, or on a flagd server."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from openfeature import api
from openfeature.contrib.provider.flagd import FlagdProvider
from openfeature.contrib.provider.flagd.config import ResolverType

from draftd.errors import FlagReadOnly
from draftd.planning import flag_file
from draftd.planning.flag_file import STRATEGY, Flag, FlagFile
from draftd.settings import FlagSettings
from draftd.threads import run_again

POLL_SECONDS = 0.1
"""How often the provider looks at the file's modification time."""


class FlagBackend(Protocol):
    """The source of the flags. `source`: its path or address. `shared`: other daemons may use it too. `edit_cause`: how
    a change came about that the daemon did not make."""

    name: str
    source: str
    shared: bool
    edit_cause: str

    @property
    def save_errors(self) -> int | None:
        """How often the source could not be written; None if the daemon does not write it."""

    def prepare(self) -> bool:
        """Writes the source if it is missing; returns whether it did. Raises OSError."""

    def start(self, domain: str) -> bool:
        """Starts the provider in an OpenFeature domain. Returns False if it does not work."""

    def read(self, flag: Flag) -> tuple[tuple[str, ...], str] | None:
        """Returns variants and default of the flag; None if the daemon may not write the source. Raises ValueError with
        what is wrong."""

    def set_default(self, flag: Flag, variant: str) -> str:
        """Changes the flag's default; returns the previous one, empty if there was none. Raises InvalidRequest,
        FlagReadOnly."""

    def fault(self) -> str:
        """Returns what is wrong with the source; empty if nothing is known."""


class FileBackend:
    """A `FlagBackend` on a file."""

    name, edit_cause = "flagd (file)", "its file was edited"

    def __init__(self, path: Path, defaults: Mapping[Flag, str], *, shared: bool) -> None:
        self.source, self.shared = str(path), shared
        self._file, self._defaults = FlagFile(path), defaults
        self._provider = FlagdProvider(
            resolver_type=ResolverType.FILE,
            offline_flag_source_path=str(path),
            deadline_ms=round(POLL_SECONDS * 1000),
        )
        # An exception would end the watcher's thread for good.
        watcher = self._provider.resolver.connector  # type: ignore[attr-defined]
        watcher.refresh_file = partial(run_again, "the flag's watcher", watcher.refresh_file, threading.Event())

    @property
    def save_errors(self) -> int | None:
        return self._file.errors

    def prepare(self) -> bool:
        return self._file.create_if_missing(self._defaults)

    def start(self, domain: str) -> bool:
        try:
            api.set_provider_and_wait(self._provider, domain)
        except Exception:
            return False
        return True

    def read(self, flag: Flag) -> tuple[tuple[str, ...], str] | None:
        if not self._file.writable:
            return None
        document = self._file.read()
        variants, default = flag_file.variants(document, flag), flag_file.default_variant(document, flag)
        if flag is STRATEGY and flag.key not in document["flags"]:
            default = self._defaults[flag]
        return variants, default

    def set_default(self, flag: Flag, variant: str) -> str:
        return self._file.set_default(flag, variant)

    def fault(self) -> str:
        try:
            self._file.read()
        except ValueError as error:
            return str(error)
        return ""


class ServerBackend:
    """A `FlagBackend` on a flagd server, which other programs write."""

    name, edit_cause = "flagd (server)", "changed on the flagd server"
    shared, save_errors = True, None

    def __init__(self, settings: FlagSettings) -> None:
        self.source = f"{settings.host}:{settings.port}"
        self._provider = FlagdProvider(
            resolver_type=ResolverType.IN_PROCESS, host=settings.host, port=settings.port, tls=settings.tls
        )

    def prepare(self) -> bool:
        return False

    def start(self, domain: str) -> bool:
        api.set_provider(self._provider, domain)  # connects in the background
        return True

    def read(self, flag: Flag) -> tuple[tuple[str, ...], str] | None:
        return None

    def set_default(self, flag: Flag, variant: str) -> str:
        raise FlagReadOnly(f"the flag is served by flagd at {self.source}: set it there")

    def fault(self) -> str:
        return ""


def make_backend(settings: FlagSettings, file: Path | None, defaults: Mapping[Flag, str]) -> FlagBackend:
    """`file`: this daemon's own, used if the settings name none."""
    if settings.provider != "file":
        return ServerBackend(settings)
    path = settings.file or file
    assert path is not None
    return FileBackend(path, defaults, shared=settings.file is not None)
