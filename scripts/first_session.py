"""Writes docs/first-session.md: what a first-time user's terminal shows, from the installation to Ctrl-C.

`python -m scripts.first_session` takes about eight minutes. It uses a fresh clone with a tool folder of its own, and
executes each command on a terminal of 100 columns. It needs a network and the default ports. The page shows the
machine's paths as `~`. The hub from which a model is downloaded is the tests' own, on this machine.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-session.md"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])")
_ERASED = re.compile(r"[^\n]*\n[^\n]*\x1b\[1A\r?\x1b\[2K|[^\n]*\x1b\[2K")  # a line that was printed, then erased
_PATIENCE = 300.0
_LONGEST = 40  # lines that are kept of one command's output: the first 20 and the last 20
_READY = "draftd: serving "
_MODEL = "build/models/SmolLM2-135M-Instruct"
_HUB_MODEL, _HUB_BYTES_PER_SECOND = "example/SmolLM2-135M-Instruct", 20_000_000
_SECOND = "127.0.0.1:50552"
_EDITED = """def basket_total(prices, discount=0.0):
    total = 0.0
    for price in prices:
        if price < 0:
            raise ValueError("a price cannot be negative")
        total += price
    return round(total * (1 - discount), 2)
"""

HEAD = """# A first session

What a new user's terminal shows, from the installation to Ctrl-C. It was recorded (`python -m scripts.first_session`)
on the Linux machine of [benchmarks.md](benchmarks.md), not on a Mac. Colours and overwritten lines are left out.

`make demo` runs the embedded pair. After it SmolLM2-135M-Instruct answers, a pretrained model of 135 M parameters:
small enough for two cores, and often wrong.
"""


class Screen:
    """A command that runs on a pseudo-terminal of its own."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        subprocess.run(["stty", "rows", "40", "cols", "100"], stdin=slave, check=True)
        self._child = subprocess.Popen(
            command, cwd=folder, env=dict(env), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._said = bytearray()

    def until(self, wanted: str | None = None) -> None:
        """Reads the output until it matches the regular expression `wanted`, or until the command ends. Raises
        TimeoutError if neither happens within five minutes."""
        end = time.monotonic() + _PATIENCE
        while wanted is None or not re.search(wanted, self.text):
            ended = self._child.poll() is not None
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self._said += os.read(self._master, 65536)
                    continue
                except OSError:  # the command has closed the terminal
                    self._child.wait(_PATIENCE)
                    return
            if ended:
                return
            if time.monotonic() > end:
                raise TimeoutError(self.text)

    def watch(self, seconds: float) -> None:
        """Reads the output for so many seconds: a command whose output nothing reads would block."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                try:
                    self._said += os.read(self._master, 65536)
                except OSError:  # the command has closed the terminal
                    return

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def line(self) -> str:
        """The terminal's current line."""
        return self.text.rpartition("\n")[2]

    def send(self, number: signal.Signals) -> None:
        os.killpg(self._child.pid, number)

    @property
    def code(self) -> int | None:
        return self._child.poll()

    @property
    def text(self) -> str:
        """The output as the terminal shows it: without escape sequences, erased lines and overwritten text."""
        drawn = self._said.decode(errors="replace").replace("\r\n", "\n")
        plain = _ESCAPES.sub("", _ERASED.sub("", drawn))
        return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in plain.split("\n")).strip("\n")


