"""Unloads the weights after a time without requests, and loads them again for the next one.

All else stays: sequences, what was learnt of drafting, the tokenizer, prefixes on disk. Engine thread only, except
`unloaded` and `files`."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Generator

from draftd.clocks import sleepless_seconds
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.draft_weights import DraftWeights
from draftd.engine.drafters.sources import DraftSource, try_out
from draftd.engine.exactness.measure import ExactLayers
from draftd.engine.jobs import BackgroundJobs
from draftd.engine.local_decoder import LocalDecoder
from draftd.engine.memory import give_back
from draftd.engine.targets.local import LocalTarget
from draftd.errors import ModelLoadError
from draftd.model_info import ModelInfo
from draftd.models.folder import ModelFiles, parameters, read, weight_bytes
from draftd.models.mlx_lm import vocabulary_size

_log = logging.getLogger(__name__)

_OWN_SECONDS = 5.0  # after the daemon's own work: a probe's next request comes within these


class Weights:
    """The weights of the target and of loaded drafters."""

    def __init__(
        self,
        seconds: float,
        source: DraftSource,
        files: ModelFiles | None,
        info: ModelInfo,
        *,
        decoder: LocalDecoder,
        target: LocalTarget,
        drafters: DraftWeights,
        jobs: BackgroundJobs,
        prefix: PrefixCache,
        report: Callable[[str], None],
        exact: ExactLayers | None = None,
    ) -> None:
        """`seconds`: without clients' requests until the weights are unloaded; 0: never. `source` and `files`: of the
        target. `report` takes a line for people. `exact`: what makes the target exact."""
        self._seconds, self._source, self.files, self._info = seconds, source, files, info
        self._decoder, self._target, self._drafters, self._jobs = decoder, target, drafters, jobs
        self._prefix, self._report, self._exact = prefix, report, exact
        self.unloaded = False
        self._clients = self._own = sleepless_seconds()  # when they were last seen
        self._loading: Generator[None, None, None] | None = None

    def due(self, *, clients: bool, own: bool) -> bool:
        """Returns whether to unload them now. `clients`: whether clients have requests here. `own`: whether the daemon
        does work of its own, which keeps them only while it lasts."""
        if not self._seconds or self.unloaded:
            return False
        now = sleepless_seconds()
        if clients:
            self._clients = now
        if own:
            self._own = now
        return now - self._clients >= self._seconds and now - self._own >= min(_OWN_SECONDS, self._seconds)

    def unload(self) -> None:
        """Unloads the weights. No request may be here."""
        self._report("loading the weights again")  # the next request waits for this
        self.unloaded = self._decoder.paused = self._jobs.idle = True
        for kind in self._drafters.loaded.drafters:
            self._decoder.drafting.remove(kind)
            self._drafters.release(kind)
        self._target.unload()
        self._prefix.shed(0)
        gc.collect()  # models refer to themselves
        give_back()
        _log.info("no request for %g s: the weights are unloaded", self._seconds)

    def step(self) -> bool:
        """Reads a piece; returns True once all are loaded. Raises ModelLoadError if they cannot be loaded: then the
        next call starts again."""
        loading = self._loading = self._loading or self._load()
        try:
            next(loading)
        except StopIteration:
            self._loading, self._clients = None, sleepless_seconds()
            self.unloaded = self._decoder.paused = False
            self._report("ready")
            _log.info("the weights are loaded again")
            return True
        except BaseException:
            self.rest()
            raise
        return False

    def rest(self) -> None:
        """Drops the weights read so far, as no request waits for them any more."""
        if self._loading is not None:
            self._loading.close()
            self._loading, self._jobs.idle = None, True
            self._target.unload()
            gc.collect()
            give_back()

    def _load(self) -> Generator[None, None, None]:
        source, files = self._source, self._source.files()
        if self.files is not None and self.files.changed:
            if self._exact is not None:
                what = f"{source.name}: its files have changed since it was measured for engine.exact"
                raise ModelLoadError(what, "restart the daemon")
            _log.warning("%s: its files have changed since they were read; the new weights are served", source.name)
        model = source.open()
        if (size := vocabulary_size(model)) != self._info.vocab_size:
            what = f"{source.name}: its vocabulary has {size} tokens now instead of {self._info.vocab_size}"
            raise ModelLoadError(what, "restart the daemon")
        arrays, total = parameters(model), weight_bytes(model)
        for _ in read(arrays, source.name):
            left = sum(array.nbytes for array in arrays)
            self._report(f"loading the weights again: {100 - 100 * left // max(1, total)} %")
            yield
        try_out(model, source.name)
        if self._exact is not None:
            self._exact.install(model)
        self._target.load(model)
        self.files, self._jobs.idle = files, False
        while self._jobs.busy and self._jobs.step():  # the drafts
            yield
