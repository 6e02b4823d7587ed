"""Bounds of the webhook: rates, remembered signatures, log lines. Also the alerts that it knows."""

from __future__ import annotations

import logging

import pytest

from dashboards.alerts import alert_rules
from dashboards.alerts_service import OWN_REFUSALS, REFUSED_NOTIFICATIONS
from dashboards.settings import Alerting
from draftd.core import FallbackLevel
from draftd.errors import InvalidRequest
from draftd.fallback.alerts.authentication import ReplayGuard
from draftd.fallback.alerts.payload import (
    ACCEPTED_ALERTS,
    BadLevel,
    IgnoredAlert,
    NotificationResult,
    NotifiedAlert,
    notice_of,
)
from draftd.fallback.ladder import Cause
from draftd.fallback.leases import Notice
from draftd.rate_limited_log import RateLimitedLog
from draftd.strategies import RemoteLevel

NOW = 1769860800.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def noticed(labels: dict[str, str], at: float = NOW, where: str = "a") -> Notice | IgnoredAlert:
    """Returns the notice of an alert that fires, or the reason to ignore it."""
    alert = NotifiedAlert.model_construct(labels=labels, fingerprint="f", starts_at=at, status="firing")
    return notice_of(alert, where, "", NOW)


def test_webhook_accepts_exactly_the_alert_names_of_the_shipped_alert_rules() -> None:
    assert {rule.name for rule in alert_rules(Alerting())} == ACCEPTED_ALERTS


def test_webhook_maps_each_shipped_alert_rule_to_its_level_and_severity() -> None:
    for rule in alert_rules(Alerting()):
        notice = noticed({"alertname": rule.name, **rule.labels})
        if rule.level is None:
            assert isinstance(notice, IgnoredAlert)
            assert notice.result is NotificationResult.NO_LEVEL
            continue
        assert isinstance(notice, Notice)
        remote = isinstance(rule.level, RemoteLevel)
        assert (notice.level, notice.remote) == ((FallbackLevel.FULL, rule.level) if remote else (rule.level, None))
        assert notice.hard == (rule.severity == "critical")


def test_alert_rules_select_label_values_that_the_daemon_counts() -> None:
    assert set(REFUSED_NOTIFICATIONS) < set(NotificationResult)
    (canaries,) = (rule for rule in alert_rules(Alerting()) if rule.name == "DraftdCanariesFail")
    assert f'draftd_signal="{Cause.QUALITY}"' in canaries.value
    assert {"QueueFull", "NoMemory", "NotServing"} < set(OWN_REFUSALS)
    assert not {"InvalidRequest", "NotFound", "Unauthenticated"} & set(OWN_REFUSALS), "these are their client's"


def test_ladder_and_remote_levels_have_distinct_label_names() -> None:
    """The same label asks for a level of either."""
    assert not {level.label for level in FallbackLevel} & {level.label for level in RemoteLevel}


@pytest.mark.parametrize("level", ["full", "FULL", "Short_Block", "0", "none", " short_block", "short block", "\x00"])
def test_alert_asking_for_full_or_unknown_fallback_level_is_refused(level: str) -> None:
    labels = {"alertname": "DraftdSwapRising", "fallback_level": level}
    with pytest.raises(BadLevel, match="autoregressive, light_draft, local, short_block, streaming") as refused:
        noticed(labels, where="alerts[4]")
    assert refused.value.field == "alerts[4].labels.fallback_level"


def test_alert_notices_never_ask_for_full_ladder_level_or_speculative_remote_level() -> None:
    levels = {level.label for level in FallbackLevel} - {"full"}
    labels = [{"alertname": "DraftdSwapRising", "fallback_level": level} for level in levels]
    notices = [noticed(one) for one in labels]
    assert all(isinstance(one, Notice) and one.level < FallbackLevel.FULL for one in notices)
    for level in ("speculative", "full", "0"):
        with pytest.raises(BadLevel, match="local, short_block, streaming"):
            noticed({"alertname": "DraftdRemoteSlow", "fallback_level": level})


def test_alert_starting_more_than_a_day_ahead_is_refused() -> None:
    labels = {"alertname": "DraftdSwapRising", "fallback_level": "light_draft"}
    assert isinstance(noticed(labels, NOW + 86_000), Notice)
    with pytest.raises(InvalidRequest, match="a.startsAt"):
        noticed(labels, NOW + 87_000)


def test_replay_guard_forgets_signatures_by_age_and_asks_to_wait_when_full() -> None:
    clock = Clock()
    seen = ReplayGuard(600.0, capacity=3, clock=clock)
    for number in range(3):
        assert seen.wait() == 0
        seen.add(b"%d" % number)
        clock.now += 10
    assert seen.wait() == 570
    assert all(b"%d" % number in seen for number in range(3))
    clock.now += 570
    assert seen.wait() == 0
    assert [b"%d" % number in seen for number in range(3)] == [False, True, True]
    seen.pop(b"1")
    assert b"1" not in seen
    assert len(seen) == 1


def test_rate_limited_log_writes_one_line_per_reason_and_counts_the_skipped_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    limited = RateLimitedLog(logging.getLogger("test"), seconds=30.0, clock=clock)
    for _ in range(1000):
        limited.write(logging.WARNING, "stale", "it is stale")
    limited.write(logging.WARNING, "slow", "it is slow")
    clock.now += 31
    limited.write(logging.WARNING, "stale", "it is stale")
    assert caplog.messages == ["it is stale", "it is slow", "it is stale (999 more of stale since the last one)"]
