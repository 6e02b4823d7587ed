"""Chat messages to text, by the model's template, in a process of its own: one that loops or fills the memory ends that
process, and blocks no other request."""

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
_START_SECONDS = 60.0  # for its imports, on a machine that is busy
_ANSWER_SECONDS = 30.0  # by the clock on the wall, where the process gets no processor


class ChatRenderer:
    """One text at a time, in the order in which they were asked for; of one connection only one waits in that order, so
    that a connection whose every text takes the limit delays another by one of them."""

    def __init__(self, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._limit = limit_seconds
        self._worker: _Worker | None = None
        self._lock = threading.Lock()  # guards the worker against being made while it is closed
        self._closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-chat")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def start(self) -> None:
        """Begins the process, whose imports take as long as a small model. Event loop; does not wait."""
        self._executor.submit(self._prepare, None)

    def prepare(self, template: ChatTemplate) -> None:
        """Has the process ready before the first request. Event loop; does not wait."""
        self._executor.submit(self._prepare, template)

    def stop(self) -> None:
        """Ends the process, which no template needs; a later request would begin another. Event loop; does not
        wait."""
        self._executor.submit(self._stop)

    async def render(self, template: ChatTemplate, chat: Chat, most: int, client: str) -> str:
        """Raises InvalidRequest where the template turns the messages down or takes no tools, where it takes longer
        than the limit, and where the text is longer than `most` characters; EngineFailure where there is no process to
        render it."""
        turn = self._turns.setdefault(client, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, self._render, template, chat, most)

    def close(self) -> None:
        """Ends the process. What is being rendered ends in an error."""
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
            if not self._closed:  # which ends it
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
        """The process, told of this template if there is one; a new one where there is none, or it has ended."""
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
    """The template would leave them out."""
    return InvalidRequest("chat.tools", f"{len(chat.tools)} tools", "none: the model's chat template takes no tools")


class _Worker:
    """The process, seen from the daemon. One thread's, but for `kill`."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.template: ChatTemplate | None = None  # that it was told of
        # -P: a folder in which the daemon was started must not be where its modules come from.
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
        """Raises ChildProcessError where it has ended, or says nothing in time; then it has."""
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
