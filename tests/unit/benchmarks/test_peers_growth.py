"""How cost grows: rates while all rows decode, the bound of memory, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import bandwidth
from benchmarks.peers.bandwidth import Reading
from benchmarks.peers.growth import PLACES, Growth, Place, decoding, figures, machine, points
from benchmarks.peers.store import Store
from benchmarks.peers.streams import Chunk, Stream
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE, Turn


def test_memory_bound_of_step_counts_weights_and_kv_cache_of_each_sequence(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [10, 20], "data_offsets": [0, 400]}, "__metadata__": {}})
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(400))
    reading = Reading.of(tmp_path, 4)
    assert reading == Reading(800, 2 * 3 * 2 * 8 * 4)
    assert reading.bytes_a_step(100, 2) == 800 + 2 * 100 * 384
    # 77,600 bytes a step at 7.76 MB/s are a hundred steps a second, of two rows and three tokens each.
    assert reading.tokens_per_second(7.76e6, 100, 2, 3.0) == pytest.approx(600)


def test_bandwidth_measurement_exceeds_100_megabytes_a_second() -> None:
    assert bandwidth.measured(1 << 22, 2) > 1e8


def stream(begin: float, end: float, each: float = 0.1, tokens: int = 2) -> Stream:
    times = np.arange(begin, end + 1e-9, each)
    return Stream("p", 0.0, end, tuple(Chunk(float(at), tokens) for at in times))


def test_batch_size_benchmark_decode_rate_counts_only_time_when_all_streams_decode() -> None:
    assert decoding(Turn((stream(1.0, 3.0),), 20)) == pytest.approx(20.0)
    # From 2.05 s, when the second begins, to 3 s: ten chunks of two of the first, nine of the second.
    assert decoding(Turn((stream(1.0, 3.0), stream(2.05, 5.0)), 50)) == pytest.approx(38 / 0.95)
    with pytest.raises(ValueError, match="longer answers"):
        decoding(Turn((stream(1.0, 2.0), stream(3.0, 4.0)), 20))


def records() -> list[dict[str, Any]]:
    """Records of every place, at rates that fall with the context and grow with the batch."""
    rows: list[dict[str, Any]] = [
        {"bandwidth": 2e10, "number_bytes": 4, "weight_bytes": 43e6, "kv_bytes_a_token": 24576}
    ]
    for place in PLACES:
        for way, gain in ((AUTOREGRESSIVE.name, 1.0), (AUTOMATIC.name, 1.8)):
            each = 0.012 * (1 + place.context / 1500) * (1 + 0.1 * place.batch) / gain
            turn = Turn((stream(0.5, 3.5, each, 1),) * place.batch, (1 + round(3.0 / each) // 2) * place.batch)
            kv = place.context * place.batch * 24576
            seen = {"kv": kv, "active": 6e7 + kv, "resident": 4e8 + 2 * kv}
            where = {"context": place.context, "batch": place.batch, "repetition": 0, "way": way}
            rows.append(where | {"turn": turn.record(), "seen": seen})
    return rows


def test_batch_size_benchmark_states_decode_rate_memory_bound_and_kv_cache_size() -> None:
    by_name = {point.key: point for point in figures(records())}
    assert len(by_name) == 1 + 2 * len(PLACES)
    point = by_name["context_4096_batch_1_autoregressive"]
    assert point.value == pytest.approx(1 / (0.012 * (1 + 4096 / 1500) * 1.1), rel=0.01)
    assert f"memory allows {2e10 / (43e6 + (4096 - 32) * 24576) * 2:.0f};" in point.detail
    assert "KV 101 MB" in point.detail
    assert all(point.wanted is None for point in by_name.values())


def test_batch_size_benchmark_answers_are_shorter_than_context() -> None:
    assert all(place.tokens < place.context for place in PLACES)
    assert {place.tokens for place in PLACES if place.of_batches} == {336}


def test_batch_size_benchmark_curves_start_at_batch_size_1() -> None:
    assert [place.batch for place in PLACES if place.of_batches] == [1, 2, 4, 8, 16]
    assert [(place.context, place.batch) for place in PLACES if not place.of_batches][:2] == [(128, 1), (256, 1)]


def test_batch_size_benchmark_without_bandwidth_record_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        machine([])


def test_batch_size_benchmark_draws_png_picture_from_records(tmp_path: Path) -> None:
    store = Store(tmp_path / "growth.jsonl")
    for record in records():
        store.add(record)
    Growth().draw(store, tmp_path / "made" / "growth.png")
    assert (tmp_path / "made" / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert next(point.place for point in points(records())) == Place(128, 1)
