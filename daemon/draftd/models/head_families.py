"""The families of draft heads, told apart by the names of their arrays, and a head's description.

Configuration keys survive conversions that dropped the head, so they only tell apart families with the same names.
Sources: the models' index files on the hub; vLLM's and SGLang's loaders of each family.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MTP = "mtp"


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A draft head on disk. `family`: what it is, in words. `names`: the file and the stored name of each array, by its
    name in the head (`layers.0.self_attn.q_proj.weight`).

    `raw`: whether norms hold the w of 1 + w, in families that do so; None if neither names nor metadata tell. `nbytes`:
    of its arrays as stored. `refusal`: why it is not served; empty if it is."""

    kind: str
    family: str
    files: tuple[Path, ...]
    names: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    raw: bool | None = None
    nbytes: int = 0
    refusal: str = ""

    @property
    def trimmed(self) -> bool:
        """Whether its vocabulary is a part of the target's: the target's id of a token d is d + d2t[d]."""
        return "d2t" in self.names


@dataclass(frozen=True, slots=True)
class HeadFamily:
    """A family of heads. `sign` matches the beginning of an array's name that only such a head has, `arrays` those of
    all its arrays; without it they are the layers that have a sign. `model` occurs in the `model_type` or
    `architectures` of its target. `kind`: mtp, eagle, dflash, medusa, assistant."""

    words: str
    sign: str
    arrays: str | None = None
    model: str = ""
    kind: str = MTP

    def matches(self, names: Collection[str], model: str) -> bool:
        """`model`: from `model_words`."""
        return self.model in model and any(re.match(self.sign, name) for name in names)

    def own_arrays(self, names: Collection[str]) -> list[str]:
        """Returns those of a checkpoint's arrays that are the head's."""
        if self.arrays is not None:
            return [name for name in names if re.match(self.arrays, name)]
        layers = tuple({match[0] for name in names if (match := re.match(rf"{_LAYER}(?=[eh]norm|eh_proj)", name))})
        return [name for name in names if name.startswith(layers)]


_PREFIX = r"(?:(?:model|language_model)\.)*"
_MTP = rf"{_PREFIX}mtp\."
_LAYER = rf"{_PREFIX}layers\.\d+\."
_NEXT = rf"{_LAYER}(?:[eh]norm|eh_proj)\b"

QWEN = HeadFamily("MTP head of the Qwen3-Next and Qwen3.5 form", rf"{_MTP}(?:fc|pre_fc_norm_\w+)\.weight", _MTP)
BARE_QWEN = HeadFamily(QWEN.words, r"pre_fc_norm_(?:embedding|hidden)\.weight", "")

# The first that matches is the family of the head inside a whole model.
INSIDE = (
    HeadFamily("MTP head of DeepSeek-V4", rf"{_MTP}\d+\.(?:[eh]_proj|hc_)", _MTP),
    HeadFamily("MTP head of Nemotron-H", rf"{_MTP}layers\.\d+\.mixer\.", _MTP),
    HeadFamily("MTP head of LongCat", rf"{_MTP}layers\.\d+\.[eh]norm\.m\.", _MTP),
    HeadFamily("MTP head of Qwen3.8-Flash-Next", rf"{_MTP}(?:fc_embedding|fc_hidden|hyper_connection)", _MTP),
    HeadFamily("MTP head of EXAONE-MoE", _MTP, _MTP, "exaone"),
    QWEN,
    HeadFamily("MTP head of an unknown form", _MTP, _MTP),
    HeadFamily("MTP head of MiMo", rf"{_PREFIX}mtp_layers\.", rf"{_PREFIX}mtp_layers\."),
    HeadFamily(
        "MTP head of Ernie-4.5",
        rf"{_PREFIX}mtp_(?:block|emb_norm|hidden_norm|linear_proj)\.",
        rf"{_PREFIX}mtp_(?:block|emb_norm|hidden_norm|linear_proj)\.",
    ),
    HeadFamily("MTP heads of Step-3.5", rf"{_LAYER}transformer\.shared_head\."),
    HeadFamily("MTP head of Bailing", _NEXT, model="bailing"),
    HeadFamily("MTP head of GLM", _NEXT, model="glm"),
    HeadFamily("MTP head of the DeepSeek-V3 form", _NEXT),
)
_ALL = ""
# The first that matches is the family of a head in a repository of its own.
APART = (
    HeadFamily("assistant of Gemma 4", r"(?:pre|post)_projection\.", _ALL, kind="assistant"),
    HeadFamily("Medusa heads", r"medusa_|\d+\.\d+\.(?:linear\.)?weight", _ALL, kind="medusa"),
    HeadFamily("MLP speculator", r"speculator\.", _ALL, kind="medusa"),
    BARE_QWEN,
    HeadFamily("DFlash drafter", r"(?:model\.)?hidden_norm\.weight", _ALL, kind="dflash"),
    HeadFamily("EAGLE-3 head", r"(?:model\.)?(?:midlayer\.|d2t$|t2d$|layers\.0\.hidden_norm\.)", _ALL, kind="eagle"),
    HeadFamily("EAGLE head", r"(?:model\.)?fc\.weight", _ALL, kind="eagle"),
)
_WHOLE_MODEL = ("model.layers.", "language_model.", "model.language_model.", "transformer.h.")


def family_inside(names: Collection[str], config: Mapping[str, Any]) -> HeadFamily | None:
    """Returns the family of the head among a model's arrays, or in a file that repeats their prefixes; None without
    one."""
    model = model_words(config)
    return next((family for family in INSIDE if family.matches(names, model)), None)


def family_apart(names: Collection[str]) -> HeadFamily | None:
    """Returns the family of a head whose arrays have no prefix, in a file or repository of its own; None for others,
    such as a whole model."""
    family = next((family for family in APART if family.matches(names, "")), None)
    whole = any(name.startswith(_WHOLE_MODEL) for name in names)
    return None if whole and family is not APART[0] else family


def model_words(config: Mapping[str, Any]) -> str:
    """Returns the words by which a configuration names its architecture, in lower case."""
    return f"{config.get('model_type')} {config.get('architectures')}".lower()
