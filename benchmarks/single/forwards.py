"""Times forwards of one model as draftd loads it and as mlx-lm does, in turn. Prints them as one line of JSON."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from draftd.models.blas import load_blas

_CONTEXT = 128
_WARM_UP = 2


def main(model: str, widths: str, forwards: str) -> None:
    load_blas()
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

    from draftd.models.folder import ModelFolder

    theirs, tokenizer = load(model)
    if mx.default_device() == mx.Device(mx.cpu):
        theirs.set_dtype(mx.float32)
    held = {"draftd": ModelFolder(model).open()[0], "mlx_lm": theirs}
    caches: dict[str, Any] = {}
    words = len(tokenizer.get_vocab())
    ids = mx.array([[(7919 * i) % words for i in range(1, _CONTEXT + 1)]])
    for name, one in held.items():
        mx.eval(one.parameters())
        caches[name] = make_prompt_cache(one)
        mx.eval(one(ids, cache=caches[name]))
    found = []
    order = random.Random(0)
    for repeat in range(-_WARM_UP, int(forwards)):
        for width in map(int, widths.split(",")):
            for name in order.sample(list(held), len(held)):
                began = time.perf_counter()
                mx.eval(held[name](ids[:, :width], cache=caches[name]))
                seconds = time.perf_counter() - began
                trim_prompt_cache(caches[name], width)
                if repeat >= 0:
                    found.append({"arm": name, "width": width, "seconds": round(seconds, 6)})
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
