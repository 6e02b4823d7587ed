"""The flag's file as data: a write changes one word and nothing else."""

from __future__ import annotations

import json

import pytest

from draftd.errors import FlagReadOnly, InvalidRequest
from draftd.planning import flag_file as flag

TARGETED = {
    "flags": {
        "other": {"state": "ENABLED", "variants": {"a": 1}, "defaultVariant": "a"},
        flag.FLAG_KEY: {
            "state": "ENABLED",
            "variants": {"on": True, "off": False},
            "defaultVariant": "on",
            "targeting": {"if": [{"==": [{"var": "workload"}, "prose"]}, "off", None]},
            "metadata": {"owner": "ops"},
        },
    },
    "$evaluators": {"x": {"in": ["a", {"var": "caller"}]}},
}


def test_setting_the_flag_default_keeps_the_rest_of_the_flag_document() -> None:
    changed = flag.with_default_variant(TARGETED, "off")
    assert flag.default_variant(changed) == "off"
    assert flag.default_variant(TARGETED) == "on"
    changed["flags"][flag.FLAG_KEY]["defaultVariant"] = "on"
    assert changed == TARGETED


def test_setting_the_default_adds_the_flag_to_a_document_without_it() -> None:
    changed = flag.with_default_variant({"flags": {"other": {}}}, "off")
    assert flag.default_variant(changed) == "off"
    assert "other" in changed["flags"]


def test_unknown_flag_variant_is_refused_with_the_allowed_variants() -> None:
    with pytest.raises(InvalidRequest, match="allowed: on, off"):
        flag.with_default_variant(TARGETED, "maybe")


def test_setting_a_disabled_flag_is_refused_as_read_only() -> None:
    document = json.loads(json.dumps(TARGETED))
    document["flags"][flag.FLAG_KEY]["state"] = "DISABLED"
    with pytest.raises(FlagReadOnly, match="DISABLED"):
        flag.with_default_variant(document, "off")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", 'no object "flags"'),
        ('{"flags": 3}', 'no object "flags"'),
        ('{"flags": {"speculative-decoding": {"variants": []}}}', 'no object "variants"'),
    ],
)
def test_malformed_flag_document_is_rejected_with_its_fault(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        flag.parse(text)


def test_boolean_flag_default_is_read_as_its_lowercase_name() -> None:
    document = flag.parse('{"flags": {"speculative-decoding": {"variants": {"true": true}, "defaultVariant": true}}}')
    assert flag.default_variant(document) == "true"
