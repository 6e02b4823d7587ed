"""A run's folder: its files are kept, torn lines are mended, wrong ones are named."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftd.core import PROMPT_LOOKUP, FinishReason
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.ticks import Arm, MachineSample, ServerTiming, Stage, Tick
from tests.fake_ticks import drafted, granted, place, tick
from tests.synthetic_run import manifest

_FULL = tick(
    place("k4-prompt_lookup", "Grüße, 世界\n\u2028", repetition=3, session=2, group="a b", warm_up=True),
    [(0.1, 1), (1 / 3, 4)],
    elapsed=12.5,
    ended=0.7,
    reason=FinishReason.LENGTH,
    granted=granted(Arm(4, PROMPT_LOOKUP)),
    served=ServerTiming(0.1, None, 0.2, 0.9),
    counts=drafted(4, drafts=3, accepted=5, draft_seconds=0.01, verify_seconds=0.2),
    text='{"quoted": "\\n"}\n',
)
_BARE = tick(chunks=[], error="UNAVAILABLE: gone", reason=None)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


def of(stage: Stage, prompt: str) -> Tick:
    return tick(place(prompt=prompt, stage=stage))


def sample(stage: Stage, **readings: float) -> MachineSample:
    return MachineSample(stage, 1, "k4", 1.5, 1_700_000_000.0, **readings)  # type: ignore[arg-type]


def test_run_folder_reads_back_request_records_as_written(folder: RunFolder) -> None:
    folder.keep_tick(_FULL)
    folder.keep_tick(_BARE)
    assert RunFolder.open(folder.path).ticks(Stage.SWEEP) == [_FULL, _BARE]
    assert (folder.path / "sweep.jsonl").read_bytes().count(b"\n") == 2


def test_run_folder_separates_request_records_and_samples_by_stage(folder: RunFolder) -> None:
    for stage in Stage:
        folder.keep_tick(of(stage, f"of {stage}"))
        folder.keep_sample(sample(stage, resident=5))
    for stage in Stage:
        assert [t.place.prompt for t in folder.ticks(stage)] == [f"of {stage}"]
        assert folder.samples(stage) == [sample(stage, resident=5)]
    assert len(folder.samples()) == 3


def test_new_run_folder_has_no_records_samples_manifests_or_plan(folder: RunFolder) -> None:
    assert (folder.ticks(Stage.SOAK), folder.samples(), folder.manifests(), folder.plan(Stage.SWEEP)) == (
        [],
        [],
        {},
        None,
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_run_folder_drops_only_torn_last_line_and_appends_whole_line_after(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Killed at any byte: the lines before are there, and what is appended next is whole."""
    run = RunFolder.create(tmp_path_factory.mktemp("torn") / "run")
    kept = [_FULL, _BARE, of(Stage.SWEEP, "third")]
    for one in kept:
        run.keep_tick(one)
    file = run.path / "sweep.jsonl"
    whole = file.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    file.write_bytes(whole[:cut])
    left = whole[:cut].count(b"\n")
    assert run.ticks(Stage.SWEEP) == kept[:left]
    run.keep_tick(_FULL)
    assert run.ticks(Stage.SWEEP) == [*kept[:left], _FULL]
    assert file.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{not json", "line 2"),
        (b'{"place": {}}', "line 2: place"),
        (b"[]", "line 2"),
        (None, "line 2: chunks"),
    ],
)
def test_run_folder_error_names_file_and_number_of_invalid_line(
    folder: RunFolder, line: bytes | None, said: str
) -> None:
    """A wrong line in the middle cannot come from a kill: it is an error, not skipped."""
    for prompt in "abc":
        folder.keep_tick(of(Stage.SWEEP, prompt))
    file = folder.path / "sweep.jsonl"
    lines = file.read_bytes().splitlines()
    lines[1] = lines[1].replace(b'"chunks":[', b'"chunks":["many",') if line is None else line
    file.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(RunError) as refused:
        folder.ticks(Stage.SWEEP)
    assert said in refused.value.field
    assert "sweep.jsonl" in refused.value.field
    assert len(str(refused.value)) < 400


