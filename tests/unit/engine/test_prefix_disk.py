"""Prefixes that outlive an engine: what the next one reads is what it would compute, and nothing else is used."""

from __future__ import annotations

import logging
import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import mlx.core as mx
import numpy as np
import pytest

from draftd.core import DRAFT_MODEL
from draftd.engine.cache.pins import MOST_PINS, Pin
from draftd.engine.cache.prefix_disk import ASIDE, PrefixDisk
from draftd.engine.cache.prefix_file import SUFFIX, BadFile, PrefixHeader, PrefixWriter, StoredArray, read_prefix
from draftd.engine.cache.trie import pack_tokens
from draftd.engine.pair import LoadedModels
from draftd.errors import InvalidRequest, NoRoom, NotNow
from draftd.models.folder import ModelFiles, PairFiles
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama
from tests.unit.engine.test_states import convolutions
from tests.wait_until import until

MEMORY, DISK = 64 << 20, 64 << 20


def words(seed: int, n: int, vocabulary: int = 32) -> tuple[int, ...]:
    dice = random.Random(seed)
    return tuple(dice.randrange(1, vocabulary) for _ in range(n))


def on_disk(folder: Path, make: Callable[[], Any] = lambda: tiny_llama(1), weights: bytes = b"1") -> Any:
    """Loads a pair of tiny models that says it lies in `folder`, where a file stands for its weights."""

    def files(name: str) -> ModelFiles:
        (folder / name).mkdir(parents=True, exist_ok=True)
        file = folder / name / "model.safetensors"
        if not file.exists() or file.read_bytes() != weights + name.encode():
            file.write_bytes(weights + name.encode())
        return ModelFiles.of(folder / name)

    def load() -> LoadedModels:
        return replace(pair(make(), make()), files=PairFiles(files("target"), {DRAFT_MODEL: files("draft")}))

    return load


def one_by_one() -> Any:
    model = tiny_llama(1, sliding=64)
    model._draftd_not_batched = "its caches are to be mlx-lm's own"
    return model


def halves() -> Any:
    model = tiny_llama(1)
    model.set_dtype(mx.bfloat16)
    return model


LAYOUTS = {
    "segments": lambda: tiny_llama(1),
    "segments in halves": halves,
    "windows": lambda: tiny_llama(1, sliding=64),
    "states": lambda: convolutions(1),
    "mlx-lm's own": one_by_one,
}


@pytest.fixture
def engine(running, tmp_path):
    """Starts engines that keep prefixes in one folder."""

    def start(load: Any, **options: Any) -> Any:
        limits = {"prefix_cache_bytes": MEMORY, "prefix_folder": tmp_path / "prefixes", **options}
        return running(load, **limits)

    return start


def settled(one: Any) -> None:
    """Waits until what was kept is on the disk."""
    until(lambda: not one.worker._engine.prefixes.busy, what="prefixes on the disk")


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_restarted_engine_continues_conversation_from_prefixes_on_disk(engine, tmp_path, make):
    load, prompt = on_disk(tmp_path, make), words(1, 150)
    first = engine(load, prefix_disk_bytes=DISK)
    (answer,) = first.answer(request(prompt, autoregressive(), max_tokens=40))
    settled(first)
    text = (*prompt, *answer, *words(2, 20))
    (expected,) = first.answer(request(text, autoregressive(), max_tokens=40))
    pinned = words(3, 120)
    first.worker.pin_prefix("system", pinned).result(30)
    settled(first)
    assert first.worker.close()

    second = engine(load, prefix_disk_bytes=DISK)
    sinks = [second.ask(request(text, plan, max_tokens=40)) for plan in (autoregressive(), speculative(3))]
    second.ended(*sinks)
    assert [sink.tokens for sink in sinks] == [expected] * 2
    assert all(sink.done.stats.cached_tokens >= 150 for sink in sinks)
    assert all(sink.done.stats.cached_tokens < len(text) for sink in sinks)
    asked = request((*pinned, *words(4, 20)), speculative(3), max_tokens=40)
    sink = second.ask(asked)
    second.ended(sink)
    assert sink.done.stats.cached_tokens == 120
    assert sink.tokens == Rig(pair(make(), make())).run([asked])[0].tokens


def test_disk_prefixes_of_prompts_with_common_beginning_store_the_beginning_once(engine, tmp_path):
    load, system = on_disk(tmp_path), words(1, 200)
    forks = [request((*system, *words(seed, 100)), autoregressive()) for seed in (2, 3)]
    first = engine(load, prefix_disk_bytes=DISK)
    texts = []
    for fork in forks:
        texts += first.answer(fork)
        settled(first)
    usage = first.worker.status().prefix
    whole = 200 + 100 + 100
    target = 2 * 2 * 16 * 4  # layers, keys and values, width, fp32
    assert usage.disk_bytes < 2 * (whole + 2 * 32) * target + usage.disk_files * 4096
    first.worker.close()
    second = engine(load, prefix_disk_bytes=DISK)
    sinks = [second.ask(fork) for fork in reversed(forks)]
    second.ended(*sinks)
    assert [sink.tokens for sink in sinks] == texts[::-1]
    assert all(sink.done.stats.cached_tokens >= 290 for sink in sinks)


