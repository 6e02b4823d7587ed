"""The daemon as a process: signals, exit codes, and that every request is finished or refused."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import CallError, DraftdClient
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb
from tests.conftest import NanoPair
from tests.in_process_daemon import Answer, collect
from tests.scripted_daemon import scripted_daemon
from tests.wait_until import until


def test_after_sigterm_every_request_is_answered_or_refused_and_daemon_exits_zero(tmp_path: Path) -> None:
    with scripted_daemon(tmp_path, step_seconds=0.005, drain_seconds=1.5, max_batch=4) as daemon:
        target = daemon.address
        answers: list[Answer] = []
        refusals: list[CallError] = []
        stop = threading.Event()

        def ask(length: int) -> None:
            with DraftdClient(target) as client:
                while not stop.is_set():
                    try:
                        answers.append(collect(client.generate("x", max_tokens=length, timeout=30)))
                    except CallError as error:
                        refusals.append(error)
                        stop.wait(0.02)

        threads = [threading.Thread(target=ask, args=(n,)) for n in (4000, 4000, 10, 20, 40, 80, 160)]
        with DraftdClient(target) as client:
            for thread in threads[:2]:
                thread.start()
            until(lambda: client.status().active_requests == 2)  # those that the end of the drain cuts short
        for thread in threads[2:]:
            thread.start()
        until(lambda: len(answers) > 10)
        daemon.child.terminate()
        code = daemon.wait(20)
        stop.set()
        for thread in threads:
            thread.join(40)
        assert code == 0
        # Finished: with `finished`; cut short: with `finished` and a status that says so; refused: with a status.
        reasons = set()
        for answer in answers:
            assert answer.finished is not None
            assert answer.finished.usage.output_tokens == len(answer.tokens)
            cut = answer.finished.reason == pb.FINISH_REASON_CANCELLED
            assert (answer.error is not None) == cut
            if answer.error is not None:
                assert answer.error.code is grpc.StatusCode.UNAVAILABLE
            reasons.add(answer.finished.reason)
        assert reasons == {pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_CANCELLED}
        assert refusals
        codes = {error.code for error in refusals}
        # A call that crosses the closing of its connection is answered CANCELLED by gRPC itself, unseen by the daemon.
        assert grpc.StatusCode.UNAVAILABLE in codes
        assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert any("draining" in error.details for error in refusals)
        assert any("draining: " in line for line in daemon.lines)
        assert not [line for line in daemon.lines if "Traceback" in line or "was destroyed but" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_daemon_exits_zero_promptly_on_sigterm_or_sigint(tmp_path: Path, number: signal.Signals) -> None:
    with scripted_daemon(tmp_path) as daemon:
        began = time.monotonic()
        daemon.child.send_signal(number)
        assert daemon.wait(20) == 0
        assert time.monotonic() - began < 9


def test_second_sigterm_ends_a_draining_daemon_at_once_with_exit_code_one(tmp_path: Path) -> None:
    slow = scripted_daemon(tmp_path, step_seconds=0.02, drain_seconds=300)
    with slow as daemon, DraftdClient(daemon.address) as client:
        stream = client.generate("x", max_tokens=4000)
        next(stream)
        daemon.child.terminate()
        for event in stream:  # goes on, though it drains
            if client.status().state == control_pb2.DAEMON_STATE_DRAINING:
                assert event.HasField("chunk")
                break
        began = time.monotonic()
        daemon.child.terminate()
        assert daemon.wait(20) == 1
        assert time.monotonic() - began < 15
        with pytest.raises(CallError):
            list(stream)


@pytest.mark.parametrize(("signals", "drain_seconds"), [(1, 0.2), (2, 300)])
def test_daemon_stop_does_not_wait_for_a_long_prefill_step(tmp_path: Path, signals: int, drain_seconds: float) -> None:
    slow = scripted_daemon(tmp_path, prompt_seconds=60, drain_seconds=drain_seconds)
    with slow as daemon, DraftdClient(daemon.address) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: collect(client.generate("x" * 300, max_tokens=4)))
        until(lambda: any(line.endswith("a prompt is prefilled") for line in daemon.lines))
        began = time.monotonic()
        for _ in range(signals):
            daemon.child.send_signal(signal.SIGINT)
            until(lambda: any(line.endswith("a second Ctrl-C or SIGTERM stops at once") for line in daemon.lines))
        assert daemon.wait(20) == 1
        assert time.monotonic() - began < 15
        answer = asked.result(20)
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_CANCELLED
        assert answer.error is not None
        assert answer.error.code is grpc.StatusCode.UNAVAILABLE


def test_sigterm_ends_a_daemon_that_is_loading_its_model(tmp_path: Path) -> None:
    with scripted_daemon(tmp_path, until="listening", load_seconds=60) as daemon:
        began = time.monotonic()
        daemon.child.terminate()
        assert daemon.wait(20) == 0
        assert time.monotonic() - began < 15


def test_expired_deadlines_are_counted_and_leave_no_traceback(tmp_path: Path) -> None:
    choose = random.Random(3)
    with scripted_daemon(tmp_path, step_seconds=0.001) as daemon, DraftdClient(daemon.address) as client:

        def one(timeout: float) -> str:
            with pytest.raises(CallError) as caught:
                list(client.generate("x", max_tokens=4000, timeout=timeout))
            return caught.value.code.name

        with ThreadPoolExecutor(12) as pool:
            codes = set(pool.map(one, [choose.uniform(0.001, 0.2) for _ in range(300)]))
        assert codes == {"DEADLINE_EXCEEDED"}
        until(lambda: client.status().active_requests == client.status().queued_requests == 0)
        status = client.status()
        # On a busy machine a client's reset may come well before the deadline that the daemon was told.
        finished = {"cancelled": 0, **status.finished_requests}
        assert set(finished) == {"cancelled", "deadline"}
        assert finished["cancelled"] < finished["deadline"]
        assert 200 < sum(finished.values()) + status.refused_requests <= 300
        daemon.child.terminate()
        assert daemon.wait(20) == 0
        assert daemon.lines[-2].startswith("draftd: serving"), daemon.lines
        assert daemon.lines[-1] == "draftd: stopping"


def test_daemon_serves_under_a_low_file_descriptor_limit_and_keeps_it(tmp_path: Path, nano_pair: NanoPair) -> None:
    """The import of mlx-lm would raise it, or fail."""
    limited = ["sh", "-c", 'ulimit -n 600 && exec "$@"', "sh"]
    command = serve_command("--model", nano_pair.draft, "--draft-model", nano_pair.draft, "--port", "0")
    environ = clean_environ(str(tmp_path / "flags.json")) | {"XDG_STATE_HOME": str(tmp_path)}
    with serving([*limited, *command], environ, timeout=120) as child, DraftdClient(child.address) as client:
        assert collect(client.generate("x", max_tokens=8, timeout=60)).error is None
        (daemon,) = [one for one in psutil.Process().children() if "serve" in one.cmdline()]
        if hasattr(daemon, "rlimit"):  # macOS cannot tell of another process
            assert daemon.rlimit(psutil.RLIMIT_NOFILE) == (600, 600)
