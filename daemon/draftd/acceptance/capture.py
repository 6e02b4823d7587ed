"""One request, timed where it arrives: what comes is kept as it is, and looked at when the answer is complete."""

from __future__ import annotations

import hashlib
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftd.acceptance.ticks import Chunk, Granted, Place, Served, Tick
from draftd.client.asking import Answer, Ask, gather, send
from draftd.client.client import CallError
from draftd.core import DepthMode
from draftd.protocol import DECODED, DEPTH_MODES, DRAFTERS, REASONS

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient
    from draftd.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Capture:
    """`arrivals` run parallel to `responses`, in seconds since it was asked. `began` is time.perf_counter()."""

    ask: Ask
    asked_at: float
    began: float
    ended: float
    arrivals: tuple[float, ...]
    responses: tuple[pb.GenerateResponse, ...]
    failure: CallError | None = None

    def answer(self) -> Answer:
        """What was said, for people."""
        return gather(self.responses)

    def tick(self, place: Place, session_began: float, *, keep_text: bool = False) -> Tick:
        """`session_began` is time.perf_counter() when the session did."""
        answer = self.answer()
        started, finished = answer.started, answer.finished
        complete = bool(self.responses) and self.responses[-1].WhichOneof("event") == "finished"
        error = "" if complete else "the stream ended before its answer did"
        if self.failure is not None:
            error = str(self.failure)
        return Tick(
            place=place,
            elapsed=self.began - session_began,
            asked_at=self.asked_at,
            ended=self.ended,
            chunks=tuple(
                Chunk(at, len(said.chunk.token_ids), sum(said.chunk.from_draft))
                for at, said in zip(self.arrivals, self.responses, strict=True)
                if said.WhichOneof("event") == "chunk" and said.chunk.token_ids
            ),
            error=error,
            prompt_tokens=started.prompt_tokens,
            output_tokens=len(answer.tokens),
            finish_reason=REASONS.get(finished.reason),
            granted=_granted(started.plan) if started.HasField("plan") else None,
            degraded=finished.degraded,
            served=_served(finished.timings) if complete else None,
            counts=answer.counts,
            digest=hashlib.sha256(array("I", answer.tokens).tobytes()).hexdigest()[:16],
            text=answer.text if keep_text else None,
        )


def capture(client: DraftdClient, ask: Ask, *, timeout: float) -> Capture:
    """Asks, and hears the answer to its end. What goes wrong is `failure`: a run goes on without one answer."""
    arrivals: list[float] = []
    responses: list[pb.GenerateResponse] = []
    failure, clock = None, time.perf_counter
    asked_at, began = time.time(), clock()
    try:
        for response in send(client, ask, timeout):
            arrivals.append(clock() - began)
            responses.append(response)
    except CallError as failed:
        failure = failed
    return Capture(ask, asked_at, began, clock() - began, tuple(arrivals), tuple(responses), failure)


def _granted(plan: pb.DecodePlan) -> Granted:
    return Granted(
        DECODED[plan.mode],
        plan.max_draft_tokens,
        DRAFTERS.get(plan.drafter),
        plan.level,
        plan.variant,
        plan.reason,
        DEPTH_MODES.get(plan.depth_mode) or DepthMode.FIXED,
    )


def _served(timings: pb.Timings) -> Served:
    def seconds(name: str) -> float | None:
        return getattr(timings, name).ToNanoseconds() / 1e9 if timings.HasField(name) else None

    return Served(seconds("queue"), seconds("prefill"), seconds("time_to_first_token"), seconds("total"))