@pytest.mark.slow
def test_restarted_engine_reads_pinned_prefix_from_disk(engine, nano):
    system = words(1, 800, 4000)
    plans = {2: autoregressive(), 3: speculative(3)}
    asked = [request((*system, *words(seed, 30, 4000)), plan, max_tokens=32) for seed, plan in plans.items()]
    first = engine(nano, prefix_cache_bytes=512 << 20)
    expected = first.answer(*asked)
    pin = first.worker.pin_prefix("system", system).result(60)
    assert len(pin.files) == 2, "of the target and of the draft"
    first.worker.close()

    second = engine(nano, prefix_cache_bytes=512 << 20)
    sinks = [second.ask(one) for one in asked]
    second.ended(*sinks)
    assert [sink.done.stats.cached_tokens for sink in sinks] == [800, 800]
    assert [sink.tokens for sink in sinks] == expected
    assert second.worker.status().prefix.hits == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def replaced(path: Path) -> None:
    with path.open("wb") as file:  # another archive
        np.savez(file, weight=np.zeros((8, 8)))


@pytest.mark.parametrize("damage", [flip, cut_off, replaced])
def test_damaged_pinned_prefix_file_is_set_aside_and_recomputed(engine, tmp_path, damage, caplog):
    load, prompt = on_disk(tmp_path), words(1, 200)
    first = engine(load)
    (expected,) = first.answer(request((*prompt, 5), autoregressive()))
    pin = first.worker.pin_prefix("system", prompt).result(30)
    first.worker.close()
    damage(tmp_path / "prefixes" / pin.files[0])

    with caplog.at_level(logging.WARNING):
        second = engine(load)
        assert second.answer(request((*prompt, 5), autoregressive())) == [expected]
        settled(second)
    assert (tmp_path / "prefixes" / (pin.files[0] + ASIDE)).exists()
    assert len([one for one in caplog.records if "cannot be used" in one.message]) == 1
    ((again, _, served),) = second.worker.pins()
    assert served
    assert again.files == pin.files
    assert (tmp_path / "prefixes" / pin.files[0]).exists(), "a pin is computed again"


def test_pinned_prefix_of_a_different_model_is_not_used_but_stays_on_disk(engine, tmp_path):
    prompt = words(1, 200)
    first = engine(on_disk(tmp_path))
    first.worker.pin_prefix("system", prompt).result(30)
    first.worker.close()
    other = engine(on_disk(tmp_path, lambda: tiny_llama(2), b"2"))
    sink = other.ask(request((*prompt, 5), autoregressive()))
    other.ended(sink)
    assert sink.done.stats.cached_tokens == 0
    ((pin, size, served),) = other.worker.pins()
    assert (pin.name, served) == ("system", False)
    assert size > 0, "it stays for when that model is served again"


