"""Assembles the engine from loaded models: drafters, caches, admission, calibration. Engine thread only.

It imports MLX, which must follow the choice of the BLAS: import it once the models are loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import psutil

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, FinishReason
from draftd.engine.admission import Admission, Layout, default_limit, default_prefix_limit
from draftd.engine.cache.layouts import cache_bytes
from draftd.engine.cache.prefix_disk import PrefixDisk
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.calibration import Calibration
from draftd.engine.depth.controller import DepthControl
from draftd.engine.depth.costs import StepCosts
from draftd.engine.draft_weights import DraftWeights
from draftd.engine.drafters.cached import CachedDrafter
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.drafters.sources import DraftSource
from draftd.engine.exactness.job import ExactnessJob
from draftd.engine.exactness.measure import ExactLayers
from draftd.engine.exactness.setup import PromptSource, exact_models, measurement
from draftd.engine.inbox import Arrival, InboxContents, LowerRequests, PinPrefix
from draftd.engine.jobs import BackgroundJobs
from draftd.engine.limits import EXACT_SLICE
from draftd.engine.local_decoder import LocalDecoder
from draftd.engine.memory import free_bytes
from draftd.engine.model_keys import ModelKeys
from draftd.engine.observer import EngineObserver, PrefixStatus
from draftd.engine.pair import LoadedModels
from draftd.engine.prefixes import TARGET, KeptTexts, PrefixJobs
from draftd.engine.ranks.channel import RanksLost
from draftd.engine.remote.remote_decoder import RemoteDecoder
from draftd.engine.remote.remote_drafting import RemoteDrafting
from draftd.engine.remote.verifier_link import VerifierLink
from draftd.engine.sampling.noise import compile_ahead
from draftd.engine.scheduler import Scheduler
from draftd.engine.sequence import DecodeSequence
from draftd.engine.targets.local import LocalTarget
from draftd.engine.weights import Weights
from draftd.errors import NotServing
from draftd.model_info import ModelInfo
from draftd.models.blas import describe_blas, device_name, load_blas
from draftd.models.fingerprint import Fingerprints

if TYPE_CHECKING:
    from draftd.engine.depth.saved import LearntCosts
    from draftd.engine.limits import Limits
    from draftd.engine.ranks.caches import RankedModel

_log = logging.getLogger(__name__)

_PINNED_CHUNK = 64  # tokens of a pin's text between two steps


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts of an engine. `models` has no weights: `local` has the target's, `drafters` the drafts'."""

    models: LoadedModels
    drafters: DraftWeights
    prefix: PrefixCache
    disk: PrefixDisk | None
    prefixes: PrefixJobs
    admission: Admission
    scheduler: Scheduler
    local: LocalDecoder
    jobs: BackgroundJobs
    weights: Weights
    calibration: Calibration
    exactness: ExactnessJob
    remote: RemoteDecoder | None = None

    @property
    def pause(self) -> float:
        """Seconds for which no sequence needs work, unless something comes."""
        return 0.0 if self.weights.unloaded and self.scheduler.wants_weights else self.scheduler.pause

    def apply(self, contents: InboxContents, ended: NotServing) -> None:
        """Applies requests and commands in their order of arrival, then the ends of requests. If the inbox is closing,
        fails all commands that are waiting or under way with `ended`."""
        for item in contents.gathered:
            match item:
                case Arrival():
                    self.scheduler.receive(item.request, item.sink)
                case PinPrefix():
                    self.prefixes.pin(item)
                case LowerRequests():
                    self.scheduler.lower(item.max_draft_tokens, item.drafters, item.reason)
                case _:
                    self.jobs.take(item)
        if contents.endings:
            self.scheduler.end(contents.endings)
        if contents.closing:
            self.jobs.close(ended)
            self.prefixes.close(ended)

    def prefix_status(self, counted: PrefixStatus) -> PrefixStatus:
        """Completes `counted`, the counts of requests, with the present state of the prefix cache."""
        memory, layout = self.prefix, self.admission.layout
        return replace(
            counted,
            bytes=memory.bytes,
            limit_bytes=memory.bound,
            limit_tokens=layout.longest_cached(memory.bound),
            entries=memory.texts,
            warning=counted.too_small(
                layout.longest_cached(memory.limit), layout.cached_bytes(counted.longest_unfit_tokens)
            ),
            **({} if self.disk is None else self.disk.usage._asdict()),
        )

    def measures(self, *, idle: bool) -> bool:
        """Whether to measure a piece, of step costs or exactness, before the next step. `idle`: no request waits for
        it. Prompts never wait for it, nor do requests that may not draft."""
        exactness_due = self.exactness.due(idle=idle)
        if self.weights.unloaded or self.local.prompts or not (idle or self.local.may_draft):
            return False
        costs_due = self.calibration.due(self.local.depth.costs.speed, idle=idle)
        return costs_due or (exactness_due and not self.calibration.pending)

    def measure(self) -> None:
        """Measures a piece: step costs first. If they cannot be measured, they are learnt from requests alone."""
        if not self.calibration.pending:
            self.exactness.step()
            return
        try:
            measured = self.calibration.step()
        except RanksLost:
            raise
        except Exception as error:
            self.calibration.close()
            _log.warning("a step's cost could not be measured at the start; requests will measure it", exc_info=error)
            return
        if measured is not None:
            self.local.depth.costs.calibrate(measured)

    @property
    def has_own_work(self) -> bool:
        """Whether the engine works for itself or has sequences: weights are kept meanwhile."""
        own = self.jobs.busy or self.prefixes.busy or self.exactness.under_way
        return own or not self.scheduler.idle

    def stop_measuring(self) -> None:
        """Lets go of the models; a measurement that was under way begins again when it is due."""
        self.calibration.stop()
        self.exactness.stop()

    def learnt(self) -> LearntCosts:
        """Returns the learnt costs, to be saved."""
        costs = self.local.depth.learnt()
        return costs if self.remote is None else replace(costs, remote=self.remote.control.learnt())


