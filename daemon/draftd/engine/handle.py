"""What the rest of the daemon has of the engine, whether it runs on a thread of this process or in another process; and
the engine's own guard: what would corrupt a batch, or has no target, never enters it.

Any thread may call all of it; nothing waits for a step. Imports no MLX."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from draftd.core import PEER, DecodeRequest, DrafterName, FinishReason, TokenSink
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

if TYPE_CHECKING:
    from draftd.engine.depth.saved import LearntCosts


def check_request(request: DecodeRequest, info: ModelInfo, verifier: RemoteModel | None = None) -> None:
    """Raises InvalidRequest, as all here. `verifier`: whose target decodes it, where that is another."""
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
    """`context_length`: of another model than this daemon's."""
    context = info.context_length if context_length is None else context_length
    if not 0 < len(tokens) < context:
        raise InvalidRequest(field, f"{len(tokens)} tokens", f"1 to {context - 1} tokens")
    check_ids(field, tokens, info)


def check_ids(field: str, tokens: Sequence[int], info: ModelInfo) -> None:
    bad = next((token for token in tokens if not 0 <= token < info.vocab_size), None)
    if bad is not None:
        raise InvalidRequest(field, bad, f"token ids from 0 to {info.vocab_size - 1}")


def verifier_of(link: VerifierLink | None) -> RemoteModel | None:
    """What the other daemon serves; None before it was reached. Raises NotServing where there is none, or where its
    tokens are others."""
    if link is None:
        raise NotServing("no other daemon verifies for this one (remote.enabled)")
    model = link.state.model
    if model is not None and not model.shared_tokenizer:
        raise NotServing(f"the other daemon's model has another tokenizer: {model.difference}")
    return model


class EngineState(enum.StrEnum):
    """LOADING also where an engine that has served begins anew."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineHandle(ABC):
    """An engine. Until it is READY all that needs a model raises NotServing, with a retry delay.

    `load_seconds`: from its start until requests were taken; None until then. `step_seconds` of a plain step of one
    sequence, `prefill_seconds` of a token of a prompt; 0: not measured."""

    def __init__(self, fingerprints: Fingerprints | None) -> None:
        """`fingerprints`: of the models' files, to be closed by the owner; None: taken anew by each engine."""
        self.fingerprints = fingerprints or Fingerprints()
        # What follows one thread writes, whole, and any thread reads.
        self.state = EngineState.LOADING
        self.progress = self.error = ""
        self.load_seconds: float | None = None
        self.step_seconds = self.prefill_seconds = 0.0

    _inbox: Inbox  # of the engine that takes requests now

    @abstractmethod
    def start(self) -> None:
        """Loading begins. Returns at once."""

    @abstractmethod
    def close(self, drain_seconds: float = 0.0) -> bool:
        """Takes no more requests, lets running ones go on for `drain_seconds`, ends the rest as CANCELLED, and waits
        for that. False when it did not end in time. May be called again, to drain for less long."""

    @property
    @abstractmethod
    def info(self) -> ModelInfo: ...

    @property
    @abstractmethod
    def files(self) -> PairFiles:
        """What the models in use were read from. Raises NotServing until they are."""

    @property
    @abstractmethod
    def unloaded(self) -> bool:
        """Whether the weights were let go, for want of requests. `progress` tells how far they are read again."""

    @property
    @abstractmethod
    def draft_bytes(self) -> Mapping[DrafterName, int]:
        """Of the weights of each draft, as it was held last."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def grammars(self) -> Grammars | None: ...

    @property
    @abstractmethod
    def memory(self) -> MlxMemory | None:
        """What MLX holds; None where that is not known."""

    @abstractmethod
    def status(self) -> EngineStatus:
        """A snapshot; never waits for the engine."""

    @abstractmethod
    def learnt(self) -> LearntCosts | None:
        """What is known of costs and acceptance, as of about a second ago, or of the end; None before it is."""

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        """Queues a request. After this returns, `sink.on_finish` is called exactly once.

        Raises NotServing, QueueFull or NoMemory (with a retry delay), or InvalidRequest; then the sink hears nothing.
        """
        self.submit_choices([(request, sink)])

    @abstractmethod
    def submit_choices(self, choices: Sequence[tuple[DecodeRequest, TokenSink]]) -> None:
        """`submit` for all choices of one request, which have one prompt, the same object: all are queued, or none.
        A long prompt is prefilled for one of them, and the others read it from the prefix store."""

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Ends a request within one step. Ids that have ended already are ignored."""
        self._inbox.end(request_id, reason)

    def wake(self) -> None:
        """A peer's sequence may go on: it was offered a step."""
        self._inbox.wake()

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        """Holds exactly these drafters' weights; ends with the bytes of draft weights then held.

        Weights that are wanted are read in pieces between steps. Others go once no running request drafts with them;
        meanwhile waiting requests no longer get them. A request whose drafter is not held goes on autoregressively, and
        says why. Unknown kinds are ignored. A call that another overtakes ends together with it. The future raises
        ModelLoadError where weights cannot be had: then that drafter is not held. All commands raise NotServing and
        QueueFull, and all futures end with NotServing when the engine ends.
        """
        _ = self.info
        self._inbox.command(command := KeepDrafts(drafters))
        return command.done

    def reload_draft(self) -> Future[int]:
        """Reads the draft's weights anew, and the light draft's if they are held; ends with their bytes.

        Both are in memory until the new draft has prefilled the texts of the drafting sequences, for which the old one
        drafts meanwhile. Weights that are not held are read and checked, and not kept. The future raises
        ModelLoadError where the new ones cannot be had or do not fit: then the old ones stay.
        """
        _ = self.info
        self._inbox.command(command := ReloadDrafts())
        return command.done

    def lower(self, max_draft_tokens: int, drafters: frozenset[DrafterName], reason: str) -> None:
        """From the next step on no request that is here now drafts more, or with another drafter: one whose drafter is
        not allowed changes to prompt lookup where that is, or goes on autoregressively. Probes are bound as well."""
        _ = self.info
        if max_draft_tokens < 0:
            raise InvalidRequest("max_draft_tokens", max_draft_tokens, "0 or more")
        self._inbox.command(LowerRequests(max_draft_tokens, drafters, reason))

    def logit_gap(self, tokens: tuple[int, ...], chosen: int, other: int) -> Future[float]:
        """The target's logit of `chosen` less that of `other` after `tokens`, by a forward of its own."""
        check_tokens("tokens", tokens, self.info)
        check_tokens("chosen", (chosen,), self.info)
        check_tokens("other", (other,), self.info)
        self._inbox.command(command := LogitGap(tokens, chosen, other))
        return command.done

    @abstractmethod
    def pin_prefix(self, name: str, tokens: tuple[int, ...]) -> Future[Pin]:
        """Has the keys and values of a text's beginning computed, and keeps them on disk and as long as there is room
        in memory; one that has the name already is replaced. The future raises NoRoom where they do not fit."""

    @abstractmethod
    def pins(self) -> list[tuple[Pin, int, bool]]:
        """Each with the bytes of its files, and whether it is of the model that is served; the oldest first."""

    @abstractmethod
    def drop_prefix(self, name: str) -> Future[None]:
        """Its files go with those that were not used for longest. Raises InvalidRequest for an unknown name."""
