"""The format that a body demands of its answer, in the protocol's own field or in vLLM's `structured_outputs`."""

from __future__ import annotations

from draftd.errors import InvalidRequest
from draftd.fronts.http.body import CommonBody, as_json
from draftd.service.request import FormatKind, ResponseFormat

_STRUCTURED = {
    "json": FormatKind.JSON_SCHEMA,
    "json_object": FormatKind.JSON_OBJECT,
    "regex": FormatKind.REGEX,
    "choice": FormatKind.CHOICE,
    "grammar": FormatKind.GRAMMAR,
}
_ABOUT_FORMATS = ("disable_fallback", "_backend", "_backend_was_auto")  # how vLLM enforces them
# Older names of vLLM and llama.cpp for members of `structured_outputs`.
_OLDER_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}


def wanted_format(
    body: CommonBody, own: ResponseFormat | None, name: str, schema: str
) -> tuple[ResponseFormat | None, dict[str, str]]:
    """The format that a body demands, and the body's names for the service's format fields. The format comes from the
    protocol's own field (`own`, called `name`, with its schema in `schema`), from vLLM's `structured_outputs`, or from
    one of the older names. Raises InvalidRequest, also for two formats."""
    outputs = (body.structured_outputs or {}).items()
    for member, value in outputs:
        if value and member not in _STRUCTURED and member not in _ABOUT_FORMATS:
            raise InvalidRequest(f"structured_outputs.{member[:40]}", value, f"only {', '.join(_STRUCTURED)}")
    demanded = {f"structured_outputs.{member}": (member, value) for member, value in outputs if member in _STRUCTURED}
    demanded |= {other: (member, getattr(body, other)) for other, member in _OLDER_NAMES.items()}
    demanded = {field: one for field, one in demanded.items() if one[1] is not None and one[1] is not False}
    if len(demanded) > 1 or (demanded and own is not None):
        raise InvalidRequest(
            next(iter(demanded)), ", ".join([*demanded, *([] if own is None else [name])]), "only one of these fields"
        )
    if not demanded:
        return own, {"response_format.json_schema": f"{name}.{schema}", "response_format.json_object": f"{name}.type"}
    ((field, (member, value)),) = demanded.items()
    kind = _STRUCTURED[member]
    field_names = {f"response_format.{'choices' if kind is FormatKind.CHOICE else kind.value}": field}
    if kind is FormatKind.JSON_OBJECT:
        return ResponseFormat(kind), field_names
    if member in ("regex", "grammar") and not isinstance(value, str):
        raise InvalidRequest(field, value, "text")
    if member == "choice" and not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
        raise InvalidRequest(field, value, "a list of texts")
    return ResponseFormat(kind, value if isinstance(value, str) else as_json(value, field)), field_names
