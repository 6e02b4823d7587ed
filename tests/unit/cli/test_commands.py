"""The commands against a running daemon on a scripted pair: their output and how they end."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from draftd.cli.commands import drafts
from draftd.cli.commands.doctor import check_port
from draftd.cli.commands.fallback import lines as level_lines
from draftd.cli.commands.generate import summary
from draftd.cli.commands.status import lines
from draftd.cli.options import DaemonOptions
from draftd.client.gathering import Answer
from draftd.core import CLASSES
from draftd.engine.pair import LoadedModels
from draftd.errors import ConfigError
from draftd.fallback.store import StateFolder
from draftd.listening import other_port
from draftd.settings import ServerSettings, Settings
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference
from tests import forked_daemon
from tests.in_process_daemon import serving
from tests.scripted import scripted_models
from tests.unit.cli.conftest import Ran, Run, in_process
from tests.wait_until import until


def test_generate_prints_answer_on_stdout_and_one_statistics_line_on_stderr(draftd: Run) -> None:
    ran = draftd("generate", "-n", "24", "hello")
    assert ran.code == 0
    assert len(ran.out.rstrip("\n")) > 0
    assert ran.err.count("\n") == 1
    assert "24 tokens (speculative, up to 4 at a time)" in ran.err
    assert "drafted accepted" in ran.err


@pytest.mark.parametrize(
    ("mode", "reason", "drafted", "told"),
    [
        ("AUTOREGRESSIVE", "model: no draft model is loaded", 0, " · model: no draft model is loaded"),
        ("SPECULATIVE", "flag: on (default variant)", 0, " · nothing was drafted"),
        ("SPECULATIVE", "flag: on (default variant)", 4, " tokens per draft, the target's own included"),
        ("SPECULATIVE", "flag: on (default variant); model: it is unfit, so …", 4, " · model: it is unfit, so …"),
    ],
)
def test_generate_summary_line_ends_with_the_reason_for_reduced_speculation(
    mode: str, reason: str, drafted: int, told: str
) -> None:
    mode = f"DECODE_MODE_{mode}"
    started = inference.Started(plan=inference.DecodePlan(mode=mode, max_draft_tokens=4, reason=reason))
    counts = inference.DraftCounts(drafts=1, drafted_tokens=drafted, accepted_tokens=drafted, steps=3)
    line = summary(Answer("x", (1,), (), started, inference.Finished(mode=mode, counts=counts)))
    assert line.endswith(told)
    assert "default variant" not in line


def test_generate_summary_counts_undrafted_steps_and_without_draft_model_names_help_page() -> None:
    plan = inference.DecodePlan(
        mode="DECODE_MODE_SPECULATIVE", max_draft_tokens=4, reason="flag: on (default variant); model: none"
    )
    finished = inference.Finished(mode=plan.mode, counts=inference.DraftCounts(steps=33, parked_steps=20))
    answer = Answer("x", (1,), (), inference.Started(plan=plan), finished)
    assert " steps drafted, 20 were parked: drafting would not have paid" in summary(answer)
    assert "draftd docs" not in summary(answer)
    line = summary(answer, draft_model=False)
    assert line.endswith(" · model: none · see `draftd docs choosing-a-draft`")
    assert line.count("draftd docs") == 1


def test_generate_reads_prompt_from_stdin(draftd: Run) -> None:
    from_stdin = draftd("generate", "-n", "16", "--json", stdin="hello there\n")
    from_words = draftd("generate", "-n", "16", "--json", "hello", "there")
    assert from_stdin.code == from_words.code == 0
    assert json.loads(from_stdin.out)["token_ids"] == json.loads(from_words.out)["token_ids"]


def test_generate_sends_one_response_format_and_refuses_two_or_a_missing_schema_file(
    draftd: Run, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    ways = (["--schema", str(schema)], ["--schema", "-"], ["--regex", "a+"], ["--choice", "a", "--choice", "b"])
    for way in ways:  # the scripted model's tokenizer has no grammars, and the daemon says so
        ran = draftd("generate", *way, "hello", stdin='{"type": "object"}')
        kind = {"--schema": "json_schema", "--regex": "regex", "--choice": "choices"}[way[0]]
        assert f"response_format.{kind}: got" in ran.err
    for wrong in (["--regex", "a", "--choice", "b"], ["--schema", str(tmp_path / "none")]):
        ran = draftd("generate", *wrong, "hello")
        assert (ran.code, "allowed:" in ran.err, "Traceback" in ran.err) == (2, True, False)


def test_generate_without_prompt_exits_2_and_mentions_stdin(draftd: Run) -> None:
    ran = draftd("generate")
    assert ran.code == 2
    assert "stdin" in ran.err
    assert "Traceback" not in ran.err


def test_generate_waits_up_to_its_wait_option_for_a_loading_model_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, said = threading.Event(), io.StringIO()

    def loaded() -> LoadedModels:
        assert gate.wait(30)
        models = scripted_models(0.7)
        models.tokenizer.has_chat_template = False
        return models

    def open_when_told() -> None:
        until(lambda: "still loading" in said.getvalue(), 20)
        gate.set()

    with serving(tmp_path, loaded, wait=False) as served:

        def generate(*arguments: str) -> Ran:
            return in_process(
                ["generate", "--target", served.target, "-n", "8", *arguments, "hello"], monkeypatch, capsys
            )

        ran = generate("--wait", "0")
        assert (ran.code, "still loading" in ran.err) == (1, True)
        opening = threading.Thread(target=open_when_told)
        opening.start()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", said)
            ran = generate("--wait", "30")
        opening.join()
        assert ran.code == 0, said.getvalue()
        assert "8 tokens" in said.getvalue().splitlines()[-1]
        # There is a model now, and it has no template.
        ran = generate("--system", "be brief")
        assert ran.code == 2
        assert "--system: got 'be brief'; allowed: only with a chat template: scripted has none" in ran.err


def test_generate_refuses_system_message_together_with_raw_prompt(draftd: Run) -> None:
    ran = draftd("generate", "--raw", "--system", "be brief", "hello")
    assert (ran.code, ran.out) == (2, "")
    assert "--system: got 'be brief'; allowed: only with a chat template: with --raw there is none" in ran.err


def test_generate_json_drafted_count_equals_accepted_plus_rolled_back(draftd: Run) -> None:
    answer = json.loads(draftd("generate", "-n", "40", "--json", "count with me").out)
    counts, usage = answer["counts"], answer["usage"]
    assert answer["mode"] == "speculative"
    assert answer["started"]["plan"]["drafter"] == "draft_model"
    assert len(answer["token_ids"]) == usage["output_tokens"] == 40
    assert counts["drafted_tokens"] == counts["accepted_tokens"] + counts["rolled_back_tokens"]
    assert answer["timings"]["time_to_first_token"] > 0


def test_generate_highlight_in_a_pipe_brackets_drafted_text_and_changes_nothing_else(draftd: Run) -> None:
    plain = draftd("generate", "-n", "32", "hello")
    marked = draftd("generate", "-n", "32", "--highlight", "hello")
    assert "⟦" in marked.out
    assert marked.out.replace("⟦", "").replace("⟧", "") == plain.out


def test_generate_mode_autoregressive_option_disables_drafting(draftd: Run) -> None:
    answer = json.loads(draftd("generate", "-n", "8", "--json", "--mode", "autoregressive", "hello").out)
    assert answer["mode"] == "autoregressive"
    assert answer["counts"]["drafted_tokens"] == 0


@pytest.mark.parametrize("mode", ["automatic", "fixed"])
def test_generate_depth_mode_option_sets_depth_mode_of_the_decode_plan(draftd: Run, mode: str) -> None:
    answer = json.loads(draftd("generate", "-n", "8", "--json", "--depth-mode", mode, "hello").out)
    plan = answer["started"]["plan"]
    assert plan["depth_mode"] == mode
    assert plan["alternatives"] == (["prompt_lookup"] if mode == "automatic" else [])
    assert plan["max_draft_tokens"] == 4


def test_generate_raw_option_bypasses_the_chat_template(draftd: Run) -> None:
    raw = json.loads(draftd("generate", "-n", "4", "--json", "--raw", "hello").out)
    chat = json.loads(draftd("generate", "-n", "4", "--json", "hello").out)
    assert raw["usage"]["input_tokens"] == len("hello")
    assert chat["usage"]["input_tokens"] > raw["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("--max-tokens", "0"), "max_tokens"), (("--temperature", "-1"), "temperature"), (("--top-p", "2"), "top_p")],
)
def test_generate_with_out_of_range_option_exits_2_with_one_line_naming_the_field(
    draftd: Run, arguments: tuple[str, str], field: str
) -> None:
    ran = draftd("generate", *arguments, "hello")
    assert ran.code == 2
    assert field in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("--seed", "-1"), ("--top-k", "3000000000"), ("--max-tokens", "3000000000"), ("--mode", "fast")]
)
def test_generate_refuses_option_values_that_the_grpc_field_cannot_represent(
    draftd: Run, arguments: tuple[str, str]
) -> None:
    ran = draftd("generate", *arguments, "hello")
    assert ran.code == 2
    assert arguments[0] in ran.err


@pytest.mark.parametrize("command", [["status"], ["generate", "hello"], ["flag", "get"], ["compare", "a"]])
def test_client_commands_without_a_daemon_print_one_line_suggesting_draftd_serve(
    draftd: Run, command: list[str]
) -> None:
    ran = draftd(*command, DRAFTD_TARGET="127.0.0.1:1")
    assert ran.code == 1
    assert "draftd serve" in ran.err
    assert ran.err.count("\n") == 1


def test_compare_prints_one_row_per_prompt_with_identical_outputs_and_a_total_row(draftd: Run) -> None:
    ran = draftd("compare", "-n", "24", "first prompt", "second prompt")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].split()[0] == "prompt"
    assert [line.split("  ")[0] for line in lines[1:4]] == ["first prompt", "second prompt", "all (2)"]
    assert all(line.rstrip().endswith("yes") for line in lines[1:4])
    assert "\x1b" not in ran.out


def test_compare_json_lists_each_repeat_of_each_prompt_and_groups_by_workload(draftd: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"id": "a", "workload": "code", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20},
        {"id": "b", "workload": "prose", "messages": [{"role": "user", "content": "y"}], "max_tokens": 20},
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    ran = draftd("compare", "--file", str(file), "--json", "--repeat", "2")
    assert ran.code == 0, ran.err
    figures = json.loads(ran.out)
    assert [pair["prompt"] for pair in figures["pairs"]] == ["a", "b", "a", "b"]
    assert figures["summary"]["identical"] == figures["summary"]["comparable"] == 4
    assert set(figures["groups"]) == {"code", "prose"}
    assert 0 < figures["summary"]["acceptance"] < 1


def test_compare_without_prompts_uses_built_in_prompts_of_every_workload_class(draftd: Run) -> None:
    ran = draftd("compare", "--each", "1", "-n", "8", "--json")
    assert ran.code == 0, ran.err
    assert set(json.loads(ran.out)["groups"]) == set(CLASSES)


def test_compare_json_does_not_judge_sampled_answers_for_identity(draftd: Run) -> None:
    ran = draftd("compare", "-n", "16", "-t", "0.8", "--seed", "1", "hello", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["summary"]["comparable"] == 0


def test_status_command_prints_state_context_layers_and_speculation(draftd: Run) -> None:
    draftd("generate", "-n", "16", "hello")
    ran = draftd("status")
    assert ran.code == 0
    said = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert said["state"].startswith("serving for ")
    assert said["telemetry"].startswith("off (no")
    assert "tokens accepted" in said["drafts"]
    assert said["context"].startswith("4,096 tokens; KV cache: 16 KB per 1,000 tokens")
    assert said["layers"] == "1 × full attention"
    assert said["speculation"] == "flag on, level full, depth fixed, up to 4 tokens a step from draft_model"
    assert json.loads(draftd("status", "--json").out)["state"] == "serving"


@pytest.mark.parametrize("progress", ["loading the weights: 30 %", "the group starts again in 5 s"])
def test_status_prints_not_known_yet_for_model_rows_while_the_model_loads(progress: str) -> None:
    now, fallback = datetime.now(UTC), pb.FallbackState(loading=True)
    fallback.ladder.add(level="full", max_draft_tokens=4, drafter="draft_model")
    status = pb.GetStatusResponse(
        version="1.2", state="DAEMON_STATE_LOADING", progress=progress, flag_variant="on", level="full"
    )
    status.fallback.CopyFrom(fallback)
    said = dict(lines(status, now))
    assert said["state"] == f"loading for 0 s: {progress} (draftd 1.2)"
    assert [said[name] for name in ("model", "draft", "memory")] == ["not known yet"] * 3
    assert said["speculation"] == "not known yet; flag on, level full"
    assert "prefix cache" not in said
    assert "layers" not in said
    level = {name: str(value) for name, value in level_lines(fallback, now, inference.GetModelResponse())}
    assert level["in memory"] == "not known yet"


def served(**fields: Any) -> pb.GetStatusResponse:
    """Returns a status at the top of the embedded pair's ladder, with these fields of the model and of the status."""
    model = {"model": "m", "draft_model": "d", "drafters": ["draft_model", "prompt_lookup"], "max_draft_tokens": 4}
    model_fields = {name: fields.pop(name, model.get(name)) for name in {*model, "speculation_reason", "depth_mode"}}
    status = pb.GetStatusResponse(**{"flag_variant": "on", "level": "full", "max_draft_tokens": 4} | fields)
    model_fields = {name: value for name, value in model_fields.items() if value is not None}
    available = set(model_fields["drafters"]) != {"grammar"}
    status.model.CopyFrom(inference.GetModelResponse(**model_fields, speculation_available=available))
    status.fallback.ladder.add(level="full", max_draft_tokens=4, drafter="draft_model")
    status.fallback.ladder.add(level="short_block", max_draft_tokens=3, drafter="draft_model")
    status.fallback.ladder.add(level="light_draft", max_draft_tokens=3, drafter="prompt_lookup")
    return status


