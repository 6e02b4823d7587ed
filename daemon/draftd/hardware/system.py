"""The probe for the machine at hand."""

from __future__ import annotations

import shutil
import sys

from draftd.hardware.common import MlxReader, common_readings
from draftd.hardware.linux import linux_readings
from draftd.hardware.probe import HardwareProbe, Reading, ReadingsProbe


def system_probe(mlx: MlxReader) -> HardwareProbe:
    """All readings of this platform. `mlx` gives MLX's own memory; it is called on the sampling thread."""
    return ReadingsProbe([*common_readings(mlx), *_platform_readings()])


def _platform_readings() -> list[Reading]:
    if sys.platform == "linux":
        return linux_readings()
    if sys.platform == "darwin":
        from draftd.hardware.apple import SystemApple
        from draftd.hardware.darwin import darwin_readings

        return darwin_readings(SystemApple(), shutil.which("macmon"))
    return []
