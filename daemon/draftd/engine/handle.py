"""The engine as the rest of the daemon uses it, whether it runs on a thread of this process or in another process. Its
checks keep out requests that would corrupt a batch or that have no target.

Any thread may call all of it; no call waits for a step. Imports no MLX."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from draftd.core import PEER, DecodeRequest, DrafterName, FinishReason
from draftd.engine.cache.pins import Pin
from draftd.engine.inbox import Inbox, KeepDrafts, LogitGap, LowerRequests, ReloadDrafts
from draftd.engine.memory import MlxMemory
from draftd.engine.observer import EngineStatus
from draftd.engine.remote.verifier_link import RemoteModel, VerifierLink
from draftd.errors import InvalidRequest, NotServing
from draftd.model_info import ModelInfo
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import PairFiles
from draftd.models.grammar import Grammars
from draftd.models.tokenizer import Tokenizer
from draftd.outcome import TokenSink

if TYPE_CHECKING:
    from draftd.engine.depth.saved import LearntCosts


def check_request(request: DecodeRequest, info: ModelInfo, verifier: RemoteModel | None = None) -> None:
    """Checks a request's prompt, limits, token ids and drafter. Raises InvalidRequest. `verifier`: the remote model if
    another daemon's target decodes the request, else None; its context length applies then."""
    check_tokens("prompt", request.prompt, info, None if verifier is None else verifier.context_length)
    if request.max_tokens < 0:
        raise InvalidRequest("max_tokens", request.max_tokens, "at least 0")
    check_ids("stop_ids", tuple(request.stop_ids), info)
    check_ids("sampling.logit_bias", [token for token, _ in request.sampling.logit_bias], info)
    drafter = request.plan.drafter
    offered = (*info.drafters, PEER) if request.peer is not None else info.drafters
    if drafter is not None and drafter not in offered:
        raise InvalidRequest("plan.drafter", drafter, ", ".join(offered) or "none")


def check_tokens(field: str, tokens: Sequence[int], info: ModelInfo, context_length: int | None = None) -> None:
    """Checks the number and the ids of tokens. Raises InvalidRequest. `context_length`: the remote model's if another
    daemon's target decodes them; None: the local model's."""
    context = info.context_length if context_length is None else context_length
    if not 0 < len(tokens) < context:
        raise InvalidRequest(field, f"{len(tokens)} tokens", f"1 to {context - 1} tokens")
    check_ids(field, tokens, info)


def check_ids(field: str, tokens: Sequence[int], info: ModelInfo) -> None:
    bad = next((token for token in tokens if not 0 <= token < info.vocab_size), None)
    if bad is not None:
        raise InvalidRequest(field, bad, f"token ids from 0 to {info.vocab_size - 1}")


def verifier_of(link: VerifierLink | None) -> RemoteModel | None:
    """Returns the verifier's model; None before it is reached. Raises NotServing if there is no verifier, or if its
    tokenizer differs from the local one."""
    if link is None:
        raise NotServing("this daemon has no remote verifier (remote.enabled)")
    model = link.state.model
    if model is not None and not model.shared_tokenizer:
        raise NotServing(f"the other daemon's model has another tokenizer: {model.difference}")
    return model


