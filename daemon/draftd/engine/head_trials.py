"""Results of draft heads' trials, and a file that keeps them until one of the model's files changes."""

from __future__ import annotations

import contextlib
import math
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from draftd import __version__
from draftd.files import remove_leftovers, replace_file
from draftd.models.fingerprint import digest
from draftd.models.folder import ModelFolder
from draftd.models.head_families import HeadForm

_SURE = 4.0  # standard deviations above chance
_MOST = 64  # trials in the file; the oldest are dropped
_LEFT_SECONDS = 60.0  # after which a killed process's temporary file is deleted


@dataclass(frozen=True, slots=True)
class HeadTrial:
    """The best form in a trial: the share of `positions` at which the head's token was the target's, and the share that
    the most frequent token alone would have had."""

    form: HeadForm
    accepted: float
    chance: float
    positions: int
    forms: int

    @property
    def convincing(self) -> bool:
        """Whether the head predicts the target's tokens better than chance."""
        spread = math.sqrt(max(self.chance * (1 - self.chance), 1 / self.positions) / self.positions)
        return self.accepted > self.chance + _SURE * spread


_Trials = TypeAdapter(dict[str, HeadTrial])


@dataclass(frozen=True, slots=True)
class KeptTrials:
    """Keeps trials in the file `path`, which several daemons may share; keeps none if that is None."""

    path: Path | None

    def get(self, key: str) -> HeadTrial | None:
        return self._read().get(key)

    def keep(self, key: str, trial: HeadTrial) -> None:
        """Adds a trial to the file; does nothing if the disk is full or read-only."""
        if self.path is None:
            return
        trials = {**self._read(), key: trial}
        newest = dict(list(trials.items())[-_MOST:])
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            remove_leftovers(self.path, _LEFT_SECONDS)
            replace_file(self.path, _Trials.dump_json(newest).decode())

    def _read(self) -> dict[str, HeadTrial]:
        """Returns the kept trials; none if the file is missing or cannot be read."""
        try:
            return {} if self.path is None else _Trials.validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return {}


def trial_key(text: str, *folders: ModelFolder) -> str:
    """Returns a key that changes with the trial's text, draftd's version, what forms consist of, and the files of
    target and head."""
    files = [each.files() for each in folders]
    stamps = [sorted((name, *astuple(stamp)) for name, stamp in (each.stamps or {}).items()) for each in files]
    return digest([__version__, text, [each.name for each in fields(HeadForm)], stamps])
