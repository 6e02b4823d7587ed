"""The state that a daemon keeps over a restart: the fallback's level and events, the flags, learnt costs and
prefixes."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from draftd.core import DRAFT_MODEL
from draftd.engine.depth.saved import DrafterWorth, LearntCosts
from draftd.errors import ConfigError, in_one_line
from draftd.fallback.store import LearntFile, StateFolder, StateStore
from draftd.files import replace_file
from draftd.hardware.system import device, versions
from draftd.journal import Journal, JournalFile
from draftd.models.blas import load_blas
from draftd.models.fingerprint import FILE, Fingerprints
from draftd.models.folder import stamps
from draftd.models.hub import cached_folder, is_hub_id
from draftd.settings import FlagSettings, ModelSettings, Settings, state_dir

_HISTORY, _LEARNT, _PREFIXES, _FLAGS = "transitions.jsonl", "learnt.json", "prefixes", "flags.json"
_HEAD_TRIALS = "head-trials.json"
_CLOSE_SECONDS = 2.0
_DISK = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)  # full, or read-only
_PACKAGES = ("mlx", "mlx-cpu", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13", "mlx-lm")

log = logging.getLogger(__name__)


class PersistentState:
    """The files that outlive a run: the ladder's state, the transitions, the flags, learnt costs and prefixes.
    `prefixes`: their folder, None if they are not kept."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], *, named: bool = True, shared: bool = False
    ) -> None:
        """`named`: the models are those of the settings; learnt costs of others are not kept in the folder. `shared`:
        several ranks share the target, and keep no prefixes. Raises ConfigError if a folder that is set cannot be used.
        If the default folder is unusable, or the disk full or read-only, serves anyway and logs what is not kept."""
        self._open(settings, environ)
        prefixes = None if shared else settings.engine.prefix_dir
        self._prefix_lock = None if prefixes is None else StateFolder(prefixes, "engine.prefix_dir")
        self.prefixes = None if shared else prefixes or (self.path and self.path / _PREFIXES)
        self.learning = LearntStore(settings, self.path if named else None)
        self.fingerprints = Fingerprints(state_dir(environ) / FILE)
        self.head_trials = state_dir(environ) / _HEAD_TRIALS  # of all the user's daemons

    def _open(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._folder: StateFolder | None = None
        self.path: Path | None = None  # the folder; None if nothing is kept
        self.store = StateStore(None)
        self.journal = Journal()
        self._history: JournalFile | None = None
        self._flags: Path | None = None
        self._old_flags = old_flags(environ)
        self._temporary: TemporaryDirectory[str] | None = None
        path, folder = settings.fallback.state_dir, own_folder(settings, environ)
        if folder is None:
            return
        digest = hashlib.sha256(pair_of(settings.model).encode()).hexdigest()[:12]
        store = StateStore(folder / f"ladder-{digest}.json")
        try:
            self._folder = StateFolder(folder)
        except ConfigError as error:
            if not (full := getattr(error.__cause__, "errno", None) in _DISK) and path is not None:
                raise
            log.warning("the fallback level is not kept over a restart: %s", error.message)
            if full:  # without a folder each attempt to save fails, and is counted
                self.store, self._flags = store, folder / _FLAGS
            return
        self.path, self.store, self._flags = folder, store, folder / _FLAGS
        self._history = history = JournalFile(folder / _HISTORY)
        self.journal = Journal(restored=history.restore())
        self.journal.listen(history.append)

    def flag_file(self, flag: FlagSettings) -> Path | None:
        """Returns this daemon's own file of flags; None if a setting names a file, or a server has the flags. A new
        file begins with the flags of the old file that all daemons of a user shared. Without a folder the file is
        temporary."""
        if flag.provider != "file" or flag.file is not None:
            return None
        if self._flags is None:
            self._temporary = TemporaryDirectory(prefix="draftd-")
            self._flags = Path(self._temporary.name) / _FLAGS
        if self._old_flags.exists() and not self._flags.exists():
            try:
                replace_file(self._flags, self._old_flags.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                log.warning("the flags in %s could not be copied: %s", self._old_flags, in_one_line(error))
            else:
                log.warning(
                    "the flags were copied to %s from %s, which is not read any more",
                    self._flags,
                    self._old_flags,
                )
        return self._flags

    @property
    def save_errors(self) -> dict[str, int]:
        """Counts of failures to write, by file."""
        stores = {"ladder": self.store, "learnt": self.learning.store}
        errors = {name: store.errors for name, store in stores.items() if store.path is not None}
        return errors if self._history is None else errors | {"events": self._history.errors}

    def close(self) -> None:
        self.learning.close()
        self.fingerprints.close()
        for folder in (self._folder, self._prefix_lock):
            if folder is not None:
                folder.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def own_folder(settings: Settings, environ: Mapping[str, str]) -> Path | None:
    """Returns the state folder of a daemon with these settings, or None."""
    port = settings.server.port
    return settings.fallback.state_dir or (state_dir(environ) / str(port) if port else None)


def own_flag_file(settings: Settings, environ: Mapping[str, str]) -> Path | None:
    """Returns the path of `PersistentState.flag_file`, if its folder can be used; None if the file is temporary."""
    folder = own_folder(settings, environ)
    return folder and folder / _FLAGS


def old_flags(environ: Mapping[str, str]) -> Path:
    """Returns the old file of flags that all daemons of a user shared."""
    return state_dir(environ) / _FLAGS


class LearntStore:
    """Reads the learnt costs once the models are loaded, and saves them from then on."""

    def __init__(self, settings: Settings, folder: Path | None) -> None:
        """`folder`: the daemon's own; without it costs are saved only to `engine.learnt_file`. Raises ConfigError if
        that file's folder does not exist."""
        path = settings.engine.learnt_file
        if path is not None and not path.parent.is_dir():
            raise ConfigError("engine.learnt_file", str(path), "a file in an existing folder")
        self.store = StateStore(path or (folder and folder / _LEARNT))
        self._file = LearntFile(self.store, lambda: identity(settings))
        self._most, self._warned = settings.engine.max_draft_tokens, False

    def recall(self) -> LearntCosts | None:
        """Returns the costs learnt in earlier runs of this pair, or None. Logs a file that cannot be used."""
        try:
            document = self._file.load()
            return None if document is None else LearntCosts.of_document(document)
        except ConfigError as error:
            log.warning(
                "%s cannot be used: %s; the costs of drafting are measured again", self.store.path, error.message
            )
            return None

    def start(self, learnt: Callable[[], LearntCosts | None]) -> None:
        """Starts to save the learnt costs, if there is a file for them."""
        if self.store.path is not None:
            self._file.start(lambda: None if (found := self._log_worth(learnt())) is None else found.to_document())

    def _log_worth(self, learnt: LearntCosts | None) -> LearntCosts | None:
        """Logs once if drafting with a model costs more than it saves, and again if it pays after all. Returns
        `learnt`."""
        worth = None if learnt is None else learnt.best_worth(self._most)
        if worth is not None and bool(worth.warning) is not self._warned:
            self._warned = bool(worth.warning)
            if worth.warning:
                log.warning("%s: see `draftd docs choosing-a-draft`", worth.warning)
            else:
                log.info("%s pays off: %.2f times the speed without drafts", worth.drafter, worth.speedup)
        return learnt

    def close(self) -> bool:
        """Returns whether the costs were saved."""
        return self._file.close(_CLOSE_SECONDS)


def measured_worth(settings: Settings, environ: Mapping[str, str]) -> DrafterWorth | None:
    """Returns what the draft model or draft head was worth to daemons with these settings, from the saved costs; None
    if too little is known."""
    folder = own_folder(settings, environ)
    path = settings.engine.learnt_file or (folder and folder / _LEARNT)
    learnt = LearntFile(StateStore(path), lambda: identity(settings)).read()
    try:
        costs = None if learnt is None else LearntCosts.of_document(learnt)
        return None if costs is None else costs.best_worth(settings.engine.max_draft_tokens)
    except ConfigError:
        return None


def paths_of(model: ModelSettings) -> tuple[str, str | None]:
    """Returns the paths of target and draft; those of the embedded pair if none is set."""
    if model.path is not None:
        return model.path, model.draft_path
    nano = Path(str(resources.files("draftd.models") / "nano"))
    return str(nano / "target"), str(nano / "draft")


def quiet_transformers() -> None:
    """Silences transformers' warnings; call this before importing transformers. The library warns of prompts beyond the
    context, which draftd refuses with a status of their own, and of folders, on which `draftd.models` reports in one
    line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def identity(settings: Settings) -> dict[str, Any]:
    """Identifies the pair, the machine and the limits: costs of other weights or machines do not apply. Files count by
    name, size and time, because hashing them takes longer than learning again."""
    target, draft = paths_of(settings.model)
    machine, shared = device(), settings.distributed
    ranks = {"ranks": shared.ranks, "hostfile": str(shared.hostfile), "backend": shared.backend}
    several = shared.ranks > 1 or shared.hostfile is not None
    exact = {"exact": True} if settings.engine.exact else {}
    return (
        ({"distributed": ranks} if several else {})
        | exact
        | {
            "target": _model(target, settings.model.adapter_path),
            "draft": _model(draft),
            "light_draft": _model(settings.model.light_draft_path),
            "prompt_lookup": settings.model.prompt_lookup,
            "max_batch": settings.engine.max_batch,
            "max_draft_tokens": settings.engine.max_draft_tokens,
            "device": machine.name,
            "cores": machine.cores,
            "blas": load_blas(),
            "packages": versions(_PACKAGES),
        }
    )


def _model(path: str | None, adapter: Path | None = None) -> dict[str, Any] | None:
    if path is None:
        return None
    folder = cached_folder(path) if is_hub_id(path) else Path(path).expanduser()
    if adapter is not None and is_hub_id(str(adapter)):
        adapter = cached_folder(str(adapter))
    file_stamps = {} if folder is None else stamps(folder, adapter)
    files = {name: [stamp.bytes, stamp.modified_ns] for name, stamp in file_stamps.items()}
    return {"path": path, "files": files} | ({"adapter": str(adapter)} if adapter else {})


def pair_of(model: ModelSettings) -> str:
    """Names the models that a ladder belongs to; state is kept under this name. Unset parts are left out, so that an
    optional part that a later version adds does not change existing names."""
    drafter = None if model.drafter == DRAFT_MODEL else model.drafter
    others = {"adapter": model.adapter_path, "light_draft": model.light_draft_path, "drafter": drafter}
    named = [f"{name}={value}" for name, value in others.items() if value is not None]
    return " ".join([f"{model.path} {model.draft_path}", *named])
