"""Closes the schema of a tool's parameters, so that a call has only arguments that the tool knows.

JSON Schema lets an object have properties that the schema does not name, and a model that must call a tool would invent
some. So objects without a rule for further properties allow none here: the outermost, and nested ones with
`properties`. A nested one without may be a map with any names. `additionalProperties` keeps its meaning.

Schemas of one value, such as those in `allOf` beside `properties`, are closed together, by the names in any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftd.models.schemas import LISTED, NAMED, SINGLE, resolve_reference

_BRANCHES = ("allOf", "anyOf", "oneOf", "$ref")  # keywords whose schemas describe the same value
_DECIDES = (
    "additionalProperties",
    "unevaluatedProperties",
    "enum",
    "const",
)  # keywords that decide about further properties
_PATIENCE = 100_000  # branches to check; a quarter of a second


def close_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the closed schema of arguments, an object. Raises ValueError if that takes too long."""
    try:
        return _Closing(schema).root()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _Closing:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._parts: set[int] = set()  # schemas of a value that others describe too: these stay open
        self._left = _PATIENCE

    def root(self) -> dict[str, Any]:
        self._find_parts(self._root)
        return {"type": "object", **self._close_schema(self._root, outermost=True)}

    def _find_parts(self, schema: Any) -> None:
        if not isinstance(schema, dict):
            return
        for child in _children(schema):
            self._find_parts(child)
        if not _is_choice(schema):
            self._parts.update(id(one) for one in self._members(schema) or () if one is not schema)

    def _close_schema(self, schema: Any, *, outermost: bool = False) -> Any:
        if not isinstance(schema, dict):
            return schema
        closed = dict(schema)
        for key, value in schema.items():
            if key in NAMED and isinstance(value, dict):
                closed[key] = {name: self._close_schema(item) for name, item in value.items()}
            elif key in LISTED and isinstance(value, list):
                closed[key] = [self._close_schema(item) for item in value]
            elif key in SINGLE:
                closed[key] = self._close_schema(value)
        if id(schema) in self._parts or _is_choice(schema):
            return closed
        members = self._members(schema)
        if members is None or any(key in item for item in members for key in _DECIDES):
            return closed
        if not isinstance(schema.get("properties", {}), dict):  # refused by the compiler
            return closed
        if any("patternProperties" in item for item in members[1:]):
            return closed
        if outermost or any("properties" in item for item in members):
            own = _names(schema, "properties")
            others = {name for item in members for key in ("properties", "required") for name in _names(item, key)}
            closed["properties"] = {
                **closed.get("properties", {}),
                **dict.fromkeys(sorted(others.difference(own)), True),
            }
            closed["additionalProperties"] = False
        return closed

    def _members(self, schema: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Returns the schema and all schemas that describe the same value, through `allOf`, `anyOf`, `oneOf` or `$ref`.
        None if one of them is not in the document."""
        members, seen = [schema], {id(schema)}
        for member in members:  # `members` grows meanwhile
            for key in _BRANCHES:
                value = member.get(key)
                branches = [resolve_reference(self._root, value)] if key == "$ref" and value is not None else value
                for branch in branches if isinstance(branches, list) else ():
                    self._left -= 1
                    if self._left < 0:
                        raise ValueError("it has too many branches")
                    if branch is None:
                        return None
                    if isinstance(branch, dict) and id(branch) not in seen:
                        seen.add(id(branch))
                        members.append(branch)
        return members


def _children(schema: dict[str, Any]) -> Iterator[Any]:
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            yield from value.values()
        elif key in LISTED and isinstance(value, list):
            yield from value
        elif key in SINGLE:
            yield value


def _is_choice(schema: dict[str, Any]) -> bool:
    """Whether the schema only chooses among branches, each of which is complete."""
    kinds = [key for key in _BRANCHES if key in schema]
    if len(kinds) != 1 or any(key in schema for key in ("properties", "patternProperties", "required")):
        return False
    return kinds != ["allOf"] or not isinstance(schema["allOf"], list) or len(schema["allOf"]) < 2


def _names(schema: dict[str, Any], key: str) -> list[str]:
    value = schema.get(key)
    return [name for name in value if isinstance(name, str)] if isinstance(value, (dict, list)) else []
