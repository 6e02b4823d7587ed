"""What the doctor finds: a subject, what it is, and what to do where it is wrong."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any


class Severity(enum.StrEnum):
    """BAD means that serving will fail, or be far slower than it must be."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `mend` says what to do where the verdict is not OK. `figures`: of the pair, as `GetModel`
    has them, null for what only the trial at load decides; or of a link between ranks."""

    subject: str
    text: str
    mend: str = ""
    verdict: Severity = Severity.OK
    figures: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """The finding in JSON, where its text is called `found`."""
        return {"found" if name == "text" else name: value for name, value in asdict(self).items()}


ok = partial(Finding, verdict=Severity.OK)
note = partial(Finding, verdict=Severity.NOTE)
bad = partial(Finding, verdict=Severity.BAD)
STYLES = {Severity.OK: "green", Severity.NOTE: "yellow", Severity.BAD: "bold red"}