OFF = "off by the flag, unless one of its targeting rules (flag get) allows it for a request"
REFUSED = {"drafters": ["prompt_lookup", "grammar"], "speculation_reason": "it is another family's"}


@pytest.mark.parametrize(
    ("fields", "row", "told"),
    [
        (REFUSED, "draft", "d, refused: it is another family's"),
        (REFUSED | {"draft_model": ""}, "draft", "none"),
        (
            REFUSED,
            "speculation",
            "flag on, level full, up to 4 tokens a step from prompt_lookup, as there is no draft_model",
        ),
        (
            REFUSED | {"depth_mode": "DEPTH_MODE_FIXED"},
            "speculation",
            "flag on, level full, depth fixed, no drafts: there is no draft_model",
        ),
        (
            {"flag_variant": "off"},
            "speculation",
            OFF,
        ),
        ({"drafters": ["grammar"], "speculation_reason": "no draft"}, "speculation", "none: no draft"),
    ],
)
def test_status_rows_name_the_drafter_used_or_the_reason_for_no_drafts(
    fields: dict[str, Any], row: str, told: str
) -> None:
    assert dict(lines(served(**fields), datetime.now(UTC)))[row] == told


def test_level_listing_names_each_ladder_level_and_the_substitute_for_an_absent_drafter() -> None:
    status = served(**REFUSED)
    texts = [str(value) for _, value in level_lines(status.fallback, datetime.now(UTC), status.model)]
    assert [line.split(" up to ")[0].strip(" ▸") for line in texts[-3:]] == [
        *("full", "short_block 3", "light_draft prompt_lookup")
    ]
    assert texts[-3].endswith("up to 4 tokens a step from prompt_lookup, as there is no draft_model")
    assert texts[-1].endswith("up to 3 tokens a step from prompt_lookup")
    assert "no draft" in texts


