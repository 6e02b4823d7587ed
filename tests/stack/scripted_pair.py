"""Runs a daemon with a scripted pair whose acceptance is in a file: `main(FILE)`, for tests.forked_daemon.

The environment configures it as it does `draftd serve`. FILE has the share of drafted tokens that are accepted. It is
read with the drafts' weights, so that the daemon notices a change when it reads them again. The target's forward
sleeps, longer for each drafted token, and the drafts do not. So the gain of speculation, and the cost of a bad draft,
use no processor time and depend little on how busy the machine is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftd.cli.serve import run_daemon
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DepthMode
from draftd.engine.pair import LoadedModels, assemble
from draftd.models.blas import load_blas
from draftd.settings.load import load_settings

_PROMPT, _ANSWER = 32, 16  # tokens: all prompts are cut to the one, all texts end after the other
# A forward sleeps so long, and that share of it for each token beyond the first. With four drafted tokens a good draft
# then decodes at twice the speed and a bad one at half: what a busy machine adds to either leaves it on its side of 1.
_STEP_SECONDS, _FURTHER = 0.010, 0.3
_WIDEST = 5  # tokens of a step's forward: four drafted and the one before; all prompts are longer
_VOCABULARY = 256


@dataclass(frozen=True)
class FileDraft:
    """A source of drafts. Each draft that it opens has the acceptance that is in the file then."""

    file: Path
    name: str

    def files(self) -> None:
        return None

    def open(self) -> Any:
        from tests.scripted import ScriptedModel

        wrong = round(1000 * (1 - float(self.file.read_text())))
        return ScriptedModel(_VOCABULARY, wrong, 0.0, _VOCABULARY - 1, _PROMPT + _ANSWER)


def load(file: Path) -> LoadedModels:
    load_blas()
    from tests.scripted import ByteTokenizer, ScriptedModel

    class Cut(ByteTokenizer):
        def render_chat(self, messages: Sequence[Mapping[str, Any]], *more: Any) -> list[int]:
            return super().render_chat(messages)[-_PROMPT:]

    class Target(ScriptedModel):
        def __call__(self, inputs: Any, cache: Sequence[Any]) -> Any:
            if (width := inputs.shape[1]) <= _WIDEST:
                time.sleep(_STEP_SECONDS * (1 + _FURTHER * (width - 1)))
            return super().__call__(inputs, cache)

    sources = {
        DRAFT_MODEL: FileDraft(file, "draft model"),
        LIGHT_DRAFT_MODEL: FileDraft(file, "light draft model"),
    }
    return assemble(
        Target(_VOCABULARY, 0, 0.0, _VOCABULARY - 1, _PROMPT + _ANSWER),
        sources[DRAFT_MODEL].open(),
        Cut(_VOCABULARY),
        model="scripted",
        draft_model="scripted-draft",
        context_length=4096,
        backend="scripted",
        sources=sources,
        light_draft_model="scripted-light-draft",
    )


def main(file: str) -> int:
    models = dict.fromkeys(
        ("model.path", "model.draft_path", "model.light_draft_path"), file
    )  # for the ladder's levels
    fixed = {"server.port": 0, "engine.depth_mode": DepthMode.FIXED.value}
    settings = load_settings(None, models | fixed, os.environ)
    announce = lambda line: print(f"draftd: {line}", file=sys.stderr, flush=True)  # noqa: E731
    return run_daemon(settings, announce=announce, load=lambda progress: load(Path(file)))
