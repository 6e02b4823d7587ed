"""Manifests compared: each thing that differs is named, alone, and only what decides a figure matters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.client.prompts import Prompt
from draftd.core import WorkloadClass
from draftd_acceptance.folder import RunError, RunFolder, parse_json, to_json
from draftd_acceptance.manifest import Difference, Manifest, ModelFile, ModelManifest, differences, prompt_checksum
from tests.synthetic_run import EXACTNESS, manifest

WAS = manifest()


def with_model(role: str, **changes: object) -> Manifest:
    return manifest(models={**WAS.models, role: replace(WAS.models[role], **changes)})  # type: ignore[arg-type]


def with_file(name: str, **changes: object) -> Manifest:
    files = [replace(f, **changes) if f.name == name else f for f in WAS.models["draft"].files]  # type: ignore[arg-type]
    return with_model("draft", files=tuple(files))


def entry(name: str, **changes: str | None) -> Manifest:
    """A manifest with one entry of a mapping changed, or removed by None."""
    values: Mapping[str, str] = getattr(WAS, name)
    return manifest(**{name: {k: v for k, v in {**values, **changes}.items() if v is not None}})


ONE_THING = [
    (manifest(draftd="0.7.0"), "draftd", "0.6.0", "0.7.0"),
    (manifest(python="3.12.1"), "python", "3.11.9", "3.12.1"),
    (manifest(os="macOS 26.2"), "os", "macOS 26.1", "macOS 26.2"),
    (manifest(device="Apple M4"), "device", "Apple M4 Pro", "Apple M4"),
    (manifest(cores=10), "cores", "12", "10"),
    (manifest(memory_bytes=16), "memory_bytes", str(24 * 2**30), "16"),
    (manifest(backend="cpu (openblas)"), "backend", "metal", "cpu (openblas)"),
    (manifest(blas="OpenBLAS 0.3.21"), "blas", "", "OpenBLAS 0.3.21"),
    (manifest(power_source="battery"), "power_source", "mains", "battery"),
    (manifest(low_power=True), "low_power", "false", "true"),
    (manifest(low_power=None), "low_power", "false", "unknown"),
    (entry("packages", mlx="0.33.0"), "packages.mlx", "0.32.0", "0.33.0"),
    (entry("packages", mlx=None), "packages.mlx", "0.32.0", "absent"),
    (entry("packages", mkl="2026.1"), "packages.mkl", "absent", "2026.1"),
    (entry("settings", **{"engine.max_draft_tokens": "4"}), "settings.engine.max_draft_tokens", "6", "4"),
    (entry("prompts", code="00" * 32), "prompts.code", WAS.prompts["code"], "00" * 32),
    (with_model("target", quantization="none"), "models.target.quantization", "4 bits, groups of 64", "none"),
    (with_model("draft", kind="mtp"), "models.draft.kind", "", "mtp"),
    (with_model("draft", form="hidden, embedding"), "models.draft.form", "", "hidden, embedding"),
    (with_model("draft", changed_since_load=True), "models.draft.changed_since_load", "false", "true"),
    (with_model("draft", files=WAS.models["draft"].files[1:]), "models.draft.files.config.json", "1f" * 32, "absent"),
    (
        with_file("model.safetensors", sha256="66" * 32),
        "models.draft.files.model.safetensors.sha256",
        "5b" * 32,
        "66" * 32,
    ),
    (with_file("tokenizer.json", sha256="66" * 32), "models.draft.files.tokenizer.json.sha256", "3d" * 32, "66" * 32),
    (manifest(models={"target": WAS.models["target"]}), "models.draft", "Larch-0.6B-4bit", "absent"),
]

NOTHING_THAT_MATTERS = [
    (manifest(created="2027-01-01T00:00:00+00:00"), "created"),
    (manifest(harness="0.9.0"), "harness"),
    (manifest(load_seconds=None), "load_seconds"),
    (manifest(exactness=replace(EXACTNESS, forward=replace(EXACTNESS.forward, width=None))), "exactness"),
    (with_model("draft", name="elsewhere"), "models.draft.name"),
    (with_model("draft", weight_bytes=0), "models.draft.weight_bytes"),
    (entry("prompts", code=None), "prompts.code"),
    (entry("prompts", mine="00" * 32), "prompts.mine"),
    *(
        (entry("settings", **{name: "other"}), f"settings.{name}")
        for name in (
            "server.port", "log.level", "telemetry.capture_content", "webhook.host", "annotations.grafana_url",
            "cost.per_hour", "model.path", "model.draft_path", "model.light_draft_path", "flag.file", "flag.provider",
            "flag.host", "flag.port", "flag.tls", "fallback.state_dir",
        )
    ),
]  # fmt: skip


def test_manifest_comparison_of_equal_manifests_finds_no_difference() -> None:
    assert differences(WAS, manifest()) == ()


@pytest.mark.parametrize(
    "other",
    [
        manifest(exactness=None),
        manifest(exactness=replace(EXACTNESS, flips=0.7, positions=9, seconds=1.0, operations=())),
        manifest(exactness=replace(EXACTNESS, forward=replace(EXACTNESS.forward, difference=3e-6))),
    ],
)
def test_manifest_comparison_ignores_exactness_estimates_and_a_measurement_that_is_missing(other: Manifest) -> None:
    assert differences(WAS, other) == differences(other, WAS) == ()


@pytest.mark.parametrize(("other", "field", "left", "right"), ONE_THING, ids=[one[1] for one in ONE_THING])
def test_manifest_comparison_marks_performance_relevant_difference_as_relevant(
    other: Manifest, field: str, left: str, right: str
) -> None:
    assert differences(WAS, other) == (Difference(field, left, right, True),)
    assert differences(other, WAS) == (Difference(field, right, left, True),)


@pytest.mark.parametrize(("other", "field"), NOTHING_THAT_MATTERS, ids=[one[1] for one in NOTHING_THAT_MATTERS])
def test_manifest_comparison_marks_performance_neutral_difference_as_irrelevant(other: Manifest, field: str) -> None:
    assert [(one.field, one.matters) for one in differences(WAS, other)] == [(field, False)]


def test_every_manifest_field_has_comparison_test_case() -> None:
    """A new field needs a decision whether it matters."""
    paths = [one[1].split(".") for one in (*ONE_THING, *NOTHING_THAT_MATTERS)]
    assert {path[0] for path in paths} == {field.name for field in fields(Manifest)}
    of_models = {path[2] for path in paths if path[0] == "models" and len(path) > 2}
    assert of_models == {field.name for field in fields(ModelManifest)}


def test_manifest_comparison_names_checksum_but_not_size_of_changed_model_file() -> None:
    other = with_file("model.safetensors", sha256="66" * 32, bytes=7)
    assert [one.field for one in differences(WAS, other)] == ["models.draft.files.model.safetensors.sha256"]


def test_manifest_comparison_distinguishes_models_without_files_by_name() -> None:
    one, other = (manifest(models={"target": ModelManifest(name, "none", 0, ())}) for name in ("a", "b"))
    assert differences(one, other) == (Difference("models.target.name", "a", "b", True),)


def test_manifest_comparison_lists_relevant_differences_first() -> None:
    other = replace(with_model("draft", quantization="none"), created="later", python="3.13", harness="1")
    assert [(one.field, one.matters) for one in differences(WAS, other)] == [
        ("models.draft.quantization", True),
        ("python", True),
        ("created", False),
        ("harness", False),
    ]


texts = st.text(max_size=12)
names = st.dictionaries(st.text(min_size=1, max_size=8), texts, max_size=3)
model_files = st.builds(ModelFile, texts, texts, st.integers(0, 2**50), texts)
models = st.builds(
    ModelManifest, texts, texts, st.integers(0, 2**50), st.lists(model_files, max_size=3).map(tuple), st.booleans()
)
manifests = st.builds(
    Manifest,
    created=texts, harness=texts, draftd=texts, packages=names, python=texts, os=texts, device=texts,
    cores=st.integers(0, 2**31 - 1), memory_bytes=st.integers(0, 2**50), backend=texts, blas=texts,
    power_source=texts, low_power=st.none() | st.booleans(), models=st.dictionaries(texts, models, max_size=3),
    settings=names, prompts=names, load_seconds=st.none() | st.floats(0, 1e6),
    exactness=st.none() | st.sampled_from((EXACTNESS, replace(EXACTNESS, exact=True, flips=0.7))),
)  # fmt: skip


@settings(deadline=None)  # times are the machine's
@given(manifests)
def test_manifest_survives_json_round_trip(made: Manifest) -> None:
    assert parse_json(Manifest, to_json(made), "m.json") == made


@settings(deadline=None)
@given(manifests, manifests)
def test_manifest_comparison_finds_same_differences_in_both_directions(a: Manifest, b: Manifest) -> None:
    there = {(one.field, one.matters): (one.left, one.right) for one in differences(a, b)}
    back = {(one.field, one.matters): (one.right, one.left) for one in differences(b, a)}
    assert there == back
    assert all(left != right for left, right in there.values())


def test_manifest_in_run_folder_has_same_text_as_standalone_manifest(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    number = folder.begin_session(WAS)
    assert (tmp_path / "run" / "manifests" / f"{number:04}.json").read_text(encoding="utf-8") == to_json(WAS)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{}", "m.json: created"),
        ("not json", "m.json: got"),
        (to_json(WAS).replace('"cores": 12', '"cores": "many"'), "m.json: cores: got 'many'"),
        (to_json(WAS).replace('"sha256": "5b', '"sha": "5b'), "m.json: models.draft.files[1].sha256"),
    ],
)
def test_manifest_parser_refuses_invalid_file_and_names_file_and_field(text: str, named: str) -> None:
    with pytest.raises(RunError) as refused:
        parse_json(Manifest, text, "m.json")
    assert named in refused.value.message


ASKED = Prompt("one", (("user", "Count."),), WorkloadClass.CHAT, 20, "mine")


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, messages=(("user", "Count!"),)),
        replace(ASKED, messages=(("system", "Count."),)),
        replace(ASKED, messages=(*ASKED.messages, ("user", ""))),
        replace(ASKED, workload=WorkloadClass.CODE),
        replace(ASKED, max_tokens=21),
        replace(ASKED, max_tokens=None),
    ],
)
def test_prompt_checksum_changes_with_messages_workload_and_max_tokens(other: Prompt) -> None:
    assert prompt_checksum([other]) != prompt_checksum([ASKED])


def test_prompt_checksum_depends_on_prompt_order_but_not_on_name_or_group() -> None:
    second = replace(ASKED, messages=(("user", "Go on. ü"),))
    assert prompt_checksum([ASKED, second]) != prompt_checksum([second, ASKED])
    assert prompt_checksum([replace(ASKED, name="two", group="yours")]) == prompt_checksum([ASKED])
    # Fixed here: if the checksum changed between versions, comparable runs would not match.
    written = '[{"max_tokens":20,"messages":[["user","Count."]],"workload":"chat"}]'
    assert prompt_checksum([ASKED]) == hashlib.sha256(written.encode()).hexdigest()