def test_depth_table_calls_grammar_drafter_forced_tokens_and_missing_workload_unlabelled() -> None:
    response = pb.GetDepthResponse()
    response.costs.add(drafter="grammar", batch=1, source="learnt", ratios=[1.49])
    response.yields.add(drafter="grammar", acceptance=[0.5], tried=[9], depth=1)
    (cost,), (text,) = drafts._costs(response), drafts._yields(response)
    assert (cost[0], *cost[-2:]) == ("forced tokens", "–", "1.49×")
    assert text[0] == "unlabelled by forced tokens"


def test_depth_command_prints_draft_cost_per_depth_and_yield_per_workload(draftd: Run) -> None:
    draftd("generate", "-n", "40", "-w", "code", "hello")
    table = list[list[str]]()

    def told() -> bool:  # from a second ago; a slow machine measures some depths at its start, and learns the others
        table[:] = [line.split() for line in draftd("depth").out.splitlines()[1:]]
        return bool(table) and "drafted" in table[0]

    until(told)
    depths = table[0][table[0].index("drafts") + 1 :: 2]
    assert [depth for depth in ("1", "2", "3", "4") if depth in depths] == depths
    assert table[1][:2] == ["draft_model", "1"]
    assert all(cell.endswith("×") for cell in table[1][-len(depths) :])
    until(lambda: any(one["workload"] == "code" for one in json.loads(draftd("depth", "--json").out)["yields"]))
    assert "code by draft_model " in draftd("depth").out


