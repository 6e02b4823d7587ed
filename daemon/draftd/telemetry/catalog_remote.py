"""Metrics of remote decoding: the edge's side, the verifier's side, and the cost of answers."""

from __future__ import annotations

from draftd.telemetry import attributes as a
from draftd.telemetry.attributes import InstrumentKind, Metric, Span, metrics_of

_sum, _gauge = metrics_of(InstrumentKind.OBSERVABLE_COUNTER, a.MODEL), metrics_of(InstrumentKind.GAUGE, a.MODEL)
_counter = metrics_of(InstrumentKind.COUNTER, a.MODEL)

# The edge: this daemon drafts or relays, and another verifies. `gen_ai.request.model` is this daemon's own model.
ROUND_TRIP = Metric(
    "draftd.remote.round_trip",
    InstrumentKind.HISTOGRAM,
    "s",
    "Time from sending a step to its verdict, without the verifier's own time",
    (a.MODEL,),
    (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0),
)
UP = _gauge("draftd.remote.up", "{link}", "1 if requests can be opened at the remote, else 0")
LEVEL = _gauge(
    "draftd.remote.level",
    "{level}",
    "What the fallback allows of the remote: 2 speculative (drafts for it), 1 streaming (its answers, no drafts), 0 "
    "local (nothing is sent to it)",
)
SPEEDUP = _gauge(
    "draftd.remote.speedup",
    "1",
    "Speed of requests that are drafted here and verified by the remote, divided by the speed of the remote's own "
    "streaming, waits included in both; over the fallback's last window with enough such requests, absent if there "
    "is none",
)
TRANSITIONS = _counter(
    "draftd.remote.transitions",
    "{transition}",
    "Changes of what the fallback allows of the remote",
    a.REMOTE_FROM,
    a.REMOTE_TO,
    a.SIGNAL,
)
OPEN_SEQUENCES = _gauge(
    "draftd.remote.open_sequences", "{sequence}", "Sequences (requests) that are open at the remote"
)
IN_FLIGHT = _gauge(
    "draftd.remote.steps_in_flight", "{step}", "Steps that were sent to the remote and have no verdict yet"
)
BREAK_EVEN = _gauge(
    "draftd.remote.break_even",
    "s",
    "Estimated round trip below which drafting for the remote is faster than the remote's own streaming; absent if "
    "nothing is known, negative if drafting would not pay without a network either",
)
STEPS = _sum("draftd.remote.steps", "{step}", "Steps that were sent to the verifier")
PROPOSED = _sum(
    "draftd.remote.proposed_tokens", "{token}", "Tokens proposed in the steps that were sent to the verifier"
)
WASTED = _sum(
    "draftd.remote.wasted_tokens",
    "{token}",
    "Proposed tokens that were never verified, because the verifier decided the text before them differently",
)
VERDICTS = _sum("draftd.remote.verdicts", "{verdict}", "Verdicts (the verifier's answers to steps) that were applied")
HIDDEN = _sum(
    "draftd.remote.hidden_round_trips",
    "{trip}",
    "Verdicts for which this daemon did not wait, because a proposal already sent continued from them",
)
TOKENS = _sum("draftd.remote.tokens", "{token}", "Output tokens that the remote's target chose")
LATE = _sum("draftd.remote.late_verdicts", "{verdict}", "Verdicts that came after the end of their request")
REOPENED = _sum("draftd.remote.reopened", "{sequence}", "Sequences that were resumed on a new connection")
FAILOVERS = _sum(
    "draftd.remote.failovers",
    "{request}",
    "Requests that began at the remote and continued with this daemon's own target",
)
TARGET_TIME = _sum(
    "draftd.remote.target.time",
    "s",
    "This daemon's share of the time of the remote's target: a forward pass is divided among the sequences in it",
)
QUEUE_TIME = _sum("draftd.remote.queue.time", "s", "Time that steps waited at the verifier for their forward pass")
CONNECTIONS = _sum("draftd.remote.connections", "{connection}", "Connections to the verifier that came up")
ERRORS = _sum(
    "draftd.remote.errors",
    "{error}",
    "Failed attempts to connect, lost connections, late steps and refusals, by reason (remote.md)",
    a.ERROR_TYPE,
)
IO = _sum("draftd.remote.io", "By", "Bytes of messages to and from the verifier", a.IO_DIRECTION)

