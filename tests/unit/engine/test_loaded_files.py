"""What a draft in use was read from is known, however it came and went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, DrafterName
from draftd.errors import ModelLoadError, NotServing
from draftd.models.folder import ModelFiles, PairFiles
from tests.scripted import scripted_models

DRAFT, LIGHT = DRAFT_MODEL, LIGHT_DRAFT_MODEL
NONE: frozenset[DrafterName] = frozenset()


class Folder:
    """A source with a file of its own, which is changed before it is read where a test says so."""

    name = "draft"

    def __init__(self, folder: Path, model: object) -> None:
        folder.mkdir()
        self.folder, self.model, self.broken, self.late = folder, model, False, False
        self.deploy()

    def deploy(self) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text("weights")
        fresh.replace(self.folder / "model.safetensors")

    def files(self) -> ModelFiles:
        return ModelFiles.of(self.folder)

    def open(self) -> object:
        if self.broken:
            raise ModelLoadError("draft: it cannot be read")
        if self.late:
            self.deploy()
        return self.model


@pytest.fixture
def engine(running, tmp_path):
    models = scripted_models(0.7, light_acceptance=0.5)
    draft = Folder(tmp_path / "draft", models.draft)
    light = Folder(tmp_path / "light", models.sources[LIGHT].open())
    target = Folder(tmp_path / "target", None)
    files = PairFiles(target.files(), {DRAFT: draft.files(), LIGHT: ModelFiles(light.folder)})
    made = running(lambda: replace(models, sources={DRAFT: draft, LIGHT: light}, files=files))
    made.draft, made.light, made.target = draft, light, target
    return made


def changed(engine, kind: DrafterName = DRAFT) -> bool:
    return engine.worker.files.drafts[kind].changed


def test_model_file_replaced_after_start_is_reported_as_changed(engine):
    assert engine.worker.files.drafts[DRAFT].folder == engine.draft.folder
    assert not changed(engine)
    engine.draft.deploy()
    assert changed(engine)
    assert not engine.worker.files.target.changed
    engine.target.deploy()
    assert engine.worker.files.target.changed


def test_reloading_draft_clears_its_changed_file_status(engine):
    engine.draft.deploy()
    engine.worker.reload_draft().result(10)
    assert not changed(engine)
    engine.draft.deploy()
    assert changed(engine)


def test_failed_draft_reload_keeps_file_reported_as_changed(engine):
    engine.draft.deploy()
    engine.draft.broken = True
    with pytest.raises(ModelLoadError):
        engine.worker.reload_draft().result(10)
    assert changed(engine)


def test_failed_reload_of_one_draft_leaves_both_drafts_reported_as_changed(engine):
    engine.worker.keep(frozenset({DRAFT, LIGHT})).result(10)
    for source in (engine.draft, engine.light):
        source.deploy()
    engine.light.broken = True  # read after the draft, which is not used then either
    with pytest.raises(ModelLoadError):
        engine.worker.reload_draft().result(10)
    assert changed(engine, DRAFT)
    assert changed(engine, LIGHT)
    engine.worker.keep(frozenset({DRAFT})).result(10)
    assert changed(engine, DRAFT)


def test_draft_file_replaced_while_being_read_is_reported_as_changed(engine):
    engine.draft.late = True
    engine.worker.reload_draft().result(10)
    assert changed(engine)


def test_unloaded_draft_is_never_reported_as_changed(engine):
    assert not changed(engine, LIGHT)
    engine.light.deploy()
    assert not changed(engine, LIGHT)
    engine.worker.keep(NONE).result(10)
    engine.draft.deploy()
    assert not changed(engine)
    engine.worker.keep(frozenset({DRAFT, LIGHT})).result(10)
    assert not changed(engine)
    engine.draft.deploy()
    engine.light.deploy()
    assert changed(engine, DRAFT)
    assert changed(engine, LIGHT)


def test_unloading_draft_keeps_its_last_size_in_draft_bytes(engine):
    before = dict(engine.worker.draft_bytes)
    assert set(before) == {DRAFT}
    engine.worker.keep(NONE).result(10)
    assert engine.worker.draft_bytes == before


def test_worker_reports_positive_load_time_after_loading(engine):
    assert engine.worker.load_seconds > 0


def test_worker_reports_no_files_before_models_are_loaded():
    from draftd.engine.loop import EngineWorker

    worker = EngineWorker(lambda progress: scripted_models(0.7))
    assert worker.load_seconds is None
    assert worker.draft_bytes == {}
    with pytest.raises(NotServing):
        _ = worker.files