@dataclass
class Session:
    """Runs commands and writes them down with their output, as lines of the page."""

    folder: Path
    env: dict[str, str]
    page: list[str]

    def say(self, *text: str) -> None:
        self.page.extend(text)

    def run(self, command: str) -> None:
        screen = Screen(["sh", "-c", command], self.folder, self.env)
        screen.until()
        self.write(command, screen)

    @contextmanager
    def running(self, command: str, ready: str) -> Iterator[Screen]:
        """Runs a command beside others: yields its terminal when the output matches `ready`. The block must end the
        command; then its output is written to the page."""
        screen = Screen(["sh", "-c", f"exec {command}"], self.folder, self.env)
        screen.until(ready)
        yield screen
        screen.until()
        self.write(command, screen)

    def write(self, command: str, screen: Screen) -> None:
        """Writes an ended command and its output to the page; of a long output, the beginning and the end."""
        lines, code = self._scrubbed(screen.text).split("\n"), screen.code
        if len(lines) > _LONGEST:
            left = len(lines) - _LONGEST
            lines = [*lines[: _LONGEST // 2], f"[{left} lines more]", *lines[-_LONGEST // 2 :]]
        status = f"[ended with {code}]" if code else ""
        self.page.extend(
            ["", "```console", f"$ {command}", *(line for line in [*lines, status] if line or lines), "```"]
        )

    def _scrubbed(self, text: str) -> str:
        for path, name in ((self.folder, "~/draftd"), (Path(self.env["HOME"]), "~")):
            text = text.replace(str(path), name)
        return text


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="first-session-") as temporary:
        home = Path(temporary)
        clone = home / "draftd"
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        page = record(Session(clone, _environment(home), [HEAD]))
    PAGE.write_text("\n".join(page) + "\n", encoding="utf-8")
    return 0


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "VIRTUAL_ENV", "PYTHON"))
    }
    tools = home / ".local" / "bin"
    return {
        **kept,
        "HOME": str(home),
        "UV_CACHE_DIR": kept.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
        "UV_TOOL_DIR": str(home / ".local" / "share" / "uv" / "tools"),
        "UV_TOOL_BIN_DIR": str(tools),
        "PATH": f"{tools}:{kept['PATH']}:{home / 'draftd' / '.venv' / 'bin'}",  # the last one may have uv
        "TERM": "xterm",
        "COLUMNS": "100",
        "PS1": "$ ",
    }


def record(session: Session) -> list[str]:
    session.say("", "## Install, and see it work")
    session.run("make demo")
    session.say("", "A real model, fetched with pip and converted to mlx-lm's format:")
    session.run("make real-model")
    session.say("", "With `draftd` on the PATH:")
    session.run("uv tool install --quiet . && draftd --version && draftd docs")
    session.say("", "## Check, serve, ask")
    session.run(f"draftd doctor --model {_MODEL}")
    with session.running(f"draftd serve --model {_MODEL}", _READY) as daemon:
        session.run('draftd generate "What is the capital of France?"')
        session.run('draftd generate "Why is the sky blue? Answer in one sentence."')
        _chat(session)
        session.say("", "A client of OpenAI's API, which names another model:")
        session.run(
            "curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d "
            """'{"model": "gpt-4o", "max_tokens": 20, "messages": [{"role": "user", "content": "Say hello."}]}'"""
        )
        _long_prompt(session)
        session.say("", "Beside the head, prompt lookup drafts: that pays most where the answer repeats the prompt:")
        (session.folder / "basket.py").write_text(_EDITED, encoding="utf-8")
        session.run("cat basket.py")
        session.run('draftd generate -w edit "Rewrite this function in a Python code block: $(cat basket.py)"')
        session.say("", "The same question with and without drafts:")
        session.run('draftd compare -w edit "Rewrite this function in a Python code block: $(cat basket.py)"')
        session.run("draftd depth")
        session.run("draftd status")
        session.run("draftd top --once")
        session.say("", "Drafting turned off for all new requests, and on again:")
        session.run("draftd flag set off && draftd generate 'What is the capital of Germany?' && draftd flag set on")
        session.say("", "A second daemon on the same port:")
        session.run("draftd serve")
        _draft_that_costs_more(session)
        session.say("", "The first daemon's terminal, ended by Ctrl-C:")
        daemon.send(signal.SIGINT)
    _download(session)
    _mistakes(session)
    return session.page


def _chat(session: Session) -> None:
    session.say("", "Without a prompt it is a chat, which Ctrl-D ends:")
    screen = Screen(["draftd", "generate"], session.folder, session.env)
    for keys in ("What is the capital of Italy?\n", "And of Spain?\n"):
        before = screen.text.count("tokens/s")
        screen.watch(3.0)
        screen.type(keys)
        while screen.text.count("tokens/s") == before and screen.code is None:
            screen.watch(0.5)
    screen.type("\x04")
    screen.until()
    session.write("draftd generate", screen)


