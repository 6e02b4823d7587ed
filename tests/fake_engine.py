"""A fake engine whose answers a test sets: no model, no thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodeMode, DecodeRequest, DrafterName, FallbackLevel, FinishReason
from draftd.counts import DraftCounts
from draftd.engine.observer import EngineStatus
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.model_info import ModelInfo
from draftd.outcome import Emission, Outcome, RequestStats, TokenSink

INFO = ModelInfo(
    model="fake",
    draft_model="fake-draft",
    context_length=4096,
    vocab_size=256,
    drafters=(DRAFT_MODEL, PROMPT_LOOKUP),
    weight_bytes=1000,
    draft_weight_bytes=100,
    backend="cpu (test)",
)
STATUS = EngineStatus(DraftCounts(), {}, queue_capacity=8, weight_bytes=1100)


class Letters:
    """A tokenizer with one token per letter."""

    has_chat_template = False
    template = None

    def encode(self, text: str) -> list[int]:
        return [ord(sign) % 256 for sign in text]

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise AssertionError("there is no template")

    def encode_rendered(self, text: str) -> list[int]:
        raise AssertionError("there is no template")

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def counted(drafts: int = 10, accepted: int = 30, rollbacks: int = 2, break_even: float = 10.0) -> DraftCounts:
    """Returns counts of drafts whose steps cost twice as much as autoregressive ones."""
    return DraftCounts(drafts=drafts, accepted=accepted, rollbacks=rollbacks, break_even_tokens=break_even)


@dataclass
class Answering:
    """A fake engine that answers `text` autoregressively, `drafted` with a draft, or the result of `says`."""

    text: str = "yes"
    drafted: str | None = None
    counts: DraftCounts = field(default_factory=counted)
    outcome: Outcome | None = None  # of drafted answers, where they do not simply end
    refusal: Exception | None = None
    silent: bool = False
    unloaded: bool = False
    queued: list[int] = field(default_factory=list)  # what status says, the last for ever
    gap: float | Exception = 3.25
    info: ModelInfo = INFO
    tokenizer: Letters = field(default_factory=Letters)
    asked: list[DecodeRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    gaps: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)
    borrowed: list[DrafterName | None] = field(default_factory=list)  # now
    lent: list[DrafterName | None] = field(default_factory=list)  # ever
    unlendable: Exception | None = None
    says: Callable[[DecodeRequest], str | None] = lambda request: None

    def status(self) -> EngineStatus:
        if not self.queued:
            return STATUS
        return replace(STATUS, queued=self.queued.pop(0) if len(self.queued) > 1 else self.queued[0])

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        self.asked.append(request)
        if self.refusal is not None:
            raise self.refusal
        if self.silent:
            return
        speculative = request.plan.mode is DecodeMode.SPECULATIVE
        text = self.says(request)
        if text is None:
            text = self.drafted if speculative and self.drafted is not None else self.text
        tokens = tuple(self.tokenizer.encode(text))
        sink.on_tokens(Emission(tokens, (False,) * len(tokens)))
        stats = RequestStats(len(request.prompt), request.arrival, counts=self.counts if speculative else DraftCounts())
        outcome = Outcome(FinishReason.STOP, stats)
        sink.on_finish(self.outcome if speculative and self.outcome is not None else outcome)

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self.cancelled.append(request_id)

    def keep(self, drafters: frozenset[DrafterName]) -> Future[int]:
        raise AssertionError("only LoadedDrafters may ask for that")

    def lower(self, max_draft_tokens: int, drafters: frozenset[DrafterName], reason: str) -> None:
        raise AssertionError("only the controller may ask for that")

    def reload_draft(self) -> Future[int]:
        raise AssertionError("only the controller may ask for that")

    def logit_gap(self, tokens: tuple[int, ...], chosen: int, other: int) -> Future[float]:
        self.gaps.append((tokens, chosen, other))
        found: Future[float] = Future()
        if isinstance(self.gap, Exception):
            found.set_exception(self.gap)
        else:
            found.set_result(self.gap)
        return found

    @contextlib.contextmanager
    def borrow(self, drafter: DrafterName | None) -> Iterator[None]:
        if self.unlendable is not None:
            raise self.unlendable
        self.borrowed.append(drafter)
        self.lent.append(drafter)
        try:
            yield
        finally:
            self.borrowed.remove(drafter)


@dataclass
class Told:
    """Fake telemetry of the fallback: keeps what was reported, in order."""

    probes: list[tuple[FallbackLevel, str, float | None, float | None]] = field(default_factory=list)
    runs: list[tuple[FallbackLevel, str, int]] = field(default_factory=list)
    annotations: list[str] = field(default_factory=list)

    def notification(self, result: str) -> None: ...

    def poll(self, result: str) -> None: ...

    def annotation(self, result: str) -> None:
        self.annotations.append(result)

    def probe(self, report: ProbeReport) -> None:
        assert report.seconds >= 0
        self.probes.append((report.level.kind, report.verdict, report.acceptance, report.speedup))

    def canaries(self, level: FallbackLevel, report: CanaryReport) -> None:
        assert report.seconds >= 0
        self.runs.append((level, report.verdict, report.divergences))
