"""A daemon whose model is downloaded: what everybody who asks is told meanwhile, and what an interruption leaves."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from draftd.client.client import CallError, DraftdClient
from draftd.models.folder import ModelFolder
from tests import fake_hub, forked_daemon
from tests.conftest import NanoPair
from tests.fake_hub import Fault
from tests.unit.cli.conftest import WITHOUT_SETTINGS
from tests.wait_until import until

WEIGHTS = "^/files/.*/model.safetensors"
HOW_FAR = r"downloading org/name: 1 of 2 MB(, (\d\.\d MB/s, [\d.]+ (s|min|h) left|nothing came for 10 s))?"


def health(url: str) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(url.replace("/v1", "/health"), timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_model_download_progress_is_shown_and_kept_if_the_daemon_stops(
    nano_pair: NanoPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--model", "org/name", "--port", "0", "--http-port", "0")
    environ = WITHOUT_SETTINGS | {"XDG_STATE_HOME": str(tmp_path)}
    with fake_hub.hub_for_tests(monkeypatch, tmp_path) as fake:
        fake.add("org/name", nano_pair.draft)
        fake.faults = [Fault(WEIGHTS, cut_after=900_000, times=1), Fault(WEIGHTS, 503)]
        start = forked_daemon.daemon(
            fake_hub.serve, fake.url, str(tmp_path), *options, environ=environ, until="listening"
        )
        began = time.monotonic()
        with start as running:
            with DraftdClient(running.address) as client:
                until(lambda: ": 1 of 2 MB" in client.status().progress, 30, "most of the file")
                assert re.fullmatch(HOW_FAR, client.status().progress)
                with pytest.raises(CallError, match=rf"the model is still loading \({HOW_FAR}\)"):
                    client.model()
            (url,) = (found[1] for line in running.lines if (found := re.search("HTTP on (.*)", line)))
            status, told = health(url)
            assert (status, told["status"]) == (503, "loading")
            assert re.fullmatch(HOW_FAR, told["progress"])
            running.child.send_signal(signal.SIGINT)
            assert running.wait(20) == 0
        said = "\n".join(running.lines)
        assert said.endswith("what was downloaded is kept: the next start goes on with it")
        assert said.count("downloading org/name") <= 2 + (time.monotonic() - began) / 10, "a line every ten seconds"
        assert not re.search(r"huggingface|HTTP Error|Retrying", said)
        fake.faults = []
        ModelFolder("org/name").check()
        assert fake.parts("model.safetensors") == [(0, 900_000), (900_000, 1_427_360)]
