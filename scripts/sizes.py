"""Counts the lines and files of the daemon and of the acceptance harness by top-level folder (room), without generated
code.

`python -m scripts.sizes` counts the working tree, `--at REVISION` a commit. A file counts for the same folder wherever
its package was in that commit.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ACCEPTANCE = "acceptance"
PACKAGES = {"daemon/draftd/": "", "acceptance/draftd_acceptance/": f"{ACCEPTANCE}/"}  # folder -> prefix of its rooms
GENERATED = "daemon/draftd/v1/"


def room_of(path: str) -> str | None:
    """Returns the top-level folder (room) of a file in the repository: "values" for a file directly in the package,
    None if the file is not counted."""
    for folder, prefix in PACKAGES.items():
        if path.startswith(folder) and path.endswith(".py") and not path.startswith(GENERATED):
            room, slash, _ = (prefix + path.removeprefix(folder)).partition("/")
            return room if slash else "values"
    return None


def count(files: Iterable[tuple[str, bytes]]) -> dict[str, tuple[int, int]]:
    """Returns (lines, files) for each top-level folder. `files` are (path in the repository, content)."""
    lines, number = Counter[str](), Counter[str]()
    for path, content in files:
        if (room := room_of(path)) is not None:
            lines[room] += len(content.splitlines())
            number[room] += 1
    return {room: (lines[room], number[room]) for room in sorted(number)}


def working_tree() -> Iterator[tuple[str, bytes]]:
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            yield path.relative_to(ROOT).as_posix(), path.read_bytes()


def revision(name: str) -> Iterator[tuple[str, bytes]]:
    """Yields the files of a commit as (path, content). Raises subprocess.CalledProcessError if it does not exist; git
    has printed why."""
    archive = subprocess.run(["git", "archive", name], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if room_of(member.name) is not None and (file := tar.extractfile(member)) is not None:
                yield member.name, file.read()


def table(counts: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Yields a heading, a line for each top-level folder, and the sums: of the daemon without the harness, and of
    both."""
    acceptance = counts.get(ACCEPTANCE, (0, 0))
    both = tuple(sum(column) for column in zip(*counts.values(), strict=True))
    daemon = tuple(all_ - one for all_, one in zip(both, acceptance, strict=True))
    for name, lines, files in (("room", "lines", "files"), *((room, *size) for room, size in counts.items())):
        yield f"{name:<12} {lines:>6} {files:>6}"
    yield f"{'daemon':<12} {daemon[0]:>6} {daemon[1]:>6}"
    yield f"{'both':<12} {both[0]:>6} {both[1]:>6}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--at", metavar="REVISION", help="count this commit instead of the working tree")
    at = parser.parse_args().at
    try:
        counts = count(working_tree() if at is None else revision(at))
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print(*table(counts), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
