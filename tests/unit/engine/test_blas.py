"""Which BLAS multiplies is told with its version and its threads: both decide how fast."""

from __future__ import annotations

import ctypes
import re

import pytest

from draftd.errors import ConfigError
from draftd.models import blas
from draftd.models.blas import describe_blas, load_blas


def test_loaded_blas_library_reports_its_version_and_thread_count() -> None:
    name = load_blas()
    told = describe_blas(name)
    if name == "openblas":
        assert re.fullmatch(r"OpenBLAS \d+\.\d+\.\d+\S*, \S+, threads: \d+", told), told
        library = ctypes.CDLL("libopenblas.so.0")
        library.openblas_set_num_threads(3)
        try:
            assert describe_blas(name).endswith("threads: 3")
        finally:
            library.openblas_set_num_threads(int(told.rsplit(" ", 1)[1]))
        assert describe_blas(name) == told
    elif name == "metal":
        assert told == ""
    else:
        assert told.startswith(("Intel", "oneAPI", "mkl", "reference"))


class Mkl:
    """As much of it as is asked."""

    def MKL_Get_Version_String(self, buffer: ctypes.Array[ctypes.c_char], size: int) -> None:
        buffer.value = b"Intel(R) oneAPI Math Kernel Library Version 2025.2  \n"[:size]

    def MKL_Get_Max_Threads(self) -> int:
        return 4


def test_mkl_description_has_its_version_string_and_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda library: Mkl())  # type: ignore[attr-defined]
    assert describe_blas("mkl") == "Intel(R) oneAPI Math Kernel Library Version 2025.2, threads: 4"


def test_blas_library_without_version_is_described_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda library: object())  # type: ignore[attr-defined]
    assert describe_blas("openblas") == "openblas"
    assert describe_blas("reference") == "reference"
    assert describe_blas("metal") == ""


def test_draftd_blas_variable_accepts_only_reference_or_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas.sys, "platform", "linux")  # type: ignore[attr-defined]
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda library, mode=0: object())  # type: ignore[attr-defined]
    assert load_blas() == "openblas"
    monkeypatch.setenv("DRAFTD_BLAS", "reference")
    assert load_blas() == "reference"
    monkeypatch.setenv("DRAFTD_BLAS", "mkl")
    with pytest.raises(ConfigError, match="DRAFTD_BLAS: got 'mkl'; allowed: reference, or unset"):
        load_blas()
