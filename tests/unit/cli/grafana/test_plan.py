"""The pure parts: what counts as a difference, and how it reads."""

from __future__ import annotations

import pytest

from draftd.cli.figures import seconds_of as seconds
from draftd.cli.grafana import normal, policy
from draftd.cli.grafana.content import Content
from draftd.cli.grafana.datasources import Choice, Source, choose
from draftd.cli.grafana.found import Found
from draftd.cli.grafana.lines import diff, lines
from draftd.cli.grafana.plan import make_plan
from draftd.cli.grafana.wanted import Webhook, build, contact_point


def test_items_of_a_list_are_named_by_what_names_them_or_counted() -> None:
    assert lines({"panels": [{"title": "B", "x": 1}, {"title": "A", "x": 2}]}) == [
        'panels["A"].title = "A"',
        'panels["A"].x = 2',
        'panels["B"].title = "B"',
        'panels["B"].x = 1',
    ]
    assert lines([{"title": "A"}, {"title": "A"}]) == ['[0].title = "A"', '[1].title = "A"']
    assert lines({"params": [0, 0.5]}) == ["params[0] = 0", "params[1] = 0.5"]


def test_the_order_of_named_items_is_no_difference_but_of_unnamed_ones_it_is() -> None:
    assert lines([{"refId": "A"}, {"refId": "B"}]) == lines([{"refId": "B"}, {"refId": "A"}])
    assert lines(["a", "b"]) != lines(["b", "a"])


def test_empty_counts_as_absent_and_zero_does_not() -> None:
    assert lines({"a": None, "b": "", "c": False, "d": [], "e": {}}) == []
    assert lines({"a": 0, "b": True}) == ["a = 0", "b = true"]


def test_a_difference_goes_from_what_is_there_to_what_will_be() -> None:
    assert diff(["a = 1", "b = 2"], ["a = 1", "b = 3"], "dashboard/x")[:3] == [
        "--- grafana/dashboard/x",
        "+++ draftd/dashboard/x",
        "@@ -1,2 +1,2 @@",
    ]


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 0), ("0s", 0), ("5m", 300), ("1m30s", 90), ("1h", 3600), ("1d12h", 129600), ("100ms", 0.1)],
)
def test_durations(text: str, length: float) -> None:
    assert seconds(text) == length


@pytest.mark.parametrize("text", ["5", "m", "5 m", "1.5h", "-1m", "5min"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)


def test_a_shipped_uid_is_replaced_wherever_it_stands_alone() -> None:
    choice = Choice({"prometheus": Source("prometheus", "p", "P"), "loki": Source("loki", "l", "L")})
    assert choice.put_into({"a": ["draftd-prometheus", 1], "b": 'x="draftd-loki"&draftd-tempo'}) == {
        "a": ["p", 1],
        "b": 'x="l"&draftd-tempo',
    }
    assert choice.put_into("my-draftd-prometheus draftd-prometheus-2") == "my-draftd-prometheus draftd-prometheus-2"
    assert Choice({}).put_into("draftd-loki") == "draftd-loki"


def test_a_source_whose_uid_is_a_shipped_one_is_taken_as_it_is() -> None:
    found = [{"type": "prometheus", "uid": "draftd-prometheus", "name": "P"}]
    assert choose(found, {}).put_into({"uid": "draftd-prometheus"}) == {"uid": "draftd-prometheus"}


def test_a_redacted_secret_is_no_difference_however_it_is_written() -> None:
    ours = contact_point(Webhook("http://host", "secret"))
    nested = {**ours, "settings": {**ours["settings"], "hmacConfig": {**ours["settings"]["hmacConfig"]}}}
    nested["settings"]["hmacConfig"]["secret"] = normal.REDACTED
    flat = {**nested, "settings": {**nested["settings"], "hmacConfig.secret": normal.REDACTED}}
    del flat["settings"]["hmacConfig"]["secret"]
    assert lines(normal.contact_point(ours)) == lines(normal.contact_point(nested)) == lines(normal.contact_point(flat))


def test_without_content_there_is_no_folder_to_make() -> None:
    plan = make_plan(build(Content((), (), ()), Choice({}), Webhook("http://host")), Found())
    assert plan.changes == ()


def test_our_route_is_told_by_matcher_and_receiver() -> None:
    theirs = {"receiver": "draftd-daemon", "object_matchers": [["managed_by", "=", "draftd"]]}
    tree = {"receiver": "x", "routes": [theirs]}
    assert policy.ours_in(tree) == []
    assert policy.ours_in(policy.with_ours(tree)) == [0]
    assert policy.with_ours(policy.with_ours(tree)) == policy.with_ours(tree)
    assert policy.without_ours(policy.with_ours(tree)) == tree