def assemble_engine(
    models: LoadedModels,
    limits: Limits,
    *,
    learnt: LearntCosts | None,
    observer: EngineObserver,
    cancelled: Callable[[], Mapping[str, FinishReason]],
    report: Callable[[str], None],
    link: VerifierLink | None = None,
    fingerprints: Fingerprints,
    exactness_prompts: PromptSource | None = None,
) -> Engine:
    """`learnt`: earlier costs of the same pair on the same machine. `cancelled`: requests that are to end, by id.
    `report` takes a line for people. `link`: to another daemon's target. `exactness_prompts`:
    returns the prompts that exactness is measured over, as token ids; None: do not measure."""
    ranks = models.ranks
    limits = limits if ranks is None else ranks.limits_of_group(limits)
    models, exact = exact_models(models, limits, report)
    layout, limit, info = cache_limit(models, limits)
    prefix = _prefix_cache(layout, limit, limits, ranks)
    admission = Admission(layout, limit, limits, prefix)
    local = LocalTarget(models.target, info.vocab_size, prefix, grammars=models.grammars)
    drafters, source = DraftWeights(models, prefix, lambda: local.model), models.target_source
    models = replace(models, target=None, draft=None, head=None, sources={}, info=info, target_source=None)
    compile_ahead()
    calibration = _calibration(local, drafters, info, limits)
    depth = _depth_control(learnt, limits.max_draft_tokens)
    decoder = _local_decoder(local, drafters, models, limits, observer, cancelled, depth, admission)
    exactness = ExactnessJob(lambda: local.model, measurement(models, limits, exactness_prompts, exact))
    jobs = BackgroundJobs(decoder, drafters, lambda: local.model, limits.prefill_chunk)
    weights = _weights(models, source, info, limits, decoder, local, drafters, jobs, prefix, report, exact)
    disk, prefixes = _prefixes(decoder, local, weights, drafters, limits, prefix, info.backend, fingerprints)
    scheduler = Scheduler(decoder, check_move=admission.check, begin=partial(_begin_prefix, weights, prefixes))
    others = jobs, weights, calibration, exactness
    engine = Engine(models, drafters, prefix, disk, prefixes, admission, scheduler, decoder, *others)
    return engine if link is None else replace(engine, remote=_decode_remotely(engine, link, local, limits, learnt))


def _prefix_cache(layout: Layout, limit: int, limits: Limits, ranks: RankedModel | None) -> PrefixCache:
    prefix = PrefixCache(prefix_limit(layout, limit, limits, free_bytes()))
    if ranks is not None:
        prefix.given_back = ranks.give_back
    return prefix


def _weights(
    models: LoadedModels,
    source: DraftSource | None,
    info: ModelInfo,
    limits: Limits,
    decoder: LocalDecoder,
    local: LocalTarget,
    drafters: DraftWeights,
    jobs: BackgroundJobs,
    prefix: PrefixCache,
    report: Callable[[str], None],
    exact: ExactLayers | None,
) -> Weights:
    return Weights(
        limits.idle_unload_seconds if source is not None else 0.0,
        source or DraftSource("model", lambda: local.model),
        models.files.target,
        info,
        decoder=decoder,
        target=local,
        drafters=drafters,
        jobs=jobs,
        prefix=prefix,
        report=report,
        exact=exact,
    )


def _begin_prefix(weights: Weights, prefixes: PrefixJobs, sequence: DecodeSequence) -> None:
    if not weights.unloaded:  # else once they are loaded
        prefixes.begin(sequence)