def test_flag_set_off_makes_the_next_request_autoregressive(draftd: Run) -> None:
    assert "value     on" in draftd("flag", "get").out
    try:
        said = draftd("flag", "set", "off").out
        assert said.startswith("speculative-decoding: off (was on), for every daemon whose flag.file is /")
        assert said.endswith("/flags.json\n")
        answer = json.loads(draftd("generate", "-n", "8", "--json", "hello").out)
        assert answer["mode"] == "autoregressive"
        assert json.loads(draftd("flag", "get", "--json").out)["evaluation"]["variant"] == "off"
    finally:
        assert draftd("flag", "set", "on").code == 0
    assert draftd("flag", "set", "on").out.startswith("speculative-decoding: on already, for every daemon whose")


def test_level_hold_command_makes_next_request_autoregressive_and_is_listed_in_events(draftd: Run) -> None:
    try:
        assert draftd("level", "hold", "autoregressive", "--for", "30m").out.startswith("autoregressive, held until ")
        answer = json.loads(draftd("generate", "-n", "8", "--json", "hello").out)
        assert answer["mode"] == "autoregressive"
        assert answer["started"]["plan"]["reason"] == "ladder: autoregressive"
        assert "autoregressive (" in draftd("status").out
        assert "full → autoregressive  hold" in draftd("events").out
    finally:
        assert draftd("level", "hold", "full").code == 0
        until(lambda: json.loads(draftd("level", "--json").out)["position"] == 0, 30)
        assert draftd("level", "release").code == 0
    assert json.loads(draftd("generate", "-n", "8", "--json", "hello").out)["mode"] == "speculative"


