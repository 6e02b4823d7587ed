"""The counts of lines and files by room, of the working tree and of a commit."""

from __future__ import annotations

from scripts.sizes import count, revision, table, working_tree

FILES = [
    ("daemon/draftd/core.py", b"1\n2\n"),
    ("daemon/draftd/engine/loop.py", b"1\n2\n3\n"),
    ("daemon/draftd/engine/cache/base.py", b"1\n"),
    ("daemon/draftd/engine/notes.md", b"1\n"),
    ("daemon/draftd/v1/control_pb2.py", b"1\n"),
    ("acceptance/draftd_acceptance/__init__.py", b"1\n"),
    ("acceptance/draftd_acceptance/gate/spec.py", b"1\n2\n"),
    ("tests/conftest.py", b"1\n"),
]
BEFORE = [(path.replace("acceptance/draftd_acceptance", "daemon/draftd/acceptance"), text) for path, text in FILES]


def test_line_count_excludes_tests_generated_code_and_non_python_files() -> None:
    assert count(FILES) == {"acceptance": (3, 2), "engine": (4, 2), "values": (2, 1)}


def test_line_count_of_acceptance_package_is_same_at_former_and_current_folder() -> None:
    assert count(BEFORE) == count(FILES)


def test_line_count_table_ends_with_daemon_total_and_grand_total() -> None:
    assert [line.split() for line in table(count(FILES))][-2:] == [["daemon", "6", "3"], ["both", "9", "5"]]


def test_line_count_covers_both_commit_and_working_tree() -> None:
    for counts in (count(revision("HEAD")), count(working_tree())):
        assert {"acceptance", "engine", "values"} <= counts.keys()
