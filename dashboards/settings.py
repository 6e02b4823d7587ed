"""All thresholds and windows of the alerts. Panels draw their threshold lines from the same object."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alerting:
    """Thresholds and times of the alerts. All times are multiples of `window_seconds`, so one number shortens them all.

    A ratio is judged over one window and must stay bad for another (two consecutive windows). With fewer samples than
    `min_requests` and `min_drafts` in the window there is no verdict: the alert neither fires nor goes on firing.
    """

    window_seconds: float = 300.0

    # The fewest samples from which a ratio is judged. A request's own acceptance has a standard deviation of about 0.2.
    # With ten requests in every window, a simulated drift alert was false 1.5 times in 100 days, and reported a fall
    # from 0.7 to 0.5 within a quarter of an hour.
    min_requests: int = 10  # speculative requests that ended in the window
    min_drafts: int = 200  # steps that drafted, in the window
    baseline_factor: int = 3  # the baseline needs this many times as many of both

    # Acceptance of a drafted token that the target reaches: accepted / (accepted + rollbacks), at any depth.
    acceptance_floor: float = 0.40
    drift_ratio: float = 0.75  # of the baseline
    speedup_floor: float = 1.0  # against autoregressive decoding of the same batch, measured

    # The baseline ends `baseline_offset_windows` ago. A drift fires sooner, so it is not part of its own baseline.
    baseline_windows: int = 72
    baseline_offset_windows: int = 3

    # Time to first token, by context tier.
    ttft_quantile: float = 0.95
    ttft_ratio: float = 2.0  # of the baseline
    ttft_floor_seconds: float = 0.5  # a shorter wait goes unnoticed, whatever the ratio

    # The machine.
    swap_bytes: int = 128 * 1024 * 1024  # in a window, read back from swap or newly in use
    critical_share: float = 0.5  # the share of a window under critical memory pressure
    thermal_level: int = 2  # draftd.thermal.level: heavy
    machine_hold_windows: float = 0.4  # how long heat or pressure must last

    # Shares of the requests that the daemon should have answered, in a window with at least `min_requests` of them.
    error_share: float = 0.05
    refused_share: float = 0.10
    late_share: float = 0.10  # past their deadline

    certificate_seconds: float = 14 * 86_400  # warn this long before a certificate expires

    # The most in a window that fires no alert.
    verifier_errors: int = 0
    drafter_errors: int = 2  # fallback.errors minus one
    save_errors: int = 0
    notifications_refused: int = 0
    telemetry_dropped: int = 0

    # Two daemons. The first three equal the settings in `fallback` with the same names.
    remote_failures: float = 0.2  # share of the remote's requests
    remote_round_trip_seconds: float = 0.5
    remote_speed_floor: float = 0.9  # speed against the remote's own streaming
    verify_queue_seconds: float = 0.25  # mean wait of a step for its verdict
    verify_refused: int = 0

    # Several ranks.
    group_losses: int = 0
    rank_lag: int = 64  # records; a rank that keeps up lags by a few

    # Shorter than any hold, so the last values of a dead daemon fire nothing. Longer than one period of exports.
    fresh_windows: float = 0.3

    stopped_windows: int = 12  # how long a daemon may stay stopped on purpose
    absent_memory_windows: int = 288  # a daemon not seen for this long is forgotten

    @property
    def window(self) -> str:
        return duration(self.window_seconds)

    @property
    def hold(self) -> str:
        """Duration for which a ratio must stay bad: the second of two consecutive windows."""
        return self.window

    @property
    def machine_hold(self) -> str:
        return duration(self.window_seconds * self.machine_hold_windows)

    @property
    def keep_firing(self) -> str:
        """Duration for which an alert keeps firing after its last evidence: a pause in the traffic is no recovery."""
        return self.window

    @property
    def baseline(self) -> str:
        return duration(self.window_seconds * self.baseline_windows)

    @property
    def baseline_offset(self) -> str:
        return duration(self.window_seconds * self.baseline_offset_windows)

    @property
    def absent_memory(self) -> str:
        return duration(self.window_seconds * self.absent_memory_windows)

    @property
    def fresh(self) -> str:
        return duration(self.window_seconds * self.fresh_windows)

    @property
    def stopped(self) -> str:
        return duration(self.window_seconds * self.stopped_windows)

    @property
    def interval(self) -> str:
        """Duration between two evaluations of the rules: a tenth of a window."""
        return duration(self.window_seconds / 10)


def duration(seconds: float) -> str:
    """Returns the duration as PromQL and Grafana write it, exact to the millisecond: 300 is `5m`, 0.5 is `500ms`."""
    left = round(seconds * 1000)
    if left <= 0:
        raise ValueError(f"seconds: got {seconds!r}; allowed: at least 0.001")
    written = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        if count := left // size:
            written, left = f"{written}{count}{unit}", left - count * size
    return written
