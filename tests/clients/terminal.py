"""Runs Claude Code and Codex, which are programs of a terminal, without one. Each has a home folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.catalog import ABORT, PLAIN, RESUME, SCHEMA, STREAM, TOOLS, Place
from tests.clients.install import FOLDER

_SECONDS = 120.0  # for one answer
_IDLE_SECONDS = 10.0
_ACTIVE = re.compile(r"^draftd_engine_active_requests\{.*\} (\S+)$", re.MULTILINE)
_FIRST, _SECOND, _RECALLED = "SAY apples and pears", "RECALL it", "apples and pears"
_COUNT = "COUNT 20000"
_CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Ottawa", "Oslo"], "type": "string"}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}
_FILLED = {"city": "Oslo", "is_capital": True}


class Terminal:
    """One such program. `folder` is an empty one, for its home and the files that it works on."""

    def __init__(self, folder: str, talker: str, environ: Mapping[str, str]) -> None:
        self._talker = talker
        self.home, self.work = Path(folder) / "home", Path(folder) / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.note = self.work / "note.txt"
        self.note.write_text("the answer is 42\n")
        self._environ = {**environ, "HOME": str(self.home), **self.variables()}

    def variables(self) -> Mapping[str, str]:
        """Returns additional environment variables. May write the program's configuration."""
        raise NotImplementedError

    def checks(self) -> Mapping[str, Callable[[], object]]:
        raise NotImplementedError

    def command(self, *arguments: str) -> list[str]:
        raise NotImplementedError

    def examine(self, wanted: Sequence[str]) -> dict[str, str]:
        """Returns the results of these checks: `ok`, or the reason of the failure."""
        results = {}
        for name in wanted:
            try:
                self.checks()[name]()
                results[name] = "ok"
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
        return results

    def run(self, *arguments: str) -> str:
        """Returns the program's output. Raises AssertionError if it failed."""
        with self._started(*arguments) as process:
            output, errors = process.communicate(timeout=_SECONDS)
        assert process.returncode == 0, f"it ended with {process.returncode}: {(output + errors)[-1500:]}"
        return output

    def abort(self) -> None:
        """Interrupts the program, as Ctrl-C does, during an answer."""
        with self._started(_COUNT) as process:
            self._wait(lambda active: active > 0, _SECONDS, "no request came")
            time.sleep(1.0)  # so that it reads the stream; the answer takes much longer
            assert self._active_requests() > 0, "the answer ended by itself"
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=_IDLE_SECONDS)
            self._wait(lambda active: active == 0, _IDLE_SECONDS, "a request runs on")

    @contextlib.contextmanager
    def _started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts the program. Ends it and all that it started when the block ends."""
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.work,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _active_requests(self) -> float:
        with urllib.request.urlopen(f"{self._talker}/metrics", timeout=10) as response:
            match = _ACTIVE.search(response.read().decode())
        assert match, "/metrics shows no draftd_engine_active_requests"
        return float(match[1])

    def _wait(self, holds: Callable[[float], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while not holds(self._active_requests()):
            assert time.monotonic() < deadline, f"{otherwise} within {seconds:g} s"
            time.sleep(0.05)


class ClaudeCode(Terminal):
    """Runs `claude -p`. Its launcher needs no installation script."""

    def variables(self) -> Mapping[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self._talker,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "scripted",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "scripted",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def command(self, *arguments: str) -> list[str]:
        launcher = FOLDER / Place.NODE / "node_modules" / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
        return ["node", str(launcher), "-p", "--output-format", "stream-json", "--verbose", *arguments]

    def checks(self) -> Mapping[str, Callable[[], object]]:
        return {
            PLAIN: lambda: _expect(self.ask("SAY hello there")["result"], "hello there"),
            STREAM: self.stream,
            SCHEMA: self.schema,
            TOOLS: self.tools,
            ABORT: self.abort,
            RESUME: self.resume,
        }

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Returns the last event, which has the result."""
        events = [json.loads(line) for line in self.run(*arguments).splitlines()]
        assert events[-1]["type"] == "result", events[-1]
        assert not events[-1]["is_error"], events[-1]
        return dict(events[-1])

    def stream(self) -> None:
        lines = self.run("--include-partial-messages", "SAY one two three four five").splitlines()
        events = [event["event"] for event in map(json.loads, lines) if event["type"] == "stream_event"]
        pieces = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
        _expect("".join(pieces), "one two three four five")
        assert len(pieces) > 2, pieces

    def schema(self) -> None:
        question = f"CALL StructuredOutput {json.dumps(_FILLED)}"
        _expect(self.ask("--json-schema", json.dumps(_CITY), question)["structured_output"], _FILLED)

    def tools(self) -> None:
        result = self.ask("--allowedTools", "Read", "--", f"CALL Read {json.dumps({'file_path': str(self.note)})}")
        assert result["result"].startswith("done: "), result["result"]
        assert "the answer is 42" in result["result"], result["result"]

    def resume(self) -> None:
        session = self.ask(_FIRST)["session_id"]
        _expect(self.ask("--continue", _SECOND)["result"], _RECALLED)
        _expect(self.ask("--resume", session, _SECOND)["result"], _RECALLED)


class Codex(Terminal):
    """Runs `codex exec`, which streams each answer and prints it at its end."""

    def variables(self) -> Mapping[str, str]:
        folder = self.home / ".codex"
        folder.mkdir()
        lines = [
            'model = "scripted"',
            'model_provider = "draftd"',
            "[model_providers.draftd]",
            'name = "draftd"',
            f'base_url = "{self._talker}/v1"',
            'wire_api = "responses"',
        ]
        (folder / "config.toml").write_text("\n".join(lines) + "\n")
        return {"CODEX_HOME": str(folder)}

    def command(self, *arguments: str) -> list[str]:
        launcher = FOLDER / Place.NODE / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
        # The folder is a fresh one: its own sandbox needs a kernel that lets it make one.
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
        return ["node", str(launcher), "exec", *free, *arguments]

    def checks(self) -> Mapping[str, Callable[[], object]]:
        return {
            PLAIN: lambda: _expect(self.ask("SAY hello there"), "hello there"),
            SCHEMA: self.schema,
            TOOLS: self.tools,
            ABORT: self.abort,
            RESUME: self.resume,
        }

    def events(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments).splitlines()]

    def ask(self, *arguments: str) -> str:
        return _last_message(self.events(*arguments))

    def schema(self) -> None:
        file = self.work / "schema.json"
        file.write_text(json.dumps(_CITY))
        _expect(json.loads(self.ask("--output-schema", str(file), f"SAY {json.dumps(_FILLED)}")), _FILLED)

    def tools(self) -> None:
        answer = self.ask(f"CALL exec_command {json.dumps({'cmd': 'cat note.txt'})}")
        assert answer.startswith("done: "), answer
        assert "the answer is 42" in answer, answer

    def resume(self) -> None:
        thread = next(event["thread_id"] for event in self.events(_FIRST) if event["type"] == "thread.started")
        _expect(self.ask("resume", "--last", _SECOND), _RECALLED)
        _expect(self.ask("resume", thread, _SECOND), _RECALLED)


def _last_message(events: Sequence[Mapping[str, Any]]) -> str:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    messages = [item["text"] for item in items if item["type"] == "agent_message"]
    assert messages, events
    return str(messages[-1])


def _expect(found: object, wanted: object) -> None:
    assert found == wanted, f"got {found!r}, not {wanted!r}"


TERMINAL = {"claude-code": ClaudeCode, "codex": Codex}
