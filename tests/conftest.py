"""What every test may ask for. The fast BLAS is loaded here, before any test module imports mlx."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from draftd.models.blas import load_blas
from tests.forked_daemon import heed_signals

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: a thread each and no more. Read when the library is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
load_blas()
heed_signals()

from draftd.engine import calibration  # noqa: E402

# Hundreds of engines are started, and each would go on measuring while it is idle: test_costs.py tests that.
calibration._MEASURES_THE_REST = False

settings.register_profile("draftd", deadline=None)  # no test depends on how fast it runs
settings.load_profile("draftd")


@dataclass(frozen=True)
class NanoPair:
    """Where the embedded pair lies."""

    target: str
    draft: str


@pytest.fixture(scope="session")
def nano_pair() -> NanoPair:
    """The embedded pair. Missing: a skip at a desk, a failure where CI is set."""
    spec = importlib.util.find_spec("draftd.models.nano")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    pair = NanoPair(str(root / "target"), str(root / "draft"))
    for folder in (pair.target, pair.draft):
        if not (Path(folder) / "config.json").is_file():
            missing(f"the embedded model pair: {folder}")
    return pair


@pytest.fixture(autouse=True)
def no_leaking_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A desk's own settings and state folder stay out of the tests, and the tests out of them."""
    for name in list(os.environ):
        if name.startswith(("DRAFTD_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(autouse=True, scope="module")
def threads_of_others() -> frozenset[threading.Thread]:
    """Threads that tests of other modules left, such as an exporter's whose collector is gone."""
    return frozenset(threading.enumerate()) - {threading.current_thread()}


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, threads_of_others: frozenset[threading.Thread]
) -> Iterator[pytest.LogCaptureFixture]:
    """Without what libraries log meanwhile on threads of other modules' tests."""

    def own(record: logging.LogRecord) -> bool:
        return record.name.startswith("draftd") or threading.current_thread() not in threads_of_others

    caplog.handler.addFilter(own)
    yield caplog
    caplog.handler.removeFilter(own)


def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins elsewhere, if it collects all. Pytest compiles each module of tests with its assertions and
    keeps that: so each does a share of it in a fresh clone, and reads what the others have done."""
    worker, workers = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "") for name in ("", "_COUNT"))
    if worker and session.config.args == ["tests"]:
        modules = sorted(map(str, Path(__file__).parent.rglob("test_*.py")))
        begin = len(modules) * int(worker.removeprefix("gw")) // int(workers)
        session.config.args[:] = modules[begin:] + modules[:begin]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests first, an equal part of them for each worker, and whole: xdist gives each worker a run of
    tests that follow one another, and what is left to the end keeps one worker busy while the others have nothing."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    modules: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=lambda item: item.nodeid.partition("::")[0]):  # the same in each worker
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    slow = sorted((name for name in modules if _patience(modules[name])), key=lambda name: -_patience(modules[name]))
    quick = [item for name, found in modules.items() if name not in slow for item in found]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        ordered += (item for name in slow[worker::workers] for item in modules[name])
        share = len(items) * (worker + 1) // workers - len(ordered)
        ordered += quick[:share]
        del quick[:share]
    items[:] = ordered


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: each full collection of garbage would look at all of it."""
    gc.collect()
    gc.freeze()


def _patience(tests: list[pytest.Item]) -> float:
    """Seconds that the slow ones of a module may take, which says roughly how long they do."""
    limits = [test.get_closest_marker("timeout") for test in tests if test.get_closest_marker("slow")]
    return sum(float(limit.args[0]) if limit is not None else 30.0 for limit in limits)


def missing(what: str) -> None:
    """Skips, or fails where CI is set: there, nothing that a test needs may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing: {what}")
    pytest.skip(f"missing: {what}")
