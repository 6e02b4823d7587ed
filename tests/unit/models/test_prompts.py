"""The held-out prompts that parity tests and benchmarks are run over."""

from __future__ import annotations

from itertools import islice
from typing import Any

Prompts = dict[str, list[dict[str, Any]]]


def _user_text(row: dict[str, Any]) -> str:
    return [m["content"] for m in row["messages"] if m["role"] == "user"][-1]


def test_every_class_has_at_least_sixty_prompts_of_its_own(prompts: Prompts) -> None:
    for workload, rows in prompts.items():
        assert len(rows) >= 60
        assert {row["workload"] for row in rows} == {workload}
    ids = [row["id"] for rows in prompts.values() for row in rows]
    assert len(ids) == len(set(ids))


def test_every_prompt_is_a_conversation_that_waits_for_an_answer(prompts: Prompts) -> None:
    for rows in prompts.values():
        for row in rows:
            assert row["messages"][-1]["role"] == "user"
            assert all(m["role"] in ("system", "user", "assistant", "tool") and m["content"] for m in row["messages"])
            assert 1 <= row["max_tokens"] <= 512


def test_no_class_asks_the_same_twice(prompts: Prompts) -> None:
    for rows in prompts.values():
        families: dict[str, list[str]] = {}
        for row in rows:
            families.setdefault(row["id"].split("-")[1], []).append(_user_text(row))
        for texts in families.values():
            assert len(texts) == len(set(texts))


def test_a_tool_prompt_names_the_exact_call_expected(prompts: Prompts) -> None:
    for row in prompts["tool_call"]:
        assert set(row["expect"]) == {"name", "arguments"}
        assert row["expect"]["arguments"]
        system = row["messages"][0]["content"]
        assert row["expect"]["name"] in system or row["expect"]["name"] in _user_text(row)


def test_chat_prompts_include_questions_beside_a_list_of_tools(prompts: Prompts) -> None:
    with_tools = [row for row in prompts["chat"] if "tool_question" in row["id"]]
    assert len(with_tools) >= 10
    assert all(row["messages"][0]["role"] == "system" for row in with_tools)


def test_training_never_saw_a_held_out_user_text(prompts: Prompts) -> None:
    from training.generator import STAGES, documents

    held_out = {_user_text(row) for rows in prompts.values() for row in rows}
    seen = {d.user_text() for stage in STAGES for d in islice(documents(1, stage=stage), 10_000)}
    assert len(seen) > 10_000
    assert not held_out & seen


def test_the_generator_repeats_itself_for_the_same_seed() -> None:
    from training.generator import documents

    first = [d.text() for d in islice(documents(5), 300)]
    assert first == [d.text() for d in islice(documents(5), 300)]
    assert first != [d.text() for d in islice(documents(6), 300)]


def test_the_prompt_files_are_what_the_script_writes(prompts: Prompts) -> None:
    from training.prompts import CLASSES, rows_of

    for workload in CLASSES:
        assert rows_of(workload) == prompts[workload]
