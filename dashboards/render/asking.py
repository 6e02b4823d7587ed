"""Queries a Prometheus as Grafana does: with variables and intervals filled in, over the time that is shown."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_STEPS = (0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Series:
    """Result of a query for one set of labels: times in epoch seconds and values. An instant query has a single
    pair."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """The time range that a dashboard shows, and its resolution. `scrape` is the data source's scrape interval in
    seconds."""

    start: float
    end: float
    scrape: float = 15.0
    points: int = 400

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def step(self) -> float:
        """The value of `$__interval` in seconds: not less than the scrape interval, and one of Grafana's lengths."""
        wanted = max(self.seconds / self.points, self.scrape)
        return next((step for step in _STEPS if step >= wanted), wanted)

    @property
    def rate(self) -> float:
        """The value of `$__rate_interval` in seconds: at least four scrapes, so that a rate has two samples even if one
        is missing."""
        return max(self.step + self.scrape, 4 * self.scrape)

    def builtin(self) -> dict[str, str]:
        return {
            "__interval": _duration(self.step),
            "__interval_ms": str(round(self.step * 1000)),
            "__rate_interval": _duration(self.rate),
            "__rate_interval_ms": str(round(self.rate * 1000)),
            "__range": f"{round(self.seconds)}s",
            "__range_s": str(round(self.seconds)),
            "__range_ms": str(round(self.seconds * 1000)),
        }

    def put_in(self, expression: str, variables: Mapping[str, str]) -> str:
        """Returns the expression with variables filled in. Raises KeyError for a variable that the dashboard does not
        have."""
        values = {**variables, **self.builtin()}
        return _VARIABLE.sub(lambda found: values[found[1] or found[2]], expression)


def _duration(seconds: float) -> str:
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(seconds * 1000)}ms"


class Refused(Exception):  # named after what Prometheus did
    """Prometheus refused an expression."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus at the address `url`: http://host:port."""

    url: str

    def at(self, expression: str, when: float) -> list[Series]:
        """Returns the expression's values at a moment."""
        found = self._ask("query", query=expression, time=f"{when:.3f}")["result"]
        return [Series(one["metric"], (_point(one["value"]),)) for one in found]

    def over(self, expression: str, shown: Shown) -> list[Series]:
        """Returns the expression's values over the time shown, at multiples of the step, as Grafana aligns them."""
        start, end = shown.start // shown.step * shown.step, shown.end // shown.step * shown.step
        found = self._ask("query_range", query=expression, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{shown.step}")
        return [Series(one["metric"], tuple(map(_point, one["values"]))) for one in found["result"]]

    def exemplars(self, expression: str, shown: Shown) -> list[tuple[float, float]]:
        """Returns time and value of each observation that has a trace."""
        found = self._ask("query_exemplars", query=expression, start=f"{shown.start:.3f}", end=f"{shown.end:.3f}")
        return [(float(one["timestamp"]), float(one["value"])) for series in found for one in series["exemplars"]]

    def label_values(self, metric: str, label: str, shown: Shown) -> list[str]:
        """Returns the values that a variable offers."""
        asked = {"match[]": metric, "start": f"{shown.start:.3f}", "end": f"{shown.end:.3f}"}
        return [str(value) for value in self._ask(f"label/{label}/values", **asked)]

    def _ask(self, what: str, **asked: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise Refused(f"{json.load(error)['error']}: {asked.get('query', what)}") from None


def _point(pair: Any) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])
