"""A daemon's manifest: of two daemons that differ in one thing, only that field differs."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.counts import DraftCounts
from draftd.engine.observer import EngineStatus
from draftd.errors import NotServing
from draftd.exactness import Exactness
from draftd.fronts.grpc import manifest as server_manifest
from draftd.fronts.grpc.manifest import Manifests, in_force
from draftd.hardware.state import HardwareSample, HardwareState, HardwareView
from draftd.hardware.system import device
from draftd.model_info import HeadInfo, ModelInfo
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import ModelFiles, PairFiles
from draftd.settings import Settings
from draftd_acceptance.manifest import Manifest, differences, take_manifest
from tests.synthetic_run import EXACTNESS

DRAFT, LIGHT = DRAFT_MODEL, LIGHT_DRAFT_MODEL
INFO = ModelInfo(
    model="pair/target",
    draft_model="pair/draft",
    context_length=1024,
    vocab_size=256,
    drafters=(DRAFT,),
    weight_bytes=4000,
    draft_weight_bytes=400,
    backend="cpu (openblas)",
)


@dataclass
class Engine:
    """The part of an engine that a manifest needs."""

    info: ModelInfo
    files: PairFiles
    draft_bytes: Mapping[DrafterName, int] = field(default_factory=lambda: {DRAFT: 400})
    load_seconds: float | None = 1.5
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    exactness: Exactness | None = None

    def status(self) -> EngineStatus:
        return EngineStatus(DraftCounts(), {}, exactness=self.exactness)


@dataclass
class World:
    """Everything that one daemon's manifest is made of."""

    root: Path
    engine: Engine
    settings: Settings = field(default_factory=Settings)
    sample: HardwareSample = field(default_factory=lambda: HardwareSample(plugged_in=True, low_power=False))
    version: str = "1.2.3"

    def manifest(self) -> Manifest:
        hardware = HardwareView(HardwareState(self.sample, 0.0))
        manifests = Manifests(self.engine, hardware, self.settings, version=self.version)  # type: ignore[arg-type]
        account = asyncio.run(manifests.take())

        class Client:
            def manifest(self, *, timeout: float) -> Any:
                return account

        return take_manifest(Client())  # type: ignore[arg-type]

    def set(self, name: str, value: object) -> None:
        section, key = name.split(".")
        within: BaseModel = getattr(self.settings, section)
        self.settings = self.settings.model_copy(update={section: within.model_copy(update={key: value})})


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, text in {
        "model.safetensors": "weights",
        "config.json": json.dumps({"quantization": {"bits": 4, "group_size": 64}}),
        "tokenizer.json": "{}",
        "tokenizer_config.json": json.dumps({"chat_template": "{{ a }}"}),
    }.items():
        (folder / name).write_text(text)
    return folder


def world(root: Path) -> World:
    files = PairFiles(
        ModelFiles.of(model(root / "target")),
        {DRAFT: ModelFiles.of(model(root / "draft"))},
    )
    return World(root, Engine(INFO, files))


def deploy(world: World, role: str, name: str, text: str) -> None:
    """Writes another file of a model and loads it."""
    (world.root / role / name).write_text(text)
    noted = ModelFiles.of(world.root / role)
    files = world.engine.files
    world.engine.files = (
        replace(files, target=noted) if role == "target" else replace(files, drafts={**files.drafts, DRAFT: noted})
    )


