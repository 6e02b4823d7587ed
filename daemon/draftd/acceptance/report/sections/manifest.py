"""What was measured: enough for another to measure it again, and to see whether it is the same."""

from __future__ import annotations

from collections.abc import Mapping

from draftd.acceptance.manifest import Manifest, ModelManifest, differences
from draftd.acceptance.report.blocks import Cell, Column, Facts, Folded, Note, Section, Table, Tone
from draftd.acceptance.report.numbers import count, gigabytes, memory, span


def manifest(manifests: Mapping[int, Manifest]) -> Section:
    title = "What was measured"
    if not manifests:
        return Section("manifest", title, "This run holds no manifest: what was measured cannot be told.")
    last = manifests[max(manifests)]
    lead = f"{last.device}, {memory(last.memory_bytes)} of memory, {last.os}, {last.backend}."
    if len(manifests) > 1:
        lead += f" Measured in {len(manifests)} sessions; shown is the last one's manifest."
    blocks: list[Facts | Folded | Note | Table] = [_facts(last)]
    changed = {one.field: Tone.BAD for other in manifests.values() for one in differences(last, other) if one.matters}
    if changed:
        said = f"The sessions differ in {', '.join(changed)}: their figures are not to be put together."
        blocks.insert(0, Note(said, Tone.BAD))
    blocks += [_files(role, model) for role, model in last.models.items()]
    blocks.append(_pairs("Settings in force", last.settings, "setting"))
    if last.prompts:
        blocks.append(_pairs("Prompts, by group", last.prompts, "SHA-256"))
    return Section("manifest", title, lead, tuple(blocks))


def _facts(one: Manifest) -> Facts:
    models = [
        (
            role.replace("_", " ").capitalize(),
            Cell(model.name, f"{model.quantization}, {gigabytes(model.weight_bytes)}"),
        )
        for role, model in one.models.items()
    ]
    low = {None: "", True: "low-power mode", False: "no low-power mode"}[one.low_power]
    return Facts(
        (
            *models,
            ("Machine", Cell(one.device, f"{one.cores} cores, {memory(one.memory_bytes)}")),
            ("Decodes on", Cell(one.backend, one.blas)),
            ("Power", Cell(one.power_source or "not known", low)),
            ("System", Cell(one.os, f"Python {one.python}")),
            ("draftd", Cell(one.draftd, "" if one.harness == one.draftd else f"measured by {one.harness}")),
            ("Packages", Cell(", ".join(f"{name} {version}" for name, version in one.packages.items()))),
            ("Loading", Cell(span(one.load_seconds))),
            ("Written", Cell(one.created.replace("T", " ").replace("+00:00", " UTC"))),
        )
    )


def _files(role: str, model: ModelManifest) -> Folded:
    columns = (Column("File"), Column("Kind", figures=False), Column("Size"), Column("SHA-256", figures=False))
    rows = tuple(
        (
            Cell(f.name),
            Cell(f.kind.replace("_", " ")),
            Cell(gigabytes(f.bytes) if f.bytes > 1e8 else _small(f.bytes)),
            Cell(f.sha256),
        )
        for f in model.files
    )
    note = (Note("A file is no longer what was loaded.", Tone.BAD),) if model.changed_since_load else ()
    named = f"Files of the {role.replace('_', ' ')}, {model.name}"
    return Folded(f"{named} ({count(len(rows), 'file')})", (*note, Table(named, columns, rows, stacked=True)))


def _small(count_: int) -> str:
    return f"{count_:,} B".replace(",", " ")


def _pairs(title: str, values: Mapping[str, str], what: str) -> Folded:
    return Folded(
        f"{title} ({len(values)})", (Facts(tuple((name, Cell(value)) for name, value in sorted(values.items()))),)
    )
