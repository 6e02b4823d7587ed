"""mlx-lm in a process of its own: reads one JSON request a line, answers one a line. Ends with its input.

The same weights in the same type, and the same BLAS, as draftd uses.
"""

from __future__ import annotations

import json
import sys
import time

from draftd.models.blas import load_blas


def main(target: str, draft: str) -> None:
    load_blas()
    import mlx.core as mx
    from mlx_lm import load, stream_generate
    from mlx_lm.sample_utils import make_sampler

    model, tokenizer = load(target)
    draft_model, _ = load(draft)
    if mx.default_device() == mx.Device(mx.cpu):
        for one in (model, draft_model):
            one.set_dtype(mx.float32)
            mx.eval(one.parameters())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        mx.random.seed(ask["seed"])
        speculative = {"draft_model": draft_model, "num_draft_tokens": ask["depth"]} if ask["depth"] else {}
        text: list[int] = []
        started = time.perf_counter()
        for response in stream_generate(
            model,
            tokenizer,
            ask["tokens"],
            max_tokens=ask["max_tokens"],
            sampler=make_sampler(ask["temperature"]),
            **speculative,
        ):
            text.append(int(response.token))
        seconds = time.perf_counter() - started
        # mlx-lm says its last token twice when the length ends the text: once as it comes, once as the end.
        print(json.dumps({"text": text[: response.generation_tokens], "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
