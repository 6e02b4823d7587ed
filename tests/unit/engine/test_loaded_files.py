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


def test_files_loaded_at_start_are_known(engine):
    assert engine.worker.files.drafts[DRAFT].folder == engine.draft.folder
    assert not changed(engine)
    engine.draft.deploy()
    assert changed(engine)
    assert not engine.worker.files.target.changed
    engine.target.deploy()
    assert engine.worker.files.target.changed


def test_a_reload_is_of_the_new_file(engine):
    engine.draft.deploy()
    engine.worker.reload_draft().result(10)
    assert not changed(engine)
    engine.draft.deploy()
    assert changed(engine)


def test_a_reload_that_failed_leaves_what_was(engine):
    engine.draft.deploy()
    engine.draft.broken = True
    with pytest.raises(ModelLoadError):
        engine.worker.reload_draft().result(10)
    assert changed(engine)


def test_of_two_drafts_of_which_one_fails_neither_is_new(engine):
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


def test_a_file_that_changes_while_it_is_read_is_seen_to_have(engine):
    engine.draft.late = True
    engine.worker.reload_draft().result(10)
    assert changed(engine)


def test_draft_that_is_not_loaded_is_never_out_of_date(engine):
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


def test_a_draft_that_was_let_go_is_told_with_its_bytes_as_it_was_last(engine):
    before = dict(engine.worker.draft_bytes)
    assert set(before) == {DRAFT}
    engine.worker.keep(NONE).result(10)
    assert engine.worker.draft_bytes == before


def test_how_long_loading_took_is_known_once_it_is_done(engine):
    assert engine.worker.load_seconds > 0


def test_before_the_models_are_loaded_no_files_are_known():
    from draftd.engine.loop import EngineWorker

    worker = EngineWorker(lambda progress: scripted_models(0.7))
    assert worker.load_seconds is None
    assert worker.draft_bytes == {}
    with pytest.raises(NotServing):
        _ = worker.files