def test_flag_set_with_unknown_variant_exits_2(draftd: Run) -> None:
    ran = draftd("flag", "set", "maybe")
    assert ran.code == 2
    assert "on" in ran.err


def test_serve_with_wrong_setting_exits_2_and_names_the_setting_to_use(draftd: Run) -> None:
    ran = draftd("serve", "--set", "engine.max_bach=2")
    assert ran.code == 2
    assert "did you mean engine.max_batch?" in ran.err
    ran = draftd("serve", "--host", "0.0.0.0")
    assert ran.code == 2
    assert "server.token" in ran.err
    ran = draftd("serve", "--set", "server.token=correct-horse-battery-staple")
    assert ran.code == 2
    assert "DRAFTD_SERVER__TOKEN" in ran.err
    assert "horse" not in ran.err, "it stands in the list of processes, and not in a log as well"


def test_serve_with_missing_model_exits_1_with_timestamped_error_and_no_traceback(draftd: Run, tmp_path: Path) -> None:
    model, learnt = str(tmp_path / "none"), tmp_path / "learnt.json"
    before = {"of": {"target": {"path": model, "files": {}}, "draft": None, "device": "another"}, "learnt": {}}
    learnt.write_text(json.dumps({"version": 1, "pairs": [before]}))
    kept = ("--set", f"engine.learnt_file={learnt}")
    ran = draftd("serve", "--port", "0", "--model", model, *kept, XDG_STATE_HOME=str(tmp_path))
    assert ran.code == 1
    assert "learnt" not in ran.err, "of a pair that is not served nothing is learnt anew"
    at, _, said = ran.err.splitlines()[-1].partition(" draftd: error: ")
    assert "none" in said
    assert datetime.fromisoformat(at).utcoffset() is not None, "an error that ends the daemon belongs to its log"
    assert "Traceback" not in ran.err