def test_full_disk_refuses_pinning_but_fails_no_request(engine, tmp_path, caplog):
    one, prompt = engine(on_disk(tmp_path), prefix_disk_bytes=DISK), words(1, 300)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, hard))
    try:
        for i in range(2):
            (text,) = one.answer(request((*prompt, *words(5 + i, 100)), autoregressive()))
            assert len(text) == 32
            settled(one)
        with pytest.raises(NoRoom, match="no prefix can be written"):
            one.worker.pin_prefix("system", prompt).result(30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert len([record for record in caplog.records if "can be written" in record.message]) == 1
    counted = one.worker.status().prefix
    assert counted.disk_errors >= 2
    assert counted.pin_errors == 1
    assert not list((tmp_path / "prefixes").glob(f"*{SUFFIX}"))
    assert not list((tmp_path / "prefixes").glob("*.writing"))
    assert one.worker.pin_prefix("system", prompt).result(30).name == "system"


def written(disk: PrefixDisk, seed: int, pin: list[str] | None = None) -> str:
    header = PrefixHeader("key", pack_tokens(words(seed, 40)), 0, 0, {})
    writer = disk.begin(header, 4000, pin).result(10)
    disk.put(writer, StoredArray("float32", np.ones(1000, np.float32))).result(10)
    return disk.finish(writer).result(10)


def test_prefix_file_with_flipped_bit_is_rejected_or_gives_unchanged_tokens_and_arrays(tmp_path):
    writer, path = (
        PrefixWriter(tmp_path, PrefixHeader("key", pack_tokens(words(1, 20)), 3, 4, {"n": [1]})),
        tmp_path / "one",
    )
    writer.put(StoredArray("bfloat16", np.arange(6, dtype=np.uint16).reshape(2, 3)))
    writer.put(StoredArray("bool", np.array([True, False])))
    writer.finish(path)
    data, (header, arrays) = path.read_bytes(), read_prefix(path)
    assert writer.nbytes == len(data)
    assert (arrays[0].data.shape, arrays[0].data.tolist()) == ((2, 3), [[0, 1, 2], [3, 4, 5]])
    refused = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            read, found = read_prefix(path)
        except (BadFile, OSError):
            refused += 1
        else:  # in what nothing is read from, as times and permissions
            assert read == header
            assert [(one.numbers, one.data.tolist()) for one in found] == [(o.numbers, o.data.tolist()) for o in arrays]
    assert refused > len(data) / 2
    for at in range(len(data)):
        path.write_bytes(data[:at])
        with pytest.raises(BadFile):
            read_prefix(path)


def test_disk_prefix_store_evicts_least_recently_read_file_but_no_pin(tmp_path):
    disk = PrefixDisk(tmp_path, limit_bytes=10_000, pinned_bytes=5_000)
    disk.start().result(10)
    pinned = written(disk, 0, [])
    disk.pin(Pin("system", "model", words(0, 40), (pinned,))).result(10)
    names = [written(disk, seed) for seed in (1, 2)]
    (part,) = disk.parts("key", words(1, 40), 0, segments=True)
    disk.read(part.file).result(10)
    names.append(written(disk, 3))
    assert [disk.has(name) for name in (pinned, *names)] == [True, True, False, True]
    with pytest.raises(NoRoom, match=r"already 4\d\d\d of 5000 bytes"):
        written(disk, 4, [])
    disk.close(10)

    again = PrefixDisk(tmp_path, limit_bytes=5_000, pinned_bytes=5_000)
    again.start().result(10)
    assert [again.has(name) for name in (pinned, *names)] == [True, False, False, True]
    again.drop("system").result(10)
    assert not again.has(pinned)
    assert {path.name for path in tmp_path.iterdir()} == {names[2]}
    again.close(10)


def test_compressed_prefix_file_is_refused(tmp_path):
    path = tmp_path / f"one{SUFFIX}"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("header.json", '["prefix 2", "key", 0, 0, [], []]')
        archive.writestr("tokens", bytes(1 << 24))
        archive.writestr("arrays", b"")
    with pytest.raises(BadFile, match="compressed"):
        read_prefix(path)


def test_prefix_files_of_an_earlier_format_are_removed_at_start(tmp_path):
    old, other = tmp_path / f"{'0' * 16}-{'a' * 32}.safetensors", tmp_path / "model.safetensors"
    for file in (old, other):
        file.write_bytes(b"old")
    disk = PrefixDisk(tmp_path, DISK, DISK)
    disk.start().result(30)
    disk.close(10)
    assert [file.exists() for file in (old, other)] == [False, True], "the name tells whose a file is"


def test_damaged_pin_file_is_set_aside_at_start(tmp_path):
    (tmp_path / "pin-1.json").write_text("{")
    disk = PrefixDisk(tmp_path, limit_bytes=1000, pinned_bytes=1000)
    disk.start().result(10)
    assert [path.name for path in tmp_path.iterdir()] == [f"pin-1.json{ASIDE}"]
    assert disk.pins.oldest_first == []
    disk.close(10)


def test_pinning_beyond_a_limit_is_refused_naming_that_limit(engine, tmp_path):
    one = engine(on_disk(tmp_path), prefix_pinned_bytes=150_000, prefix_cache_bytes=200_000)
    worker, prompt = one.worker, words(1, 100)
    for i in range(MOST_PINS):
        worker.pin_prefix(f"p{i}", prompt).result(30)
    with pytest.raises(NoRoom, match=f"{MOST_PINS} prefixes are pinned, and at most {MOST_PINS} may be"):
        worker.pin_prefix("one-more", prompt)
    worker.pin_prefix("p0", words(2, 50)).result(30)
    assert len(worker.pins()) == MOST_PINS
    with pytest.raises(NoRoom, match="of 150000 bytes"):
        worker.pin_prefix("p1", words(3, 150)).result(30)
    with pytest.raises(NoRoom, match=r"the prefix cache may use 200000 \(engine.prefix_cache_bytes\)"):
        worker.pin_prefix("p1", words(3, 3000))
    with pytest.raises(InvalidRequest, match="name: got 'a b'; allowed: 1 to 64 letters"):
        worker.pin_prefix("a b", prompt)
    with pytest.raises(InvalidRequest, match="at least 16 tokens"):
        worker.pin_prefix("short", prompt[:15])
    with pytest.raises(InvalidRequest, match="name: got 'nobody'; allowed: p0, p1"):
        worker.drop_prefix("nobody")


def test_pinning_without_prefix_folder_names_the_missing_setting(running):
    one = running(lambda: pair(tiny_llama(1), None), prefix_cache_bytes=MEMORY)
    with pytest.raises(NotNow, match="engine.prefix_dir"):
        one.worker.pin_prefix("system", words(1, 100))
    assert one.worker.pins() == []
