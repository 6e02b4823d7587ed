"""The held-out prompts that parity tests and benchmarks are run over."""

from __future__ import annotations

from itertools import islice
from typing import Any

Prompts = dict[str, list[dict[str, Any]]]


def _user_text(row: dict[str, Any]) -> str:
    return [m["content"] for m in row["messages"] if m["role"] == "user"][-1]


def test_each_workload_class_has_at_least_sixty_uniquely_named_held_out_prompts(prompts: Prompts) -> None:
    for workload, rows in prompts.items():
        assert len(rows) >= 60
        assert {row["workload"] for row in rows} == {workload}
    ids = [row["id"] for rows in prompts.values() for row in rows]
    assert len(ids) == len(set(ids))


def test_every_held_out_prompt_is_a_valid_conversation_ending_with_a_user_message(prompts: Prompts) -> None:
    for rows in prompts.values():
        for row in rows:
            assert row["messages"][-1]["role"] == "user"
            assert all(m["role"] in ("system", "user", "assistant", "tool") and m["content"] for m in row["messages"])
            assert 1 <= row["max_tokens"] <= 512


def test_held_out_prompts_of_one_family_have_distinct_user_texts(prompts: Prompts) -> None:
    for rows in prompts.values():
        families: dict[str, list[str]] = {}
        for row in rows:
            families.setdefault(row["id"].split("-")[1], []).append(_user_text(row))
        for texts in families.values():
            assert len(texts) == len(set(texts))


def test_held_out_tool_prompt_mentions_its_expected_call(prompts: Prompts) -> None:
    for row in prompts["tool_call"]:
        assert set(row["expect"]) == {"name", "arguments"}
        assert row["expect"]["arguments"]
        system = row["messages"][0]["content"]
        assert row["expect"]["name"] in system or row["expect"]["name"] in _user_text(row)


def test_held_out_chat_prompts_include_ten_questions_with_tool_lists(prompts: Prompts) -> None:
    with_tools = [row for row in prompts["chat"] if "tool_question" in row["id"]]
    assert len(with_tools) >= 10
    assert all(row["messages"][0]["role"] == "system" for row in with_tools)


def test_embedded_model_training_data_contains_no_held_out_user_text(prompts: Prompts) -> None:
    from training.generator import STAGES, documents

    held_out = {_user_text(row) for rows in prompts.values() for row in rows}
    seen = {d.user_text() for stage in STAGES for d in islice(documents(1, stage=stage), 10_000)}
    assert len(seen) > 10_000
    assert not held_out & seen


def test_training_document_generator_is_deterministic_for_a_seed() -> None:
    from training.generator import documents

    first = [d.text() for d in islice(documents(5), 300)]
    assert first == [d.text() for d in islice(documents(5), 300)]
    assert first != [d.text() for d in islice(documents(6), 300)]


def test_held_out_prompt_files_equal_output_of_the_prompt_generator(prompts: Prompts) -> None:
    from training.prompts import CLASSES, rows_of

    for workload in CLASSES:
        assert rows_of(workload) == prompts[workload]
