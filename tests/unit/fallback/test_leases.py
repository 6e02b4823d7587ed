"""Alerts as leases: with lost, repeated or reordered notices, the sender's last word holds for a time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import FallbackLevel
from draftd.fallback.ladder import Cause, Signal
from draftd.fallback.leases import Applied, Leases, Notice

SHORT, LIGHT, PLAIN = FallbackLevel.SHORT_BLOCK, FallbackLevel.LIGHT_DRAFT, FallbackLevel.AUTOREGRESSIVE
BEGAN = 1_700_000_000.0
FIRES = Notice("DraftdSwapRising", "a1", True, BEGAN, LIGHT)
ENDS = replace(FIRES, firing=False)
AGAIN = replace(FIRES, starts_at=BEGAN + 60)
LEASE = 100.0


def applied(*notices: Notice, leases: Leases | None = None, now: float = 0.0) -> tuple[Leases, list[Applied]]:
    leases, results = leases or Leases(), []
    for notice in notices:
        leases, result = leases.apply(notice, now, LEASE)
        results.append(result)
    return leases, results


def test_firing_alert_lease_asks_for_its_level_until_resolved() -> None:
    leases, results = applied(FIRES)
    assert results == [Applied.ACCEPTED]
    evidence = "DraftdSwapRising has fired since 2023-11-14 22:13:20 UTC"
    assert leases.signals() == (Signal(Cause.ALERT, LIGHT, evidence, hard=False),)
    leases, results = applied(ENDS, leases=leases)
    assert results == [Applied.RESOLVED]
    assert leases.signals() == ()


def test_alert_lease_expires_unless_its_alert_is_repeated() -> None:
    leases, _ = applied(FIRES)
    leases, result = leases.apply(FIRES, 60.0, LEASE)
    assert result is Applied.RENEWED
    assert leases.expire(159.0).signals()
    assert not leases.expire(160.0).signals()
    _, result = leases.apply(FIRES, 161.0, LEASE)
    assert result is Applied.ACCEPTED


@pytest.mark.parametrize(
    ("notices", "results", "holds"),
    [
        ((FIRES, FIRES), [Applied.ACCEPTED, Applied.DUPLICATE], True),
        ((ENDS, FIRES), [Applied.RESOLVED, Applied.STALE], False),
        ((FIRES, ENDS, FIRES), [Applied.ACCEPTED, Applied.RESOLVED, Applied.STALE], False),
        ((FIRES, ENDS, ENDS), [Applied.ACCEPTED, Applied.RESOLVED, Applied.DUPLICATE], False),
        ((FIRES, ENDS, AGAIN), [Applied.ACCEPTED, Applied.RESOLVED, Applied.ACCEPTED], True),
        ((AGAIN, ENDS), [Applied.ACCEPTED, Applied.STALE], True),
        ((AGAIN, FIRES), [Applied.ACCEPTED, Applied.STALE], True),
        ((FIRES, AGAIN, ENDS), [Applied.ACCEPTED, Applied.ACCEPTED, Applied.STALE], True),
    ],
)
def test_duplicate_and_reordered_alert_notices_do_not_change_the_active_leases(
    notices: tuple[Notice, ...], results: list[Applied], holds: bool
) -> None:
    leases, found = applied(*notices)
    assert found == results
    assert bool(leases.signals()) == holds


def test_alert_lease_signals_are_sorted_lowest_level_first_and_keep_their_hard_flag() -> None:
    leases, _ = applied(FIRES, Notice("B", "b", True, BEGAN, PLAIN, hard=True), Notice("C", "c", True, BEGAN, SHORT))
    assert [(signal.asks_for, signal.hard) for signal in leases.signals()] == [
        (PLAIN, True),
        (LIGHT, False),
        (SHORT, False),
    ]


def test_alert_repeated_with_another_level_replaces_the_level_of_its_lease() -> None:
    leases, results = applied(FIRES, replace(FIRES, level=PLAIN, hard=True))
    assert results == [Applied.ACCEPTED, Applied.ACCEPTED]
    assert [(signal.asks_for, signal.hard) for signal in leases.signals()] == [(PLAIN, True)]


def test_alert_leases_are_limited_to_256_and_active_leases_can_still_renew_and_end() -> None:
    many = [Notice("X", f"x{i}", True, BEGAN, SHORT) for i in range(256)]
    leases, _ = applied(*many)
    leases, results = applied(FIRES, leases=leases)
    assert results == [Applied.FULL]
    _, result = leases.apply(many[0], 1.0, LEASE)
    assert result is Applied.RENEWED
    leases, results = applied(replace(many[0], firing=False), FIRES, leases=leases)
    assert results == [Applied.RESOLVED, Applied.ACCEPTED]
    _, result = applied(*many, leases=leases)[0].apply(replace(FIRES, fingerprint="late"), LEASE, LEASE)
    assert result is Applied.ACCEPTED, "all had run out"


def test_alert_leases_remember_at_most_256_ended_alerts() -> None:
    leases, _ = applied(*[Notice("X", f"x{i}", False, BEGAN, SHORT) for i in range(1000)])
    assert len(leases.ended) == 256
    assert "x999" in leases.ended


def test_alert_poll_renews_listed_leases_and_ends_leases_it_no_longer_lists() -> None:
    leases = Leases().reconcile([FIRES], 0.0, LEASE).reconcile([FIRES], 90.0, LEASE)
    assert leases.expire(189.0).signals()
    leases = leases.reconcile([], 91.0, LEASE)
    assert leases.signals() == ()
    assert leases.reconcile([AGAIN], 92.0, LEASE).signals()


def test_alert_poll_does_not_end_leases_received_by_webhook() -> None:
    leases, _ = applied(FIRES)
    assert leases.reconcile([], 50.0, LEASE).signals(), "another sender's, perhaps"
    assert not leases.reconcile([], 101.0, LEASE).signals(), "but not beyond its time"


def test_polled_alert_reopens_a_resolved_lease_until_no_longer_listed() -> None:
    leases, _ = applied(FIRES, ENDS)
    leases = leases.reconcile([FIRES], 1.0, LEASE)  # a silence was lifted
    assert leases.signals()
    assert leases.reconcile([], 2.0, LEASE).signals() == ()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_shuffled_and_duplicated_alert_notices_end_in_the_same_leases_as_ordered_notices(
    seed: int, episodes: int
) -> None:
    dice = random.Random(seed)
    course = []
    for number in range(episodes):
        course += [replace(FIRES, starts_at=BEGAN + 100 * number), replace(ENDS, starts_at=BEGAN + 100 * number)]
    course = course[: dice.randint(1, len(course))]
    right, _ = applied(*course)
    shuffled = course * 2
    dice.shuffle(shuffled)
    assert applied(*shuffled)[0].signals() == right.signals()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 5), st.floats(-10, 60)), max_size=60))
def test_alert_lease_never_outlasts_its_last_notice_by_more_than_its_duration(
    events: list[tuple[int, bool, int, float]],
) -> None:
    leases, now, latest = Leases(), 0.0, 0.0
    for which, firing, began, seconds in events:
        now += seconds
        latest = max(latest, now)
        leases, _ = leases.apply(Notice("A", f"a{which}", firing, BEGAN + began, SHORT), now, LEASE)
    assert leases.expire(latest + LEASE).signals() == ()
