"""Rules of readable code: each finds a planted case, and exceptions are few, needed and have reasons."""

from __future__ import annotations

import pytest

from scripts.readability import (
    EXCEPTIONS,
    MOST_EXCEPTIONS,
    RULES,
    RULES_OF_TESTS,
    STRICT,
    find_places,
    parse,
    unused_exceptions,
)

LONG = "\n".join(f"    x{number} = {number}" for number in range(46))
SEVEN = "\n    ".join("abcdefg")
MANY = "\n".join(f"        self.x{number} = {number}" for number in range(16))
BROKEN = [
    ("class-name", "class Part: pass", "Part"),
    ("file-name", "", "a"),
    ("empty-name", "found = 1", "found"),
    ("empty-name", "def f(told): pass", "told"),
    ("empty-name", "def f(self): self._held = 1", "held"),
    ("empty-name", "x = [\n    one\n    for one in y\n]", "one"),
    ("participle", "def told(): pass", "told"),
    ("participle", "async def _hashed(): pass", "_hashed"),
    ("docstring-word", 'def f():\n    """What it is."""', "What"),
    ("docstring-length", f'def f():\n    """{SEVEN}"""', "f: 7 lines"),
    ("function-length", f"def f():\n{LONG}", "f: 47 lines"),
    ("class-size", f"class C:\n    def f(self):\n{MANY}", "C: 16 attributes"),
    ("file-length", "\n" * 401, "401 lines"),
    ("none", "\n".join(["self.link is None"] * 5 + ["one.link is not None"]), "link is None"),
]
WELL = """
class Whole:
    '''Knows one thing.'''

    @property
    def told(self): return [one for one in self]

    def feed(self): return sorted(self, key=lambda one: one)

    def take_known(self): self.link is None
"""


@pytest.mark.parametrize(("rule", "text", "what"), BROKEN)
def test_readability_rule_reports_place_of_violation(rule: str, text: str, what: str) -> None:
    modules = [parse(f"{room}/a.py", text) for room in ("engine", "service", "fronts")]
    places = list(RULES[rule](modules))
    assert {(place.module.room, place.what) for place in places} == {
        ("engine", what),
        ("service", what),
        ("fronts", what),
    }


def test_readability_rules_accept_readable_code() -> None:
    places = find_places([parse("engine/a.py", WELL), parse("engine/base.py", "")], [])
    assert not places


def test_readability_exception_suppresses_only_listed_violation() -> None:
    modules = [parse("engine/a.py", f"def f():\n{LONG}\ndef g():\n{LONG}")]
    ((rule, place),) = find_places(modules, [], ["function-length engine/a.py f"])
    assert (rule, place.what) == ("function-length", "g: 47 lines")


def test_unused_readability_exception_is_reported() -> None:
    keys = ["function-length engine/a.py f", "function-length engine/a.py g"]
    assert unused_exceptions([parse("engine/a.py", f"def f():\n{LONG}")], keys) == keys[1:]


def test_readability_exceptions_are_few_and_have_reasons_and_exempt_from_no_strict_rule() -> None:
    assert len(EXCEPTIONS) <= MOST_EXCEPTIONS
    assert not [key for key, reason in EXCEPTIONS.items() if not reason or key.split()[0] in STRICT]
    assert RULES.keys() | RULES_OF_TESTS.keys() >= STRICT


@pytest.mark.parametrize(
    "name", ["test_alert", "test_it_is_drawn_for_every_single_panel", "test_what_a_panel_says_of_gaps"]
)
def test_readability_rule_reports_uninformative_test_name(name: str) -> None:
    (place,) = RULES_OF_TESTS["test-name"]([parse("unit/test_a.py", f"def {name}(): pass")])
    assert (place.module.room, place.what) == ("unit", name)
