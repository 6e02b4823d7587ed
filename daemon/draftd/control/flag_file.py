"""The flag's file on disk: read, created when missing, replaced in one step."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from draftd.errors import ConfigError, FlagReadOnly
from draftd.policy import flag as policy


class FlagFile:
    """A flagd file in JSON. `path` may be a symbolic link: its target is replaced, the link stays."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create_if_missing(self, default_variant: str) -> bool:
        """Whether it was written. Raises ConfigError where it cannot be."""
        if self.path.exists():
            return False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(policy.dump(policy.new_document(default_variant)))
        except OSError as error:
            raise ConfigError("flag.file", str(self.path), f"a path that can be written ({error.strerror})") from None
        return True

    def read(self) -> policy.Document:
        """Raises ValueError with what is wrong."""
        try:
            return policy.parse(self.path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None

    @property
    def writable(self) -> bool:
        # YAML is flagd's other format; rewriting it would drop the operator's comments.
        return self.path.suffix != ".yaml" and os.access(self.path.resolve().parent, os.W_OK)

    def set_default(self, variant: str) -> str:
        """Changes `defaultVariant` only, and returns the previous one; empty where the file was missing.

        Raises InvalidRequest for an unknown variant, FlagReadOnly where the file cannot be rewritten faithfully.
        """
        if not self.writable:
            raise FlagReadOnly(f"{self.path} cannot be rewritten by the daemon: edit it by hand")
        if self.create_if_missing(variant):
            return ""
        try:
            document = self.read()
        except ValueError as error:
            raise FlagReadOnly(f"{self.path} is broken and is left as it is: {error}") from None
        previous = policy.default_variant(document)
        changed = policy.with_default_variant(document, variant)
        if changed != document:
            try:
                self._replace(policy.dump(changed))
            except OSError as error:
                raise FlagReadOnly(f"{self.path} cannot be written: {error.strerror}") from None
        return previous

    def _replace(self, text: str) -> None:
        target = self.path.resolve()
        try:
            before = target.stat()
        except FileNotFoundError:
            before = None
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, before.st_mode & 0o777 if before else 0o644)
            if before is not None:
                # flagd's watcher reloads on a later modification time: two writes within a clock tick must differ.
                now = os.stat(name).st_mtime_ns
                later = max(now, before.st_mtime_ns + 1_000_000)
                os.utime(name, ns=(later, later))
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
