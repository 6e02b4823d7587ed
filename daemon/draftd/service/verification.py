"""This daemon as a verifier: other daemons draft, its target decides.

    1. connect: one connection for each edge, by its identity      TooManyPeers beyond verify.peers
    2. open: checks, grammar, fingerprint, limits; to the engine   Closed says which field, or when to retry
    3. steps go to the engine thread at once; verdicts come back by the event loop
    4. closed: the edge is done, the text has ended, nothing came for long, or the daemon stops

The tokens emitted for peers, less those they discarded, are the tokens that edges applied. The verifier knows how far
each text was decided. The edge says how much of it it applied, in a `CloseSequence` or an `OpenSequence` of the same
number.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from draftd.core import DecodeRequest, FinishReason
from draftd.engine.handle import EngineHandle, EngineState
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    FromVerifier,
    OpenSequence,
    Proposal,
    SequenceClosed,
    SequenceOpened,
    ToVerifier,
    Verdict,
)
from draftd.errors import (
    DraftdError,
    EngineFailure,
    InvalidRequest,
    NotServing,
    Superseded,
)
from draftd.outcome import Outcome
from draftd.planning.planner import Planner
from draftd.service.own_fingerprint import OwnFingerprint
from draftd.service.peer_requests import check_model, check_text, compile_grammar, decode_request
from draftd.service.peer_table import RETRY_SECONDS, PeerTable
from draftd.service.peers import (
    Peer,
    PeerConnection,
    Refusals,
    VerifiedSequence,
    VerifierIdentity,
    count_verdict,
)
from draftd.service.request import MAX_PRIORITY
from draftd.service.stream import Mailbox
from draftd.settings import Settings
from draftd.strategies import VerificationStatus
from draftd.telemetry.remote import VerificationSpan

MAX_PROPOSED = 1024
"""Most tokens that a step proposes."""
_TICK_SECONDS = 0.25
_PRESSED_SECONDS = 2.0  # longest idle time of a sequence while requests wait for memory
_OPEN_COST = 20.0  # messages that an opening counts for, until its first verdict
_EDGE = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


class VerificationService:
    """All peers of a daemon. Created and used on one event loop."""

    def __init__(
        self,
        worker: EngineHandle,
        planner: Planner,
        settings: Settings,
        begin_span: Callable[[str, int], VerificationSpan],
    ) -> None:
        """`planner`: plans how this daemon drafts by itself. `begin_span`: begins a sequence's span, from the edge's
        span and the number of tokens at its opening."""
        self.enabled, self._begin_span = settings.verify.enabled, begin_span
        self.draining = False
        self._worker, self._planner, self._settings, self._limits = worker, planner, settings, settings.verify
        self._peers = PeerTable(settings.verify, settings.engine.queue_capacity)
        self.refusals = Refusals()
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._compiling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-peer-grammar")
        self._fingerprint = OwnFingerprint(worker)
        self._watch: asyncio.Task[None] | None = None

    # identity and status

    def prepare(self) -> None:
        """Begins computing the fingerprint of the loaded model, which may take long."""
        if self.enabled:
            self._fingerprint.begin()

    async def identity(self) -> VerifierIdentity:
        """Returns this verifier's greeting. Raises NotServing until the model is loaded and its fingerprint
        computed."""
        self._check_serving()
        fingerprint, info, worker = await self._fingerprint.get(), self._worker.info, self._worker
        return VerifierIdentity(
            model=info.model,
            model_fingerprint=fingerprint.model,
            tokenizer=fingerprint.tokenizer,
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            max_draft_tokens=self._settings.engine.max_draft_tokens,
            quality=self._settings.model.quality,
            step_seconds=worker.step_seconds,
            prefill_seconds=worker.prefill_seconds,
            max_sequences=self._limits.sequences_per_peer,
            drafts=self._planner.plan_for_peer(info).drafter is not None,
        )

    async def vocabulary(self) -> tuple[str, list[bytes]]:
        """Returns the tokenizer's fingerprint, and all tokens by id. Raises NotServing."""
        self._check_serving()
        return (await self._fingerprint.get()).tokenizer, await self._fingerprint.vocabulary()

    def status(self) -> VerificationStatus:
        """Returns connections, counts and open sequences. Any thread."""
        return self._peers.status(self.refusals.counts)

    @property
    def has_status(self) -> bool:
        """Whether there is something to report: this daemon verifies for edges, or refused some. Any thread."""
        return self.enabled or any(self.refusals.counts.values())

    # connections

    def connect(self, edge: str, address: str) -> PeerConnection:
        """Opens the edge's connection, and ends its earlier one if there is one. Raises NotServing, InvalidRequest,
        TooManyPeers."""
        self._check_serving()
        if not _EDGE.fullmatch(edge):
            raise InvalidRequest("hello.edge", edge, "32 hexadecimal digits, new at each start of the edge")
        earlier = self._peers.get(edge)
        if earlier is not None and earlier.connection is not None:
            earlier.connection.cut(Superseded("another connection of the same edge took this one's place"))
            self.disconnect(earlier.connection)
        peer = self._peers.admit(edge)
        peer.connection = connection = PeerConnection(peer, address, self._worker.wake)
        peer.counts.connections += 1
        for other in self._peers.surplus():
            self._end_all(other, "its edge is gone, and other edges came")
        self._peers.forget()
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_peers(), name="draftd-watch-peers")
        return connection

    def disconnect(self, connection: PeerConnection) -> None:
        """Keeps the connection's sequences for a while, but decides no tokens for them. A sequence ends at once if none
        of its tokens was decided since it was opened: for an edge that reconnects, the prefix cache has its
        prefill."""
        connection.alive = False
        peer = connection.peer
        if peer.connection is connection:
            peer.connection, peer.lost_since = None, time.monotonic()
        for sequence in list(peer.open.values()):
            if sequence.connection is connection and not sequence.text.grown:
                self._end(sequence, SequenceClosed(sequence.number, "its connection was lost"))

    async def take(self, connection: PeerConnection, message: ToVerifier) -> None:
        """Handles one message of the peer; returns when the next may be read. Raises InvalidRequest for an impossible
        step."""
        if isinstance(message, Proposal):
            self._step(connection, message)
        elif isinstance(message, CloseSequence):
            self._close(connection, message)
        else:
            await self._open(connection, message)
        await connection.throttle()

    def refuse(self, connection: PeerConnection, sequence: int, error: DraftdError) -> None:
        """Tells the peer why a sequence cannot be opened, and counts the refusal."""
        self.refusals.add_sequence(error, sequence, connection)
        connection.peer.pace.spend(_OPEN_COST)
        connection.put(SequenceClosed(sequence, error.message, error.retry_after))

    # sequences

    def _step(self, connection: PeerConnection, step: Proposal) -> None:
        peer = connection.peer
        peer.counts.steps += 1
        sequence = peer.open.get(step.sequence)
        if sequence is not None:
            sequence.counts.steps += 1
        if sequence is None or sequence.closing is not None or sequence.connection is not connection:
            peer.counts.stale += 1  # it has ended, or must be opened again after a lost connection
            return
        if len(step.proposed) > MAX_PROPOSED:
            raise InvalidRequest("step.proposed", f"{len(step.proposed)} tokens", f"at most {MAX_PROPOSED} tokens")
        vocabulary = self._worker.info.vocab_size
        if (wrong := next((token for token in step.proposed if token >= vocabulary), None)) is not None:
            error = InvalidRequest("step.proposed", wrong, f"token ids from 0 to {vocabulary - 1}")
            self.refusals.add_sequence(error, step.sequence, connection)
            self._end(sequence, SequenceClosed(step.sequence, error.message))
            return
        sequence.active = time.monotonic()
        sequence.proposals.offer(step)

    def _close(self, connection: PeerConnection, message: CloseSequence) -> None:
        peer = connection.peer
        sequence, closed_sequence = peer.open.get(message.sequence), peer.ended.get(message.sequence)
        if sequence is not None:
            sequence.text.apply(message.length)
            self._end(sequence, SequenceClosed(message.sequence))
            return
        if closed_sequence is not None:
            peer.counts.discarded += closed_sequence.settle(message.length)
        connection.put(SequenceClosed(message.sequence))  # so that the edge need not repeat it on another connection

    async def _open(self, connection: PeerConnection, message: OpenSequence) -> None:
        peer = connection.peer
        try:
            await self._replace(peer, message)
            sequence, request = await self._admit(connection, message)
            peer.open[message.sequence] = sequence
            try:
                self._worker.submit(request, sequence)
            except BaseException as error:
                del peer.open[message.sequence]
                sequence.span.end(sequence.counts, "error", str(error))
                raise
            peer.counts.opened += 1
            peer.pace.spend(_OPEN_COST)
        except DraftdError as error:
            self.refuse(connection, message.sequence, error)

    async def _replace(self, peer: Peer, message: OpenSequence) -> None:
        """Ends an earlier sequence of the same number: the edge goes on from the tokens that it has."""
        number, length = message.sequence, len(message.tokens)
        closed_sequence, sequence = peer.ended.get(number), peer.open.pop(number, None)
        if sequence is not None:
            sequence.text.apply(length)
            peer.leaving.add(sequence)
            self._end(sequence, SequenceClosed(number))
            while len(peer.leaving) > self._limits.sequences_per_peer:
                peer.one_left.clear()
                await peer.one_left.wait()
        elif closed_sequence is not None and not closed_sequence.closed:
            peer.counts.discarded += closed_sequence.settle(length)
            del peer.ended[number]
        elif closed_sequence is not None or number <= peer.forgotten:
            raise InvalidRequest("open.sequence", number, "a number that was not used before: numbers count up")

    async def _admit(self, connection: PeerConnection, message: OpenSequence) -> tuple[VerifiedSequence, DecodeRequest]:
        """Checks the message, and returns its sequence and request. Raises the DraftdError of a refusal."""
        self._check_serving()
        peer, worker, deepest = connection.peer, self._worker, self._settings.engine.max_draft_tokens
        check_model(message.fingerprint, (await self._fingerprint.get()).model, worker.info)
        remaining = check_text(message, worker.info, worker.tokenizer)
        whole = len(message.tokens) + remaining
        self._peers.check_limits(peer, whole)
        grammar = await compile_grammar(message.options.grammar, worker.grammars, self._compiling)
        if not connection.alive:
            raise NotServing("the connection was lost")
        sequence = VerifiedSequence(
            connection, message, whole, grammar,
            mailbox=self._mailbox, on_message=self._handle, wake=worker.wake,
            span=self._begin_span(message.trace, len(message.tokens)), deepest=deepest,
        )  # fmt: skip
        # Of the waiting sequences that share a key, all but the first come after other requests.
        waiting = sum(not one.began for other in self._peers.same_share(peer) for one in other.sequences)
        own_plan = self._planner.plan_for_peer(worker.info, len(message.tokens), constrained=bool(grammar))
        priority = min(waiting, MAX_PRIORITY)
        return sequence, decode_request(
            message, remaining, sequence.id, peer.share_key, sequence.proposals, own_plan,
            deepest=deepest, priority=priority,
        )  # fmt: skip

    # messages of the engine

    def _handle(self, sequence: VerifiedSequence, item: FromVerifier | Outcome) -> None:
        peer, now = sequence.peer, time.monotonic()
        if isinstance(item, Outcome):
            self._finish(sequence, item)
            return
        sequence.active = now
        if isinstance(item, SequenceOpened):
            if sequence.began:  # its prefill began again, after a failed forward
                return
            sequence.began = True
        elif isinstance(item, Verdict):
            if not sequence.text.grown:  # the first verdict
                peer.pace.earn(_OPEN_COST)
            count_verdict(sequence, item)
            sequence.text.decided = item.length + len(item.tokens)
        self._tell(sequence, item)

    def _finish(self, sequence: VerifiedSequence, outcome: Outcome) -> None:
        peer, replaced = sequence.peer, sequence in sequence.peer.leaving
        peer.counts.stale += sequence.proposals.stale
        peer.counts.wasted += sequence.proposals.wasted
        closed_sequence, sequence.counts.discarded = sequence.text.close()
        peer.counts.discarded += sequence.counts.discarded
        sequence.end_span(outcome, replaced=replaced)
        if replaced:
            peer.leaving.discard(sequence)
            peer.one_left.set()
            return
        peer.open.pop(sequence.number, None)
        peer.remember(sequence.number, closed_sequence)
        self._tell(sequence, sequence.closing or _closing_message(sequence.number, outcome))

    def _tell(self, sequence: VerifiedSequence, message: FromVerifier) -> None:
        if sequence.connection.alive and sequence not in sequence.peer.leaving:
            sequence.connection.put(message)

    # ending

    def drain(self) -> None:
        """Refuses new peers and sequences, and ends the open ones: their edges go on elsewhere."""
        self.draining = True
        for peer in self._peers:
            self._end_all(peer, "the verifier is draining", RETRY_SECONDS)

    async def close(self) -> None:
        """Stops the check for idle peers, and frees the service's resources. Messages that the engine sends afterwards
        are dropped."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._mailbox.close()
        self._compiling.shutdown(wait=False, cancel_futures=True)

    def _end(self, sequence: VerifiedSequence, closed: SequenceClosed) -> None:
        """Cancels the sequence, which ends after one step of the engine at most. Then the peer gets `closed`."""
        if sequence.closing is None:
            sequence.closing = closed
            self._worker.cancel(sequence.id)

    def _end_all(self, peer: Peer, why: str, retry_after: float | None = None) -> None:
        for sequence in list(peer.open.values()):
            self._end(sequence, SequenceClosed(sequence.number, why, retry_after))

    # watching idle peers

    async def _watch_peers(self) -> None:
        while True:
            try:
                self._end_idle(time.monotonic())
            except Exception:
                log.exception("the check for idle peers failed")
            await asyncio.sleep(_TICK_SECONDS)

    def _end_idle(self, now: float) -> None:
        idle, pressed = self._limits.idle_seconds, self._worker.status().held_back > 0
        for peer in self._peers:
            lost_seconds = now - peer.lost_since
            for sequence in list(peer.open.values()):
                seconds = now - sequence.active
                if not sequence.connection.alive:
                    if pressed or lost_seconds > idle:
                        self._end(sequence, SequenceClosed(sequence.number, "its edge did not open it again"))
                elif sequence.began and seconds > idle:
                    why = f"no step came for {seconds:.0f} s, and at most {idle:g} s may pass (verify.idle_seconds)"
                    self._end(sequence, SequenceClosed(sequence.number, why, 0.0))
                elif sequence.began and pressed and seconds > _PRESSED_SECONDS:
                    why = f"no step came for {seconds:.0f} s, and requests wait for memory"
                    self._end(sequence, SequenceClosed(sequence.number, why, RETRY_SECONDS))

    def _check_serving(self) -> None:
        if self.draining:
            raise NotServing("the daemon is draining and takes no peers", retry_after=RETRY_SECONDS)
        if self._worker.state is EngineState.FAILED:
            raise NotServing(f"the engine failed: {self._worker.error}")
        _ = self._worker.info  # raises NotServing until it is loaded


def _closing_message(sequence: int, outcome: Outcome) -> SequenceClosed:
    if outcome.reason in (FinishReason.STOP, FinishReason.LENGTH):
        return SequenceClosed(sequence)
    if outcome.reason is FinishReason.CANCELLED:
        return SequenceClosed(sequence, "the daemon is stopping", RETRY_SECONDS)
    return SequenceClosed(sequence, EngineFailure(outcome.error or "decoding failed").message)
