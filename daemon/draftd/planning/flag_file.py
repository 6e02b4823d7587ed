"""The feature flags `speculative-decoding` and `decoding-strategy` as data: keys, variants, and flagd's file.

    {"flags": {"speculative-decoding": {"state": "ENABLED", "variants": {"on": true, "off": false},
                                        "defaultVariant": "on", "targeting": {…}},
               "decoding-strategy": {"state": "ENABLED", "variants": {"local": "local", …}, "defaultVariant": "auto"}}}

An operator may add `targeting` (by `workload`, `model` or `caller`, the strategy also by `prompt_tokens`; JsonLogic, as
flagd defines it) and flags of other programs. The daemon changes only `defaultVariant`. Either flag may be missing: the
configured default then applies.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftd.errors import FlagReadOnly, InvalidRequest
from draftd.files import remove_leftovers, replace_file
from draftd.strategies import Strategy


@dataclass(frozen=True, eq=False, slots=True)
class Flag:
    """A flag that this daemon reads: its key, and its variants when the daemon writes it."""

    key: str
    variants: Mapping[str, bool | str]


SPECULATION = Flag("speculative-decoding", {"on": True, "off": False})
STRATEGY = Flag("decoding-strategy", {strategy.value: strategy.value for strategy in Strategy})
FLAGS = {flag.key: flag for flag in (SPECULATION, STRATEGY)}
FLAG_KEY = SPECULATION.key
_LEFT_SECONDS = 60.0  # age of leftovers to remove: another daemon may be replacing the same file
_SCHEMA = "https://flagd.dev/schema/v0/flags.json"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FlagResolution:
    """A flag's value for one context. `reason` is OpenFeature's: STATIC, TARGETING_MATCH, DEFAULT, DISABLED, STALE (the
    source is broken, its last good state applies) or ERROR (the configured default applies). `error` has details."""

    variant: str
    value: bool | str
    reason: str
    error: str = ""

    def __str__(self) -> str:
        """Describes the variant and why it applies: `off (targeting rule)`."""
        error = f": {self.error}" if self.error else ""
        return f"{self.variant} ({_REASONS.get(self.reason, self.reason.lower())}{error})"


_REASONS = {"STATIC": "default variant", "DEFAULT": "default variant", "TARGETING_MATCH": "targeting rule"}


def parse(text: str) -> Document:
    """Parses a flagd document. Raises ValueError with what is wrong."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("flags"), dict):
        raise ValueError('no object "flags" at the top level')
    for key in FLAGS:
        flag = document["flags"].get(key)
        if flag is not None and not (isinstance(flag, dict) and isinstance(flag.get("variants"), dict)):
            raise ValueError(f'flag "{key}" has no object "variants"')
    return document


def default_variant(document: Document, flag: Flag = SPECULATION) -> str:
    """Returns the variant that applies if no targeting rule matches; empty if the document names none."""
    value = document["flags"].get(flag.key, {}).get("defaultVariant")
    if isinstance(value, bool):  # flagd reads true as "true"
        return str(value).lower()
    return value if isinstance(value, str) else ""


def variants(document: Document, flag: Flag = SPECULATION) -> tuple[str, ...]:
    entry = document["flags"].get(flag.key)
    return tuple(flag.variants) if entry is None else tuple(entry["variants"])


def with_default_variant(document: Document, variant: str, flag: Flag = SPECULATION) -> Document:
    """Returns a copy with that default. Adds the flag if the document lacks it.

    Raises InvalidRequest for a variant that the flag does not have. Raises FlagReadOnly for a disabled flag, which a
    default would not change."""
    allowed = variants(document, flag)
    if variant not in allowed:
        raise InvalidRequest("variant", variant, ", ".join(allowed))
    changed = copy.deepcopy(document)
    entry = changed["flags"].setdefault(flag.key, {"state": "ENABLED", "variants": dict(flag.variants)})
    if entry.get("state") == "DISABLED":
        raise FlagReadOnly(f'flag "{flag.key}" is DISABLED in its file: set its state to ENABLED there first')
    entry["defaultVariant"] = variant
    return changed


class FlagFile:
    """A flagd file in JSON. `path` may be a symbolic link: its target is replaced, the link stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors = 0  # writes that failed

    def create_if_missing(self, defaults: Mapping[Flag, str]) -> bool:
        """Writes the missing file with these default variants; returns whether it did. Raises OSError."""
        remove_leftovers(self.path, _LEFT_SECONDS)
        if self.path.exists():
            return False
        document: Document = {"$schema": _SCHEMA, "flags": {}}
        for flag, variant in defaults.items():
            document = with_default_variant(document, variant, flag)
        self._write(document)
        return True

    def read(self) -> Document:
        """Reads the file. Raises ValueError with what is wrong."""
        try:
            return parse(self.path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None

    @property
    def writable(self) -> bool:
        # YAML is flagd's other format; rewriting it would drop the operator's comments.
        return self.path.suffix != ".yaml" and os.access(self.path.resolve().parent, os.W_OK)

    def set_default(self, flag: Flag, variant: str) -> str:
        """Changes `defaultVariant` only, and returns the previous one; empty if the file lacked the flag.

        Raises InvalidRequest for an unknown variant, FlagReadOnly if the file cannot be rewritten without loss."""
        if self.path.suffix == ".yaml":
            raise FlagReadOnly(f"{self.path} is YAML, which the daemon does not rewrite: edit it by hand")
        if not self.writable:
            folder = self.path.resolve().parent
            raise FlagReadOnly(f"{folder} cannot be written: make it writable, or set flag.file to another file")
        try:
            if self.create_if_missing({flag: variant}):
                return ""
            document = self.read()
            changed = with_default_variant(document, variant, flag)
            if changed != document:
                self._write(changed)
            return default_variant(document, flag)
        except ValueError as error:
            raise FlagReadOnly(f"{self.path} is broken and is left as it is: {error}") from None
        except OSError as error:
            raise FlagReadOnly(f"{self.path} cannot be written: {error.strerror}") from None

    def _write(self, document: Document) -> None:
        """Writes the file. Raises OSError, and counts it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(self.path.resolve(), json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        except OSError:
            self.errors += 1
            raise

    @staticmethod
    def _replace(target: Path, text: str) -> None:
        before = target.stat() if target.exists() else None

        def finish(name: str) -> None:
            os.chmod(name, before.st_mode & 0o777 if before else 0o644)
            if before is not None:
                # flagd's watcher reloads on a later modification time: two writes within a clock tick must differ.
                later = max(os.stat(name).st_mtime_ns, before.st_mtime_ns + 1_000_000)
                os.utime(name, ns=(later, later))

        replace_file(target, text, finish)
