"""What a daemon has learnt of its pair, the next one knows from its first request on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftd.client.child import clean_environ
from draftd.client.client import DraftdClient
from draftd.core import DepthMode, WorkloadClass
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2
from tests import forked_daemon
from tests.conftest import NanoPair
from tests.in_process_daemon import collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def known(nano_pair: NanoPair, folder: Path, *, ask: bool) -> pb.GetDepthResponse:
    """What a daemon knows that has just begun, or has been asked something."""
    pair = ("--model", str(nano_pair.target), "--draft-model", str(nano_pair.draft))
    kept = ("--set", f"engine.learnt_file={folder / 'learnt.json'}")
    environ = clean_environ(str(folder / "flags.json"))
    with (
        forked_daemon.serving(forked_daemon.command, "serve", *pair, "--port", "0", *kept, environ=environ) as daemon,
        DraftdClient(daemon.address) as client,
    ):
        if ask:
            collect(client.generate("a", max_tokens=40, workload=WorkloadClass.CODE, depth_mode=DepthMode.FIXED))
        return client.depth()


def test_restarted_daemon_restores_drafting_costs_saved_by_the_last_daemon(nano_pair: NanoPair, tmp_path: Path) -> None:
    known(nano_pair, tmp_path, ask=True)
    kept = json.loads((tmp_path / "learnt.json").read_text())["pairs"][0]["learnt"]
    assert kept["plain"]
    found = known(nano_pair, tmp_path, ask=False)
    assert [one.workload for one in found.yields] == [inference_pb2.WORKLOAD_CLASS_CODE]
    assert found.yields[0].tried[0] > 0
    prices = {(one.drafter, one.batch) for one in found.costs}
    assert {batch for _, batch in prices} == {batch for batch, _ in kept["plain"]}