class EngineState(enum.StrEnum):
    """The engine's state; LOADING also while an engine that has served starts again."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineHandle(ABC):
    """An engine. Until it is READY, all that needs a model raises NotServing, with a retry delay.

    `load_seconds`: from its start until it takes requests; None until then. `step_seconds`: a plain step of one
    sequence. `prefill_seconds`: one token of a prompt. Both are 0 until measured."""

    def __init__(self, fingerprints: Fingerprints | None) -> None:
        """`fingerprints`: of the models' files; its owner closes it. None: the engine makes its own."""
        self.fingerprints = fingerprints or Fingerprints()
        # One thread replaces these values, and any thread reads them.
        self.state = EngineState.LOADING
        self.progress = self.error = ""
        self.load_seconds: float | None = None
        self.step_seconds = self.prefill_seconds = 0.0

    _inbox: Inbox  # of the engine that takes requests now

    @abstractmethod
    def start(self) -> None:
        """Starts loading, and returns at once."""

    @abstractmethod
    def close(self, drain_seconds: float = 0.0) -> bool:
        """Takes no more requests, lets running ones go on for `drain_seconds`, ends the rest as CANCELLED, and waits
        for the engine to end. Returns False if it did not end in time. A later call may shorten the drain."""

    @property
    @abstractmethod
    def info(self) -> ModelInfo: ...

    @property
    @abstractmethod
    def files(self) -> PairFiles:
        """The files that the models in use were read from. Raises NotServing until they are read."""

    @property
    @abstractmethod
    def unloaded(self) -> bool:
        """Whether the weights are unloaded because no requests came. `progress` says how far they are loaded again."""

    @property
    @abstractmethod
    def draft_bytes(self) -> Mapping[DrafterName, int]:
        """The bytes of each draft's weights, as last loaded."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def grammars(self) -> Grammars | None: ...

    @property
    @abstractmethod
    def memory(self) -> MlxMemory | None:
        """MLX's memory; None if it is not known."""

    @abstractmethod
    def status(self) -> EngineStatus:
        """A snapshot; never waits for the engine."""

    @abstractmethod
    def learnt(self) -> LearntCosts | None:
        """Returns the learnt costs and acceptance, about a second old or from the engine's end; None before there are
        any."""

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        """Queues a request. After this returns, `sink.on_finish` is called exactly once.

        Raises NotServing, QueueFull or NoMemory (with a retry delay), or InvalidRequest; then the sink hears nothing.
        """
        self.submit_choices([(request, sink)])

    @abstractmethod
    def submit_choices(self, choices: Sequence[tuple[DecodeRequest, TokenSink]]) -> None:
        """Submits all choices of one request, or none of them. Their prompts must be the same object. A long prompt is
        prefilled for one of them, and the others read it from the prefix cache."""

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ends a request within one step. Ids that have ended already are ignored."""
        self._inbox.end(request_id, reason)

    def wake(self) -> None:
        """Wakes the engine, because a peer has offered a step for its sequence."""
        self._inbox.wake()

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        """Keeps exactly these drafters' weights in memory; resolves to the bytes of draft weights then loaded.

        Missing weights are read in pieces between steps. Others are released once no running request uses them; new
        requests decode autoregressively instead. Unknown names are ignored. A later call replaces this one, and both
        futures then resolve together. The future raises ModelLoadError if weights cannot be loaded, or NotServing if
        the engine ends. Raises NotServing or QueueFull, as all commands do."""
        _ = self.info
        self._inbox.command(command := KeepDrafts(drafters))
        return command.done

    def reload_draft(self) -> Future[int]:
        """Reads the draft's weights again, and the light draft's if they are loaded; resolves to their bytes.

        The old draft stays, and drafts, until the new one has prefilled the texts of the drafting sequences. Weights
        that are not loaded are read and checked, but not kept. The future raises ModelLoadError if the new ones cannot
        be loaded or do not fit: then the old ones stay."""
        _ = self.info
        self._inbox.command(command := ReloadDrafts())
        return command.done

    def lower(self, max_draft_tokens: int, drafters: frozenset[DrafterName], reason: str) -> None:
        """Bounds the drafts of all current requests, including the daemon's own probes, from the next step on. A
        request whose drafter is not in `drafters` changes to prompt lookup if `drafters` has it, else decodes
        autoregressively."""
        _ = self.info
        if max_draft_tokens < 0:
            raise InvalidRequest("max_draft_tokens", max_draft_tokens, "0 or more")
        self._inbox.command(LowerRequests(max_draft_tokens, drafters, reason))

    def logit_gap(self, tokens: tuple[int, ...], chosen: int, other: int) -> Future[float]:
        """The target's logit of `chosen` less that of `other` after `tokens`, from a separate forward."""
        check_tokens("tokens", tokens, self.info)
        check_tokens("chosen", (chosen,), self.info)
        check_tokens("other", (other,), self.info)
        self._inbox.command(command := LogitGap(tokens, chosen, other))
        return command.done

    @abstractmethod
    def pin_prefix(self, name: str, tokens: tuple[int, ...]) -> Future[Pin]:
        """Computes the keys and values of a text's beginning and keeps them on disk, and in memory while there is room.
        Replaces a pin of the same name. The future raises NoRoom if they do not fit."""

    @abstractmethod
    def pins(self) -> list[tuple[Pin, int, bool]]:
        """The pins, oldest first: each with the bytes of its files, and whether it is of the served model."""

    @abstractmethod
    def drop_prefix(self, name: str) -> Future[None]:
        """Drops a pin. Its files stay in the disk cache, which may now delete them like any unpinned file. Raises
        InvalidRequest for an unknown name."""
