"""What a run holds for a gate to look at: read once, and whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.manifest import Manifest
from draftd.acceptance.quality.result import QualityResult, quality_result
from draftd.acceptance.samples import Sample
from draftd.acceptance.soak.result import SoakResult, soak_result
from draftd.acceptance.sweep.run import missing_requests
from draftd.acceptance.sweep.schedule import measured
from draftd.acceptance.ticks import Stage, Tick


@dataclass(frozen=True, slots=True)
class Evidence:
    """`soak` and `quality` are None where that stage was not run. `manifests` are those of the sessions that measured
    something; one that was not kept is None. `arms`: which a stage was of. `missing` requests of the sweep are still to
    be measured."""

    name: str
    manifests: Mapping[int, Manifest | None]
    sweep: Sequence[Tick] = ()
    soak: SoakResult | None = None
    soak_samples: Sequence[Sample] = ()
    quality: QualityResult | None = None
    arms: Mapping[Stage, Sequence[str]] = field(default_factory=dict)
    missing: int = 0

    def has(self, stage: Stage) -> bool:
        return bool({Stage.SWEEP: self.sweep, Stage.SOAK: self.soak, Stage.QUALITY: self.quality}[stage])

    @classmethod
    def read(cls, folder: RunFolder) -> Evidence:
        """Raises RunError where a file cannot be read, naming it and the line."""
        kept = folder.manifests()
        ticks = {stage: folder.ticks(stage) for stage in Stage}
        sessions = {tick.place.session for found in ticks.values() for tick in found}
        samples = folder.samples()
        sessions |= {sample.session for sample in samples}
        swept = ticks[Stage.SWEEP]
        return cls(
            name=folder.name,
            manifests={number: kept.get(number) for number in sorted(sessions)},
            sweep=swept,
            soak=soak_result(folder),
            soak_samples=[sample for sample in samples if sample.stage is Stage.SOAK],
            quality=quality_result(folder),
            arms={stage: sorted({tick.place.arm for tick in found}) for stage, found in ticks.items()},
            missing=missing_requests(folder.plan(Stage.SWEEP) or {}, measured(swept)),
        )