def info(**changes: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.engine.info = replace(world.engine.info, **changes)

    return change


def light(world: World) -> None:
    info(light_draft_model="pair/light")(world)
    folder = model(world.root / "light")
    world.engine.files = replace(world.engine.files, drafts={**world.engine.files.drafts, LIGHT: ModelFiles(folder)})


def head(world: World, form: str = "embedding, hidden") -> None:
    drafters, family = (DRAFT, DRAFT_HEAD), HeadInfo("mtp", "MTP head", ("mtp.safetensors",), form=form)
    info(head=family, drafters=drafters)(world)
    target = world.engine.files.target
    assert target is not None
    files = {**world.engine.files.drafts, DRAFT_HEAD: replace(target, part="draft head")}
    world.engine.files = replace(world.engine.files, drafts=files)


def touch(world: World) -> None:
    os.utime(world.root / "draft" / "model.safetensors", ns=(1, 1))


ONE_THING: list[tuple[Callable[[World], None], list[str]]] = [
    (lambda w: setattr(w, "version", "1.2.4"), ["draftd"]),
    (info(backend="cpu (reference)"), ["backend", "blas"]),  # one thing under two names
    (lambda w: setattr(w, "sample", replace(w.sample, plugged_in=False)), ["power_source"]),
    (lambda w: setattr(w, "sample", replace(w.sample, low_power=True)), ["low_power"]),
    (lambda w: w.set("engine.max_batch", 4), ["settings.engine.max_batch"]),
    (lambda w: w.set("engine.exact", True), ["settings.engine.exact"]),
    (lambda w: w.set("fallback.guard", False), ["settings.fallback.guard"]),
    (lambda w: w.set("hardware.memory_floor_bytes", 1), ["settings.hardware.memory_floor_bytes"]),
    (lambda w: w.set("model.drafter", PROMPT_LOOKUP), ["settings.model.drafter"]),
    (lambda w: deploy(w, "draft", "model.safetensors", "wEights"), ["models.draft.files.model.safetensors.sha256"]),
    (lambda w: deploy(w, "target", "model.safetensors", "more"), ["models.target.files.model.safetensors.sha256"]),
    (lambda w: deploy(w, "target", "tokenizer.json", "[]"), ["models.target.files.tokenizer.json.sha256"]),
    (lambda w: deploy(w, "draft", "chat_template.jinja", "{{ b }}"), ["models.draft.files.chat_template.jinja"]),
    (
        lambda w: deploy(w, "draft", "tokenizer_config.json", '{"chat_template": "{{ b }}"}'),
        [
            "models.draft.files.tokenizer_config.json#chat_template.sha256",
            "models.draft.files.tokenizer_config.json.sha256",
        ],
    ),
    (
        lambda w: deploy(w, "draft", "config.json", '{"quantization": {"bits": 8, "group_size": 64}}'),
        ["models.draft.files.config.json.sha256", "models.draft.quantization"],
    ),
    (touch, ["models.draft.changed_since_load"]),
    (info(draft_model=None), ["models.draft"]),
    (light, ["models.light_draft"]),
    (head, ["models.draft_head"]),
    (info(head=HeadInfo("mtp", "MTP head", (), refusal="it lacks fc.weight")), []),
]
NO_MATTER: list[tuple[Callable[[World], None], list[str]]] = [
    (lambda w: w.set("server.port", 1), ["settings.server.port"]),
    (lambda w: setattr(w.engine, "load_seconds", 9.0), ["load_seconds"]),
    (lambda w: setattr(w.engine, "draft_bytes", {}), ["models.draft.weight_bytes"]),
    (lambda w: setattr(w.engine, "exactness", EXACTNESS), []),
    (info(model="elsewhere/target"), ["models.target.name"]),
]


@pytest.mark.parametrize(("change", "fields"), ONE_THING, ids=["-".join(one[1]) or "refused head" for one in ONE_THING])
def test_manifests_of_daemons_with_a_single_change_differ_only_in_its_fields(
    tmp_path: Path, change: Callable[[World], None], fields: list[str]
) -> None:
    one, other = world(tmp_path / "a" / "pair"), world(tmp_path / "b" / "pair")
    change(other)
    found = [d for d in differences(one.manifest(), other.manifest()) if d.field != "created"]
    assert [d.field for d in found] == fields
    assert all(d.matters for d in found)


@pytest.mark.parametrize(("change", "fields"), NO_MATTER, ids=["-".join(one[1]) or "exactness" for one in NO_MATTER])
def test_manifest_comparison_marks_difference_without_effect_on_results_as_immaterial(
    tmp_path: Path, change: Callable[[World], None], fields: list[str]
) -> None:
    one, other = world(tmp_path / "a" / "pair"), world(tmp_path / "b" / "pair")
    change(other)
    found = [d for d in differences(one.manifest(), other.manifest()) if d.field != "created"]
    assert [(d.field, d.matters) for d in found] == [(name, False) for name in fields]


def test_manifests_of_draft_heads_of_two_forms_differ_and_list_the_files_of_a_head_apart(tmp_path: Path) -> None:
    one, other = world(tmp_path / "a" / "pair"), world(tmp_path / "b" / "pair")
    head(one)
    head(other, "hidden, embedding")
    (difference,) = (d for d in differences(one.manifest(), other.manifest()) if d.field != "created")
    assert (difference.field, difference.matters) == ("models.draft_head.form", True)
    assert (one.manifest().models["draft_head"].kind, one.manifest().models["draft_head"].files) == ("mtp", ())
    apart = ModelFiles.of(model(tmp_path / "apart"))
    other.engine.files = replace(other.engine.files, drafts={**other.engine.files.drafts, DRAFT_HEAD: apart})
    assert "model.safetensors" in [file.name for file in other.manifest().models["draft_head"].files]


def test_manifest_differs_by_device_cores_memory_os_and_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = world(tmp_path / "a" / "pair")
    before = daemon.manifest()
    real = device()
    assert (before.device, before.cores, before.memory_bytes) == (real.name, real.cores, real.memory_bytes)
    for name, fake in (
        ("device", replace(real, name="Apple M9")),
        ("cores", replace(real, cores=real.cores + 1)),
        ("memory_bytes", replace(real, memory_bytes=1)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(server_manifest, "device", lambda fake=fake: fake)
            assert [d.field for d in differences(before, daemon.manifest()) if d.matters] == [name]
    for name, function in (("os", "platform"), ("python", "python_version")):
        with monkeypatch.context() as patch:
            patch.setattr(platform, function, lambda: "another")
            assert [d.field for d in differences(before, daemon.manifest()) if d.matters] == [name]


def test_manifest_differs_in_the_field_of_each_changed_package_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = world(tmp_path / "pair")
    before, real = daemon.manifest(), importlib.metadata.version
    for name in ("mlx", "mlx-lm", "tokenizers", "transformers", "grpcio"):
        assert before.packages[name] == real(name)
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.metadata, "version", lambda asked, name=name: "0.0" if asked == name else real(asked)
            )
            assert [d.field for d in differences(before, daemon.manifest()) if d.matters] == [f"packages.{name}"]


def test_manifest_of_an_in_memory_model_has_a_name_and_no_files(tmp_path: Path) -> None:
    daemon = world(tmp_path / "pair")
    daemon.engine.files = PairFiles()
    assert [(m.name, m.files, m.changed_since_load) for m in daemon.manifest().models.values()] == [
        ("pair/draft", (), False),
        ("pair/target", (), False),
    ]


def test_manifest_on_metal_leaves_blas_empty_and_unknown_power_unset(tmp_path: Path) -> None:
    daemon = world(tmp_path / "pair")
    info(backend="metal")(daemon)
    daemon.sample = HardwareSample()
    daemon_manifest = daemon.manifest()
    assert (daemon_manifest.blas, daemon_manifest.power_source, daemon_manifest.low_power) == ("", "", None)


def test_manifest_has_the_exactness_that_the_daemon_measured(tmp_path: Path) -> None:
    daemon = world(tmp_path / "pair")
    assert daemon.manifest().exactness is None
    daemon.engine.exactness = EXACTNESS
    assert daemon.manifest().exactness == EXACTNESS


def test_manifest_is_refused_until_the_models_are_loaded(tmp_path: Path) -> None:
    class Loading:
        fingerprints = Fingerprints()

        @property
        def info(self) -> ModelInfo:
            raise NotServing("the model is still loading")

    daemon = world(tmp_path / "pair")
    daemon.engine = Loading()  # type: ignore[assignment]
    with pytest.raises(NotServing, match="still loading"):
        daemon.manifest()


async def test_closing_the_model_file_hasher_ends_waiting_manifest_calls_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is at a file, the next has not begun: neither is left waiting, nor is the thread left at work."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hashed(self: Fingerprints, file: Path, size: int) -> str:
        loop.call_soon_threadsafe(begun.set)
        assert self._closing.wait(10)
        raise NotServing("the daemon is stopping")

    monkeypatch.setattr(Fingerprints, "_hash_file", hashed)
    daemon = world(tmp_path / "pair")
    manifests = Manifests(daemon.engine, HardwareView(), daemon.settings, version="1")  # type: ignore[arg-type]
    first, second = asyncio.ensure_future(manifests.take()), asyncio.ensure_future(manifests.take())
    await asyncio.wait_for(begun.wait(), 10)
    daemon.engine.fingerprints.close()
    ended = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 10)
    assert isinstance(ended[0], NotServing)
    assert isinstance(ended[1], asyncio.CancelledError)
    with pytest.raises(NotServing, match="the daemon is stopping"):
        await manifests.take()


# settings as a manifest tells them: none secret, none that only one machine could have

LABELS = {"model.path": "nano/target", "model.draft_path": "nano/draft"}


def leaves(section: BaseModel, place: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def changed(settings: Settings, dotted: str, value: object) -> Settings:
    section, name = dotted.split(".")
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update={name: value})})