# Both: the quality and the cost of answers.
ANSWERS = _counter(
    "draftd.answers", "{answer}", "Successful answers, by strategy and quality class",
    a.STRATEGY, a.QUALITY,
)  # fmt: skip
COST = _counter(
    "draftd.cost",
    "{currency}",
    "Cost of answers in `cost.currency`, by the daemon whose target is paid for; absent without prices",
    a.VERIFIER,
    a.CURRENCY,
)

# The verifier: this daemon's work for edges.
PEERS = _gauge("draftd.verify.peers", "{peer}", "Edges that are connected")
SEQUENCES = _gauge("draftd.verify.open_sequences", "{sequence}", "Sequences (requests) that edges have open")
VERIFY_CONNECTIONS = _sum("draftd.verify.connections", "{connection}", "Connections that edges opened")
VERIFY_OPENED = _sum("draftd.verify.sequences", "{sequence}", "Sequences that edges opened")
VERIFY_REFUSED = _sum(
    "draftd.verify.refused",
    "{refusal}",
    "Connections and sequences of edges that were refused, by reason (remote.md); absent if `verify.enabled` is off "
    "and none was refused",
    a.ERROR_TYPE,
)
VERIFY_STEPS = _sum("draftd.verify.steps", "{step}", "Steps that edges sent")
VERIFY_STALE = _sum(
    "draftd.verify.stale_steps", "{step}", "Steps of edges that did not continue the text and were dropped"
)
VERIFY_VERDICTS = _sum("draftd.verify.verdicts", "{verdict}", "Verdicts that were sent to edges")
VERIFY_DRAFTED = _sum(
    "draftd.verify.drafted_tokens", "{token}", "Tokens proposed by edges that a forward pass verified"
)
VERIFY_ACCEPTED = _sum("draftd.verify.accepted_tokens", "{token}", "Tokens proposed by edges that were accepted")
VERIFY_TOKENS = _sum("draftd.verify.tokens", "{token}", "Tokens decided for edges: accepted ones, and the target's own")
VERIFY_DISCARDED = _sum(
    "draftd.verify.discarded_tokens", "{token}", "Tokens decided for edges that the edge never applied"
)
VERIFY_WASTED = _sum(
    "draftd.verify.wasted_tokens",
    "{token}",
    "Tokens proposed by edges that were dropped before a forward pass verified them",
)
VERIFY_TARGET_TIME = _sum(
    "draftd.verify.target.time", "s", "Time of the target, and of its own drafts, that is charged to edges"
)
VERIFY_QUEUE_TIME = _sum("draftd.verify.queue.time", "s", "Time that steps of edges waited for their forward pass")
VERIFY_IO = _sum("draftd.verify.io", "By", "Bytes of messages to and from edges", a.IO_DIRECTION)

#: Attributes of one request's span: the remote's work for it.
ON_SPAN = (
    *(metric.on_span() for metric in (STEPS, PROPOSED, WASTED, VERDICTS, HIDDEN, TOKENS, LATE, REOPENED)),
    *(metric.on_span("double") for metric in (TARGET_TIME, QUEUE_TIME)),
    a.ROUND_TRIPS,
    a.ROUND_TRIP_TIME,
)  # fmt: skip
REMOTE_SPAN = Span(
    "remote",
    "One request that the remote's target decodes, from the time that it left the queue until its end, with sums of "
    "what was sent, waited for and applied. Time spent drafting is in the parent's `draftd.spec_decode.draft.time`. "
    "The verifier's own span, `verify`, is also a child of the request's span",
    ON_SPAN,
    "CLIENT",
)
VERIFY_SPAN = Span(
    "verify",
    "One sequence that this daemon verified for an edge; a child of the edge's span of the request",
    (
        a.MODEL, a.USAGE_INPUT, a.VERIFY_END,
        *(metric.on_span() for metric in (
            VERIFY_STEPS, VERIFY_STALE, VERIFY_VERDICTS, VERIFY_DRAFTED, VERIFY_ACCEPTED, VERIFY_TOKENS,
            VERIFY_DISCARDED, VERIFY_WASTED,
        )),
        *(metric.on_span("double") for metric in (VERIFY_TARGET_TIME, VERIFY_QUEUE_TIME)),
    ),
    "SERVER",
)  # fmt: skip
