"""Models on the hub: which of a model's files are used, what the cache has of them, and why a model is unavailable."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from draftd.errors import ModelLoadError, in_one_line
from draftd.models.shards import WEIGHTS, head_names, indexed_files, surplus

_ADAPTER = ("adapter_config.json", "adapters.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TEMPLATES = "additional_chat_templates/"  # the only subfolder that is read, besides a draft head's
REVISION = "main"
ANSWER_SECONDS = 10.0  # seconds for the hub to start an answer, and between two pieces of it

_MLX_VERSION = "look for an MLX version of it, as mlx-community has: https://huggingface.co/mlx-community"
_LATER = "try again later: what was downloaded is kept, and is continued"


def is_hub_id(path: str) -> bool:
    """Whether a path is OWNER/NAME on the hub: it looks like that, and no such file or folder exists."""
    return re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", path) is not None and not Path(path).exists()


def no_model_name(path: str) -> ModelLoadError | None:
    """Returns the error for a path that can be neither a folder nor a hub id; None if it may be one."""
    file = Path(path).expanduser()
    if file.is_file():
        if file.suffix == ".gguf":
            return ModelLoadError("a GGUF file, which draftd does not read", _MLX_VERSION)
        return ModelLoadError("a file, where a folder should be", f"give the folder that it is in: {file.parent}")
    if url := re.match(r"(?:hf:/+|(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/)([\w.-]+/[\w.-]+)", path):
        return ModelLoadError("a web address, where a name should be", f"give {url[1]}")
    if re.match(r"\w+:/", path):
        return ModelLoadError("a web address, where a name should be", "give a folder, or OWNER/NAME on the hub")
    if re.fullmatch(r"([\w.-]+/)?[\w.-]+:[\w.-]+", path):
        return ModelLoadError("a name of Ollama's, whose models are GGUF files; draftd reads none", _MLX_VERSION)
    if match := re.fullmatch(r"([\w.-]+/[\w.-]+)@([\w./-]+)", path):
        what = f"a hub id with a revision, and only revision {REVISION} is served"
        return ModelLoadError(what, _other_revision(match[1], match[2]))
    return None


def _other_revision(repo: str, revision: str) -> str:
    return f"run `hf download {repo} --revision {revision} --local-dir FOLDER`, and give that folder"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model's files in the cache, as far as known without the hub. `folder`: None if there is none. `total`: bytes of
    the whole model; 0 if unknown. `headless`: its draft head is missing, without which it is whole."""

    folder: Path | None = None
    whole: bool = False
    bytes: int = 0
    total: int = 0
    headless: bool = False

    @property
    def missing(self) -> int:
        """Bytes that are missing."""
        return self.total - self.bytes

    def __str__(self) -> str:
        if self.total and not self.whole:
            return f"{share(self.bytes, self.total)} are in the hub's cache"
        return "it is in the hub's cache" if self.whole else "it is not in the hub's cache"


def find_cached(repo: str, *, adapter: bool = False) -> CachedModel:
    """Returns what the cache has, without asking the hub."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    if (folder := cached_folder(repo)) is None:
        return CachedModel()
    there = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    weights = {name for name in there if name in _ADAPTER or fnmatchcase(name, WEIGHTS)}
    try:
        listed = {one.path: one.size for one in get_cached_repo_tree(repo)}
    except CachedRepoTreeNotFoundError:  # downloaded by an older huggingface_hub
        return CachedModel(folder, bool(weights) and indexed_files(folder) <= weights)
    files = {name: listed[name] for name in needed_files(listed, adapter, folder)}
    missing = files.keys() - there.keys()
    blobs = storage_folder(repo).glob("blobs/*.incomplete")
    partial = sum(file.stat().st_size for file in blobs) if missing else 0
    total = sum(files.values())
    done = min(total, partial + sum(files[name] for name in files.keys() - missing))
    whole = bool(weights) and missing <= set(head_names(folder, files))
    return CachedModel(folder, whole, done, total, whole and bool(missing))


def cached_folder(repo: str) -> Path | None:
    """Returns the cache's folder of a model, complete or not."""
    storage = storage_folder(repo)
    try:
        return storage / "snapshots" / (storage / "refs" / REVISION).read_text().strip()
    except OSError:
        return None


def storage_folder(repo: str) -> Path:
    """Returns the storage folder of a model in the cache, whose layout is documented:
    https://huggingface.co/docs/huggingface_hub/guides/manage-cache"""
    return cache_folder() / f"models--{repo.replace('/', '--')}"


def cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser().resolve()


def needed_files(names: Collection[str], adapter: bool, folder: Path | None = None) -> list[str]:
    """Returns the files that draftd reads: no code, no pickles. `folder`: has the index, by which some weights are left
    out."""
    if adapter:
        return [name for name in names if name in _ADAPTER]
    from draftd.models.mlx_lm import DEFAULT_ALLOW_PATTERNS

    patterns = [pattern for pattern in DEFAULT_ALLOW_PATTERNS if pattern != "*.py"]
    needed = [name for name in names if "/" not in name.removeprefix(_TEMPLATES)]
    needed = [name for name in needed if any(fnmatchcase(name, pattern) for pattern in patterns)]
    needed += [name for name in head_names(folder, names) if name not in needed]
    if folder is None:
        return needed
    unread = surplus(folder, (name for name in needed if fnmatchcase(name, WEIGHTS)))
    return [name for name in needed if name not in unread]


