"""Downloads a hub model's files that the cache lacks.

huggingface_hub names the files and lays out the cache. Files in Git LFS, the large ones, are downloaded here, because
huggingface_hub 2 writes each attempt to a new random file and starts over after an interruption. Here a file has one
partial file in the cache, which the next attempt of any process continues, and its SHA-256 is checked.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from draftd.errors import ModelLoadError
from draftd.models.hub import (
    ANSWER_SECONDS,
    REVISION,
    CachedModel,
    amount,
    cache_folder,
    check_files,
    explain_error,
    find_cached,
    free_bytes,
    needed_files,
    no_room,
    share,
    span,
    storage_folder,
)

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub.hf_api import ModelInfo

_STREAMS = 4  # files at a time
_SMALL_SECONDS = 300.0  # for all files outside Git LFS
_SILENT_SECONDS = 120.0  # without receiving a byte, before the download fails
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0  # between attempts
_ATTEMPTS = 3
_LOOK_SECONDS, _RATE_SECONDS = 0.5, 10.0  # between two checks of the files; span of the measured rate
_STALE_SECONDS = 3600.0  # older partial files belong to no running download
_BUSY = (408, 429, 500, 502, 503, 504)
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

_log = logging.getLogger(__name__)

Progress = Callable[[str], None]
Answer = TypeVar("Answer")


def download(
    repo: str, *, adapter: bool = False, offline: bool = False, progress: Progress = lambda line: None
) -> Path:
    """Returns the complete folder of a model or an adapter, after downloading missing files. A complete copy is used if
    the hub does not give a newer one. `progress` receives a line for people twice a second. Raises ModelLoadError.
    `offline`: only looks in the cache."""
    from huggingface_hub import constants

    there = find_cached(repo, adapter=adapter)
    if offline or constants.is_offline_mode():
        if there.folder is not None and there.whole:
            return there.folder
        set_by = "" if offline else next((f"{name} is set, and " for name in _OFFLINE if os.environ.get(name)), "")
        cure = f"unset {set_by.split()[0]}" if set_by else f"run `hf download {repo}`, or serve it"
        raise ModelLoadError(f"{set_by}{there}", f"{cure}, or give a folder")
    try:
        return _Download(repo, adapter, progress).run(there)
    except Exception as error:
        why = explain_error(error, repo)
        if there.folder is None or not there.whole:
            raise why from error
        _log.warning("%s: %s; the model's copy in the cache is served", repo, why.what)
        return there.folder


@dataclass(frozen=True, slots=True)
class _Blob:
    """A file in Git LFS and its place in the cache: `path` once complete, `partial` until then."""

    name: str
    size: int
    sha256: str
    path: Path

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{self.sha256}.incomplete")

    @property
    def there(self) -> int:
        """Bytes downloaded so far."""
        for file in (self.path, self.partial):
            try:
                return min(self.size, file.stat().st_size)
            except OSError:
                continue
        return 0


class _Stopped(Exception):
    """Raised when the download was stopped from outside."""


class _Download:
    """Downloads the missing files of one model."""

    def __init__(self, repo: str, adapter: bool, progress: Progress) -> None:
        self._repo, self._adapter, self._progress = repo, adapter, progress
        self._storage, self._stop = storage_folder(repo), threading.Event()

    def run(self, there: CachedModel) -> Path:
        """Returns the folder. `there`: the cache's present contents. Raises ModelLoadError, and errors of the hub and
        the disk."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars
        from huggingface_hub.utils import logging as hub_logging

        # draftd reports progress and errors itself; two voices would confuse the log.
        disable_progress_bars()
        hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        for _ in range(_ATTEMPTS):
            info = _retry(self._list_files)
            if there.folder is not None and there.whole and not there.headless and there.folder.name == info.sha:
                return there.folder
            sizes = {one.rfilename: one.size or 0 for one in info.siblings or []}
            check_files(sizes, self._adapter)
            large = {one.rfilename for one in info.siblings or [] if one.lfs is not None}
            small = [name for name in needed_files(sizes, self._adapter) if name not in large]
            # This also writes the listing and the revision to the cache, for `find_cached`.
            get_small = partial(snapshot_download, self._repo, allow_patterns=small, etag_timeout=ANSWER_SECONDS)
            folder = Path(_within(_SMALL_SECONDS, partial(_retry, get_small)))
            if folder.name == info.sha:  # otherwise the model was changed in between
                break
        else:
            raise TimeoutError
        needed = needed_files(sizes, self._adapter, folder)
        missing = [name for name in needed if name in large and not (folder / name).is_file()]
        if missing:
            blobs = [_blob(info, name, self._storage / "blobs") for name in missing]
            self._download(blobs, str(info.sha), sum(sizes[name] for name in needed))
        return folder

    def _list_files(self) -> ModelInfo:
        from huggingface_hub import HfApi

        return HfApi().model_info(self._repo, revision=REVISION, files_metadata=True, timeout=ANSWER_SECONDS)

    def _download(self, blobs: Collection[_Blob], commit: str, total: int) -> None:
        """Downloads the files in parallel. `total`: bytes of all files of the model."""
        (self._storage / "blobs").mkdir(parents=True, exist_ok=True)
        self._remove_stale({blob.partial for blob in blobs})
        needed = sum(blob.size - blob.there for blob in blobs)
        if needed > (free := free_bytes(self._storage)):
            raise no_room(needed, free, self._storage)
        began, rate = time.monotonic(), _Rate(total - needed)
        with ThreadPoolExecutor(_STREAMS, "draftd-download") as pool:
            jobs = [pool.submit(self._one, blob, commit) for blob in blobs]
            try:
                running = set(jobs)
                while running:
                    self._report(blobs, total, rate)
                    done, running = wait(running, _LOOK_SECONDS, FIRST_EXCEPTION)
                    for job in done:
                        job.result()
            finally:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
        _log.info("downloaded %s: %s in %s", self._repo, amount(needed), span(time.monotonic() - began))

    def _report(self, blobs: Collection[_Blob], total: int, rate: _Rate) -> None:
        """Reports the bytes on disk; another process may be the one downloading."""
        left = sum(blob.size - blob.there for blob in blobs)
        speed = rate.of(total - left)
        how_far = f"downloading {self._repo}: {share(total - left, total)}"
        if speed is None:
            self._progress(how_far)
        elif speed:
            self._progress(f"{how_far}, {speed / 1e6:.1f} MB/s, {span(left / speed)} left")
        else:
            self._progress(f"{how_far}, nothing came for {_RATE_SECONDS:.0f} s")

    def _one(self, blob: _Blob, commit: str) -> None:
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.utils import WeakFileLock

        if blob.size <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            # The lock that huggingface_hub also uses for this file.
            lock = cache_folder() / ".locks" / self._storage.name / f"{blob.sha256}.lock"
            lock.parent.mkdir(parents=True, exist_ok=True)
            with WeakFileLock(lock):
                if not blob.path.exists():
                    self._receive(blob, commit)
                    blob.partial.replace(blob.path)
        # Links it. A file that is too large for the hub to give by HTTP is downloaded here, from its beginning, by Xet.
        _retry(partial(hf_hub_download, self._repo, blob.name, revision=commit, etag_timeout=ANSWER_SECONDS))

    def _receive(self, blob: _Blob, commit: str) -> None:
        """Downloads the rest of a partial file, and checks the whole."""
        import httpx2
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError

        url = hf_hub_url(self._repo, blob.name, revision=commit)
        # A client of its own: huggingface_hub closes the one that all threads share when any of them cannot connect.
        with httpx2.Client(follow_redirects=True, timeout=ANSWER_SECONDS) as client, blob.partial.open("ab") as file:
            if file.tell() > blob.size:
                file.truncate(0)
            heard, failures, short = time.monotonic(), 0, 0
            while (begin := file.seek(0, os.SEEK_END)) < blob.size:
                if self._stop.is_set():
                    raise _Stopped
                try:
                    self._stream(client, url, file, begin, blob.size)
                    short += 1
                    if short == _ATTEMPTS and file.tell() < blob.size:
                        raise _other_file(blob)
                except (httpx2.TransportError, HfHubHTTPError) as error:
                    if isinstance(error, HfHubHTTPError) and error.response.status_code == 416:
                        raise _other_file(blob) from None
                    if file.tell() > begin:
                        heard, failures = time.monotonic(), 0
                    failures += 1
                    pause = _pause(error, failures)
                    if pause is None or time.monotonic() + pause - heard > _SILENT_SECONDS:
                        raise
                    self._stop.wait(pause)
        with blob.partial.open("rb") as file:
            if begin > blob.size or hashlib.file_digest(file, "sha256").hexdigest() != blob.sha256:
                raise _other_file(blob)

    def _stream(self, client: httpx2.Client, url: str, file: BinaryIO, begin: int, end: int) -> None:
        """Receives a file from byte `begin` on in one HTTP response. Stops reading a response that exceeds `end`."""
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if begin:
            headers["Range"] = f"bytes={begin}-"
        with client.stream("GET", url, headers=headers) as response:
            hf_raise_for_status(response)
            if begin and response.status_code != 206:  # the hub ignored the range: this is the file from its beginning
                file.truncate(0)
            for piece in response.iter_bytes():
                if self._stop.is_set():
                    raise _Stopped
                file.write(piece)
                file.flush()  # for the next attempt, and for `_report`
                if file.tell() > end:
                    return

    def _remove_stale(self, wanted: Collection[Path]) -> None:
        """Deletes partial files left by killed downloads."""
        for file in (self._storage / "blobs").glob("*.incomplete"):
            if file not in wanted and time.time() - file.stat().st_mtime > _STALE_SECONDS:
                file.unlink(missing_ok=True)


