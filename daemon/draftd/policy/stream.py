"""One kind of text by one drafter: its drift detector, and the figures to show for it when it has drifted."""

from __future__ import annotations

from dataclasses import dataclass

from draftd.policy.drift import Cusum, CusumSettings, DriftVerdict, Sample


@dataclass(frozen=True, slots=True)
class Stream:
    """`requests`, `accepted` and `rollbacks` are sums since the detector last stood at nothing: what it rests on.
    `last` is the time of the last sample."""

    cusum: Cusum
    since: float = 0.0
    last: float = 0.0
    requests: int = 0
    accepted: int = 0
    rollbacks: int = 0

    def observe(self, at: float, sample: Sample, settings: CusumSettings, learn: bool) -> Stream:
        """The next state. Without `learn` a detector without a baseline is left as it is."""
        if self.cusum.baseline is None and not learn:
            return self
        cusum = self.cusum.observe(sample, settings)
        if cusum is self.cusum:
            return self
        if cusum.level == 0.0:
            return Stream(cusum, at, at)
        return Stream(
            cusum,
            self.since if self.requests else at,
            at,
            self.requests + 1,
            self.accepted + sample.accepted,
            self.rollbacks + sample.rollbacks,
        )

    def stepped(self, now: float) -> Stream:
        """The sum begins anew; what was learnt stays."""
        return Stream(self.cusum.reset(), now, now)

    def drifted(self, now: float, settings: CusumSettings, stale_after: float) -> bool:
        """A kind of text that is not asked for any more demands nothing: it could never be seen to recover."""
        return self.cusum.verdict(settings) is DriftVerdict.DRIFTED and now - self.last <= stale_after

    def evidence(self, settings: CusumSettings) -> str:
        """Only where it has a baseline and a sum above nothing."""
        baseline = self.cusum.baseline
        assert baseline is not None
        reached = Sample(self.accepted, self.rollbacks)
        return (
            f"acceptance {reached.acceptance:.2f} in {self.requests} requests over {self.last - self.since:.0f} s, "
            f"baseline {baseline.mean:.2f}; CUSUM {self.cusum.level:.1f}, limit {settings.limit:g}"
        )
