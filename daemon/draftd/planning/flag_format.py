"""The feature flag `speculative-decoding` as data: its key, its variants, and flagd's file format.

    {"flags": {"speculative-decoding": {"state": "ENABLED", "variants": {"on": true, "off": false},
                                        "defaultVariant": "on", "targeting": {…}}}}

An operator may add `targeting` (by `workload`, `model` or `caller`; JsonLogic, as flagd defines it) and flags of
other programs. What is written here changes `defaultVariant` and nothing else.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftd.errors import FlagReadOnly, InvalidRequest

FLAG_KEY = "speculative-decoding"
VARIANTS: Mapping[str, bool] = {"on": True, "off": False}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FlagResolution:
    """What the flag says for one context. `reason` is OpenFeature's: STATIC, TARGETING_MATCH, DEFAULT, DISABLED, STALE
    (the source is broken, its last good state is in force) or ERROR (the configured default). `error` says more."""

    variant: str
    value: bool
    reason: str
    error: str = ""


def variant_of(value: bool) -> str:
    """The variant that stands for a value, where the provider names none."""
    return "on" if value else "off"


def new_document(default_variant: str) -> Document:
    """The file as it is first written."""
    return {"$schema": "https://flagd.dev/schema/v0/flags.json", "flags": {FLAG_KEY: _new_flag(default_variant)}}


def parse(text: str) -> Document:
    """A flagd document. Raises ValueError, which says what is wrong with it."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("flags"), dict):
        raise ValueError('no object "flags" at its top')
    flag = document["flags"].get(FLAG_KEY)
    if flag is not None and not (isinstance(flag, dict) and isinstance(flag.get("variants"), dict)):
        raise ValueError(f'flag "{FLAG_KEY}" has no object "variants"')
    return document


def dump(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def default_variant(document: Document) -> str:
    """The variant where no targeting rule matches; empty where the document names none."""
    value = document["flags"].get(FLAG_KEY, {}).get("defaultVariant")
    if isinstance(value, bool):  # flagd reads true as "true"
        return str(value).lower()
    return value if isinstance(value, str) else ""


def variants(document: Document) -> tuple[str, ...]:
    flag = document["flags"].get(FLAG_KEY)
    return tuple(VARIANTS) if flag is None else tuple(flag["variants"])


def with_default_variant(document: Document, variant: str) -> Document:
    """A copy with that default. Adds the flag where the document lacks it.

    Raises InvalidRequest for a variant the flag does not have, FlagReadOnly where the flag is disabled: a default
    would change nothing there.
    """
    allowed = variants(document)
    if variant not in allowed:
        raise InvalidRequest("variant", variant, ", ".join(allowed))
    changed = copy.deepcopy(document)
    flag = changed["flags"].setdefault(FLAG_KEY, _new_flag(variant))
    if flag.get("state") == "DISABLED":
        raise FlagReadOnly(f'flag "{FLAG_KEY}" is DISABLED in its file: set its state to ENABLED there first')
    flag["defaultVariant"] = variant
    return changed


def _new_flag(variant: str) -> Document:
    return {"state": "ENABLED", "variants": dict(VARIANTS), "defaultVariant": variant}