def test_run_folder_appends_whole_lines_from_concurrent_threads(folder: RunFolder) -> None:
    def keep(thread: int) -> None:
        for i in range(50):
            folder.keep_tick(of(Stage.SOAK, f"{thread}-{i}"))
            folder.keep_sample(sample(Stage.SOAK, resident=thread))

    threads = [threading.Thread(target=keep, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = [t.place.prompt for t in folder.ticks(Stage.SOAK)]
    assert sorted(found) == sorted(f"{n}-{i}" for n in range(4) for i in range(50))
    for n in range(4):
        own = [name for name in found if name.startswith(f"{n}-")]
        assert own == [f"{n}-{i}" for i in range(50)]
    assert len(folder.samples(Stage.SOAK)) == 200


def test_run_folder_numbers_sessions_and_stores_manifest_of_each(folder: RunFolder) -> None:
    first, second = manifest(), manifest(created="2027-01-01T00:00:00+00:00", low_power=None)
    assert [folder.begin_session(one) for one in (first, second, first)] == [1, 2, 3]
    assert RunFolder.open(folder.path).manifests() == {1: first, 2: second, 3: first}
    assert RunFolder.open(folder.path).begin_session(second) == 4


def test_run_folder_error_names_file_and_field_of_invalid_manifest(folder: RunFolder) -> None:
    folder.begin_session(manifest())
    (folder.path / "manifests" / "0001.json").write_text('{"created": 5}')
    with pytest.raises(RunError, match="0001.json: created"):
        folder.manifests()


def test_run_folder_refuses_plan_that_differs_from_frozen_plan(folder: RunFolder) -> None:
    plan = {"repetitions": 3, "blocks": (0, 2, 4), "file": None}
    folder.freeze_plan(Stage.SWEEP, plan)
    assert folder.plan(Stage.SWEEP) == {"repetitions": 3, "blocks": [0, 2, 4], "file": None}
    folder.freeze_plan(Stage.SWEEP, plan)
    folder.freeze_plan(Stage.SWEEP, {"file": None, "blocks": [0, 2, 4], "repetitions": 3})
    folder.freeze_plan(Stage.SOAK, {"repetitions": 9})
    before = (folder.path / "sweep.json").read_bytes()
    for name, other in (("repetitions", 4), ("blocks", [0, 2]), ("temperature", 0.8)):
        with pytest.raises(RunError, match=f"sweep: {name}: got {other!r}".replace("[", r"\[")) as refused:
            folder.freeze_plan(Stage.SWEEP, plan | {name: other})
        assert "as this run began with" in refused.value.allowed
    with pytest.raises(RunError, match="sweep: repetitions: not set"):
        folder.freeze_plan(Stage.SWEEP, {"blocks": [0, 2, 4]})
    assert (folder.path / "sweep.json").read_bytes() == before


def test_run_folder_is_created_only_in_new_or_empty_directory(tmp_path: Path) -> None:
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter1.txt").write_text("…")
    with pytest.raises(RunError, match="thesis: got .something else"):
        RunFolder.create(other)
    file = tmp_path / "file"
    file.write_text("…")
    with pytest.raises(RunError, match="file: got"):
        RunFolder.create(file)
    assert (other / "chapter1.txt").read_text() == "…"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert RunFolder.create(empty, "first light").name == "first light"
    assert RunFolder.open(empty).name == "first light"
    assert RunFolder.create(tmp_path / "a" / "b").name == "b"
    with pytest.raises(RunError, match="a run to resume"):
        RunFolder.create(empty)


@pytest.mark.parametrize("content", [None, "{", "[]", '"run"', '{"format": 2}', "{}"])
def test_run_folder_open_refuses_directory_without_valid_run_json(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunError) as refused:
        RunFolder.open(tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_run_folder_write_replaces_file_and_leaves_no_temporary_file(folder: RunFolder) -> None:
    folder.write("report.md", "old and long")
    assert folder.write("report.md", "new").read_text() == "new"
    assert {path.name for path in folder.path.iterdir()} == {"run.json", "report.md"}


def test_run_folder_stores_records_as_json_lines_with_readable_field_names(folder: RunFolder) -> None:
    """Plain JSON, one object a line, with names that say what is meant."""
    folder.keep_tick(_FULL)
    folder.keep_sample(sample(Stage.SWEEP, resident=5))
    line = json.loads((folder.path / "sweep.jsonl").read_text(encoding="utf-8"))
    assert line["place"]["arm"] == "k4-prompt_lookup"
    assert line["place"]["prompt"] == "Grüße, 世界\n\u2028"
    assert line["chunks"][1] == {"at": 1 / 3, "tokens": 4, "from_draft": 3}
    assert line["granted"]["drafter"] == "prompt_lookup"
    assert json.loads((folder.path / "machine.jsonl").read_text())["watts"] is None
