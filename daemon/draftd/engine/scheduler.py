"""The life of every sequence, from its arrival to its end, whichever target decodes it.

One step applies what has come from other daemons' targets, lets them go on, and runs one step of the local one. So a
cancellation or a deadline acts within a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from draftd.core import DecodeRequest, DrafterName, FinishReason, Origin
from draftd.engine.decoder import Decoder
from draftd.engine.local_decoder import LocalDecoder
from draftd.engine.sequence import DecodeSequence
from draftd.errors import DraftdError
from draftd.outcome import TokenSink
from draftd.strategies import Strategy


class Scheduler:
    """Engine thread only, except `abandon`."""

    def __init__(
        self,
        local: LocalDecoder,
        *,
        clock: Callable[[], float] = time.monotonic,
        check_move: Callable[[DecodeRequest], None] = lambda request: None,
        begin: Callable[[DecodeSequence], None] = lambda sequence: None,
    ) -> None:
        """`check_move` raises DraftdError if there is no memory for a sequence that another target gave up. `begin` is
        called with a sequence before the local decoder gets it."""
        self.local, self.delivery, self._clock = local, local.delivery, clock
        self._check_move, self._begin = check_move, begin
        self._others: list[Decoder] = []
        self._own = 0  # sequences of the daemon's own requests

    def decode_elsewhere(self, decoder: Decoder) -> None:
        """Gives this decoder the sequences whose plan is not local."""
        self._others.append(decoder)

    @property
    def _decoders(self) -> list[Decoder]:
        """All decoders, the local one last: messages of the others travel while it computes."""
        return [*self._others, self.local]

    @property
    def sequences(self) -> list[DecodeSequence]:
        return [sequence for decoder in self._decoders for sequence in decoder.sequences]

    @property
    def idle(self) -> bool:
        return all(decoder.idle for decoder in self._decoders)

    @property
    def pause(self) -> float:
        """Seconds for which there is nothing to do, unless something comes."""
        return min(decoder.pause for decoder in self._decoders)

    @property
    def wants_weights(self) -> bool:
        """Whether weights are needed here: a sequence waits for the local target, or this daemon may draft for a
        sequence of another daemon's target."""
        others = (sequence for decoder in self._others for sequence in decoder.sequences)
        return not self.local.idle or any(sequence.speculates for sequence in others)

    @property
    def request_counts(self) -> tuple[int, list[DecodeRequest], int]:
        """The number of clients' running requests, their waiting requests, and the number of the daemon's own."""
        waiting = [sequence.request for decoder in self._decoders for sequence in decoder.not_begun]
        if self._own:
            waiting = [request for request in waiting if request.origin is Origin.CLIENT]
        return sum(len(decoder.sequences) for decoder in self._decoders) - self._own - len(waiting), waiting, self._own

    # arriving

    def receive(self, request: DecodeRequest, sink: TokenSink) -> None:
        """Begins a request: by the target that its plan names."""
        decoder = self._decoder(request)
        self.add(DecodeSequence.of(request, sink, decoder.context_length))

    def add(self, sequence: DecodeSequence) -> None:
        self._own += sequence.request.origin is not Origin.CLIENT
        decoder = self._decoder(sequence.request)
        if decoder is self.local:
            self._begin(sequence)
        decoder.add(sequence)

    def move(self, sequence: DecodeSequence, why: str, retry_after: float) -> None:
        """Moves a sequence that another target gave up to the local one, or ends it with a retry delay."""
        length = self.local.context_length
        if sequence.request.local_allowed and len(sequence.tokens) < length:
            try:
                self._check_move(sequence.request)
            except DraftdError as error:
                why, retry_after = f"{why}; {error.message}", error.retry_after or retry_after
            else:
                sequence.move_here(why, length)
                self._begin(sequence)
                self.local.add(sequence)
                return
        sequence.unavailable = retry_after
        sequence.end(FinishReason.ERROR, why)
        self._finish(sequence)

    def _decoder(self, request: DecodeRequest) -> Decoder:
        return self.local if request.plan.strategy is Strategy.LOCAL or not self._others else self._others[0]

    # a step

    def step(self) -> None:
        now = self._clock()
        self._end_expired(now)
        for decoder in self._others:
            decoder.collect(now)
        self._finish_ended()
        busy = self.local.pause <= 0
        for decoder in self._others:
            if decoder.advance(now, busy=busy):
                self.local.mark_interruption()
        self.local.advance(now, busy=False)
        self._finish_ended()

    # ending

    def end(self, ids: Mapping[str, FinishReason]) -> None:
        """Ends these requests, wherever they are. Unknown ids are ignored: they have ended already."""
        for sequence in self.sequences:
            if (reason := ids.get(sequence.request.id)) is not None:
                sequence.end(reason)
        self._finish_ended()

    def abort(self, reason: FinishReason, error: str = "") -> None:
        """Ends everything at once."""
        for sequence in self.sequences:
            sequence.end(reason, error)
        self._finish_ended()

    def abandon(self, reason: FinishReason) -> None:
        """Reports the end of all requests, whatever the engine thread does. Any thread."""
        for sequence in self.sequences:
            sequence.end(reason)
            self.delivery.end(sequence, self._clock())

    def do_without_weights(self, error: str) -> None:
        """Ends the local sequences, as the weights cannot be loaded. Remote ones go on without drafts."""
        for sequence in self.local.sequences:
            sequence.end(FinishReason.ERROR, error)
        self._finish_ended()
        self.lower(0, (), error)

    def lower(self, most: int, drafters: Collection[DrafterName], reason: str) -> None:
        """Bounds all sequences: at most `most` tokens a step, from one of `drafters` that is loaded."""
        drafting = self.local.drafting
        allowed = drafting.offered.intersection(drafters)
        for sequence in self.sequences:
            before = sequence.plan.drafter
            sequence.lower(most, allowed, reason)
            changed = sequence.plan.drafter != before or sequence.degraded
            if before is not None and changed and before in drafting.drafters:
                drafting.drafters[before].leave(sequence)
        for decoder in self._decoders:
            decoder.review_drafting()

    def _end_expired(self, now: float) -> None:
        for sequence in self.sequences:
            if sequence.request.deadline is not None and now >= sequence.request.deadline:
                sequence.end(FinishReason.DEADLINE)

    def _finish_ended(self) -> None:
        for decoder in self._decoders:
            if ended := [sequence for sequence in decoder.sequences if sequence.ended]:
                decoder.leave(ended)
                for sequence in ended:
                    self._finish(sequence)

    def _finish(self, sequence: DecodeSequence) -> None:
        if sequence.max_tokens:  # else it has no answer
            self.local.depth.lengths.learn(sequence)
        self._own -= sequence.request.origin is not Origin.CLIENT
        self.delivery.end(sequence, self._clock())
