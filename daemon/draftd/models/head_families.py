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
class HeadForm:
    """The details on which sources contradict each other."""

    embedding_first: bool = True  # the order of fc's two inputs
    added_to_norms: int = 0  # 1 if stored norm weights are zero-centred
    after_norm: bool = True  # hidden states are taken after the target's final norm
    own_after_norm: bool = True  # the head's own, from which it drafts further ahead, after the head's final norm
    taps: tuple[int, ...] = ()  # the target's layers whose inputs are taken; their number is the final norm's; or none
    normed_residual: bool = False  # of EAGLE-3: the residual of its first layer is the normed state

    def __str__(self) -> str:
        if self.taps:
            residual, own = ("after" if after else "before" for after in (self.normed_residual, self.own_after_norm))
            taps = ", ".join(map(str, self.taps))
            return f"inputs of layers {taps}; residual {residual} the norm; its own states {own}"
        order = "embedding, hidden" if self.embedding_first else "hidden, embedding"
        place, own = ("after" if after else "before" for after in (self.after_norm, self.own_after_norm))
        return f"{order}; states {place} the norm, its own {own}; norms + {self.added_to_norms}"


_UNUSED = r"rotary_emb\.inv_freq$"  # the end of an array's name that some converters store and none reads


@dataclass(frozen=True, slots=True)
class HeadFamily:
    """A family of heads. `sign` matches the beginning of an array's name that only such a head has, `arrays` those of
    all its arrays; without it they are the layers that have a sign."""

    words: str
    sign: str
    arrays: str | None = None
    model: str = ""  # occurs in the `model_type` or `architectures` of its target
    kind: str = MTP  # mtp, eagle, dflash, medusa, assistant
    names: tuple[tuple[str, str], ...] = ()  # beginnings of names, and what they are in the head's module: first match
    copies: str = ""  # matches the names of arrays that repeat the target's, which are not read
    form: HeadForm = HeadForm()  # the one to try first
    target_norm: bool = False  # its final norm is the target's
    layers: int = 1  # through which states pass for one token
    chained: bool = False  # there are several heads, and each reads the states of the one before it
    unserved: str = ""  # why it is not served, in words; of a family without `names`

    def matches(self, names: Collection[str], model: str) -> bool:
        """`model`: from `model_words`."""
        return self.model in model and any(re.match(self.sign, name) for name in names)

    def own_arrays(self, names: Collection[str]) -> list[str]:
        """Returns those of a checkpoint's arrays that are the head's."""
        if self.arrays is not None:
            return [name for name in names if re.match(self.arrays, name)]
        layers = tuple(
            {match[0] for name in names if (match := re.match(rf"{_LAYER}(?=(?:[eh]norm|eh_proj)\b)", name))}
        )
        return [name for name in names if name.startswith(layers)]

    def read_arrays(self, names: Collection[str]) -> list[str]:
        """Returns those of a checkpoint's arrays that the head is made of."""
        unread = re.compile(rf"{self.copies}|{_UNUSED}" if self.copies else _UNUSED)
        return [name for name in self.own_arrays(names) if not unread.search(name)]

    def standard_name(self, name: str) -> str:
        """Returns the name that an array of the family has in the head's module; the same if it is not served."""
        for stored, standard in self.names:
            if match := re.match(stored, name):
                return standard + name[match.end() :]
        return name


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A draft head on disk. `names`: the file and the stored name of each array, by its
    name in the head (`layers.0.self_attn.q_proj.weight`).

    `raw`: whether norms hold the w of 1 + w, in families that do so; None if neither names nor metadata tell. `nbytes`:
    of its arrays as stored. `refusal`: why it is not served; empty if it is."""

    family: HeadFamily
    files: tuple[Path, ...]
    names: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    raw: bool | None = None
    nbytes: int = 0
    refusal: str = ""


_PREFIX = r"(?:(?:model|language_model)\.)*"
_MTP = rf"{_PREFIX}mtp\."
_LAYER = rf"{_PREFIX}layers\.\d+\."
_NEXT = rf"{_LAYER}(?:[eh]norm|eh_proj)\b"


def _next_names(prefix: str, suffix: str = "") -> tuple[tuple[str, str], ...]:
    """Returns the names of the two norms and of fc in heads of DeepSeek's kind. `suffix`: after the norms' names."""
    return (
        (rf"{prefix}enorm{suffix}\.", "pre_fc_norm_embedding."),
        (rf"{prefix}hnorm{suffix}\.", "pre_fc_norm_hidden."),
        (rf"{prefix}eh_proj\.", "fc."),
    )


_MTP_LAYER = rf"{_MTP}layers\.\d+\."
_ANY_MTP = ((_MTP, ""),)
_NAMES_OF_NEXT = (
    *_next_names(_LAYER),
    (rf"{_LAYER}(?:shared_head\.norm|final_layernorm)\.", "norm."),
    (_LAYER, "layers.0."),
)
_COPIES = rf"{_LAYER}(?:embed_tokens|shared_head\.head)\."  # DeepSeek-V3's README_WEIGHTS.md
_MIMO = rf"{_PREFIX}mtp_layers\.\d+\."
_NAMES_OF_MIMO = (
    (rf"{_MIMO}token_layernorm\.", "pre_fc_norm_embedding."),
    (rf"{_MIMO}hidden_layernorm\.", "pre_fc_norm_hidden."),
    (rf"{_MIMO}input_proj\.", "fc."),
    (rf"{_MIMO}final_layernorm\.", "norm."),
    (_MIMO, "layers.0."),
)
_ERNIE = rf"{_PREFIX}mtp_(?:block|emb_norm|hidden_norm|linear_proj)\."
_NAMES_OF_ERNIE = (
    (rf"{_PREFIX}mtp_emb_norm\.\d+\.", "pre_fc_norm_embedding."),
    (rf"{_PREFIX}mtp_hidden_norm\.\d+\.", "pre_fc_norm_hidden."),
    (rf"{_PREFIX}mtp_linear_proj\.\d+\.", "fc."),
    (rf"{_PREFIX}mtp_block\.\d+\.", "layers.0."),
)
_NAMES_OF_NEMOTRON = (
    *_next_names(_MTP_LAYER),
    (rf"{_MTP_LAYER}final_layernorm\.", "norm."),
    (_MTP, ""),
)
_NAMES_OF_LONGCAT = (
    *_next_names(_MTP_LAYER, r"\.m"),
    (rf"{_MTP_LAYER}transformer_layer\.", "layers.0."),
    (_MTP, ""),
)
_NAMES_OF_STEP = ((rf"{_PREFIX}(?=layers\.)", ""),)

QWEN = HeadFamily(
    "MTP head of the Qwen3-Next and Qwen3.5 form", rf"{_MTP}(?:fc|pre_fc_norm_\w+)\.weight", _MTP, names=_ANY_MTP
)
BARE_QWEN = HeadFamily(QWEN.words, r"pre_fc_norm_(?:embedding|hidden)\.weight", "", names=_ANY_MTP)

UNKNOWN = HeadFamily("unknown head", "")

# The first that matches is the family of the head inside a whole model.
INSIDE = (
    HeadFamily(
        "MTP head of DeepSeek-V4",
        rf"{_MTP}\d+\.(?:[eh]_proj|hc_)",
        _MTP,
        unserved="it takes several streams of hidden states, of a model that mlx-lm does not have",
    ),
    HeadFamily("MTP head of Nemotron-H", rf"{_MTP}layers\.\d+\.mixer\.", _MTP, names=_NAMES_OF_NEMOTRON, layers=2),
    HeadFamily(
        "MTP head of LongCat",
        rf"{_MTP}layers\.\d+\.[eh]norm\.m\.",
        _MTP,
        names=_NAMES_OF_LONGCAT,
        copies=rf"{_MTP}embed_tokens\.",
    ),
    HeadFamily(
        "MTP head of Qwen3.8-Flash-Next",
        rf"{_MTP}(?:fc_embedding|fc_hidden|hyper_connection)",
        _MTP,
        unserved="it mixes several streams of hidden states",
    ),
    HeadFamily("MTP head of EXAONE-MoE", _MTP, _MTP, "exaone", names=_ANY_MTP),
    QWEN,
    HeadFamily("MTP head of an unknown form", _MTP, _MTP),
    HeadFamily(
        "MTP head of MiMo", _MIMO, _MIMO, names=_NAMES_OF_MIMO, form=HeadForm(embedding_first=False, after_norm=False)
    ),
    HeadFamily(
        "MTP head of Ernie-4.5",
        _ERNIE,
        _ERNIE,
        names=_NAMES_OF_ERNIE,
        form=HeadForm(after_norm=False, own_after_norm=False),
        target_norm=True,
    ),
    HeadFamily(
        "MTP heads of Step-3.5",
        rf"{_LAYER}transformer\.shared_head\.",
        names=_NAMES_OF_STEP,
        form=HeadForm(after_norm=False),
        chained=True,
    ),
    HeadFamily("MTP head of Bailing", _NEXT, model="bailing", names=_NAMES_OF_NEXT, copies=_COPIES),
    HeadFamily("MTP head of GLM", _NEXT, model="glm", names=_NAMES_OF_NEXT, copies=_COPIES),
    HeadFamily("MTP head of the DeepSeek-V3 form", _NEXT, names=_NAMES_OF_NEXT, copies=_COPIES),
)
_ALL = ""
EAGLE_3 = HeadFamily(
    "EAGLE-3 head",
    r"(?:model\.)?(?:midlayer\.|d2t$|t2d$|layers\.0\.hidden_norm\.)",
    _ALL,
    kind="eagle",
    names=((r"(?:model\.)?midlayer\.", "layers.0."), (r"model\.", "")),
    copies=r"(?:^|\.)t2d$",  # d2t says the same
)
EAGLE = HeadFamily(
    "EAGLE head",
    r"(?:model\.)?fc\.weight",
    _ALL,
    kind="eagle",
    names=((r"model\.", ""), ("", "")),
    copies=r"(?:^|\.)embed_tokens\.",  # EAGLE's training keeps the target's
)
DFLASH = HeadFamily(
    "DFlash drafter",
    r"(?:model\.)?hidden_norm\.weight",
    _ALL,
    kind="dflash",
    names=((r"model\.", ""), ("", "")),
    copies=r"(?:^|\.)(?:t2d$|embed_tokens\.)",  # the embedding is the target's
)
# The first that matches is the family of a head in a repository of its own.
APART = (
    HeadFamily(
        "assistant of Gemma 4",
        r"(?:pre|post)_projection\.",
        _ALL,
        kind="assistant",
        unserved="it reads the keys and values of two of its target's layers",
    ),
    HeadFamily("Medusa heads", r"medusa_|\d+\.\d+\.(?:linear\.)?weight", _ALL, kind="medusa"),
    HeadFamily("MLP speculator", r"speculator\.", _ALL, kind="medusa"),
    BARE_QWEN,
    DFLASH,
    EAGLE_3,
    EAGLE,
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
