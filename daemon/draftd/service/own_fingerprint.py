"""The fingerprints of the served model and of its tokenizer, by which other daemons compare them with theirs."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import NamedTuple

from draftd.engine.handle import EngineHandle
from draftd.errors import DraftdError, NotServing
from draftd.models.fingerprint import digest, model_digest
from draftd.models.folder import ModelFiles

_WAIT_SECONDS = 2.0  # longest wait of a caller
_RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)


class ServedFingerprint(NamedTuple):
    """SHA-256 digests of the model's files, and of the vocabulary."""

    model: str
    tokenizer: str


class OwnFingerprint:
    """The served model's fingerprint. It is computed once, and again only if the weights were reloaded from other
    files. Event loop only."""

    def __init__(self, worker: EngineHandle) -> None:
        self._worker = worker
        self._taken: tuple[ModelFiles | None, asyncio.Future[ServedFingerprint]] | None = None

    def begin(self) -> asyncio.Future[ServedFingerprint]:
        """Begins computing the fingerprint, unless that has been done; returns its future. Raises NotServing until the
        model is loaded."""
        files = self._worker.files.target
        if self._taken is None or self._taken[0] != files:
            self._taken = files, asyncio.wrap_future(self._worker.fingerprints.submit(partial(self._compute, files)))
        return self._taken[1]

    async def get(self) -> ServedFingerprint:
        """Returns the fingerprint. Raises NotServing if it cannot be computed, or is not ready after a short wait."""
        taken = self.begin()
        await asyncio.wait([taken], timeout=_WAIT_SECONDS)
        if not taken.done():
            raise NotServing("the model's files are being hashed for its fingerprint", retry_after=_RETRY_SECONDS)
        try:
            return taken.result()
        except DraftdError as error:
            self._taken = None
            raise NotServing(f"the model has no fingerprint: {error.message}", retry_after=_RETRY_SECONDS) from None

    async def vocabulary(self) -> list[bytes]:
        """All tokens by id. Raises NotServing."""
        return list(await asyncio.to_thread(self._worker.tokenizer.vocabulary))

    def _compute(self, files: ModelFiles | None) -> ServedFingerprint:
        info, tokenizer = self._worker.info, self._worker.tokenizer.fingerprint
        if files is None or files.stamps is None:
            what = ["made in memory", info.model, info.architecture, info.vocab_size, info.weight_bytes]
            return ServedFingerprint(digest(what), tokenizer)
        model = model_digest(self._worker.fingerprints.of(files.folder, files.adapter))
        if files.changed:
            log.warning(
                "the files of %s have changed since they were read; its fingerprint does not match them", info.model
            )
            model = digest(["read before", sorted((name, str(stamp)) for name, stamp in files.stamps.items())])
        return ServedFingerprint(model, tokenizer)
