"""Schemas as generators write them: each is served as its meaning is, or refused by the keyword that stands in the way.

`generated/README.md` says how they were made. Another library judges which instances are valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.validators import validator_for

from draftd.engine.pair import load_tokenizer
from draftd.models import grammar
from draftd.models.grammar import Grammars
from tests.conftest import NanoPair


class Generated(NamedTuple):
    """A line of schemas.jsonl. `by`: its generator."""

    name: str
    by: str
    schema: dict[str, Any]
    valid: list[Any]
    invalid: list[Any]


LINES = (Path(__file__).parent / "generated" / "schemas.jsonl").read_text().splitlines()
SCHEMAS = [Generated(**json.loads(line)) for line in LINES]
#: What cannot be had, in the words of the error.
REFUSED: Mapping[str, str] = {
    "account with emoji": "^pattern: .*look-ahead",
    "amount": "^oneOf: ",
    "float": "^minimum: ",
    "labels": "uniqueItems",
    "mailboxes": "propertyNames",  # by e-mail address
    "not": '"not"',
    "order alone": r"^\$ref: .*'/components/schemas/User' does not exist",
    "product": "Invalid type: Uint8Array",
    "sets": "uniqueItems",
    "team": '"contains"',
}
FORMATS = FormatChecker(("date", "ipv4", "ipv6", "uuid"))


@FORMATS.checks("date-time", ValueError)
def _is_instant(value: Any) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


#: Rough, and enough for the texts of these tests.
for name, expression in {
    "email": r"[^@\s]+@\w+(\.\w+)*",
    "time": r"\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)",
    "duration": r"P(\d+[YMWD])*(T(\d+[HMS])+)?",
    "uri": r"[a-z]+:[^\s]+",
}.items():
    FORMATS.checks(name)(lambda value, e=expression: not isinstance(value, str) or re.fullmatch(e, value) is not None)
OTHERS: list[Any] = [None, True, -1, 0.25, 10**20, "", "x", [], {}, ["x"], {"x": 1}]


@pytest.fixture(scope="module")
def grammars(nano_pair: NanoPair) -> Grammars:
    made = load_tokenizer(nano_pair.target).grammars(4096)
    assert made is not None
    return made


def allows(grammars: Grammars, source: str, value: object) -> bool:
    matcher = grammars.matcher(source)
    ids = grammars._fast.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def validator(schema: Any) -> Any:
    """Of values with exact numbers, under the schema as it was written."""
    kind = validator_for(schema, default=Draft202012Validator)
    return kind(_in_newer_words(exact(schema)), format_checker=FORMATS)


def exact(value: Any) -> Any:
    """With decimals: 0.3 is a multiple of 0.1."""
    return json.loads(json.dumps(value), parse_float=Decimal)


def _in_newer_words(schema: Any) -> Any:
    """OpenAPI 3.0's `nullable`, which JSON Schema does not have, and its older `exclusiveMinimum`."""
    if isinstance(schema, list):
        return [_in_newer_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _in_newer_words(value) for key, value in schema.items() if key != "nullable"}
    if made.get("exclusiveMinimum") is True:
        made["exclusiveMinimum"] = made["minimum"]
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made


def neighbours(value: Any) -> Iterator[tuple[Any, bool]]:
    """Copies that differ in one place, and whether a property may have been added there."""
    yield from ((other, other == {"x": 1}) for other in OTHERS)
    if isinstance(value, dict):
        yield {**value, "surplus": 1}, True
        for key, inner in value.items():
            yield {name: one for name, one in value.items() if name != key}, False
            for changed, added in neighbours(inner):
                yield {**value, key: changed}, added
    elif isinstance(value, list):
        yield [*value, *value[-1:]], False
        yield value[:-1], False
        for i, inner in enumerate(value):
            for changed, added in neighbours(inner):
                yield [*value[:i], changed, *value[i + 1 :]], added
    elif isinstance(value, str):
        yield from ((text, False) for text in (value + "x", value[:-1], "x" + value, value * 9))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from ((number, False) for number in (value + 1, value - 1, value * 100, -value))


def test_generated_schema_set_has_at_least_40_schemas_and_refuses_at_most_10_of_them() -> None:
    assert len({one.name for one in SCHEMAS}) == len(SCHEMAS) >= 40
    assert set(REFUSED) <= {one.name for one in SCHEMAS}
    assert len(REFUSED) <= 10


@pytest.mark.parametrize("given", SCHEMAS, ids=lambda given: given.name)
def test_generated_json_schema_is_refused_or_its_grammar_permits_exactly_valid_values(
    given: Generated, grammars: Grammars
) -> None:
    text = json.dumps(given.schema)
    if given.name in REFUSED:
        for source_of in (grammar.json_schema, grammar.arguments):
            with pytest.raises(ValueError, match=REFUSED[given.name]):
                grammars.compile(source_of(text))
        return
    judge = validator(given.schema)
    assert [value for value in given.valid if not judge.is_valid(exact(value))] == []
    assert [value for value in given.invalid if judge.is_valid(exact(value))] == []
    values = {json.dumps(value): (value, False) for value in (*given.valid, *given.invalid)}
    values |= {json.dumps(one): (one, added) for value in given.valid[-1:] for one, added in neighbours(value)}
    answers, arguments = grammar.json_schema(text), grammar.arguments(text)
    wrong = []
    for written, (value, added) in values.items():
        is_valid = judge.is_valid(exact(value))
        if allows(grammars, answers, value) is not is_valid:
            wrong.append(f"as a format: {written} is {'valid' if is_valid else 'invalid'}")
        # Arguments are an object, and need not have what the schema does not name.
        is_valid = is_valid and isinstance(value, dict)
        if allows(grammars, arguments, value) is not is_valid and not (is_valid and added):
            wrong.append(f"as parameters: {written} is {'valid' if is_valid else 'invalid'}")
    assert wrong == []