def check_files(names: Collection[str], adapter: bool = False) -> None:
    """Raises ModelLoadError if none of a model's files has weights that draftd reads."""

    def first(*patterns: str) -> str:
        return next((name for name in sorted(names) if any(fnmatchcase(name, one) for one in patterns)), "")

    if adapter:
        if not set(_ADAPTER) <= set(names):
            peft = first("adapter_model.*")
            also = f"; {peft} is PEFT's, which mlx-lm does not read" if peft else ""
            raise ModelLoadError(f"no {_ADAPTER[1]} among its files{also}", "give an adapter that `mlx_lm.lora` made")
        return
    if any(fnmatchcase(name, WEIGHTS) and "/" not in name for name in names):
        return
    if gguf := first("*.gguf"):
        raise ModelLoadError(f"it has only GGUF files, such as {gguf}, which draftd does not read", _MLX_VERSION)
    if first(*_ADAPTER, "adapter_model.*"):
        what = "this is an adapter, which changes the weights of another model, and no whole model"
        raise ModelLoadError(what, "give it as --adapter-path beside its base model")
    if pickle := first(*_PICKLES):
        what = f"its weights are pickles, such as {pickle}, which may hold code: draftd reads none"
        raise ModelLoadError(what, _MLX_VERSION)
    raise ModelLoadError(f"no {WEIGHTS} among its files", _MLX_VERSION)


def free_bytes(folder: Path) -> int:
    """Returns the free bytes on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def no_room(needed: int, free: int, folder: Path) -> ModelLoadError:
    what = f"{amount(needed)} are still to be downloaded, and {amount(free)} are free on the disk of {folder.parent}"
    return ModelLoadError(what, "free some space, or set HF_HOME to a folder on another disk")


def explain_error(error: BaseException, repo: str) -> ModelLoadError:
    """Returns the error for a failure of the hub, the network or the disk, with the remedy."""
    import httpx2
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case ModelLoadError():
            return error
        case LocalEntryNotFoundError() if error.__cause__ is not None:
            return explain_error(error.__cause__, repo)
        case GatedRepoError():
            return _gated_error(error.response.status_code, repo)
        case RepositoryNotFoundError():
            what = "no such folder, and the hub shows no such model"
            return ModelLoadError(what, "correct the name, or run `hf auth login` if it is not public")
        case RevisionNotFoundError():
            return ModelLoadError(f"it has no revision {REVISION} on the hub", _other_revision(repo, "REVISION"))
        case HFValidationError():
            return ModelLoadError("this cannot be a hub id", "give a model's folder, or its OWNER/NAME on the hub")
        case HfHubHTTPError():
            return _refused_error(error.response)
        case httpx2.TransportError():
            what = f"the hub cannot be reached ({_in_words(error)})"
            return ModelLoadError(what, f"look at the network, and {_LATER}")
        case TimeoutError():
            return ModelLoadError("the hub does not answer", f"look at the network, and {_LATER}")
        case OSError() if error.errno == errno.ENOSPC:
            storage = storage_folder(repo)
            there = find_cached(repo)
            return no_room(there.missing, free_bytes(storage), storage)
        case OSError() if error.errno is not None:
            cure = "look at its permissions, or set HF_HOME to another folder"
            return ModelLoadError(f"the hub's cache {cache_folder()} cannot be used ({os.strerror(error.errno)})", cure)
    cure = "look at the connection, or give a folder"
    return ModelLoadError(f"it cannot be downloaded from the hub: {in_one_line(error)}", cure)


def _gated_error(status: int, repo: str) -> ModelLoadError:
    from huggingface_hub import constants

    page, what = f"{constants.ENDPOINT}/{repo}", "the hub gives it only to those who have accepted its licence"
    if status == 401:
        return ModelLoadError(f"{what}, and does not know you", f"run `hf auth login`, and accept it at {page}")
    cure = f"accept it at {page}, or run `hf auth login` with another account"
    return ModelLoadError(f"{what}, and your account has not", cure)


def _refused_error(response: Any) -> ModelLoadError:
    match response.status_code:
        case 401:
            what, cure = "the hub does not take this machine's token", "run `hf auth login` again, or unset HF_TOKEN"
        case 403:
            what, cure = "your token may not read it (403)", "give the token that right, or run `hf auth login`"
        case 429:
            retry_after = response.headers.get("Retry-After", "")
            when = f"in {span(float(retry_after))}" if retry_after.isdecimal() else "later"
            what, cure = "the hub had too many requests from here (429)", f"try again {when}, or run `hf auth login`"
        case status:
            what, cure = f"the hub has a fault of its own ({status})", _LATER
    return ModelLoadError(what, cure)


def _in_words(error: BaseException) -> str:
    """Describes why a connection failed, in the system's words."""
    import httpx2

    if isinstance(error, httpx2.TimeoutException):
        return f"no answer within {ANSWER_SECONDS:g} s"
    causes = list[str]()
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            causes.append(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return causes[-1] if causes else "the connection was cut"


def share(done: int, total: int) -> str:
    """Describes progress: 84 of 269 MB."""
    whole = amount(total)
    digits, divisor = _UNITS[whole.split()[1]]
    return f"{done / divisor:.{digits}f} of {whole}"


_UNITS = {"GB": (1, 1e9), "MB": (0, 1e6), "KB": (0, 1e3)}  # decimal places, bytes


def amount(count: int) -> str:
    unit = "GB" if count >= 1e9 else "MB" if count >= 1e6 else "KB"
    digits, divisor = _UNITS[unit]
    return f"{count / divisor:.{digits}f} {unit}"


def span(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
