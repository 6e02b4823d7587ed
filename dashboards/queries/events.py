"""Queries of the annotations that every panel shows, and of the dashboards' variables."""

from __future__ import annotations

from dashboards.queries.query import DRAFT, ENGINE, LOADED, MODEL, RATE, WORKLOAD, series
from dashboards.ratios import INSTANCE, label
from draftd.core import FallbackLevel
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Metric

TO = "to"  # a label with the value that a gauge changed to, as a word
LEVELS = {level.value: level.label for level in FallbackLevel}
FLAG = {0: "off", 1: "on"}


def changed(metric: Metric, words: dict[int, str]) -> str:
    """Returns one series per change of a gauge, labelled with the new value, as long as a rate's window.

    Windows overlap, so that no change falls between two of them; Grafana joins neighbours to one mark.
    """
    one = series(metric, ENGINE)
    expression = f'count_values by ({INSTANCE}) ("{TO}", {one} and changes({one}[{RATE}]) > 0)'
    for number, word in words.items():
        expression = f'label_replace({expression}, "{TO}", "{word}", "{TO}", "{number}")'
    return expression


LEVEL_CHANGES = changed(catalog.FALLBACK_LEVEL, LEVELS)
FLAG_CHANGES = changed(catalog.FLAG_ENABLED, FLAG)

_LOGS = '{service_name="draftd"}'  # in Loki, where the attributes of a log event are its structured metadata
# The same changes with their cause, and failed evaluations of the flag, which then took its default.
TRANSITIONS = f'{_LOGS} | {label(a.TRANSITION_TO)}!=""'
FLAG_FAILURES = f'{_LOGS} | {label(a.FLAG_KEY)}!="" | {label(a.ERROR_TYPE)}!=""'

VARIABLES: dict[str, tuple[str, str]] = {
    "model": ("Model", f"label_values({series(catalog.QUEUE_CAPACITY, LOADED)}, {MODEL})"),
    "draft": ("Draft", f"label_values({catalog.REQUESTS.prometheus}, {DRAFT})"),
    "workload": ("Workload", f"label_values({catalog.REQUESTS.prometheus}, {WORKLOAD})"),
    "instance": ("Instance", f"label_values({catalog.QUEUE_CAPACITY.prometheus}, {INSTANCE})"),
}
