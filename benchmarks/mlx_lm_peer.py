"""Runs mlx-lm in a child process: reads a JSON request on each line and prints a JSON answer. Ends when its input ends.

It uses the same weights in the same number type, and the same BLAS, as draftd.
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
        mx.synchronize()  # mlx-lm's last forward, whose result is unused, must not overlap another arm's measurement
        # mlx-lm reports the last token twice when the length limit ends the text.
        count = response.generation_tokens
        said = {"text": text[:count], "seconds": seconds, "times": times[:count], "peak": mx.get_peak_memory()}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