def test_serve_on_taken_port_exits_2_with_a_single_error_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        folder = StateFolder(tmp_path / "draftd" / str(port))  # as in the daemon that listens there
        # A process of its own: the daemon that other tests here ask shares this one's log.
        serve = forked_daemon.start(
            forked_daemon.command, "serve", "--port", str(port), environ=os.environ | {"XDG_STATE_HOME": str(tmp_path)}
        )
        (line,) = serve.stderr.read().splitlines()
        assert serve.wait(60) == 2
        assert check_port(Settings(server=ServerSettings(port=port))).mend == other_port("server.port")
        folder.close()
    said = f"server.port: got {port}; allowed: a port that is free on 127.0.0.1; {other_port('server.port')}"
    assert line.endswith(f"error: {said}")


def test_version_option_prints_the_version_number(draftd: Run) -> None:
    assert draftd("--version").out.startswith("draftd 0.")


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (pb.PrefixCache(), "off"),
        (
            pb.PrefixCache(bytes=2_000_000, limit_bytes=8_000_000, entries=3, lookups=40, hits=30, read_tokens=900),
            "2 MB of 8 MB, 3 texts; 30 of 40 requests reused 900 tokens",
        ),
        (pb.PrefixCache(lookups=4, hits=1, read_tokens=20), "0 B of 0 B, 0 texts; 1 of 4 requests reused 20 tokens"),
        (
            pb.PrefixCache(limit_bytes=8_000_000, lookups=4, unfit=2),
            "0 B of 8 MB, 0 texts; 0 of 4 requests reused 0 tokens, 2 were too long for it",
        ),
    ],
)
def test_status_prints_prefix_cache_usage_and_hits_in_one_line(cache: pb.PrefixCache, said: str) -> None:
    texts = dict(lines(pb.GetStatusResponse(prefix_cache=cache), datetime.now(UTC)))
    assert texts["prefix cache"] == said
    assert "prefix cache" not in dict(lines(pb.GetStatusResponse(), datetime.now(UTC)))


def test_status_says_at_which_width_logits_differ_and_names_the_operations() -> None:
    status = pb.GetStatusResponse()
    assert "exactness" not in dict(lines(status, datetime.now(UTC)))
    status.exactness.forward.MergeFrom(pb.OperationExactness(width=13, difference=2e-6))
    status.exactness.flips = 0.3
    status.exactness.operations.add(name="layers.0.q_proj", kind="linear", width=13)
    status_lines = lines(status, datetime.now(UTC))
    at = [name for name, _ in status_lines].index("exactness")
    assert status_lines[at : at + 2] == [
        (
            "exactness",
            "logits are not the same at every size: first at 13 tokens; at most 2e-06 standard deviations; "
            "about 0.3 of 1,000 greedy tokens would change",
        ),
        ("", "operations that differ: layers.0.q_proj"),
    ]


def test_status_prefix_cache_line_gives_capacity_in_tokens_and_a_warning_line_below() -> None:
    model = inference.GetModelResponse(model="m", position_bytes=1000)
    cache = pb.PrefixCache(limit_bytes=8_000_000, warning="too small: set more")
    status_lines = lines(pb.GetStatusResponse(model=model, prefix_cache=cache), datetime.now(UTC))
    at = [name for name, _ in status_lines].index("prefix cache")
    assert status_lines[at][1].startswith("0 B of 8 MB (room for 8,000 tokens), 0 texts")
    assert status_lines[at + 1] == ("", "too small: set more")


@pytest.mark.parametrize("target", ["127.0.0.1:65536", "[::1]:70000", "localhost:0"])
def test_daemon_address_with_port_out_of_range_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="--target: got .*a port from 1 to 65535"):
        DaemonOptions(target).connect()


@pytest.mark.parametrize("target", ["127.0.0.1:65535", "[::1]:1", "unix:/run/draftd.sock"])
def test_daemon_address_with_valid_port_or_unix_socket_is_accepted(target: str) -> None:
    DaemonOptions(target).connect().close()
