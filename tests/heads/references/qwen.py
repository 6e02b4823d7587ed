"""Opens the reference of the Qwen family's heads, which `tests.heads.reference` computes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.heads.layouts.layout import Layout
from tests.heads.layouts.reading import embedding_and_lm_head, raw_head
from tests.heads.reference import ReferenceHead


def reference(layout: Layout, folder: Path) -> ReferenceHead:
    """Returns the reference for a layout that was written to `folder`."""
    config = json.loads((layout.target_folder(folder) / "config.json").read_text())
    return ReferenceHead(config, raw_head(layout, folder), *embedding_and_lm_head(layout, folder))
