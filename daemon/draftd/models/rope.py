"""Rotary embeddings in config.json, in the forms of both major versions of transformers (configuration.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from draftd.models.names import FULL, SLIDING, is_length

THETA = ("rope_theta", "rotary_emb_base")
EXTENDED = ("yarn", "linear", "dynamic")
PARTIAL = ("partial_rotary_factor", "rotary_pct")
ORIGINAL = "original_max_position_embeddings"
_NO_SCALING = ("default", "mrope")  # the sections of mrope are equal in a text
LOCAL_THETA = ("rope_local_base_freq", "rope_local_theta", "swa_rope_theta")  # of layers with a sliding window


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary embedding of one type of layer. `scaling`: None if it has no effect."""

    theta: float | None
    partial: float | None
    scaling: Mapping[str, Any] | None


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first(part: Mapping[str, Any], names: Iterable[str]) -> float | None:
    return next((value for name in names if is_number(value := part.get(name))), None)


def _layer_tables(part: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the tables of `rope_parameters` by type of layer; a single one under ""."""
    parameters = part.get("rope_parameters")
    if not isinstance(parameters, Mapping):
        parameters = {}
    if nested := {name: dict(table) for name, table in parameters.items() if isinstance(table, Mapping)}:
        return nested
    if _first(part, LOCAL_THETA) is not None:
        return {FULL: dict(parameters), SLIDING: {}}
    return {"": dict(parameters)}


def read_ropes(part: Mapping[str, Any]) -> dict[str, Rope]:
    """Returns the rotary embedding of each type of layer, from either form; empty if the configuration has none.
    `rope_scaling` takes precedence over `rope_parameters`, and a theta in a table over one beside it, as in
    transformers."""
    names = (*THETA, *LOCAL_THETA, *PARTIAL, "rope_scaling", "rope_parameters", "attn_config")
    if all(part.get(name) is None for name in names):
        return {}
    ropes = {}
    old = part.get("rope_scaling")
    for layers, table in _layer_tables(part).items():
        local = layers == SLIDING
        own = table
        if isinstance(old, Mapping) and not local and _kind(old) not in _NO_SCALING:
            own = table | dict(old)
        theta = _first(own, THETA)
        if theta is None and isinstance(inner := part.get("attn_config"), Mapping):
            theta = _first(inner, THETA)  # version 4's form for dbrx
        if theta is None and "rope_theta" not in own:  # null: these layers do not rotate
            theta = _first(part, LOCAL_THETA) if local else None
            theta = _first(part, THETA) if theta is None else theta
        partial = _first(own, PARTIAL)
        ropes[layers] = Rope(theta, _first(part, PARTIAL) if partial is None else partial, _scaling(own, part))
    return ropes


def main_rope(ropes: Mapping[str, Rope]) -> Rope:
    return ropes.get("") or ropes.get(FULL) or next(iter(ropes.values()))


def _kind(table: Mapping[str, Any]) -> str:
    kind = str(table.get("rope_type") or table.get("type") or "default")
    if kind == "su" or (kind == "yarn" and "short_factor" in table):  # older names of longrope
        return "longrope"
    return kind


def _scaling(table: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a table in the form of `rope_scaling`: both names of its type, a float factor, and the trained length;
    None if it has no effect."""
    kind = _kind(table)
    if kind in _NO_SCALING:
        return None
    dropped = (*THETA, *(() if kind == "proportional" else PARTIAL))
    scaling = {name: value for name, value in table.items() if name not in dropped} | {"type": kind, "rope_type": kind}
    if is_number(factor := scaling.get("factor")):
        scaling["factor"] = factor = float(factor)
    if kind in ("yarn", "llama3", "longrope"):
        lengths = (part.get(ORIGINAL), scaling.get(ORIGINAL), part.get("max_position_embeddings"))
        if (original := next((length for length in lengths if is_length(length)), None)) is not None:
            scaling[ORIGINAL] = original
    attention = scaling.get("attention_factor")
    extends = kind == "yarn" and not scaling.get("mscale_all_dim")
    if extends and is_number(attention) and is_number(factor) and factor > 1:
        scaling["mscale"] = (attention - 1) / (0.1 * math.log(factor))  # mlx-lm's form of the same number
    return scaling


def is_neutral(scaling: Mapping[str, Any] | None) -> bool:
    if scaling is None:
        return True
    if scaling["type"] == "longrope":
        factors = scaling.get("long_factor")
        return all(one == 1 for one in (factors if isinstance(factors, list) else [factors]))
    return scaling["type"] in (*EXTENDED, "llama3") and scaling.get("factor") == 1 and not scaling.get("alpha")