def other(value: object) -> object:
    """Another value of the same kind, as far as telling it goes."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, Path):
        return None
    if isinstance(value, tuple):
        return value[1:] or ("other",)
    return f"{value}-other"


NAMES = [name for name, _ in leaves(Settings())]


def test_manifest_lists_every_setting_by_its_dotted_name() -> None:
    assert list(in_force(Settings(), {})) == NAMES
    assert "engine.max_draft_tokens" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_changed_setting_changes_only_its_manifest_entry(name: str) -> None:
    settings = Settings()
    before = in_force(settings, {})
    after = in_force(changed(settings, name, other(dict(leaves(settings))[name])), {})
    assert [key for key in before if before[key] != after[key]] == [name]


def test_manifest_shows_secrets_paths_and_urls_only_as_set_or_unset() -> None:
    settings = Settings()
    for name, value in (
        ("server.token", SecretStr("hunter2")),
        ("annotations.grafana_token", SecretStr("hunter2")),
        ("server.tls_cert", Path("/home/hunter2/cert.pem")),
        ("fallback.state_dir", Path("/home/hunter2/state")),
        ("webhook.poll_url", "https://hunter2.example"),
    ):
        assert in_force(settings, {})[name] == "unset"
        settings = changed(settings, name, value)
        assert in_force(settings, {})[name] == "set"
    assert "hunter2" not in str(in_force(settings, {}))


def test_manifest_shows_a_model_path_as_its_label() -> None:
    assert in_force(Settings(), LABELS)["model.path"] == "unset"
    settings = changed(Settings(), "model.path", "/home/me/models/nano/target")
    texts = in_force(settings, LABELS)
    assert texts["model.path"] == "nano/target"
    assert texts["model.draft_path"] == "unset"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("fallback.canary_tolerance", 0.005, "0.005"),
        ("fallback.longest_wait_seconds", 7200.0, "7200"),
        ("fallback.cooldown_seconds", 1234567.25, "1234567.25"),
        ("fallback.blocks", (6, 4), "6, 4"),
        ("fallback.lighter", (PROMPT_LOOKUP,), "prompt_lookup"),
        ("fallback.lighter", (), ""),
        ("fallback.guard", False, "false"),
        ("model.drafter", DRAFT_MODEL, "draft_model"),
    ],
)
def test_manifest_writes_each_setting_value_as_plain_text(name: str, value: object, text: str) -> None:
    assert in_force(changed(Settings(), name, value), {})[name] == text
