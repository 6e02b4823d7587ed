"""Reads prompts and response formats, on threads of its own where that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from draftd.engine.handle import EngineHandle
from draftd.models.tokenizer import Tokenizer
from draftd.service.answer import ReadingOptions
from draftd.service.chat_template import ChatRenderer
from draftd.service.formats import Constraint, constraint_of
from draftd.service.request import Prompt, Request, ServedModel
from draftd.service.text import echoed_prompt, tokenise

_GRAMMAR_SECONDS = 1.0  # wait after the model is loaded, for a first request that may be waiting


class PromptReader:
    """Tokenises prompts and compiles grammars. Event loop only."""

    def __init__(self, worker: EngineHandle) -> None:
        self._worker = worker
        self._tokenising = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-tokenise")
        self._compiling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-grammar")
        self._chats = ChatRenderer()
        self._grammars_ahead: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the process for chat templates, which needs no loaded model."""
        self._chats.start()

    def prepare(self) -> None:
        """Prepares the chat template once the model is loaded. The grammar compiler is prepared a second later, because
        this blocks the process for up to a second. If its preparation fails, a request for a grammar reports that."""
        if (template := self._worker.tokenizer.template) is not None:
            self._chats.prepare(template)
        else:
            self._chats.stop()
        if (grammars := self._worker.grammars) is not None:
            later = asyncio.get_running_loop().call_later
            self._grammars_ahead = later(_GRAMMAR_SECONDS, self._compiling.submit, grammars.prepare)

    def close(self) -> None:
        """Ends the process for chat templates, and the threads."""
        self._chats.close()
        if self._grammars_ahead is not None:
            self._grammars_ahead.cancel()
        for executor in (self._tokenising, self._compiling):
            executor.shutdown(wait=False, cancel_futures=True)

    async def tokenise(self, prompt: Prompt, tokenizer: Tokenizer, model: ServedModel, client: str) -> tuple[int, ...]:
        """Returns the prompt's tokens. Raises InvalidRequest and EngineFailure."""
        return await tokenise(prompt, tokenizer, model, self._tokenising, self._chats, client)

    async def constraint(self, request: Request, reading: ReadingOptions | None) -> Constraint:
        """Returns what the answer must follow. Raises InvalidRequest if that cannot be enforced."""
        return await constraint_of(request, reading, self._worker.grammars, self._compiling)

    async def echo(self, request: Request, ids: Sequence[int], tokenizer: Tokenizer) -> tuple[str, Sequence[int]]:
        """Returns the prompt's text that the answer begins with, and where its tokens begin; see `echoed_prompt`."""
        return await echoed_prompt(request, ids, tokenizer, self._tokenising)
