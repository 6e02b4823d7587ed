"""Rewrites a JSON schema to an equivalent one that llguidance enforces.

- `oneOf` becomes `anyOf` if no value can match two branches: their types differ, or a property that one of them
  requires, such as the one that distinguishes variants.
- `propertyNames` that lists names, or has a pattern, a length or a format, becomes `properties` or `patternProperties`.
- `not: {}`, zod's form for a property that is never there, becomes `false`.
- `unevaluatedProperties: false` beside `allOf` becomes `additionalProperties: false` beside the names of all parts.
- zod's patterns with lookahead become equal ones without.
- Bounds of integers are limited to those of 64 bits, the lowest 1,024 above that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from draftd.models.schemas import rebuilt, resolve_reference

_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))
_DEEPEST = 4  # references and nested properties; beyond, two branches may overlap
_PATIENCE = 100_000  # pairs of schemas to compare; a quarter of a second
_LEAST, _MOST = -(2**63) + 1024, 2**63 - 1  # integers that llguidance accepts; it reads the first as a float
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MORE_NAMES = (
    "additionalProperties",
    "patternProperties",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
)  # may allow some
_BESIDE_NAMES = (
    "properties",
    "patternProperties",
    "unevaluatedProperties",
)  # keywords beside which it would mean something else
_SAYS_NOTHING = ("type", "title", "description", "default", "examples", "deprecated", "$comment")
_SECONDS = r"\d+(?:[.,]\d+)?S"
_TIME = rf"T(?:\d+H(?:\d+M)?(?:{_SECONDS})?|\d+M(?:{_SECONDS})?|{_SECONDS})"
_DAYS = r"\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D"
_MONTH_AND_DAY = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|[12]\d)"
_FORMATS = {
    "uuid": r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
    "date": rf"^\d{{4}}-(?:{_MONTH_AND_DAY})$",
}
_WITHOUT_LOOKAHEAD = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$":
        r"^(?:[A-Za-z0-9_'+-]+\.)*[A-Za-z0-9_'+-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$",
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$":
        rf"^P(?:\d+W|(?:{_DAYS})(?:{_TIME})?|{_TIME})$",
}  # fmt: skip


def in_enforced_words(schema: Any) -> Any:
    """Returns a copy of a schema, rewritten in keywords that llguidance enforces. Raises ValueError for bounds that
    cannot be enforced, RecursionError for very deep nesting."""
    return rebuilt(schema, _Rewording(schema).reword)


class _Rewording:
    def __init__(self, root: Any) -> None:
        self._root, self._left = root, _PATIENCE

    def reword(self, schema: dict[str, Any]) -> Any:
        excluded = schema.get("not")
        if excluded is True or excluded == {}:
            return False
        if excluded is False:
            del schema["not"]
        if "propertyNames" in schema and not any(key in schema for key in _BESIDE_NAMES):
            schema = self._with_names(schema)
        if schema.get("unevaluatedProperties") is False:
            schema = self._close_object(schema)
        if isinstance(pattern := schema.get("pattern"), str):
            schema["pattern"] = _WITHOUT_LOOKAHEAD.get(pattern, pattern)
        _bound(schema)
        branches = schema.get("oneOf")
        if isinstance(branches, list) and branches and self._exclude_each_other(branches):
            del schema["oneOf"]
            if "anyOf" in schema:
                schema["allOf"] = [*_schema_list(schema, "allOf"), {"anyOf": branches}]
            else:
                schema["anyOf"] = branches
        return schema

    def _with_names(self, schema: dict[str, Any]) -> dict[str, Any]:
        names, value = schema["propertyNames"], schema.get("additionalProperties", True)
        if isinstance(names, dict) and set(names).difference(_SAYS_NOTHING) == {"$ref"}:
            names = resolve_reference(self._root, names["$ref"])
        if not isinstance(names, dict) or names.get("type", "string") != "string":
            return schema
        demands = {key: demand for key, demand in names.items() if key not in _SAYS_NOTHING}
        rest = {key: one for key, one in schema.items() if key != "propertyNames"} | {"additionalProperties": False}
        if set(demands) in ({"enum"}, {"const"}):
            listed = [name for name in _values(demands) or () if isinstance(name, str)]
            return {**rest, "properties": dict.fromkeys(listed, value)}
        if set(demands) == {"format"} and demands["format"] in tuple(_FORMATS):
            return {**rest, "patternProperties": {_FORMATS[demands["format"]]: value}}
        if set(demands) == {"pattern"} and isinstance(demands["pattern"], str):
            return {**rest, "patternProperties": {demands["pattern"]: value}}
        lengths = demands.get("minLength", 0), demands.get("maxLength", "")
        if set(demands) <= {"minLength", "maxLength"} and all(type(one) is int for one in demands.values()):
            return {**rest, "patternProperties": {f"^[\\s\\S]{{{lengths[0]},{lengths[1]}}}$": value}}
        return schema

    def _close_object(self, schema: dict[str, Any]) -> dict[str, Any]:
        parts, names = [schema], dict[str, Any]()
        for part in parts:  # `parts` grows meanwhile
            self._left -= 1
            if self._left < 0 or not isinstance(part, dict) or any(key in part for key in _MORE_NAMES):
                return schema
            names |= dict.fromkeys(_properties(part), True)
            parts += _schema_list(part, "allOf")
            if "$ref" in part:
                parts.append(resolve_reference(self._root, part["$ref"]))
        rest = {key: one for key, one in schema.items() if key != "unevaluatedProperties"}
        return {**rest, "properties": names | _properties(schema), "additionalProperties": False}

    def _exclude_each_other(self, branches: Sequence[Any]) -> bool:
        return all(self._exclude(one, other, _DEEPEST) for one, other in combinations(branches, 2))

    def _exclude(self, schema_a: Any, other: Any, depth: int) -> bool:
        """Whether certainly no value matches both schemas."""
        if schema_a is False or other is False:
            return True
        self._left -= 1
        if self._left < 0 or depth < 0 or not isinstance(schema_a, dict) or not isinstance(other, dict):
            return False
        for schema, against in ((schema_a, other), (other, schema_a)):
            for parts in self._choices(schema):
                if all(self._exclude(part, against, depth - 1) for part in parts):
                    return True
        values, others = _values(schema_a), _values(other)
        self._left -= len(values or ()) + len(others or ())
        common = _types(schema_a) & _types(other)
        if not common:
            return True
        if values is not None and others is not None:
            return set(map(_kind, values)).isdisjoint(map(_kind, others))
        return common == {"object"} and self._have_other_properties(schema_a, other, depth - 1)

    def _choices(self, schema: dict[str, Any]) -> Iterator[list[Any]]:
        """Yields lists of schemas; a value matches one of each list."""
        if "$ref" in schema:
            yield [resolve_reference(self._root, schema["$ref"])]
        for key in ("anyOf", "oneOf"):
            if branches := _schema_list(schema, key):
                yield branches
        yield from ([part] for part in _schema_list(schema, "allOf"))

    def _have_other_properties(self, schema_a: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        for name in dict.fromkeys([*_required_names(schema_a), *_required_names(other)]):
            if self._exclude(_property(schema_a, name), _property(other, name), depth):
                return True
        return False


def _bound(schema: dict[str, Any]) -> None:
    """Replaces an integer's bound beyond 64 bits by the outermost enforced bound. Raises ValueError for such a bound if
    the type is not only integer, or if no 64-bit integer is within the bound."""
    kinds = _named_types(schema, ["number"])
    if "number" not in kinds and "integer" not in kinds:
        return
    for key in _BOUNDS:
        value = schema.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) < 2**63:
            continue
        least = "min" in key.lower()
        if "number" in kinds or least is (value > 0):
            raise ValueError(f"{key}: {str(value)[:24]}: bounds are enforced up to 64 bits, 9.2e18")
        schema[key] = _LEAST if least else _MOST


def _types(schema: dict[str, Any]) -> frozenset[str]:
    if (values := _values(schema)) is not None:
        return frozenset(map(_type, values))
    return frozenset("number" if kind == "integer" else str(kind) for kind in _named_types(schema, list(_TYPES)))


def _named_types(schema: dict[str, Any], default: list[Any]) -> list[Any]:
    """Returns the types in `type`; `default` without `type`."""
    named = schema.get("type", default)
    return named if isinstance(named, list) else [named]


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {type(None): "null", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def _values(schema: dict[str, Any]) -> list[Any] | None:
    """Returns all values that `const` or `enum` allow; None without either."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _kind(value: Any) -> Any:
    """Returns a key that is equal for values that JSON Schema considers equal, such as 1 and 1.0; all lists share one,
    and so do all objects."""
    return _type(value) if isinstance(value, (list, dict)) else value


def _required_names(schema: dict[str, Any]) -> list[str]:
    return [name for name in _schema_list(schema, "required") if isinstance(name, str)]


def _schema_list(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    value = schema.get("properties")
    return value if isinstance(value, dict) else {}


def _property(schema: dict[str, Any], name: str) -> Any:
    """Returns the schema of a property; False if an object cannot have it."""
    if name in (properties := _properties(schema)):
        return properties[name]
    return "patternProperties" in schema or schema.get("additionalProperties", True)
