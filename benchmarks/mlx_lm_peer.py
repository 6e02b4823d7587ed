"""mlx-lm in a process of its own: reads one JSON request a line, answers one a line. Ends with its input.

The same weights in the same type, and the same BLAS, as draftd uses.
"""

from __future__ import annotations

import json
import sys
import time

from draftd.models.blas import load_blas


def main(target: str, draft: str = "") -> None:
    load_blas()
    import mlx.core as mx
    from mlx_lm import load, stream_generate
    from mlx_lm.sample_utils import make_sampler

    model, tokenizer = load(target)
    draft_model = load(draft)[0] if draft else None
    if mx.default_device() == mx.Device(mx.cpu):
        for one in (model, draft_model):
            if one is not None:
                one.set_dtype(mx.float32)
                mx.eval(one.parameters())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        mx.random.seed(ask["seed"])
        speculative = {"draft_model": draft_model, "num_draft_tokens": ask["depth"]} if ask["depth"] else {}
        text: list[int] = []
        times: list[float] = []
        mx.reset_peak_memory()
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
            times.append(time.perf_counter() - started)
        seconds = time.perf_counter() - started
        mx.synchronize()  # its last forward, which nobody reads, must not run beside another arm
        # mlx-lm says its last token twice when the length ends the text: once as it comes, once as the end.
        count = response.generation_tokens
        said = {"text": text[:count], "seconds": seconds, "times": times[:count], "peak": mx.get_peak_memory()}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
