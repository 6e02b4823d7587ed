"""Units, words and colours that more than one dashboard uses."""

from __future__ import annotations

from collections.abc import Mapping

from dashboards.panels import BAD, GOOD, WARN, Steps, Word, Words
from draftd.core import FallbackLevel

# Grafana's names of units.
SHARE, SECONDS, BYTES, COUNT = "percentunit", "s", "bytes", "short"
BYTES_PER_SECOND, CELSIUS, RPM, WATTS = "Bps", "celsius", "rotrpm", "watt"
PER_MINUTE, TIMES, TOKENS_PER_SECOND = "suffix: /min", "suffix:×", "suffix: tok/s"
PER_SECOND, LEVEL = "suffix: /s", "none"
OCCURRENCES = "suffix:×"  # how often: a bare number beside "short_block 3" would look like a level

LEVELS: Words = {
    FallbackLevel.FULL: Word("full", GOOD),
    FallbackLevel.SHORT_BLOCK: Word("short block", "yellow"),
    FallbackLevel.LIGHT_DRAFT: Word("light draft", WARN),
    FallbackLevel.AUTOREGRESSIVE: Word("autoregressive", BAD),
}
HELD: Words = {0: Word("not held", GOOD), 1: Word("held", WARN)}
FLAG: Words = {1: Word("on", GOOD), 0: Word("off", WARN)}
PRESSURE: Words = {0: Word("normal", GOOD), 1: Word("warn", WARN), 2: Word("critical", BAD)}
THERMAL: Words = {
    0: Word("nominal", GOOD),
    1: Word("moderate", "yellow"),
    2: Word("heavy", BAD),
    3: Word("trapping", "dark-red"),
    4: Word("sleeping", "purple"),
}
ARRIVING: Words = {0: Word("nothing arrives", BAD), 1: Word("arriving", GOOD)}
UP: Words = {0: Word("down", BAD), 1: Word("up", GOOD)}

# Upper end of an axis that shows acceptance and break-even: on a busy machine break-even may reach hundreds, beside
# which acceptance could not be read.
MOST_BREAK_EVEN = 1.5

NONE_IS_WELL: Steps = ((None, GOOD), (1, BAD))

# One colour for one thing, by the legend.
MODES: Mapping[str, str] = {"speculative": "blue", "autoregressive": "orange"}
QUANTILES: Mapping[str, str] = {
    "p50 speculative": "super-light-blue",
    "p95 speculative": "blue",
    "p99 speculative": "dark-blue",
    "p50 autoregressive": "super-light-orange",
    "p95 autoregressive": "orange",
    "p99 autoregressive": "dark-orange",
}
PERCENTILES: Mapping[str, str] = {"p50": "super-light-blue", "p95": "blue", "p99": "dark-blue"}
STATUSES: Mapping[str, str] = {
    "^(OK|HTTP 200)$": "green",
    "^(CANCELLED|HTTP 499)$": "text",
    "^DEADLINE_EXCEEDED$": "purple",
    "^(RESOURCE_EXHAUSTED|HTTP 429)$": "orange",
    "^(INVALID_ARGUMENT|HTTP 4[01].)$": "yellow",
    "^FAILED_PRECONDITION$": "blue",
    "^(INTERNAL|UNKNOWN|UNAVAILABLE|HTTP 5..)$": "red",
}
OUTCOMES: Mapping[str, str] = {
    "^stop$": "green",
    "^length$": "super-light-green",
    "^cancelled$": "text",
    "^deadline$": "purple",
    "^error$": "red",
    "^refused$": "orange",
}
