"""What draftd uses of mlx-lm: the only place that imports it.

mlx-lm's import sets the process's limit of open files to 2,048 and lowers what that may ever be raised to, which
nothing can undo; where less is allowed it fails. So the call is switched off for the time of the import: how many files
a daemon may open is for its own start to say (`draftd.hardware.descriptors`).
"""

from __future__ import annotations

import resource
from typing import Any

_real = resource.setrlimit
resource.setrlimit = lambda *_: None
try:
    from mlx_lm.models import base
    from mlx_lm.models.cache import (
        ArraysCache,
        CacheList,
        ChunkedKVCache,
        KVCache,
        RotatingKVCache,
        create_attention_mask,
        make_prompt_cache,
    )
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer
    from mlx_lm.tokenizer_utils import _byte_decoder as byte_characters  # of byte-level BPE: character to byte
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, load_adapters, load_config, load_model, load_tokenizer
    from mlx_lm.utils import _get_classes as model_classes  # two tables of other names stand behind it
finally:
    resource.setrlimit = _real


def vocabulary_size(model: Any) -> int:
    """How many logits it gives. A model with a text model inside does not say so itself: there the shape of a forward
    tells, which is never computed."""
    size = getattr(getattr(model, "args", None), "vocab_size", None)
    if isinstance(size, int):
        return size
    import mlx.core as mx

    return int(model(mx.zeros((1, 1), dtype=mx.uint32), cache=make_prompt_cache(model)).shape[-1])
