"""Grafana asks for a level, in its documentation's payloads: signed it is obeyed, unsigned it is not."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.stack.falling import SECRET, TOKEN, Falling, falling, scripted
from tests.webhook import bearer, payload, signed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOWN = ["full", "short_block 3", "short_block 2", "light_draft light_draft_model", "autoregressive"]
_PATIENCE = 240.0  # on a busy machine a probe may find that no draft pays just now: the next one comes later
_IGNORED_SECONDS = 2.0  # two cooldowns: what were to act would have acted by then


def notification(status: str, began: datetime, alert: str, level: str, severity: str = "warning") -> bytes:
    """As Grafana's contact point sends it: one alert, of this daemon's whoever it is."""
    told = payload(f"grafana-{status}")
    one: dict[str, Any] = told["alerts"][0]
    one["labels"] |= {"alertname": alert, "fallback_level": level, "severity": severity}
    del one["labels"]["instance"]
    one |= {"startsAt": began.isoformat(), "fingerprint": f"{hash(alert) & 2**64 - 1:016x}"}
    return json.dumps(told | {"alerts": [one]}).encode()


def post(of: Falling, body: bytes, headers: dict[str, str]) -> int:
    request = urllib.request.Request(of.webhook, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_signed_grafana_alert_lowers_the_ladder_and_an_unsigned_is_refused(tmp_path: Path) -> None:
    began = datetime.now(UTC)
    with falling(scripted, tmp_path, {"DRAFTD_FALLBACK__GUARD": "false"}) as running:
        running.until_at("full", _PATIENCE)
        running.busy(False)  # what is judged is who may ask, not the traffic
        firing = notification("firing", began, "DraftdSlowerThanBreakEven", "autoregressive")
        assert post(running, firing, {}) == 401
        assert post(running, firing, signed(firing, "another secret")) == 401
        assert post(running, firing, signed(firing, SECRET, at=time.time() - 3600)) == 401
        time.sleep(_IGNORED_SECONDS)
        assert running.levels == ["full"], running.told()

        headers = signed(firing, SECRET)
        assert post(running, firing, headers) == 200
        assert post(running, firing, headers) != 200, "the same signature a second time"
        running.until_at("autoregressive", _PATIENCE)
        assert running.levels == DOWN, running.told()

        resolved = notification("resolved", began, "DraftdSlowerThanBreakEven", "autoregressive")
        assert post(running, resolved, {}) == 401
        time.sleep(_IGNORED_SECONDS)
        assert running.levels == DOWN, "who cannot say that it fires cannot say that it is over"
        assert post(running, resolved, bearer(TOKEN)) == 200, "unsigned, with the token that Grafana may send instead"
        running.until_at("full", _PATIENCE)

        hard = notification("firing", began, "DraftdVerifierErrors", "autoregressive", severity="critical")
        assert post(running, hard, bearer(TOKEN)) == 200
        running.until_at("autoregressive", 10)
        assert running.levels[-2:] == ["full", "autoregressive"], "a critical one at once"
    assert running.clients.wrong == []
