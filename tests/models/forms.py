"""The tiny configuration of an architecture as mlx-lm, transformers 4 and transformers 5 write it.

The installed transformers writes version 5's form, from all keys that its class or mlx-lm reads. It keeps keys that its
class does not know, as in a published config.json. Without a class the keys stay as they are, and only the rotary
embedding has the form of the version. Version 4's form is made from that: it used other names.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from draftd.models.configuration import computation
from draftd.models.names import architecture_of
from tests.models.architectures import configuration
from tests.models.configurations import FULL, LINEAR, SLIDING, Config

_THETA, _LOCAL_THETA = 500.0, 50.0  # that no architecture has as its default
_CONSTANT_THETA = {"recurrent_gemma"}  # mlx-lm has transformers' default, and reads no other
_OTHER_CLASS = {"step3p5"}  # transformers' class drops the numbers of heads that its windows have
_LINEAR = {"rope_type": "linear", "factor": 8.0}

_THETAS = ("rope_theta", "rotary_emb_base")
_LOCALS = ("rope_local_base_freq", "swa_rope_theta")
_PARTIALS = ("partial_rotary_factor", "rotary_pct")
ROPE_KEYS = (*_THETAS, *_LOCALS, *_PARTIALS, "rope_scaling", "rope_parameters", "original_max_position_embeddings")
_PER_LAYER = {"gemma4_text", "laguna", "mellum", "spark2_5"}  # mlx-lm reads a table for each type of layer
# Version 4's own names, where they are not `rope_theta` and `partial_rotary_factor`.
_VERSION_4_NAMES = {"gpt_neox": ("rotary_emb_base", "rotary_pct"), "mimo_v2_flash": ("rope_theta", _PARTIALS[0])}
_GRANITE_LAYERS = {LINEAR: "mamba", FULL: "attention"}
_LOCAL_NAMES = {"mimo_v2_flash": "swa_rope_theta"}


def text_part(config: Config) -> Config:
    """Returns the text model's part, which is the whole of most configurations."""
    part: Config = config.get("text_config", config)
    return part


def forms(name: str) -> tuple[Config, Config, Config]:
    """Returns one configuration in three forms: as mlx-lm reads it, as version 4 writes it, and as version 5 writes
    it."""
    own = copy.deepcopy(configuration(name))
    tables = _tables(own)
    newer = version_5(own, tables)
    return _as_mlx_lm_reads(own, newer, tables), version_4(newer), newer


def version_5(config: Config, tables: Mapping[str, Any] | None = None) -> Config:
    """Returns the configuration as version 5 writes it. `tables` are its `rope_parameters`; None for none."""
    with contextlib.suppress(Exception):  # no class takes it
        return _by_its_class(config, tables)
    newer = copy.deepcopy(config)
    part = text_part(newer)
    for name in ROPE_KEYS:
        newer.pop(name, None)
        part.pop(name, None)
    if tables:
        part["rope_parameters"] = copy.deepcopy(dict(tables))
    return newer | {"dtype": "float32", "transformers_version": "5.0.0"}


def version_4(newer: Config) -> Config:
    """Returns the same configuration as version 4 writes it."""
    older = copy.deepcopy(newer) | {"transformers_version": "4.50.0"}
    part = text_part(older)
    older |= {"torch_dtype": older.pop("dtype", "float32")}
    pattern = part.pop("_sliding_window_pattern", None)
    if pattern is not None:
        part["sliding_window_pattern"] = pattern
        part.pop("layer_types", None)
    if part["model_type"] == "granitemoehybrid":
        part["layer_types"] = [_GRANITE_LAYERS.get(one, one) for one in part["layer_types"]]
    if not part.get("rope_parameters") or _read(older)[0] & _PER_LAYER:  # of which version 4 had no classes
        return older
    tables = part.pop("rope_parameters")
    full = dict(tables.get(FULL, tables))
    theta, partial = _VERSION_4_NAMES.get(part["model_type"], (_THETAS[0], _PARTIALS[0]))
    if "rope_theta" in full:
        part[theta] = full.pop("rope_theta")
        if isinstance(inner := part.get("attn_config"), dict):
            inner["rope_theta"] = part[theta]
    if "partial_rotary_factor" in full:
        part[partial] = full.pop("partial_rotary_factor")
    kind = full.pop("rope_type", "default")
    name = "type" if kind in ("longrope", "dynamic") else "rope_type"  # as those that were published first have it
    part["rope_scaling"] = None if kind == "default" else full | {name: kind}
    if SLIDING in tables:
        part[_LOCAL_NAMES.get(part["model_type"], _LOCALS[0])] = tables[SLIDING]["rope_theta"]
    return older


