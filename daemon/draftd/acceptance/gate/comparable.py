"""May figures be held against each other at all? They may where what was measured is the same in all that matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

from draftd.acceptance.gate.evidence import Evidence
from draftd.acceptance.manifest import Difference, Manifest, differences


def hindrances(run: Evidence, baseline: Evidence | None, may_differ: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands in the way, and what would but for `may_differ`: dotted fields, or what they begin with, in which a
    run may differ from its baseline. The sessions of one run never may. Each names the field and both values."""
    stands = [*_within(run)]
    allowed: list[str] = []
    if baseline is not None:
        stands += _within(baseline)
        pairs = product(_kept(baseline), _kept(run))
        for one in _differing((theirs, ours) for (_, theirs), (_, ours) in pairs):
            line = f"{one.field} is {one.right}, and in the baseline ({baseline.name}) {one.left}"
            (allowed if _is_below(one.field, may_differ) else stands).append(line)
    return stands, allowed


def _within(run: Evidence) -> Iterator[str]:
    """Of one run's sessions."""
    if not run.manifests:
        yield f"nothing was measured in {run.name}"
    for number, manifest in run.manifests.items():
        if manifest is None:
            yield f"session {number} of {run.name} measured something, and manifests/{number:04}.json is not there"
            continue
        for role, model in manifest.models.items():
            if model.changed_since_load:
                gone = "the files are no longer what was loaded"
                yield f"models.{role}.changed_since_load is true in session {number} of {run.name}: {gone}"
    # Each with each: of the prompts, two sessions may hold what the first one lacks.
    said: set[str] = set()
    for (first, left), (second, right) in combinations(_kept(run), 2):
        for one in _differing([(left, right)]):
            if one.field not in said:
                said.add(one.field)
                where = f"in session {first} of {run.name}"
                yield f"{one.field} is {one.left} {where}, and {one.right} in session {second}"


def _kept(run: Evidence) -> list[tuple[int, Manifest]]:
    return [(number, manifest) for number, manifest in run.manifests.items() if manifest is not None]


def _differing(pairs: Iterable[tuple[Manifest, Manifest]]) -> Iterator[Difference]:
    """What matters, each field once."""
    said: set[str] = set()
    for left, right in pairs:
        for one in differences(left, right):
            if one.matters and one.field not in said:
                said.add(one.field)
                yield one


def _is_below(field: str, prefixes: Sequence[str]) -> bool:
    return any(field == prefix or field.startswith(f"{prefix}.") for prefix in prefixes)
