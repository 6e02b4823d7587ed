"""Identifies a model to the last byte: the SHA-256 of each file, and the quantization in its configuration.

Files are hashed in place, in pieces, and only once unless they change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from draftd.errors import NotNow, NotServing
from draftd.files import remove_leftovers, replace_file
from draftd.models.folder import Stamp, model_files
from draftd.models.shards import HEAD_FOLDER

_PIECE_BYTES = 1 << 20  # hashed at a time, without Python's lock, so other threads run meanwhile
_ATTEMPTS = 3  # to read a file that changes meanwhile
_LEFT_SECONDS = 60.0  # after which a killed process's temporary file is deleted

_TOKENIZER_CONFIG = "tokenizer_config.json"
DECISIVE = ("weights", "config", "adapter")  # kinds of files that the model's results depend on
FILE = "fingerprints.json"  # in a user's state folder: hashes by all his daemons and ranks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileFingerprint:
    """One file's hash. `kind`: weights, config, tokenizer, chat_template, adapter."""

    name: str
    kind: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """A model's fingerprint. `quantization` reads "4 bits, groups of 64", or "none"."""

    quantization: str
    files: tuple[FileFingerprint, ...]


def digest(what: Any) -> str:
    """Returns the digest of a JSON value."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def model_digest(fingerprint: ModelFingerprint) -> str:
    """Returns the SHA-256 over the files that decide a model's results: equal for models that compute the same."""
    return digest([(file.name, file.bytes, file.sha256) for file in fingerprint.files if file.kind in DECISIVE])


class Fingerprints:
    """Computes fingerprints on its own thread, and remembers hashes. `submit`, `close` and `hashed_bytes` are for any
    thread, `of` for submitted work."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: a file that keeps hashes, shared with other processes."""
        self._path = path
        self._digests = dict[Path, tuple[Stamp, str]]()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-model-hash")
        self._closing = threading.Event()
        self.hashed_bytes = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Runs `work`, which calls `of`, on the hashing thread after earlier work: a large model takes a minute. The
        future raises NotServing after `close`."""
        try:
            return self._thread.submit(work)
        except RuntimeError:
            refused = Future[T]()
            refused.set_exception(_stopping())
            return refused

    def of(self, folder: Path, adapter: Path | None = None) -> ModelFingerprint:
        """Returns a model's fingerprint. Raises NotNow, naming the file, if one is unreadable or being written;
        NotServing once closed."""
        try:
            kinds, hashed = dict(model_files(folder, adapter)), self.hashed_bytes
            own = (folder, folder / HEAD_FOLDER, adapter)
            digests = self._read_digests() | self._digests
            self._digests = {file: each for file, each in digests.items() if file.parent not in own or file in kinds}
            files = [self._file(file, kind) for file, kind in kinds.items()]
            if self.hashed_bytes > hashed:
                self._remember()
            return ModelFingerprint(_quantization(folder), (*files, *_template(folder)))
        except OSError as error:
            raise NotNow(f"{Path(error.filename or folder).name}: {error.strerror}") from error

    def close(self) -> None:
        """Stops hashing after the current piece, and cancels waiting work."""
        self._closing.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read_digests(self) -> dict[Path, tuple[Stamp, str]]:
        """Returns the kept hashes; none if the file is missing or unreadable."""
        try:
            document = {} if self._path is None else json.loads(self._path.read_bytes())
            return {Path(file): (Stamp(**stamp), digest) for file, (stamp, digest) in document.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _remember(self) -> None:
        """Writes the hashes; does nothing if the disk is full."""
        if self._path is not None:
            digests = self._read_digests() | self._digests
            document = {
                str(file): (asdict(stamp), digest) for file, (stamp, digest) in digests.items() if file.exists()
            }
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                remove_leftovers(self._path, _LEFT_SECONDS)
                replace_file(self._path, json.dumps(document))

    def _file(self, file: Path, kind: str) -> FileFingerprint:
        for _ in range(_ATTEMPTS):
            stamp = Stamp.of(file)
            remembered = self._digests.get(file)
            if remembered is None or remembered[0] != stamp:
                remembered = stamp, self._hash_file(file, stamp.bytes)
                if Stamp.of(file) != stamp:
                    continue
                self._digests[file] = remembered
            return FileFingerprint(file.name, kind, stamp.bytes, remembered[1])
        raise NotNow(f"{file.name} is being written: try again when it is complete")

    def _hash_file(self, file: Path, size: int) -> str:
        """Returns the hash of a file's first `size` bytes, because a growing file would have no end."""
        digest, piece = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
        with file.open("rb", buffering=0) as source:
            while size > 0 and (read := source.readinto(piece[: min(size, _PIECE_BYTES)])):
                digest.update(piece[:read])
                size -= read
                self.hashed_bytes += read
                if self._closing.is_set():
                    raise _stopping()
        return digest.hexdigest()


def _stopping() -> NotServing:
    return NotServing("the daemon is stopping", retry_after=1.0)


def _template(folder: Path) -> list[FileFingerprint]:
    """Returns the chat template inside the tokenizer's configuration; several, with their names, as JSON."""
    template = _json(folder / _TOKENIZER_CONFIG).get("chat_template")
    if not template:
        return []
    content = (
        template if isinstance(template, str) else json.dumps(template, ensure_ascii=False, sort_keys=True)
    ).encode()
    digest = hashlib.sha256(content).hexdigest()
    return [FileFingerprint(f"{_TOKENIZER_CONFIG}#chat_template", "chat_template", len(content), digest)]


def _quantization(folder: Path) -> str:
    config = _json(folder / "config.json")
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}, _json(folder / "hf_quant_config.json")):
        for key in ("quantization", "quantization_config"):
            if isinstance(value := place.get(key), dict):
                return quantization(value)
    return "none"


def quantization(config: Mapping[str, Any]) -> str:
    """Describes the quantization. MLX's own form has `bits` and `group_size`, and entries for layers with other values;
    other forms name their method."""
    said = []
    if "bits" in config:
        said.append(f"{config['bits']} bits")
    if "group_size" in config:
        said.append(f"groups of {config['group_size']}")
    method = config.get("mode") or config.get("quant_method") or config.get("quant_algo")
    if method and method != "affine":
        said.append(str(method))
    if any(isinstance(one, dict) and "bits" in one for one in config.values()):
        said.append("some layers otherwise")
    return ", ".join(said) or "unknown"


def _json(path: Path) -> dict[str, Any]:
    """Reads JSON; empty if the file is missing or unreadable."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
        if isinstance(value := json.loads(path.read_bytes()), dict):
            return value
    return {}
