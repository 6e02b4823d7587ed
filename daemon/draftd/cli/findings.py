"""The doctor's findings: each has a subject, a text and, if something is wrong, what to do."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any


class Severity(enum.StrEnum):
    """BAD means that serving will fail, or be far slower than necessary."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `mend`: what to do if the verdict is not OK. `figures`, None if the check has none:
    those of a link between ranks, of a measured `Exactness`, or the model pair's fields as in `GetModel`. There, null
    means that only a trial when the weights are loaded decides."""

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
