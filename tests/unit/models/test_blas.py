"""What MLX computes on, by its default device and the BLAS that was found."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import pytest

from draftd.models import blas


@pytest.mark.skipif(sys.platform == "darwin", reason="Metal is the only backend there")
def test_compute_backend_names_blas_on_cpu_and_cuda_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
    assert blas.compute_backend() == f"cpu ({blas.load_blas()})"
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert blas.compute_backend() == "cuda"


SKYLAKE = "vendor_id : GenuineIntel\nflags : fma avx2 avx512f avx512dq avx512cd avx512bw avx512vl\n"


@pytest.mark.parametrize(
    ("processors", "kernels"),
    [
        (SKYLAKE, "SkylakeX"),
        (SKYLAKE.replace("GenuineIntel", "AuthenticAMD"), "SkylakeX"),
        (SKYLAKE.replace(" avx512vl", ""), "Haswell"),
        ("vendor_id : AuthenticAMD\nflags : fma avx2\n", ""),
        ("vendor_id : GenuineIntel\nflags : sse2\n", ""),
        ("Features : fp asimd\n", ""),
    ],
)
def test_openblas_gets_kernels_for_flags_of_processor(processors: str, kernels: str) -> None:
    assert blas.kernels_for(processors) == kernels


def test_mlx_imported_before_blas_is_an_error() -> None:
    if blas.load_blas() not in ("openblas", "mkl"):
        pytest.skip("no faster library here")
    late = "import mlx.core; from draftd.models.blas import load_blas; load_blas()"
    result = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "RuntimeError: mlx was imported before load_blas()" in result.stderr
