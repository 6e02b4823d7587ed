"""Runs mlx-lm's own server in a child process. Its arguments are that server's. Ends when its input ends.

Three things are changed, all in its favour. It loads the BLAS that draftd loads before it loads MLX. On a CPU it casts
floating-point weights to fp32, as draftd does: other types bypass BLAS there and are much slower. And 128 connections
instead of 5 may wait to be accepted: clients that connected all at once were reset otherwise.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from draftd.models.blas import load_blas

_CONNECTIONS = 128


def main() -> None:
    load_blas()
    import mlx.core as mx
    from mlx_lm import server

    as_it_is = server.load

    def load(*arguments: Any, **options: Any) -> Any:
        loaded = as_it_is(*arguments, **options)
        if mx.default_device() == mx.Device(mx.cpu):
            loaded[0].set_dtype(mx.float32)
            mx.eval(loaded[0].parameters())
        return loaded

    server.load = load
    server.ThreadingHTTPServer.request_queue_size = _CONNECTIONS
    threading.Thread(target=_end_with_input, daemon=True).start()
    server.main()


def _end_with_input() -> None:
    """Ends this process when its input ends, so that it never outlives its parent."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
