"""Renders chat messages with the model's template, in a process of its own. A template that loops or fills the memory
ends only that process, and blocks no other request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any
from weakref import WeakValueDictionary

from draftd.errors import EngineFailure, InvalidRequest
from draftd.models.tokenizer import ChatTemplate
from draftd.service.messages import Chat, message_dict, tool_dicts
from draftd.service.request import template_refusal

log = logging.getLogger(__name__)

_LIMIT_SECONDS = 2.0  # of processor time, for one text
_START_SECONDS = 60.0  # for the process's imports, on a busy machine
_ANSWER_SECONDS = 30.0  # by the wall clock, if the process gets no processor time


class ChatRenderer:
    """Renders one text at a time, in the order of the calls. A client has at most one text in this queue; its other
    texts wait outside. So a client whose texts all use up the time limit delays another client by only one text."""

    def __init__(self, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._limit = limit_seconds
        self._worker: _Worker | None = None
        self._lock = threading.Lock()  # no process starts during `close`
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-chat")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def start(self) -> None:
        """Starts the process, whose imports take as long as loading a small model. Event loop; does not wait."""
        self._executor.submit(self._prepare, None)

    def prepare(self, template: ChatTemplate) -> None:
        """Gives the process its template before the first request. Event loop; does not wait."""
        self._executor.submit(self._prepare, template)

    def stop(self) -> None:
        """Ends the process, for a model without a template; a later request would start another. Event loop; does not
        wait."""
        self._executor.submit(self._stop)

    async def render(self, template: ChatTemplate, chat: Chat, most: int, client: str) -> str:
        """Returns the rendered text. Raises InvalidRequest if the template rejects the messages, takes no tools,
        exceeds the time limit, or renders more than `most` characters. Raises EngineFailure if no process can be
        started."""
        turn = self._turns.setdefault(client, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._render, template, chat, most)

    def close(self) -> None:
        """Ends the process. A rendering in progress ends with an error."""
        with self._lock:
            self._closed = True
            worker = self._worker
        self._executor.shutdown(wait=False, cancel_futures=True)
        if worker is not None:
            worker.kill()

    # the executor's thread

    def _prepare(self, template: ChatTemplate | None) -> None:
        try:
            self._ready(template)
        except OSError as error:
            if not self._closed:  # `close` ends the process
                log.warning("chat templates cannot be rendered yet: %s", error)

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _render(self, template: ChatTemplate, chat: Chat, most: int) -> str:
        try:
            worker = self._ready(template)
        except OSError as error:
            raise EngineFailure(f"the chat template cannot be rendered: {error}") from None
        question = {
            "messages": list(map(message_dict, chat.messages)),
            "tools": tool_dicts(chat.shown_tools),
            "arguments": dict(chat.template_arguments),
            "continues": chat.continues,
            "most": most,
        }
        try:
            reply = worker.ask(question, _ANSWER_SECONDS)
        except ChildProcessError:
            raise template_refusal(chat.messages, f"renders within {self._limit:g} s; it was stopped") from None
        if "no_tools" in reply:
            raise tools_refusal(chat)
        if "error" in reply:
            raise template_refusal(chat.messages, f"accepts ({reply['error']})")
        if "characters" in reply:
            raise InvalidRequest("chat.messages", f"{reply['characters']} characters when rendered", f"at most {most}")
        return str(reply["text"])

    def _ready(self, template: ChatTemplate | None) -> _Worker:
        """Returns the process, prepared with `template` if one is given. Starts another process if none is running.
        Raises OSError."""
        worker = self._worker
        if worker is None or not worker.running:
            if worker is not None:
                worker.kill()
            with self._lock:
                if self._closed:
                    raise ChildProcessError("the daemon is stopping")
                self._worker = worker = _Worker()
        if template is not None and worker.template != template:
            worker.ask(asdict(template) | {"seconds": self._limit}, _START_SECONDS)
            worker.template = template
        return worker


def tools_refusal(chat: Chat) -> InvalidRequest:
    """The error for tools that the template would leave out."""
    return InvalidRequest("chat.tools", f"{len(chat.tools)} tools", "none: the model's chat template takes no tools")


class _Worker:
    """The rendering process, seen from the daemon. For one thread only, except `kill`."""

    def __init__(self) -> None:
        """Starts the process. Raises OSError."""
        self.template: ChatTemplate | None = None  # the template that the process has
        # -P: no module is imported from the folder in which the daemon was started.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "draftd.service.template_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for the daemon, which lets running requests end first
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Returns the process's reply. If the process has ended, or does not reply in `seconds`, ends it and raises
        ChildProcessError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(seconds, self._process.kill)
        late.start()
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):  # its pipes are closed
            line = b""
        finally:
            late.cancel()
        if not line.endswith(b"\n"):
            self.kill()
            raise ChildProcessError(f"its process has ended, or gave no answer in {seconds:g} s")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError), self._process:  # closes its pipes and waits for it
            pass