def _within(seconds: float, call: Callable[[], str]) -> str:
    """Calls `call`. After `seconds` raises TimeoutError and leaves the call behind: huggingface_hub lists files without
    a time limit."""
    answer = Future[str]()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="draftd-download-small", daemon=True).start()
    return answer.result(seconds)


def _retry(call: Callable[[], Answer]) -> Answer:
    """Calls `call`, up to _ATTEMPTS times if the connection breaks or the hub is busy; a timeout is not retried. The
    connections of huggingface_hub are shared: a call of another thread that cannot connect closes all of them."""
    import httpx2
    from huggingface_hub.errors import LocalEntryNotFoundError

    for failures in range(1, _ATTEMPTS):
        try:
            return call()
        except Exception as error:
            cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
            if not isinstance(cause, Exception) or isinstance(cause, httpx2.TimeoutException):
                raise
            if (pause := _pause(cause, failures)) is None:
                raise
            time.sleep(pause)
    return call()


class _Rate:
    """Bytes per second over the last seconds."""

    def __init__(self, done: int) -> None:
        self._seen = deque([(time.monotonic(), done)])

    def of(self, done: int) -> float | None:
        """Returns the rate; None until something was received, 0 after a while without data."""
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > _RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        if done > before:
            return (done - before) / (now - since)
        return 0.0 if now - since >= _RATE_SECONDS else None


def _blob(info: ModelInfo, name: str, folder: Path) -> _Blob:
    lfs = next(one.lfs for one in info.siblings or [] if one.rfilename == name)
    assert lfs is not None
    return _Blob(name, lfs.size, lfs.sha256, folder / lfs.sha256)


def _other_file(blob: _Blob) -> ModelLoadError:
    """Deletes what was received, so that the next attempt starts over, and returns the error."""
    blob.partial.unlink(missing_ok=True)
    what = f"the hub sent another file than the {blob.name} of {blob.size:,} bytes that it lists (SHA-256, size)"
    return ModelLoadError(what, "try again: this file is downloaded from its beginning")


def _pause(error: Exception, failures: int) -> float | None:
    """Returns the seconds until the next attempt; None if none would help."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    pause: float = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
    if isinstance(error, httpx2.TransportError):
        return pause
    if not isinstance(error, HfHubHTTPError):
        return None
    if error.response.status_code not in _BUSY:
        return None
    retry_after: str = error.response.headers.get("Retry-After", "")
    seconds = max(pause, float(retry_after)) if retry_after.isdecimal() else pause
    return None if seconds > _LONGEST_PAUSE_SECONDS else seconds
