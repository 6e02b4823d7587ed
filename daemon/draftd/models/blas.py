"""Chooses the BLAS on Linux; must run before the first `import mlx`.

The mlx-cpu wheel bundles netlib's reference BLAS. A faster library loaded with RTLD_GLOBAL beforehand wins symbol
lookup, and the same wheel then computes large fp32 matrix products at least ten times faster. On macOS MLX has its
own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from draftd.errors import ConfigError

_LIBRARIES = (("openblas", "libopenblas.so.0"), ("mkl", "libmkl_rt.so.3"), ("mkl", "libmkl_rt.so.2"))

# Between the products of one token OpenBLAS's idle workers spin, by default for 2^26 cycles, on cores that MLX's own
# threads and the server need: autoregressive decoding is a quarter faster without. 2^4 cycles: they sleep at once.
_SPIN = ("OPENBLAS_THREAD_TIMEOUT", "4")

# On processors that are newer than itself, OpenBLAS 0.3.21 uses kernels of 2004, at a fifth of the speed or less. These
# are what it uses on those that it knows and that have the same flags; AMD's without AVX-512 are known.
_KERNELS = (
    ("SkylakeX", {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}),
    ("Haswell", {"GenuineIntel", "avx2", "fma"}),
)

# For diagnosis: behave like a machine without a faster library.
_CHOICE, _BUNDLED = "DRAFTD_BLAS", "reference"

INSTALL_HINT = "apt-get install libopenblas0-pthread (or: pip install mkl)"


def load_blas() -> str:
    """Loads the fastest available BLAS and returns its name: `metal`, `openblas`, `mkl` or `reference`. May be called
    repeatedly.

    `reference` means that none was found, or that DRAFTD_BLAS asks for the wheel's own: correct, but slow. Raises
    ConfigError for any other value of that variable, and RuntimeError if MLX was imported before the library."""
    if sys.platform == "darwin":
        return "metal"
    if (chosen := os.environ.get(_CHOICE, "")) not in ("", _BUNDLED):
        raise ConfigError(_CHOICE, chosen, f"{_BUNDLED}, or unset, for the fastest BLAS that is installed")
    if chosen:
        return _BUNDLED
    os.environ.setdefault(*_SPIN)  # OpenBLAS reads both once, when it is loaded
    with contextlib.suppress(OSError):
        if kernels := kernels_for(Path("/proc/cpuinfo").read_text()):
            os.environ.setdefault("OPENBLAS_CORETYPE", kernels)
    for name, library in _candidates():
        with contextlib.suppress(OSError):
            early = "mlx.core" not in sys.modules or _is_loaded(library)
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            if not early:
                raise RuntimeError(f"mlx was imported before load_blas(), and so does not use {library}")
            return name
    return "reference"


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def kernels_for(processors: str) -> str:
    """Returns OpenBLAS's name of the kernels for the processors that `/proc/cpuinfo` describes; empty: OpenBLAS knows
    best."""
    words = set(processors.split())
    return next((kernels for kernels, flags in _KERNELS if words >= flags), "")


def compute_backend() -> str:
    """Returns the backend of MLX: `metal`, `cuda` or `cpu (BLAS)`. Imports MLX, after the BLAS."""
    library = load_blas()
    if library == "metal":
        return library
    import mlx.core as mx

    return f"cpu ({library})" if mx.default_device() == mx.Device(mx.cpu) else "cuda"


def device_name() -> str:
    """Returns the name of the device that MLX computes on. Imports MLX, after the BLAS."""
    load_blas()
    import mlx.core as mx

    return str(mx.device_info().get("device_name", mx.default_device()))


def _candidates() -> list[tuple[str, str]]:
    """Returns system libraries first, then one that `pip install mkl` put beside this interpreter."""
    return [(name, f"{place}{library}") for place in ("", f"{sys.prefix}/lib/") for name, library in _LIBRARIES]


def use_threads(count: int) -> None:
    """Sets how many threads the BLAS uses for one matrix product. Does nothing if MLX's bundled BLAS or Metal is
    used."""
    name = load_blas()
    for candidate, library in _candidates():
        if candidate == name:
            with contextlib.suppress(OSError, AttributeError):
                _SET_THREADS[name](ctypes.CDLL(library), count)
                return


def describe_blas(name: str) -> str:
    """Returns a library named by `load_blas` with its version and threads; empty for Metal."""
    if name == "metal":
        return ""
    for candidate, library in _candidates():
        if candidate == name:
            with contextlib.suppress(OSError, AttributeError):
                return _DESCRIBE[name](ctypes.CDLL(library))
    return name


def _openblas(library: ctypes.CDLL) -> str:
    library.openblas_get_config.restype = library.openblas_get_corename.restype = ctypes.c_char_p
    version = library.openblas_get_config().decode().split(" NO_")[0].split(" DYNAMIC")[0]
    return f"{version}, {library.openblas_get_corename().decode()}, threads: {library.openblas_get_num_threads()}"


def _mkl(library: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, len(text))
    return f"{text.value.decode().strip()}, threads: {library.MKL_Get_Max_Threads()}"


_SET_THREADS: dict[str, Callable[[ctypes.CDLL, int], object]] = {
    "openblas": lambda library, count: library.openblas_set_num_threads(count),
    "mkl": lambda library, count: library.MKL_Set_Num_Threads(count),
}
_DESCRIBE = {"openblas": _openblas, "mkl": _mkl}