def _calibration(target: LocalTarget, drafters: DraftWeights, info: ModelInfo, limits: Limits) -> Calibration:
    calibration = Calibration(
        lambda: target.model,
        info.vocab_size,
        drafters.make,
        limits.max_draft_tokens,
        context_length=info.context_length,
        max_batch=limits.max_batch,
    )
    if info.speculation_available:  # only speculation needs the costs of steps
        calibration.begin()
    return calibration


def _local_decoder(
    target: LocalTarget,
    drafters: DraftWeights,
    models: LoadedModels,
    limits: Limits,
    observer: EngineObserver,
    cancelled: Callable[[], Mapping[str, FinishReason]],
    depth: DepthControl,
    admission: Admission,
) -> LocalDecoder:
    return LocalDecoder(
        target=target,
        drafters=drafters.make,
        eos=models.tokenizer.eos_ids,
        vocabulary=models.info.vocab_size,
        context_length=models.info.context_length,
        observer=observer,
        limits=limits,
        cancelled=cancelled,
        depth=depth,
        admission=admission,
    )


def _depth_control(learnt: LearntCosts | None, deepest: int) -> DepthControl:
    if learnt is None:
        return DepthControl(StepCosts(), deepest)
    return DepthControl(StepCosts(learnt.prices), deepest, acceptance=learnt.rates(deepest + 1))


def _decode_remotely(
    engine: Engine, link: VerifierLink, target: LocalTarget, limits: Limits, learnt: LearntCosts | None
) -> RemoteDecoder:
    """Adds a decoder over another daemon's target to the engine's scheduler, and returns it."""
    info = engine.models.info
    drafts = RemoteDrafting(
        engine.local.drafting,
        limits.remote,
        limits.prefill_chunk,
        own=lambda: None if target.model is None else DraftModel(target.model, info.vocab_size),
        headroom=limits.headroom,
    )
    remote = RemoteDecoder(
        link,
        drafts,
        engine.local.delivery,
        move=engine.scheduler.move,
        context_length=info.context_length,
        limits=limits.remote,
    )
    remote.control.recalled = None if learnt is None else learnt.remote
    engine.scheduler.decode_elsewhere(remote)
    return remote


def _prefixes(
    decoder: LocalDecoder,
    target: LocalTarget,
    weights: Weights,
    drafters: DraftWeights,
    limits: Limits,
    cache: PrefixCache,
    backend: str,
    fingerprints: Fingerprints,
) -> tuple[PrefixDisk | None, PrefixJobs]:
    """The prefixes on disk, and the jobs that read and write them."""
    folder = limits.prefix_folder
    if limits.exact:  # prefixes of another machine, library or number of threads have other bits
        backend = f"{backend}, exact by {EXACT_SLICE}, {device_name()}, {describe_blas(load_blas())}"

    def texts() -> list[KeptTexts]:
        kept_texts = [KeptTexts(TARGET, target.texts, lambda tokens: tokens, weights.files)]
        for kind in (DRAFT_MODEL, DRAFT_HEAD):
            draft = decoder.drafting.drafters.get(kind)
            if isinstance(draft, CachedDrafter):
                files, head = drafters.loaded.files.get(kind), draft if draft.fed else None
                kept_texts.append(KeptTexts(kind, draft.texts, draft.clip_to_vocabulary, files, head))
        return kept_texts

    disk = None
    if folder is not None and cache.limit:
        disk = PrefixDisk(folder, limits.prefix_disk_bytes, limits.prefix_pinned_bytes)
    jobs = PrefixJobs(disk, cache, texts, min(limits.prefill_chunk, _PINNED_CHUNK), ModelKeys(fingerprints, backend))
    jobs.start()
    return disk, jobs


def cache_limit(models: LoadedModels, limits: Limits) -> tuple[Layout, int, ModelInfo]:
    """The layout of the pair's caches, their limit in bytes (0: none), and the model's info with both. Computes
    nothing: the weights need not be read."""
    each = [cache_bytes(model) for model in (models.target, models.draft, models.head) if model is not None]
    position, window = (sum(some) for some in zip(*each, strict=True))
    layout = Layout(position, models.info.context_length, window)
    limit = limits.kv_cache_bytes
    if limit is None:
        limit = default_limit(layout, limits.headroom(), psutil.virtual_memory().total)
    longest = layout.longest(limit)
    return (
        layout,
        limit,
        replace(models.info, position_bytes=position, sequence_bytes=window, largest_context=longest),
    )


def prefix_limit(layout: Layout, limit: int, limits: Limits, free: int | None = None) -> int:
    """Bytes that the prefix cache may take beside running requests, which may take `limit`. `free`: bytes free right
    now, as the limits' headroom may be older."""
    if limits.prefix_cache_bytes is not None:
        return limits.prefix_cache_bytes
    headroom = limits.headroom()
    if headroom is not None and free is not None:
        headroom = min(headroom, free)
    return default_prefix_limit(layout, limit, headroom, psutil.virtual_memory().total, limits.max_batch)
