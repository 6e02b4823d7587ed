"""From loaded models to what decodes: drafters, caches, admission, and what a step costs. Engine thread only.

Brings MLX in, which must come after the BLAS that loading chose: imported once the models are loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from draftd.core import DRAFT_MODEL, FinishReason
from draftd.engine.admission import Admission, Layout, derived
from draftd.engine.cache.layouts import cache_bytes
from draftd.engine.cache.prefix_disk import PrefixDisk
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.calibration import Calibration
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import StepCosts
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.drafters.loaded import Drafters, DraftSource
from draftd.engine.jobs import BackgroundJobs
from draftd.engine.model_keys import ModelKeys
from draftd.engine.observer import EngineObserver
from draftd.engine.pair import LoadedModels
from draftd.engine.prefixes import TARGET, KeptTexts, PrefixJobs
from draftd.engine.sampling.noise import compile_ahead
from draftd.engine.scheduler import Scheduler
from draftd.engine.targets.local import LocalTarget
from draftd.engine.weights import Weights
from draftd.model_info import ModelInfo

if TYPE_CHECKING:
    from draftd.engine.depth.saved import Learnt
    from draftd.engine.limits import Limits

_log = logging.getLogger(__name__)

_PINNED_CHUNK = 64  # tokens of a pin's text between two steps
_CALIBRATION_SECONDS = 1.5  # of loading, spent on what a step costs


@dataclass(frozen=True, slots=True)
class Engine:
    """What decodes, and what is asked of it while it does. `models` has no weights: `scheduler` holds the
    target's, `drafters` the drafts'."""

    models: LoadedModels
    drafters: Drafters
    prefix: PrefixCache
    disk: PrefixDisk | None
    prefixes: PrefixJobs
    admission: Admission
    scheduler: Scheduler
    jobs: BackgroundJobs
    weights: Weights


def assemble_engine(
    models: LoadedModels,
    limits: Limits,
    *,
    learnt: Learnt | None,
    observer: EngineObserver,
    cancelled: Callable[[], Mapping[str, FinishReason]],
    report: Callable[[str], None],
) -> Engine:
    """`learnt`: of the same pair on the same machine, from before. `cancelled`: requests that are to end, by id;
    `report` takes a line for people."""
    prefix = PrefixCache(limits.prefix_cache_bytes)
    drafters = Drafters(models, prefix)
    layout, limit, info = cache_limit(models, limits)
    admission = Admission(layout, limit, limits, prefix)
    target, source = models.target, models.target_source
    models = replace(models, target=None, draft=None, sources={}, info=info, target_source=None)
    compile_ahead()
    depth = DepthControl(StepCosts(), limits.max_draft_tokens)
    if info.speculation_available:  # nothing else asks what a step costs
        report("measuring what a step costs")
        try:
            depth = _calibrated(target, info, limits, drafters, learnt)
        except Exception as error:
            _log.warning("what a step costs could not be measured; it is learnt from requests", exc_info=error)
    local = LocalTarget(target, info.vocab_size, prefix, grammars=models.grammars)
    scheduler = Scheduler(
        target=local,
        drafters=drafters.make,
        eos=models.tokenizer.eos_ids,
        vocabulary=info.vocab_size,
        observer=observer,
        max_batch=limits.max_batch,
        prefill_chunk=limits.prefill_chunk,
        prefill_slice_seconds=limits.prefill_slice_seconds,
        cancelled=cancelled,
        depth=depth,
        admission=admission,
    )
    jobs = BackgroundJobs(scheduler, drafters, lambda: local.model, limits.prefill_chunk)
    weights = Weights(
        limits.idle_unload_seconds if source is not None else 0.0,
        source or DraftSource("model", lambda: local.model),
        models.files.target,
        info,
        scheduler=scheduler,
        target=local,
        drafters=drafters,
        jobs=jobs,
        prefix=prefix,
        report=report,
    )
    disk, prefixes = _prefixes(scheduler, local, weights, drafters, limits, prefix, info.backend)
    return Engine(models, drafters, prefix, disk, prefixes, admission, scheduler, jobs, weights)


def _prefixes(
    scheduler: Scheduler,
    target: LocalTarget,
    weights: Weights,
    drafters: Drafters,
    limits: Limits,
    cache: PrefixCache,
    backend: str,
) -> tuple[PrefixDisk | None, PrefixJobs]:
    """What is kept on disk, and what reads and writes it."""
    folder = limits.prefix_folder

    def texts() -> list[KeptTexts]:
        found = [KeptTexts(TARGET, target.texts, lambda tokens: tokens, weights.files)]
        draft = scheduler.drafting.drafters.get(DRAFT_MODEL)
        if isinstance(draft, DraftModel):
            files = drafters.held.files.get(DRAFT_MODEL)
            found.append(KeptTexts(DRAFT_MODEL, draft.texts, draft.embedded, files))
        return found

    disk = keys = None
    if folder is not None and limits.prefix_cache_bytes:
        disk = PrefixDisk(folder, limits.prefix_disk_bytes, limits.prefix_pinned_bytes)
        keys = ModelKeys(folder, backend)
    jobs = PrefixJobs(disk, keys, cache, texts, min(limits.prefill_chunk, _PINNED_CHUNK))
    jobs.start()
    return disk, jobs


def cache_limit(models: LoadedModels, limits: Limits) -> tuple[Layout, int, ModelInfo]:
    """How the pair's caches lie in memory, how much they may take, 0 for no limit, and the figures of both. Computes
    nothing: weights may have been read or not."""
    each = [cache_bytes(model) for model in (models.target, models.draft) if model is not None]
    position, window = (sum(some) for some in zip(*each, strict=True))
    layout = Layout(position, models.info.context_length, window)
    limit = limits.kv_cache_bytes
    if limit is None:
        limit = derived(layout, limits.headroom(), psutil.virtual_memory().total)
    longest = layout.longest(limit)
    return (
        layout,
        limit,
        replace(models.info, position_bytes=position, sequence_bytes=window, largest_context=longest),
    )


def _calibrated(
    target: Any, info: ModelInfo, limits: Limits, drafters: Drafters, learnt: Learnt | None
) -> DepthControl:
    """Knows what steps cost: as measured now, or as learnt before and with only the machine speed measured."""
    deepest, vocabulary = limits.max_draft_tokens, info.vocab_size
    if learnt is not None and learnt.prices.plain:
        costs = learnt.costs(Calibration(target, vocabulary).run(1, 0.0).plain[1])
        return DepthControl(costs, deepest, acceptance=learnt.rates(deepest + 1))
    calibration = Calibration(target, vocabulary, drafters.make(), deepest, info.context_length)
    return DepthControl(StepCosts(calibration.run(limits.max_batch, _CALIBRATION_SECONDS)), deepest)
