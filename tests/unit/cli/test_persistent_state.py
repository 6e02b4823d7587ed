"""State that a daemon keeps over a restart: the learnt costs, by pair and machine."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from draftd.cli import persistent_state
from draftd.cli.persistent_state import LearntStore, PersistentState, identity, measured_worth, pair_of, paths_of
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd.engine.depth.costs import DEEPEST, CalibratedCosts
from draftd.engine.depth.saved import LearntCosts
from draftd.errors import ConfigError
from draftd.fallback.baselines import ProbeBaselines
from draftd.fallback.ladder import LadderState
from draftd.fallback.saved_state import SavedState
from draftd.journal import Subject
from draftd.settings import EngineSettings, FallbackSettings, ModelSettings, Settings
from tests.fake_fallback import LADDER

NONE = (0.0,) * DEEPEST
LEARNT = LearntCosts(
    CalibratedCosts({1: 0.01, 2: 0.015}, {DRAFT_MODEL: {(1, 1): 0.012}}, {0: 1e-6}, 64),
    {(DRAFT_MODEL, False, False, WorkloadClass.CODE): ((9.0, *NONE[1:]), (7.0, *NONE[1:]))},
)


@pytest.fixture
def pair(tmp_path: Path) -> ModelSettings:
    for name in ("target", "draft"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(name.encode())
    return ModelSettings(path=str(tmp_path / "target"), draft_path=str(tmp_path / "draft"))


def settings(pair: ModelSettings, **engine: Any) -> Settings:
    return Settings(model=pair, engine=EngineSettings(**engine))


def kept(chosen: Settings, folder: Path | None) -> LearntStore:
    """Starts a store with learnt costs and closes it, which saves them."""
    store = LearntStore(chosen, folder)
    store.start(lambda: LEARNT)
    assert store.close()
    return store


def test_saved_draft_costs_are_read_back_by_the_next_daemon_with_the_same_model_pair(
    pair: ModelSettings, tmp_path: Path
) -> None:
    assert LearntStore(settings(pair), tmp_path).recall() is None
    kept(settings(pair), tmp_path)
    assert (tmp_path / "learnt.json").exists()
    assert LearntStore(settings(pair), tmp_path).recall() == LEARNT


def test_configured_draft_cost_file_works_without_a_state_folder(pair: ModelSettings, tmp_path: Path) -> None:
    chosen = settings(pair, learnt_file=tmp_path / "mine.json")
    kept(chosen, None)
    assert LearntStore(chosen, None).recall() == LEARNT
    assert not (tmp_path / "learnt.json").exists()


def test_draft_costs_are_not_saved_without_a_configured_file_or_state_folder(
    pair: ModelSettings, tmp_path: Path
) -> None:
    kept(settings(pair), None)
    assert LearntStore(settings(pair), None).recall() is None


def test_draft_cost_file_in_a_missing_folder_raises_configuration_error(pair: ModelSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine.learnt_file.*a file in an existing folder"):
        LearntStore(settings(pair, learnt_file=tmp_path / "none" / "learnt.json"), tmp_path)


def test_draft_speedup_is_readable_from_the_draft_cost_file_while_a_daemon_saves(
    pair: ModelSettings, tmp_path: Path
) -> None:
    chosen = settings(pair).model_copy(update={"fallback": FallbackSettings(state_dir=tmp_path)})
    assert measured_worth(chosen, {}) is None
    costs = CalibratedCosts({1: 0.1}, {DRAFT_MODEL: {(1, 1): 0.486, (1, 4): 0.7}}, {}, 32)
    many = (100.0,) * DEEPEST
    learning = LearntStore(chosen, tmp_path)
    learning.start(lambda: LearntCosts(costs, {(DRAFT_MODEL, False, False, None): (many, many)}))
    assert learning.close()
    saving = tmp_path / ".learnt.json.0"
    saving.write_text("half")
    worth = measured_worth(chosen, {})
    assert worth is not None
    assert "4.86 times as long" in worth.warning
    (tmp_path / "learnt.json").write_text("broken")
    assert measured_worth(chosen, {}) is None
    assert {path.name for path in tmp_path.iterdir()} >= {"learnt.json", saving.name}
    assert not list(tmp_path.glob("*.broken"))


def test_draft_cost_file_identity_changes_with_models_adapter_max_batch_max_depth_or_blas(
    pair: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity(settings(pair))
    assert json.loads(json.dumps(before)) == before == identity(settings(pair))
    assert identity(settings(pair, max_batch=3)) != before
    assert identity(settings(pair, max_draft_tokens=3)) != before
    assert identity(Settings(model=pair.model_copy(update={"prompt_lookup": False}))) != before
    assert identity(Settings(model=pair.model_copy(update={"draft_path": None}))) != before
    (adapter := tmp_path / "adapter").mkdir()
    (adapter / "adapters.safetensors").write_bytes(b"")
    adapted = Settings(model=pair.model_copy(update={"adapter_path": adapter}))
    without = identity(adapted)
    assert without["target"] != before["target"]
    (adapter / "adapters.safetensors").write_bytes(b"trained on")
    assert identity(adapted) != without
    weights = tmp_path / "draft" / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    assert identity(settings(pair)) != before, "weights that were written anew"
    touched = identity(settings(pair))
    monkeypatch.setattr(persistent_state, "load_blas", lambda: "another")
    assert identity(settings(pair)) != touched


def test_damaged_draft_cost_file_is_reported_and_ignored(
    pair: ModelSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept(settings(pair), tmp_path)
    path = tmp_path / "learnt.json"
    document = json.loads(path.read_text())
    document["pairs"][0]["learnt"]["plain"] = [[1, -3]]
    path.write_text(json.dumps(document))
    assert LearntStore(settings(pair), tmp_path).recall() is None
    (said,) = caplog.messages
    assert "learnt.plain[0]" in said
    assert "measured again" in said


@pytest.mark.parametrize("never_there", [False, True], ids=["the folder goes", "the folder cannot be made"])
def test_failed_saves_of_ladder_events_and_costs_are_counted_per_file(
    never_there: bool, pair: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    chosen = Settings(model=pair, fallback=FallbackSettings(state_dir=folder))
    if never_there:
        monkeypatch.setattr(Path, "mkdir", refused)
    files = PersistentState(chosen, {})
    if not never_there:
        assert files.save_errors == {"ladder": 0, "events": 0, "learnt": 0}
        shutil.rmtree(folder)
    files.journal.record(Subject.LEVEL, "full", "light_draft", "drift")
    ladder = SavedState(files.store, LADDER, ProbeBaselines(prompts=""))
    for at in (0.0, 1.0):
        ladder.keep(at, LadderState())
    files.learning.start(lambda: LEARNT)
    files.learning.close()
    assert files.save_errors == ({"ladder": 2} if never_there else {"ladder": 2, "events": 1, "learnt": 1})


def refused(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_settings_without_a_model_resolve_to_the_embedded_target_and_draft() -> None:
    target, draft = paths_of(ModelSettings())
    assert (Path(target).name, Path(str(draft)).name) == ("target", "draft")
    assert identity(Settings())["draft"]["files"]["model.safetensors"]
    assert paths_of(ModelSettings(path="hub/id")) == ("hub/id", None)
    assert identity(Settings(model=ModelSettings(path="hub/id")))["target"] == {"path": "hub/id", "files": {}}


def test_model_pair_key_differs_for_different_target_draft_adapter_or_drafter_settings() -> None:
    settings = [
        ModelSettings(),
        ModelSettings(path="a"),
        ModelSettings(path="a", draft_path="b"),
        ModelSettings(path="a", draft_path="b", adapter_path=Path("c")),
        ModelSettings(path="a", draft_path="c"),
        ModelSettings(path="a", draft_path="b", light_draft_path="c"),
        ModelSettings(path="a", draft_path="b", drafter=PROMPT_LOOKUP),
        ModelSettings(path="a", draft_path="b", light_draft_path="c", drafter=LIGHT_DRAFT_MODEL),
    ]
    pairs = [pair_of(one) for one in settings]
    assert all(one != other for one, other in itertools.combinations(pairs, 2))


def test_model_pair_key_ignores_settings_left_at_their_defaults() -> None:
    draft = DRAFT_MODEL
    assert pair_of(ModelSettings(path="a", draft_path="b", drafter=draft)) == "a b"  # as the first release saved it
    assert pair_of(ModelSettings()) == "None None"
