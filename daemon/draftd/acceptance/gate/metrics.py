"""What a criterion can be about, by name: each metric with how it is read from a run.

All of it is derived from raw ticks and samples. Metrics of a sweep have the names of summary.METRICS; those of the
other stages begin with the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from draftd.acceptance.gate import answered, soaked, swept
from draftd.acceptance.gate.reading import Metric

METRICS: Mapping[str, Metric] = MappingProxyType(dict([*swept.metrics(), *soaked.metrics(), *answered.metrics()]))
