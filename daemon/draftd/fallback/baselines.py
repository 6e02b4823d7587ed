"""Baselines of acceptance as a JSON document: frozen ones from a file, and those that a restart must not lose.

    {"version": 1, "baselines": {"draft_model/code": {"mean": 0.71, "spread": 0.18}}}

A name is a drafter and a workload class.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftd.core import WorkloadClass
from draftd.fallback.drift import Baseline
from draftd.fallback.fields import Fields, chosen, wrong
from draftd.fallback.signals import Kind

VERSION = 1


def parse(document: object) -> dict[Kind, Baseline]:
    """Raises ValueError, which names the field, its value and what is allowed."""
    fields = Fields(document)
    if fields.raw("version") != VERSION:
        raise wrong("version", fields.raw("version"), str(VERSION))
    return section(fields)


def document(baselines: Mapping[Kind, Baseline]) -> dict[str, object]:
    return {"version": VERSION, "baselines": entries(baselines)}


def section(fields: Fields) -> dict[Kind, Baseline]:
    """The baselines of an object that has them under their name; none where it does not."""
    found: dict[Kind, Baseline] = {}
    for name, entry in fields.items("baselines"):
        drafter, _, workload = name.partition("/")
        where = f"name in {fields.at('baselines')}"
        kind = drafter, chosen(workload, WorkloadClass, where)
        found[kind] = Baseline(entry.number("mean", 0, 1), entry.number("spread", 0, 1))
    return found


def entries(baselines: Mapping[Kind, Baseline]) -> dict[str, dict[str, float]]:
    return {
        f"{drafter}/{workload.value}": {"mean": one.mean, "spread": one.spread}
        for (drafter, workload), one in baselines.items()
    }
