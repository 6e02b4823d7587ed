"""The flag through OpenFeature and a real file: flips, targeting, and what a broken file does."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest
from openfeature.contrib.provider.flagd.resolvers.process.connector.file_watcher import FileWatcher
from openfeature.flag_evaluation import FlagEvaluationDetails
from openfeature.hook import Hook, HookContext, HookHints
from openfeature.schemas.protobuf.flagd.sync.v1 import sync_pb2, sync_pb2_grpc

from draftd.core import WorkloadClass
from draftd.errors import FlagReadOnly, InvalidRequest
from draftd.journal import Journal
from draftd.planning.flag import FlagService
from draftd.planning.flag_file import FLAG_KEY, STRATEGY, FlagResolution
from draftd.planning.planner import FlagContext
from draftd.settings import FlagSettings
from tests.wait_until import until

ANY = FlagContext("model")
PROSE_OFF = {"if": [{"==": [{"var": "workload"}, "prose"]}, "off", None]}
CALLER_OFF = {"if": [{"==": [{"var": "targetingKey"}, "batch-job"]}, "off", None]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "flags.json"


@pytest.fixture
def service(path: Path) -> Iterator[FlagService]:
    service = FlagService(FlagSettings(file=path))
    yield service
    service.close()


def document(default: str = "on", targeting: dict[str, Any] | None = None) -> str:
    flag: dict[str, Any] = {"state": "ENABLED", "variants": {"on": True, "off": False}, "defaultVariant": default}
    if targeting is not None:
        flag["targeting"] = targeting
    return json.dumps({"flags": {FLAG_KEY: flag}})


def test_missing_flag_file_is_created_with_the_configured_default(path: Path) -> None:
    service = FlagService(FlagSettings(file=path, default_variant="off"))
    try:
        assert json.loads(path.read_text())["flags"][FLAG_KEY]["defaultVariant"] == "off"
        assert service.evaluate(ANY).value is False
    finally:
        service.close()


def test_flag_change_is_effective_when_set_variant_returns(service: FlagService) -> None:
    for variant in ("off", "on", "off", "off", "on"):
        service.set_variant(variant)
        assert service.evaluate(ANY).variant == variant
        assert service.state().default_variant == variant


def test_flag_file_watcher_continues_after_an_exception(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, failures = FileWatcher.safe_load_data, iter((True, True))

    def failing(watcher: FileWatcher) -> None:
        if next(failures, False):
            raise RuntimeError("a bug")
        look(watcher)

    monkeypatch.setattr(FileWatcher, "safe_load_data", failing)
    service = FlagService(FlagSettings(file=path))
    try:
        path.write_text(document("off"))
        until(lambda: not service.evaluate(ANY).value, 30)
    finally:
        service.close()


def test_flag_targeting_selects_the_variant_by_workload_or_caller(service: FlagService, path: Path) -> None:
    path.write_text(document(targeting=PROSE_OFF))
    prose = FlagContext("model", WorkloadClass.PROSE)
    until(lambda: not service.evaluate(prose).value)
    assert service.evaluate(prose).reason == "TARGETING_MATCH"
    assert service.evaluate(ANY).variant == "on"
    path.write_text(document(targeting=CALLER_OFF))
    until(lambda: not service.evaluate(FlagContext(caller="batch-job")).value)
    assert service.evaluate(FlagContext(caller="person")).value


def test_setting_the_flag_default_keeps_targeting_rules_that_override_the_default(
    service: FlagService, path: Path
) -> None:
    path.write_text(document(targeting={"if": [True, "on", None]}))  # hides the default from everyone
    until(lambda: service.evaluate(ANY).reason == "TARGETING_MATCH")
    assert service.set_variant("off") == "on"
    written = json.loads(path.read_text())["flags"][FLAG_KEY]
    assert written["targeting"] == {"if": [True, "on", None]}
    assert written["defaultVariant"] == "off"


def test_broken_flag_file_keeps_the_last_good_value_and_warns_once(
    service: FlagService, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.set_variant("off")
    with caplog.at_level(logging.WARNING):
        path.write_text("{ broken")
        until(lambda: service.evaluate(ANY).reason == "STALE")
        resolution = service.evaluate(ANY)
        assert (resolution.variant, resolution.value) == ("off", False)
        assert "not valid JSON" in resolution.error
        assert "not valid JSON" in service.state().error
        with pytest.raises(FlagReadOnly, match="left as it is"):
            service.set_variant("on")
        assert path.read_text() == "{ broken"
        threading.Event().wait(0.5)  # several polls
    assert len([r for r in caplog.records if "not valid JSON" in r.getMessage()]) == 1
    assert not [r for r in caplog.records if r.exc_info]
    path.write_text(document("on"))
    until(lambda: service.evaluate(ANY).reason == "STATIC")
    assert service.evaluate(ANY).value


def test_deleted_flag_file_keeps_the_last_value_and_can_be_set_again(service: FlagService, path: Path) -> None:
    service.set_variant("off")
    path.unlink()
    until(lambda: service.evaluate(ANY).reason == "STALE")
    assert service.evaluate(ANY).value is False
    service.set_variant("on")
    assert service.evaluate(ANY).value


def test_flag_file_broken_at_start_gives_the_default_until_repaired(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("nonsense")
    service = FlagService(FlagSettings(file=path, default_variant="off"))
    try:
        resolution = service.evaluate(ANY)
        assert (resolution.value, resolution.reason) == (False, "ERROR")
        path.write_text(document("on"))
        until(lambda: service.evaluate(ANY).value)
    finally:
        service.close()


def test_flag_service_refuses_to_set_an_unknown_variant(service: FlagService) -> None:
    with pytest.raises(InvalidRequest, match="allowed: on, off"):
        service.set_variant("perhaps")


def test_concurrent_flag_changes_leave_a_valid_file_with_the_effective_variant(
    service: FlagService, path: Path
) -> None:
    threads = [threading.Thread(target=service.set_variant, args=(v,)) for v in ("on", "off") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert json.loads(path.read_text())["flags"][FLAG_KEY]["defaultVariant"] == service.evaluate(ANY).variant
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_flag_change_writes_through_a_symlink_and_keeps_the_file_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text(document())
    real.chmod(0o600)
    link.symlink_to(real)
    service = FlagService(FlagSettings(file=link))
    try:
        service.set_variant("off")
    finally:
        service.close()
    assert link.is_symlink()
    assert json.loads(real.read_text())["flags"][FLAG_KEY]["defaultVariant"] == "off"
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("variant", ["on", "off"])
def test_unwritable_flag_file_keeps_the_configured_default_and_refuses_changes(
    variant: Literal["on", "off"], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    service = FlagService(FlagSettings(file=tmp_path / "file" / "flags.json", default_variant=variant))
    try:
        assert service.evaluate(ANY).value is (variant == "on")
        with pytest.raises(FlagReadOnly, match="cannot be written"):
            service.set_variant("on")
        assert service.save_errors == 2
    finally:
        service.close()
    assert f"the flag is {variant} until the file exists" in caplog.text


def test_old_temporary_files_of_the_flag_file_are_removed_at_start(tmp_path: Path) -> None:
    old, new = tmp_path / ".flags.json.abcdefgh", tmp_path / ".flags.json.ijklmnop"
    old.touch()
    new.touch()  # another daemon's, which is about to replace the file
    os.utime(old, (time.time() - 120, time.time() - 120))
    FlagService(FlagSettings(file=tmp_path / "flags.json")).close()
    assert not old.exists()
    assert new.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # gRPC's own, when closed early
def test_unreachable_flagd_server_gives_the_default_and_refuses_changes() -> None:
    service = FlagService(FlagSettings(provider="flagd", host="127.0.0.1", port=9))
    try:
        assert service.evaluate(ANY).reason == "ERROR"
        assert service.evaluate(ANY).value is True
        assert service.state().writable is False
        with pytest.raises(FlagReadOnly, match="set it there"):
            service.set_variant("off")
    finally:
        service.close()


def test_flag_evaluation_hook_gets_the_caller_and_the_variant(path: Path) -> None:
    heard: list[tuple[str | None, str | None]] = []

    class Listen(Hook):
        def finally_after(
            self, hook_context: HookContext, details: FlagEvaluationDetails[Any], hints: HookHints
        ) -> None:
            heard.append((hook_context.evaluation_context.targeting_key, details.variant))

    service = FlagService(FlagSettings(file=path), hook=Listen())
    try:
        service.evaluate(FlagContext("model", caller="someone"))
    finally:
        service.close()
    assert heard == [("someone", "on")]


class FlagdServer(sync_pb2_grpc.FlagSyncServiceServicer):
    """flagd's sync service: sends the document, and each later one."""

    def __init__(self, text: str) -> None:
        self.documents: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.documents.put(text)

    def SyncFlags(self, request: object, context: object) -> Iterator[sync_pb2.SyncFlagsResponse]:
        while (text := self.documents.get()) is not None:
            yield sync_pb2.SyncFlagsResponse(flag_configuration=text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_lost_flagd_server_keeps_the_last_flag_value_it_sent() -> None:
    flagd = FlagdServer(document(targeting=PROSE_OFF))
    server = grpc.server(ThreadPoolExecutor(4))
    sync_pb2_grpc.add_FlagSyncServiceServicer_to_server(flagd, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    service = FlagService(FlagSettings(provider="flagd", host="127.0.0.1", port=port, default_variant="off"))
    prose = FlagContext("model", WorkloadClass.PROSE)
    try:
        until(lambda: service.evaluate(ANY).value)
        assert (service.evaluate(prose).variant, service.evaluate(prose).reason) == ("off", "TARGETING_MATCH")
        flagd.documents.put(document("on"))
        until(lambda: service.evaluate(prose).variant == "on")
        flagd.documents.put(None)
        server.stop(0).wait()
        until(lambda: service.evaluate(ANY).reason == "STALE")
        assert service.evaluate(ANY).value is True
    finally:
        flagd.documents.put(None)
        service.close()
        server.stop(0).wait()


def told(journal: Journal) -> list[tuple[str, str, str]]:
    return [(t.previous, t.current, t.cause) for t in journal.latest(10)]


def test_each_flag_change_is_journalled_once_with_its_cause(path: Path) -> None:
    journal = Journal()
    service = FlagService(FlagSettings(file=path), journal=journal)
    try:
        assert told(journal) == []
        for variant in ("off", "off", "on"):
            service.set_variant(variant)
        path.write_text(document("off"))  # its notice comes after those of the flips
        until(lambda: len(told(journal)) >= 3)
        assert told(journal) == [
            ("on", "off", "set over gRPC"),
            ("off", "on", "set over gRPC"),
            ("on", "off", "its file was edited"),
        ]
    finally:
        service.close()


def test_flag_file_edit_that_keeps_the_default_is_not_journalled(path: Path) -> None:
    journal = Journal()
    service = FlagService(FlagSettings(file=path), journal=journal)
    try:
        path.write_text(document("on", targeting=PROSE_OFF))
        until(lambda: not service.evaluate(FlagContext("model", WorkloadClass.PROSE)).value)
        path.write_text("broken")
        until(lambda: bool(service.state().error))
        path.write_text(document("off"))
        until(lambda: bool(told(journal)))
        assert told(journal) == [("on", "off", "its file was edited")]
    finally:
        service.close()


def test_flag_file_edit_followed_by_a_set_call_journals_both_changes(path: Path) -> None:
    journal = Journal()
    service = FlagService(FlagSettings(file=path), journal=journal)
    try:
        path.write_text(document("off"))
        service.set_variant("on")
        assert told(journal) == [("on", "off", "its file was edited"), ("off", "on", "set over gRPC")]
    finally:
        service.close()


def test_reading_the_default_flag_value_runs_no_evaluation_hook(path: Path) -> None:
    heard: list[str] = []

    class Listen(Hook):
        def finally_after(
            self, hook_context: HookContext, details: FlagEvaluationDetails[Any], hints: HookHints
        ) -> None:
            heard.append(hook_context.flag_key)

    service = FlagService(FlagSettings(file=path), hook=Listen())
    try:
        assert service.default_value() is True
        service.set_variant("off")
        assert service.default_value() is False
        path.write_text("broken")
        until(lambda: bool(service.state().error))
        assert service.default_value() is False
    finally:
        service.close()
    assert heard == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flagd_server_change_is_journalled_after_the_server_answers() -> None:
    journal = Journal()
    flagd = FlagdServer(document("on"))
    server = grpc.server(ThreadPoolExecutor(4))
    sync_pb2_grpc.add_FlagSyncServiceServicer_to_server(flagd, server)
    port = server.add_insecure_port("127.0.0.1:0")
    service = FlagService(FlagSettings(provider="flagd", host="127.0.0.1", port=port), journal=journal)
    try:
        assert service.default_value() is None
        server.start()
        until(lambda: service.default_value() is True, 20)
        flagd.documents.put(document("off"))
        until(lambda: bool(told(journal)))
        assert told(journal) == [("on", "off", "changed on the flagd server")]
        assert service.default_value() is False
    finally:
        flagd.documents.put(None)
        service.close()
        server.stop(0).wait()


STRATEGY_RULE = {"if": [{">": [{"var": "prompt_tokens"}, 1000]}, "remote", None]}


def test_strategy_flag_is_set_and_targeted_apart_from_speculation_flag(service: FlagService, path: Path) -> None:
    flags = json.loads(path.read_text())["flags"]
    assert flags["decoding-strategy"]["defaultVariant"] == "auto"
    assert service.set_variant("local", STRATEGY) == "auto"
    assert service.strategy(ANY).value == "local"
    assert service.evaluate(ANY).value is True
    with pytest.raises(InvalidRequest, match="local, remote, speculative, auto"):
        service.set_variant("on", STRATEGY)
    written = json.loads(path.read_text())
    written["flags"]["decoding-strategy"]["targeting"] = STRATEGY_RULE
    path.write_text(json.dumps(written))
    long = FlagContext("model", prompt_tokens=5000)
    until(lambda: service.strategy(long).value == "remote")
    assert service.strategy(long).reason == "TARGETING_MATCH"
    assert service.strategy(ANY).value == "local"


def test_flag_file_without_a_strategy_flag_uses_the_configured_strategy(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(document())
    heard: list[FlagEvaluationDetails[Any]] = []

    class Listen(Hook):
        def finally_after(
            self, hook_context: HookContext, details: FlagEvaluationDetails[Any], hints: HookHints
        ) -> None:
            heard.append(details)

    service = FlagService(FlagSettings(file=path), strategy="speculative", hook=Listen())
    try:
        said = service.strategy(ANY)
        assert (said.value, said.reason, said.error) == ("speculative", "DEFAULT", "")
        assert not heard  # no failed evaluation
        assert service.state(STRATEGY).default_variant == "speculative"
        assert service.set_variant("local", STRATEGY) == ""
        assert service.strategy(ANY).value == "local"
        assert [details.flag_key for details in heard] == ["decoding-strategy"]
    finally:
        service.close()


def test_strategy_flag_with_an_invalid_value_resolves_to_auto_with_an_error(service: FlagService, path: Path) -> None:
    written = json.loads(path.read_text())
    written["flags"]["decoding-strategy"] |= {"variants": {"fast": "warp"}, "defaultVariant": "fast"}
    path.write_text(json.dumps(written))
    until(lambda: service.strategy(ANY).reason == "ERROR")
    assert service.strategy(ANY) == FlagResolution("auto", "auto", "ERROR", "'warp' is not a strategy")
