"""Processes of followers: how they are started, ended and restarted. None stays behind."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from draftd.ranks.follower import LOST, REFUSED
from draftd.ranks.followers import Followers, last_words, ssh_command
from draftd.ranks.hostfile import Host
from draftd.ranks.plan import Start
from draftd.ranks.supervisor import Supervisor
from draftd.settings import Settings
from tests.fake_ranks import local_plan
from tests.wait_until import until


def script(folder: Path, text: str) -> list[str]:
    file = folder / "follower.sh"
    file.write_text(text)
    return ["/bin/sh", str(file)]


def make_supervisor(command: list[str], silent: float = 30.0) -> tuple[Supervisor, list[str]]:
    lines = list[str]()
    return Supervisor(command, silent, lines.append), lines


def test_follower_process_is_restarted_after_its_rank_group_is_lost(tmp_path: Path) -> None:
    """Also when it is refused after the loss: the reason may pass."""
    program = f'echo x >> "$0.lives"; case $(wc -l < "$0.lives") in *1) exit {LOST} ;; *2) exit {REFUSED} ;; esac'
    supervisor, lines = make_supervisor(script(tmp_path, program))
    assert supervisor.run() == 0
    assert (tmp_path / "follower.sh.lives").read_text().count("x") == 3
    assert lines == [f"the group was lost: it is joined again in {pause} s" for pause in ("0.5", "1")]


def test_refused_follower_process_is_not_restarted(tmp_path: Path) -> None:
    supervisor, lines = make_supervisor(script(tmp_path, f"exit {REFUSED}"))
    assert (supervisor.run(), lines) == (1, [])


def test_supervisor_forwards_log_lines_of_its_follower_process(tmp_path: Path) -> None:
    lines = list[str]()
    command = script(tmp_path, f"echo 'rank 1: looking' >&2; echo 'rank 1: refused' >&2; exit {REFUSED}")
    Supervisor(command, 30.0, lines.append, lines.append).run()
    until(lambda: lines == ["rank 1: looking", "rank 1: refused"])


def test_killed_and_hung_follower_processes_are_restarted(tmp_path: Path) -> None:
    program = (
        'printf . ; echo $$ >> "$0.lives"; case $(wc -l < "$0.lives") in *1) kill -9 $$ ;; *2) kill -STOP $$ ;; esac'
    )
    supervisor, lines = make_supervisor(script(tmp_path, program), silent=2.0)
    assert supervisor.run() == 0
    assert "(its process was ended by signal 9)" in lines[0]
    assert lines[1] == "its process has said nothing for 2 s, and is killed"
    pids = (tmp_path / "follower.sh.lives").read_text().split()
    assert len(pids) == 3
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_stopped_supervisor_leaves_no_follower_process_behind(tmp_path: Path) -> None:
    supervisor, _ = make_supervisor(script(tmp_path, 'echo $$ > "$0.pid"; exec sleep 60'))
    codes = list[int]()
    thread = threading.Thread(target=lambda: codes.append(supervisor.run()))
    thread.start()
    file = tmp_path / "follower.sh.pid"
    until(lambda: file.exists() and bool(file.read_text()), 10)
    supervisor.stop()
    thread.join(10)
    assert codes == [0]
    assert not psutil.pid_exists(int(file.read_text()))


def test_ssh_command_passes_every_argument_unchanged_to_remote_host(tmp_path: Path) -> None:
    """A fake ssh gives its last argument to a shell, as the remote host does."""
    shell = tmp_path / "ssh"
    shell.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    shell.chmod(0o755)
    arguments = ["--set", "model.path=/a b/$(touch x)'\"; exit 3", "*"]
    show = shlex.join([sys.executable, "-c", "import os, sys; print([sys.argv[1:], os.environ['WORD']])"])
    command = ssh_command("mac-2", show, arguments, {"WORD": "a 'b'"})
    assert command[command.index("--") + 1] == "mac-2"
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert eval(process.stdout) == [arguments, "a 'b'"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")
def test_rank_host_unreachable_over_ssh_is_named_in_followers_exit_message() -> None:
    hosts = tuple(Host(ssh=name, ips=["127.0.0.1"]) for name in ("127.0.0.1", "nobody@127.0.0.1"))
    plan = replace(local_plan(), hosts=hosts, start=Start.SSH)
    followers = Followers(Settings(), plan, {**os.environ, "HOME": "/nonexistent"}, "g1", out=lambda line: None)
    followers.start()
    until(lambda: next(followers.exits(), None) is not None, 10)
    exit_message = str(next(followers.exits(), None))
    followers.stop()
    followers.close()
    assert exit_message.startswith("rank 1 on nobody@127.0.0.1: ")
    assert "refused" in exit_message or "denied" in exit_message or "verification" in exit_message


def test_last_error_line_of_a_follower_process_becomes_its_error() -> None:
    lines = [
        "2026-01-01T00:00:00.000+00:00 draftd: loading",
        "2026-01-01T00:00:00.001+00:00 draftd: error: no disk",
        "bye",
    ]
    assert last_words(lines) == "no disk"
    assert last_words(['{"level": "error", "message": "no disk"}']) == "no disk"
    assert last_words(["Killed"]) == "Killed"


@pytest.mark.slow
def test_follower_process_ends_if_orphaned_is_killed_if_hung_and_names_a_missing_model(tmp_path: Path) -> None:
    """Real followers: one is stopped while it waits for rank 0, one loses its daemon, one finds no model."""
    environ, lines = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}, list[str]()
    followers = Followers(Settings(), local_plan(3), environ, "g1", out=lines.append)
    followers.start()
    callers = [followers.listener.accept()[0] for _ in range(2)]
    stopped_follower, orphaned_follower = (followers._running[rank].process for rank in (1, 2))
    os.kill(stopped_follower.pid, signal.SIGSTOP)
    assert orphaned_follower.stdin is not None
    orphaned_follower.stdin.close()  # as when this process is killed
    until(lambda: orphaned_follower.poll() == LOST, 10)
    followers.stop(grace_seconds=0.2)
    assert (stopped_follower.poll(), next(followers.exits(), None)) == (-signal.SIGKILL, None)
    for caller in (*callers, followers):
        caller.close()  # type: ignore[attr-defined]
    settings = Settings(model={"path": str(tmp_path / "none")})  # type: ignore[arg-type]
    followers = Followers(settings, local_plan(2), environ, "g1", out=lines.append)
    start = time.monotonic()
    followers.start()
    until(lambda: next(followers.exits(), None) is not None, 60)
    assert str(next(followers.exits(), None)) == (
        f"rank 1 on 127.0.0.1: model: {tmp_path}/none: no such folder: "
        "give a model's folder, or its OWNER/NAME on the hub"
    )
    assert time.monotonic() - start < 60
    followers.stop()
    followers.close()
    assert not any("no such folder" in line for line in lines), "the reason comes from `exits` and is not printed"
