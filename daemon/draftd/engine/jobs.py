"""The engine thread's work beside decoding: it loads and releases drafts, and computes logit gaps.

The work is done in pieces between steps, so that no request waits for a whole model to be read. A piece is a few
megabytes of weights, or a prefill chunk."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from draftd.core import DRAFT_MODEL, MODEL_DRAFTERS, DrafterName
from draftd.engine.draft_weights import DraftWeights
from draftd.engine.inbox import KeepDrafts, LogitGap, ReloadDrafts
from draftd.engine.local_decoder import LocalDecoder
from draftd.engine.sequence import DecodeSequence
from draftd.engine.targets.logit_gap import logit_gap
from draftd.errors import DraftdError, EngineFailure, ModelLoadError, NotServing, in_one_line
from draftd.models.folder import weight_bytes

_log = logging.getLogger(__name__)

_LEAST_CHUNK = 64  # tokens: more than a sequence can grow by between two pieces, or prefilling it would never end


@dataclass(slots=True)
class _Job:
    """A job under way. `kind`: the draft that it loads, if it loads one. `done`: resolves to its result. `failure`: the
    class that wraps an unexpected error."""

    work: Generator[None, None, Any]
    kind: DrafterName | None = None
    done: Future[Any] = field(default_factory=Future)
    failure: type[DraftdError] = ModelLoadError


class BackgroundJobs:
    """Carries out commands. Engine thread only."""

    def __init__(self, decoder: LocalDecoder, drafters: DraftWeights, target: Callable[[], Any], chunk: int) -> None:
        """`target` returns the target's current model."""
        self._decoder, self._drafters, self._target, self._chunk = decoder, drafters, target, chunk
        self._idle = False
        self._wanted = drafters.loaded.drafters
        self._keeping: list[Future[int]] = []  # `keep` calls that wait until the wanted drafts are loaded
        self._commands: deque[ReloadDrafts | LogitGap] = deque()
        self._job: _Job | None = None
        self.busy = False  # read every step

    @property
    def idle(self) -> bool:
        """Whether drafts are not loaded for now, because the target's weights are unloaded. Once this is False, wanted
        drafts are loaded."""
        return self._idle

    @idle.setter
    def idle(self, idle: bool) -> None:
        self._idle = idle
        self._review()

    def take(self, command: KeepDrafts | ReloadDrafts | LogitGap) -> None:
        """Carries out a command at once, or queues it for the next pieces."""
        match command:
            case KeepDrafts():
                self._wanted = command.drafters & self._drafters.loadable
                self._keeping.append(command.done)
                job = self._job
                if job is not None and job.kind is not None and job.kind not in self._wanted:
                    job.work.close()
                    self._job = None
                self._settle()
            case LogitGap() if self._idle:
                command.done.set_exception(NotServing("the weights are unloaded until a client sends a request"))
            case _:
                self._commands.append(command)
        self._review()

    def step(self) -> bool:
        """Does one piece. Returns False if all remaining work waits for sequences to end."""
        worked = self._release()
        if not worked:
            job = self._job = self._job or self._next()
            if job is not None:
                worked = True
                self._advance(job)
        self._review()
        return worked

    def close(self, error: Exception) -> None:
        """Fails the job under way and all waiting commands."""
        if self._job is not None:
            self._job.work.close()
            self._job.done.set_exception(error)
        for done in [*self._keeping, *(command.done for command in self._commands)]:
            done.set_exception(error)
        self._job, self._keeping = None, []
        self._commands.clear()
        self.busy = False

    def _review(self) -> None:
        missing = not self._idle and self._wanted != self._drafters.loaded.drafters
        self.busy = self._job is not None or bool(self._commands) or missing

    def _next(self) -> _Job | None:
        for kind in () if self._idle else sorted(self._wanted - self._drafters.loaded.drafters):
            return _Job(self._load(kind), kind)
        if not self._commands:
            return None
        command = self._commands.popleft()
        if isinstance(command, ReloadDrafts):
            return _Job(self._reload(), done=command.done)
        gap = logit_gap(self._target(), command.tokens, command.chosen, command.other, self._chunk)
        return _Job(gap, done=command.done, failure=EngineFailure)

    def _advance(self, job: _Job) -> None:
        try:
            next(job.work)
        except StopIteration as end:
            self._job = None
            job.done.set_result(end.value)
        except Exception as error:
            self._job = None
            failure = error if isinstance(error, DraftdError) else job.failure(in_one_line(error))
            # Its traceback refers to frames that hold weights, and a receiver may keep the error.
            failure.__traceback__ = failure.__cause__ = failure.__context__ = None
            job.done.set_exception(failure)
            if job.kind is not None:
                _log.warning("the %s could not be loaded: %s", job.kind, failure)
                self._wanted -= {job.kind}
                self._settle(failure)

    # holding drafts

    def _release(self) -> bool:
        """Releases one draft that is neither wanted nor used by a sequence."""
        for kind in self._drafters.loaded.drafters - self._wanted:
            if not self._decoder.uses(kind):
                self._decoder.drafting.remove(kind)
                self._drafters.release(kind)
                self._settle()
                return True
        return False

    def _load(self, kind: DrafterName) -> Generator[None, None, None]:
        model = yield from self._drafters.load(kind)
        self._drafters.hold(kind, model)
        self._decoder.drafting.put(kind, self._drafters.drafter(kind, model))
        self._settle()

    def _settle(self, error: Exception | None = None) -> None:
        """Resolves pending `keep` calls once the wanted drafts are loaded, or fails them with `error`."""
        loaded = self._drafters.loaded
        self._decoder.drafting.barred = loaded.drafters - self._wanted
        if error is None and loaded.drafters != self._wanted and not self._idle:
            return
        keeping, self._keeping = self._keeping, []
        for done in keeping:
            if error is None:
                done.set_result(loaded.weight_bytes)
            else:
                done.set_exception(error)

    # reading a draft again

    def _reload(self) -> Generator[None, None, int]:
        """Reads all weights before it uses any. A draft that is not loaded is read too, but only checked."""
        total, fresh = 0, dict[DrafterName, Any]()
        loaded = self._drafters.loaded.drafters
        configured = self._drafters.loadable & set(MODEL_DRAFTERS) or {DRAFT_MODEL}
        for kind in sorted(configured | loaded):
            if kind in loaded:
                fresh[kind] = yield from self._drafters.load(kind)
                total += weight_bytes(fresh[kind])
            else:
                total += yield from self._drafters.check(kind)
        for kind in list(fresh):
            yield from self._exchange(kind, fresh.pop(kind))
        return total

    def _exchange(self, kind: DrafterName, model: Any) -> Generator[None, None, None]:
        """Prefills the sequences in the new draft, a chunk at a time, while the old one drafts for them."""
        drafter = self._drafters.drafter(kind, model)
        taking_in, taken_in = set[DecodeSequence](), set[DecodeSequence]()
        try:
            while True:
                sequences = self._decoder.drafting_with(kind)
                for departed in taking_in.difference(sequences):
                    drafter.leave(departed)
                taking_in.intersection_update(sequences)
                taken_in &= taking_in
                sequence = next((sequence for sequence in sequences if sequence not in taken_in), None)
                if sequence is None:
                    break
                taking_in.add(sequence)
                if drafter.prefill(sequence, max(self._chunk, _LEAST_CHUNK)):
                    taken_in.add(sequence)
                yield
            self._decoder.drafting.put(kind, drafter)
            self._drafters.hold(kind, model)  # if it is no longer wanted, the next step releases it
        except BaseException:
            drafter.close()
            raise