def _long_prompt(session: Session) -> None:
    session.say("", "A long prompt: what its terminal shows after a while, and the daemon's status at that moment:")
    asking = 'draftd generate --max-tokens 30 "What is this text? $(cat LICENSE)"'
    screen = Screen(["sh", "-c", asking], session.folder, session.env)
    screen.until(r"prompt: \d")
    session.page.extend(["", "```console", f"$ {asking}", screen.line, "```"])
    session.run("draftd status")
    screen.until()
    session.say("", "When it has answered; and the same question again, whose prompt is kept:")
    session.write(asking, screen)
    session.run(asking)


def _draft_that_costs_more(session: Session) -> None:
    session.say("", "Beside it a second daemon, with a draft of the same size, which cannot pay:")
    serve = f"draftd serve --model {_MODEL} --draft-model {_MODEL}-4bit --port 50552 --http-port off"
    with session.running(serve, _READY) as daemon:
        for prompt in ("Write a poem about the sea.", "Tell me about Rome.", "What is a compiler?"):
            session.run(f"draftd generate --target {_SECOND} --max-tokens 60 '{prompt}'")
        session.run(f"draftd status --target {_SECOND}")
        session.say("", "Its flag is its own:")
        session.run(f"draftd flag set off --target {_SECOND} && draftd flag get")
        session.say("", "Ended by Ctrl-C while it reads a long prompt:")
        asking = Screen(
            ["sh", "-c", f'draftd generate --target {_SECOND} "Go on: $(cat LICENSE LICENSE)"'],
            session.folder,
            session.env,
        )
        asking.until(r"prompt: \d")
        daemon.send(signal.SIGINT)
        daemon.watch(2.0)
        daemon.send(signal.SIGINT)
        asking.until()


def _download(session: Session) -> None:
    from tests.fake_hub import Hub

    session.say("", "## A model from the hub", "", "A download that is interrupted, and what it shows meanwhile:")
    hub, kept = Hub(), dict(session.env)
    hub.add(_HUB_MODEL, ROOT / _MODEL)
    hub.bytes_per_second = _HUB_BYTES_PER_SECOND
    session.env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(Path(session.env["HOME"]) / "huggingface")}
    try:
        with session.running(f"draftd serve --model {_HUB_MODEL}", r"\b1\d\d of \d+ MB") as daemon:
            session.run("draftd status")
            session.run("curl -s http://127.0.0.1:8080/health")
            daemon.send(signal.SIGINT)
        session.say("", "Started again, it goes on from there:")
        with session.running(f"draftd serve --model {_HUB_MODEL}", _READY) as daemon:
            session.run('draftd generate "What is the capital of France?"')
            daemon.send(signal.SIGINT)
        session.run(f"draftd doctor --model {_HUB_MODEL}")
        session.run("draftd serve --model example/SmolLM3")
    finally:
        hub.close()
        session.env = kept


def _mistakes(session: Session) -> None:
    session.say("", "## What goes wrong", "", "Names that are none of a folder or of the hub:")
    session.run("draftd serve --model qwen3:8b")
    session.run("draftd serve --model https://huggingface.co/mlx-community/Qwen3-8B-4bit")
    session.run(f"draftd serve {_MODEL}")
    session.say("", "Settings that there are not:")
    session.run("DRAFTD_PORT=8080 draftd doctor")
    session.run("draftd serve --set engine.max_drafts=4")
    session.run("draftd serve --port 80800")
    session.say("", "A missing model, an incomplete download, and a folder without a model:")
    session.run("draftd serve --model ./Qwen3-8B-4bit")
    broken = session.folder / "broken"
    shutil.copytree(ROOT / "daemon" / "draftd" / "models" / "nano" / "target", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    session.run("draftd doctor --model ./broken")
    session.run("draftd serve --model ./broken")
    session.run("draftd serve --model ./docs")
    session.say("", "A daemon that is not running, and one that is killed while it answers:")
    session.run('draftd generate "Hello"')
    with session.running(f"draftd serve --model {_MODEL}", _READY) as daemon:
        asking = Screen(["draftd", "generate", "Tell me a story."], session.folder, session.env)
        asking.until(",")  # its first words
        daemon.send(signal.SIGKILL)
        asking.until()
    session.page.extend(["", "```console", '$ draftd generate "Tell me a story."', asking.text, "```"])


if __name__ == "__main__":
    sys.exit(main())
