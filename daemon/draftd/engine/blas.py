"""Which BLAS multiplies on Linux: must run before the first `import mlx`.

The mlx-cpu wheel bundles netlib's reference BLAS. A faster library loaded with RTLD_GLOBAL beforehand wins the symbol
look-up, and the same wheel runs fp32 matrix products some fifty times faster. On macOS MLX brings its own.
"""

from __future__ import annotations

import ctypes
import sys

_CANDIDATES = (
    ("openblas", "libopenblas.so.0"),
    ("mkl", "libmkl_rt.so.3"),
    ("mkl", "libmkl_rt.so.2"),
)

INSTALL_HINT = "apt-get install libopenblas0-pthread (or: pip install mkl)"


def load_blas() -> str:
    """Loads the fastest BLAS there is; names what MLX will use: `metal`, `openblas`, `mkl` or `reference`.

    Calling it twice is harmless. `reference` means that none was found: correct, but slow.
    """
    if sys.platform == "darwin":
        return "metal"
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
