"""mlx-lm's own server in a process of its own. Its arguments are that server's.

Three things are done to it, all in its favour, and nothing else: the BLAS that draftd loads is loaded before MLX is;
floating-point weights, target's and draft's, are cast to fp32 on a CPU, as draftd casts them (other types do not go
through BLAS there, and are slower by far); and more than five connections may wait to be accepted, since clients that
come all at once were reset otherwise. Ends with its input.
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
    """So that it is gone when whoever started it is, however that ended."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
