"""Options of the commands that judge a run, so that they read and behave the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Spec = Annotated[
    Path | None, typer.Option("--spec", metavar="FILE", help="Criteria in TOML. Unset: production candidate.")
]
Baseline = Annotated[
    Path | None, typer.Option("--baseline", metavar="FOLDER", help="Another run, for criteria against it.")
]
MayDiffer = Annotated[
    list[str] | None,
    typer.Option("--may-differ", metavar="FIELD", help="May differ from the baseline's, such as models.draft."),
]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML as well.")]
