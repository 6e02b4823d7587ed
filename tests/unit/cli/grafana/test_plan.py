"""The pure parts: what counts as a difference, and how it reads."""

from __future__ import annotations

import pytest

from draftd.cli.figures import seconds_of as seconds
from draftd.cli.grafana.content import choose_sources, with_sources
from draftd.cli.grafana.push import OUR_ROUTE, lines, our_route, plain_contact_point


def test_dashboard_diff_labels_list_items_by_unique_title_or_else_by_index() -> None:
    assert lines({"panels": [{"title": "B", "x": 1}, {"title": "A", "x": 2}]}) == [
        'panels["A"].title = "A"',
        'panels["A"].x = 2',
        'panels["B"].title = "B"',
        'panels["B"].x = 1',
    ]
    assert lines([{"title": "A"}, {"title": "A"}]) == ['[0].title = "A"', '[1].title = "A"']
    assert lines({"params": [0, 0.5]}) == ["params[0] = 0", "params[1] = 0.5"]


def test_dashboard_diff_ignores_order_of_named_items_but_not_of_plain_values() -> None:
    assert lines([{"refId": "A"}, {"refId": "B"}]) == lines([{"refId": "B"}, {"refId": "A"}])
    assert lines(["a", "b"]) != lines(["b", "a"])


def test_dashboard_diff_ignores_order_of_tags_and_matchers() -> None:
    assert lines({"tags": ["a", "b"]}) == lines({"tags": ["b", "a"]})
    matchers = [["a", "=", "b"], ["c", "=~", "d"]]
    assert lines({"object_matchers": matchers}) == lines({"object_matchers": matchers[::-1]})


def test_dashboard_diff_treats_empty_values_as_absent_but_not_zero() -> None:
    assert lines({"a": None, "b": "", "c": False, "d": [], "e": {}}) == []
    assert lines({"a": 0, "b": True}) == ["a = 0", "b = true"]


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 0), ("0s", 0), ("5m", 300), ("1m30s", 90), ("1h", 3600), ("1d12h", 129600), ("100ms", 0.1)],
)
def test_grafana_durations_are_parsed_into_seconds(text: str, length: float) -> None:
    assert seconds(text) == length


@pytest.mark.parametrize("text", ["5", "m", "5 m", "1.5h", "-1m", "5min"])
def test_malformed_grafana_durations_raise_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds(text)


def test_shipped_data_source_uids_are_replaced_everywhere_in_dashboard_text() -> None:
    def read(value: str, **sources: str) -> object:
        return with_sources({"x": {"a": [value, 1]}}, sources)["x"]["a"][0]

    assert read("draftd-prometheus", prometheus="p", loki="l") == "p"
    assert read('x="draftd-loki"&draftd-tempo', prometheus="p", loki="l") == 'x="l"&draftd-tempo'
    assert read("draftd-loki") == "draftd-loki"


def test_data_source_whose_uid_equals_the_shipped_uid_is_chosen() -> None:
    sources = [{"type": "prometheus", "uid": "draftd-prometheus", "name": "P"}]
    assert choose_sources(sources, {})[0] == {"prometheus": "draftd-prometheus"}


def test_redacted_contact_point_secret_is_no_difference_in_nested_or_flat_form() -> None:
    signed = {"secret": "secret", "header": "X-Signature"}
    ours = {"uid": "draftd-daemon", "settings": {"url": "http://host", "hmacConfig": signed}}
    nested = {**ours, "settings": {**ours["settings"], "hmacConfig": {**signed}}}
    nested["settings"]["hmacConfig"]["secret"] = "[REDACTED]"
    flat = {**nested, "settings": {**nested["settings"], "hmacConfig.secret": "[REDACTED]"}}
    del flat["settings"]["hmacConfig"]["secret"]
    plain = [lines(plain_contact_point(point)) for point in (ours, nested, flat)]
    assert plain[0] == plain[1] == plain[2]


def test_draftd_policy_route_is_recognised_by_matcher_and_receiver() -> None:
    theirs = {"receiver": "draftd-daemon", "object_matchers": [["managed_by", "=", "draftd"]]}
    assert our_route({"receiver": "x"}) is None
    assert our_route({"receiver": "x", "routes": [theirs]}) is None
    assert our_route({"receiver": "x", "routes": [theirs, OUR_ROUTE]}) == 1
