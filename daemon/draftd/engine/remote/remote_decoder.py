"""Decodes sequences on another daemon's target (the verifier), beside local ones. In each turn of the engine's loop it
applies received messages, and drafts and sends what is due. No sequence waits for another.

A sequence starts as a stream: the verifier decodes alone, within a grant of tokens. Once a drafter has taken the text
in, and if it pays (mode_control.py), tokens are proposed, and drafting continues from the guess while a verdict is on
its way. If the verifier becomes unreachable or says something impossible, the sequence continues locally from its last
token, or ends with a delay until a retry.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import add

from draftd.core import TARGET, FinishReason
from draftd.engine.delivery import Delivery
from draftd.engine.limits import RemoteLimits
from draftd.engine.observer import RemoteStatus
from draftd.engine.remote.mode_control import DraftOutcome
from draftd.engine.remote.remote_drafting import RemoteDrafting
from draftd.engine.remote.remote_sequence import RemoteSequence
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    FromLink,
    LinkConnected,
    LinkLost,
    LinkSession,
    OpenSequence,
    Proposal,
    SequenceClosed,
    SequenceOpened,
    UnconfirmedClose,
    Verdict,
    VerifierLink,
)
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, DraftState, SequenceStep
from draftd.engine.targets.base import SequenceOptions
from draftd.strategies import RemoteCounts, RemoteMode, Verifier

_log = logging.getLogger(__name__)

_LEAST_GRANT, _PARKED_GRANT, _MOST_GRANT = 32, 256, 4096  # tokens
_GRANT_ROUND_TRIPS = 4  # round trips that a grant lasts at least
_DECIDE = 4  # verdicts after which a sequence's mode is chosen again
_RETRY_SECONDS = 1.0  # if the link has no better estimate
_SEED_BITS = 63


class RemoteDecoder:
    """A `Decoder` over a `VerifierLink`. `status` may be read on any thread."""

    def __init__(
        self,
        link: VerifierLink,
        drafts: RemoteDrafting,
        delivery: Delivery,
        *,
        move: Callable[[DecodeSequence, str, float], None],
        context_length: int,
        limits: RemoteLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`move` takes a sequence that the verifier no longer decodes, the reason, and the seconds until a retry may
        help. `context_length`: this daemon's model's."""
        self._link, self._drafts, self._delivery, self._move = link, drafts, delivery, move
        self._context_length, self._limits = context_length, limits
        self._clock, self._dice = clock, random.SystemRandom()
        self._waiting: deque[DecodeSequence] = deque()
        self._texts: dict[int, RemoteSequence] = {}
        self._opened = 0
        self._session, self.control = LinkSession(link, limits.step_seconds), drafts.control
        self.status = RemoteStatus()

    @property
    def idle(self) -> bool:
        return not (self._texts or self._waiting)

    @property
    def context_length(self) -> int:
        """The verifier's context length in tokens; this daemon's until the verifier was reached."""
        model = self._link.state.model
        return self._context_length if model is None else model.context_length

    @property
    def sequences(self) -> list[DecodeSequence]:
        return [*(text.sequence for text in list(self._texts.values())), *self._waiting]

    @property
    def not_begun(self) -> list[DecodeSequence]:
        return list(self._waiting)

    @property
    def pause(self) -> float:
        texts = self._texts.values()
        if (self._room and self._waiting) or self._drafts.behind(texts) or any(map(self._drafts.due, texts)):
            return 0.0
        times = [text.due for text in texts if text.due is not None]
        times += [sequence.request.deadline for sequence in self.sequences if sequence.request.deadline is not None]
        return max(0.0, min(times, default=math.inf) - self._clock())

    def add(self, sequence: DecodeSequence) -> None:
        if (
            not sequence.sampling.deterministic
        ):  # a deterministic text is the same whoever drafts and wherever it continues
            sequence.sampling = replace(sequence.sampling, seed=self._dice.getrandbits(_SEED_BITS))
        if self._drafts.may_use_target(sequence):
            sequence.plan = replace(sequence.plan, alternatives=sequence.plan.alternatives | {TARGET})
        self._waiting.append(sequence)

    def review_drafting(self) -> None:
        for text in self._texts.values():
            self._decide(text)

    def collect(self, now: float) -> None:
        for message in self._link.take_messages():
            self._take(message, now)
        going_on = [text for text in self._texts.values() if not text.sequence.ended]
        for text in [text for text in going_on if text.due is not None and text.due < now]:
            why = "no verdict came within its deadline"
            self._link.count_late_verdict(why)
            self._go_on(text, why, None)

    def advance(self, now: float, *, busy: bool) -> bool:
        while self._waiting and self._room:
            self._open(self._waiting.popleft())
        return self._draft(busy)

    def leave(self, ended: Sequence[DecodeSequence]) -> None:
        for sequence in ended:
            if (text := self._texts.get(-sequence.id)) is not None:
                self._leave(text)
                self._sum(text.counts)
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.ended)

    # opening

    @property
    def _room(self) -> bool:
        return len(self._texts) < self._limits.sequences

    def _open(self, sequence: DecodeSequence) -> None:
        self._opened += 1
        state = self._link.state
        model = state.model
        sequence.id = -self._opened
        sequence.stats.scheduled = self._clock()
        sequence.stats.remote = counts = RemoteCounts()
        text = RemoteSequence(self._opened, sequence, counts)
        if model is None or not model.shared_tokenizer or self._session.connection is None:
            why = model.difference if model is not None and not model.shared_tokenizer else state.why
            self._go_on(text, why or "the verifier was never reached", state.retry_after)
            return
        self.control.follow(model)
        self._texts[text.number] = text
        self.status = replace(self.status, open_sequences=len(self._texts))
        self._send_open(text)
        self._decide(text)

    def _send_open(self, text: RemoteSequence) -> None:
        """Opens the sequence over the present connection, with its whole text."""
        sequence, request = text.sequence, text.sequence.request
        text.reopen(self._session.prefill_deadline(text.length, self._clock()))
        options = SequenceOptions(
            prompt=len(request.prompt),
            length=text.length,
            sampling=sequence.sampling,
            ends=tuple(sorted(self._delivery.end_tokens(request))),
            min_tokens=request.min_tokens,
            logprobs=request.logprobs,
            grammar=request.grammar,
        )
        opened = OpenSequence(
            text.number,
            tuple(sequence.tokens),
            options,
            sequence.max_tokens,
            request.trace,
            request.skip_prefix_cache,
            self.control.fingerprint,
        )
        self._session.send(opened)

    def _send_step(self, text: RemoteSequence, step: Proposal) -> None:
        self._session.send(step)
        text.expect(self._session.deadline(self._clock()))

    # received messages

    def _take(self, message: FromLink, now: float) -> None:
        if isinstance(message, LinkConnected | LinkLost):
            self._handle_connection(message)
            return
        text = self._texts.get(message.sequence)
        self._session.judge(message, opened=None if text is None else text.opened)
        if isinstance(message, Verdict):
            self._verdict(text, message, now)
        elif isinstance(message, SequenceClosed):
            self._handle_close(text, message)
        elif text is not None and not text.sequence.ended:
            self._opened_there(text, message)

    def _handle_connection(self, message: LinkConnected | LinkLost) -> None:
        """Opens all sequences again over a new connection, or gives them all up."""
        if isinstance(message, LinkConnected):
            self._session.use_connection(message.connection)
        else:
            self._session.connection = None
        for text in [text for text in self._texts.values() if not text.sequence.ended]:
            if isinstance(message, LinkConnected):
                self._send_open(text)
            else:
                self._go_on(text, message.why, None)

    def _opened_there(self, text: RemoteSequence, message: SequenceOpened) -> None:
        if not text.counts.reopened and not text.sequence.emitted:
            text.sequence.stats.looked_up, text.sequence.stats.cached_tokens = True, message.cached
        text.opened = True
        text.due = text.due if text.owed else None

    def _handle_close(self, text: RemoteSequence | None, message: SequenceClosed) -> None:
        if text is not None and text.finished:
            text.finished = False  # it has said so, and will also confirm the `CloseSequence`
        elif text is not None and not text.sequence.ended:
            self._go_on(text, message.error or "the verifier closed it", message.retry_after)
        else:
            self._session.confirm(message.sequence)

    def _late(self, verdict: Verdict) -> None:
        counts = replace(self.status.counts, late=self.status.counts.late + 1)
        drafted, accepted = self.status.late_drafted + verdict.drafted, self.status.late_accepted + verdict.accepted
        self.status = replace(self.status, counts=counts, late_drafted=drafted, late_accepted=accepted)

    def _verdict(self, text: RemoteSequence | None, verdict: Verdict, now: float) -> None:
        if text is None or text.sequence.ended:
            self._late(verdict)
            ended = text or self._session.closes.get(verdict.sequence)
            if ended is not None and verdict.length >= ended.end:
                self._link.broken(f"sequence {verdict.sequence}: a verdict follows the last token of its answer")
            elif ended is not None:
                ended.finished = ended.finished or verdict.finished is not None
            return
        model = self._link.state.model
        why = text.implausible(verdict, model.vocab_size if model is not None else 1 << 31)
        if why:
            _log.warning("request %s: %s", text.sequence.request.id, why)
            self._late(verdict)
            self._link.broken(f"sequence {verdict.sequence}: {why}")
            self._go_on(text, f"the verifier broke the protocol: {why}", None)
            return
        sequence = text.sequence
        judged, waited = text.take(verdict, now)
        self._session.learn_queue(verdict.queue_seconds)
        text.due = self._session.deadline(now) if text.owed else None
        if text.trip is not None:
            self._delivery.observer.on_round_trip(sequence.request, text.trip)
        break_even = self._learn(text, verdict, judged, waited, now)
        sequence.stats.prefilled = sequence.stats.prefilled or now
        parked = text.mode is RemoteMode.STREAM and sequence.speculates
        state = DraftState.DRAFTING if verdict.drafted else DraftState.PARKED if parked else DraftState.NONE
        accepted, following = list(verdict.tokens[:-1]), verdict.tokens[-1]
        step = SequenceStep(verdict.drafted, accepted, following, text.draft_forwards, state, verdict.logprobs)
        done = DecodeStep([step], text.draft_seconds, verdict.verify_seconds, [])
        text.draft_forwards, text.draft_seconds, before = 0, 0.0, sequence.emitted
        self._delivery.send_tokens(sequence, step, done, now, break_even, Verifier.REMOTE)
        text.counts.tokens += sequence.emitted - before
        text.last_verdict = now
        if sequence.ended:
            return
        if verdict.finished in (FinishReason.STOP, FinishReason.LENGTH):
            sequence.end(verdict.finished)
        elif verdict.finished is not None:
            self._go_on(text, f"the verifier ended it: {verdict.finished.value}", None)
        elif text.decided >= _DECIDE:
            self._decide(text)

    def _learn(
        self, text: RemoteSequence, verdict: Verdict, judged: Sequence[DraftOutcome], waited: float | None, now: float
    ) -> float | None:
        """Learns from a verdict. Returns how many accepted tokens the step needed to be as fast as streaming; None for
        a step without a draft, or if the speeds are unknown."""
        costs, sequence = self.control.costs, text.sequence
        workload = sequence.request.workload
        costs.load = verdict.load
        costs.learn_verify(verdict.drafted or verdict.own_drafted, verdict.verify_seconds)
        if waited is not None:
            costs.learn_round_trip(waited, verdict.queue_seconds)
        if verdict.drafted or not sequence.emitted:
            text.streak = None
            costs.count_proposed(workload, len(verdict.tokens))
        elif text.streak is None:
            text.streak = 0, 0, now
        else:
            tokens, own, began = text.streak
            tokens, own = tokens + len(verdict.tokens), own + verdict.own_drafted
            learnt = costs.learn_streaming(workload, tokens, now - began, drafted=own > 0)
            text.streak = (0, 0, now) if learnt else (tokens, own, began)
        self.control.learn(sequence, judged)
        if not verdict.drafted or text.last_verdict is None or not costs.measured:
            return None
        return max(0.0, (now - text.last_verdict) / costs.streaming(workload) - 1)

    # choice of the mode

    def _decide(self, text: RemoteSequence) -> None:
        """Chooses how the text is decoded from now on."""
        text.decided, sequence = 0, text.sequence
        best = self.control.decide(sequence, self._drafts.knowing(sequence), self._link.state)
        text.parked = best is not None or not sequence.speculates
        if best is not None and self.control.streams_first(sequence, self._link.state):
            best = None
        text.mode = RemoteMode.STREAM if best is None else best.mode
        text.depth, text.ahead = (0, 0) if best is None else (best.depth, best.ahead)

    def estimate(self) -> None:
        """Updates `status`: the expected speeds by class of text, the break-even round trip, and proposals on their
        way."""
        state, in_flight = self._link.state, sum(text.in_flight for text in self._texts.values())
        kind = self._drafts.likeliest
        estimates, pays = self.control.estimates(state, kind)
        self.status = replace(self.status, estimates=estimates, in_flight=in_flight, break_even=pays)

    # drafts and grants

    def _draft(self, busy: bool) -> bool:
        """Sends due drafts and grants. Returns whether any drafter computed."""
        texts, model = self._texts.values(), self._link.state.model
        self._drafts.hold_target(texts)
        proposals, worked = self._drafts.draft(texts, 0 if model is None else model.vocab_size)
        now = self._clock()
        for text, kind, tokens in proposals:
            run = 0 if text.mode is RemoteMode.STEPS else self._grant_size(text)
            self._send_step(text, text.propose(kind, tokens, run, now))
        for text in texts:
            self._renew(text)
        if (behind := self._drafts.behind(texts)) is not None:
            worked = True
            if self._drafts.take_in(*behind, busy):
                self._decide(behind[0])
        return worked

    def _grant_size(self, text: RemoteSequence) -> int:
        """Returns how many tokens to grant (to let the verifier decode without proposals): at least four round trips'
        worth. If no proposal will follow for a while, more: a large grant tells the verifier that prefilling its own
        drafter may pay."""
        pace = self.control.costs.streaming(text.sequence.request.workload)
        lasts = (self._link.state.round_trip or 0.0) * _GRANT_ROUND_TRIPS / pace
        least = _PARKED_GRANT if text.parked and text.mode is RemoteMode.STREAM else _LEAST_GRANT
        return min(max(least, math.ceil(lasts)), _MOST_GRANT)

    def _renew(self, text: RemoteSequence) -> None:
        """Grants more tokens before a grant is used up, unless a guess awaits its verdict."""
        if text.sequence.ended or text.guess:
            return
        run = self._grant_size(text)
        low = text.grant <= 0 if text.mode is RemoteMode.STEPS else 2 * text.grant <= run
        if low:
            self._send_step(text, text.allow(run))

    # end of a sequence

    def _leave(self, text: RemoteSequence) -> None:
        """Closes the text at the verifier, reporting how much of it was used."""
        end, finished = text.end, text.finished
        text.leave()
        if self._texts.pop(text.number, None) is not None:
            self._session.close(UnconfirmedClose(CloseSequence(text.number, text.length), end, finished))
        self._drafts.leave(text.sequence)

    def _sum(self, counts: RemoteCounts) -> None:
        """Adds the counts of a sequence that has left."""
        counts = self.status.counts.combine(counts, add)
        self.status = replace(self.status, counts=counts, open_sequences=len(self._texts))

    def _go_on(self, text: RemoteSequence, why: str, retry_after: float | None) -> None:
        """Hands a text that the verifier no longer decodes to `move`, which continues it locally or ends it. `why`: the
        reason; `retry_after`: seconds until a retry, None: the link's estimate."""
        self._leave(text)
        delay = retry_after if retry_after is not None else self._link.state.retry_after
        self._move(text.sequence, why, _RETRY_SECONDS if delay is None else delay)
        text.counts.failed_over = int(bool(text.sequence.failed_over))
        self._sum(text.counts)