def _tables(own: Config) -> Config:
    """Returns `rope_parameters` with values that are no defaults, as far as mlx-lm reads them; empty if it reads
    none."""
    part, (modules, read) = text_part(own), _read(own)
    if not read & {*_THETAS, "rope_parameters"} and "attn_config" not in part:
        return {}
    given = part.get("rope_scaling") or part.get("rope_parameters") or {}
    table = dict(given.get(FULL, given))
    theta = 10000.0 if modules & _CONSTANT_THETA else _THETA
    table |= {"rope_theta": theta, "rope_type": table.pop("type", table.get("rope_type", "default"))}
    if read & set(_PARTIALS) and (partial := part.get("rotary_pct", part.get("partial_rotary_factor"))) is not None:
        table["partial_rotary_factor"] = partial
    if table["rope_type"] == "default" and _differ(own, table, table | _LINEAR):
        table |= _LINEAR
    if not modules & _PER_LAYER and not read & set(_LOCALS):
        return table
    return {FULL: table, SLIDING: _plain(table) | {"rope_theta": _LOCAL_THETA}}


def _plain(table: Mapping[str, Any]) -> Config:
    """Returns a table without scaling."""
    kept = ("rope_theta", "partial_rotary_factor")
    return {name: table[name] for name in kept if name in table} | {"rope_type": "default"}


def _read(own: Config) -> tuple[set[str], set[str]]:
    """Returns the modules of mlx-lm that make its text model, and the keys that they read."""
    found = architecture_of(text_part(own), own)
    return found.modules, found.arguments


def _differ(own: Config, *tables: Config) -> bool:
    """Returns True if mlx-lm computes differently with each of these tables."""
    with contextlib.suppress(Exception):
        one, other = (computation(_as_mlx_lm_reads(own, own, table)).facts for table in tables)
        return one != other
    return False


def _as_mlx_lm_reads(own: Config, newer: Config, tables: Config) -> Config:
    """Returns the tiny configuration with the values of `newer`, and with the rotary embedding under all of mlx-lm's
    names."""
    result = _overlaid(newer, own)
    part = result
    if "text_config" in own:
        part = result["text_config"] = _overlaid(newer["text_config"], own["text_config"])
    if not tables:
        return result
    _, read = _read(own)
    full = tables.get(FULL, tables)
    part |= dict.fromkeys(_THETAS, full["rope_theta"])
    if isinstance(inner := part.get("attn_config"), dict):
        inner["rope_theta"] = full["rope_theta"]
    if SLIDING in tables:
        part |= dict.fromkeys(_LOCALS, tables[SLIDING]["rope_theta"])
    if "partial_rotary_factor" in full:
        part |= dict.fromkeys(_PARTIALS, full["partial_rotary_factor"])
    scaling = {name: value for name, value in full.items() if name not in ("rope_theta", *_PARTIALS)}
    if scaling["rope_type"] != "default":
        part["rope_scaling"] = scaling | {"type": scaling["rope_type"]}
    if "rope_parameters" in read:
        nested = SLIDING in tables or not part.get("rope_parameters")
        part["rope_parameters"] = copy.deepcopy(tables) if nested else part["rope_parameters"] | copy.deepcopy(tables)
    return result


def _overlaid(newer: Config, own: Config) -> Config:
    """Returns what transformers writes by default, overridden by what it was given."""
    added = {name: value for name, value in newer.items() if name not in (*ROPE_KEYS, "text_config")}
    return added | {name: value for name, value in copy.deepcopy(own).items() if name not in added or value is not None}


def _by_its_class(config: Config, tables: Mapping[str, Any] | None) -> Config:
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[config["model_type"]]
    if config["model_type"] in _OTHER_CLASS or ("text_config" in config) != ("text_config" in kind.sub_configs):
        raise ValueError("its class has other parts")
    _, read = _read(config)
    if "text_config" not in config:
        configured = kind(**_known(kind, config, read), **_rope(kind, tables))
    else:
        inner, text = config["text_config"], kind.sub_configs["text_config"]
        if not hasattr(text, "model_type"):  # one of several
            text = CONFIG_MAPPING[inner["model_type"]]
        own = {"model_type": text.model_type} | _known(text, inner, read) | _rope(text, tables)
        configured = kind(**_known(kind, config, set()), text_config=own)  # type: ignore[call-arg]
    written: Config = json.loads(configured.to_json_string())
    return written | {"dtype": "float32"}


def _known(kind: Any, config: Config, read: Iterable[str]) -> Config:
    names = {*kind.__dataclass_fields__, *(kind.attribute_map or ()), *read} - {*ROPE_KEYS, "model_type", "text_config"}
    return {name: copy.deepcopy(value) for name, value in config.items() if name in names and value is not None}


def _rope(kind: Any, tables: Mapping[str, Any] | None) -> Config:
    """Returns the rotary embedding in the class's form: one table, or one for each type of layer."""
    if not tables:
        return {}
    default = getattr(kind(), "rope_parameters", None)
    if default is None:
        return {}
    nested = FULL in default
    if nested and FULL not in tables:
        tables = {layers: tables if layers == FULL else _plain(tables) for layers in default}
    return {"rope_parameters": copy.deepcopy(dict(tables if nested else tables.get(FULL, tables)))}
