"""GET /v1/models: the served model and its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from draftd.fronts.http.errors import ModelNotFound
from draftd.service.request import ServedModel


def names_of(model: ServedModel, aliases: Sequence[str]) -> list[str]:
    """The names that clients may use: the model's own, the last part of its path, and the aliases of the settings."""
    own = model.info.model
    return list(dict.fromkeys([own, own.rstrip("/").rpartition("/")[2] or own, *aliases]))


def resolve_name(model: ServedModel, aliases: Sequence[str], wanted: str | None) -> str:
    """The model's own name, also if `wanted` is empty. Raises ModelNotFound for another model's name."""
    names = names_of(model, aliases)
    if wanted and not any(fnmatchcase(wanted, name) if name in aliases else wanted == name for name in names):
        raise ModelNotFound(wanted, names)
    return names[0]


def list_models(model: ServedModel, aliases: Sequence[str], since: float) -> dict[str, Any]:
    """OpenAI's list of models with all names, and the fields that Anthropic's clients read. Leaves out aliases with
    wildcards (`*`, `?`, `[`)."""
    names = names_of(model, [one for one in aliases if not set("*?[") & set(one)])
    return {
        "object": "list",
        "data": [describe_model(model, name, since) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }


def describe_model(model: ServedModel, name: str, since: float) -> Mapping[str, Any]:
    """One entry of the list of models. `max_model_len` is vLLM's name for the context length, which clients read."""
    return {
        "id": name,
        "object": "model",
        "created": int(since),
        "owned_by": "draftd",
        "max_model_len": model.info.context_length,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
