"""A Grafana refused, or did not answer: the message says what it was, and what to do about it."""

from __future__ import annotations

from draftd.errors import DraftdError


class GrafanaError(DraftdError):
    """Something between here and Grafana is wrong. `code` is the HTTP status, where there was an answer."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
