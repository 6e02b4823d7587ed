"""Which BLAS multiplies on Linux: must run before the first `import mlx`.

The mlx-cpu wheel bundles netlib's reference BLAS. A faster library loaded with RTLD_GLOBAL beforehand wins the symbol
look-up, and the same wheel runs fp32 matrix products some fifty times faster. On macOS MLX brings its own.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CANDIDATES = (
    ("openblas", "libopenblas.so.0"),
    ("mkl", "libmkl_rt.so.3"),
    ("mkl", "libmkl_rt.so.2"),
)

# Between the products of one token OpenBLAS's idle workers spin, for 2^26 cycles by default, on cores that MLX's own
# threads and the server need: autoregressive decoding is a quarter faster without. 2^4 cycles: they sleep at once.
_SPIN = ("OPENBLAS_THREAD_TIMEOUT", "4")

INSTALL_HINT = "apt-get install libopenblas0-pthread (or: pip install mkl)"


def load_blas() -> str:
    """Loads the fastest BLAS there is; names what MLX will use: `metal`, `openblas`, `mkl` or `reference`.

    Calling it twice is harmless. `reference` means that none was found: correct, but slow.
    """
    if sys.platform == "darwin":
        return "metal"
    os.environ.setdefault(*_SPIN)  # OpenBLAS reads it once, when it is loaded
    for name, library in _candidates():
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return name
    return "reference"


def _candidates() -> list[tuple[str, str]]:
    """System libraries first, then one that `pip install mkl` put beside this interpreter."""
    beside = f"{sys.prefix}/lib"
    return [*_CANDIDATES, *((name, f"{beside}/{library}") for name, library in _CANDIDATES)]
