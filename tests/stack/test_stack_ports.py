"""The ports of `make stack`: each can be set, and one that is taken is named before anything is started."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts.foreground import ROOT
from scripts.stack import FOLDER, addresses, check_ports, daemon_settings, prometheus_config

CONFIG = ROOT / "otel-collector" / "config.yaml"


def test_stack_default_addresses_match_the_configuration_files(tmp_path: Path) -> None:
    found = {setting: one.address for setting, one in addresses({}).items()}
    said = dict(re.findall(r"\$\{env:(OTELCOL_\w+):-([\d.:]+)\}", CONFIG.read_text()))
    said["OTELCOL_SELF_PORT"] = f"127.0.0.1:{said['OTELCOL_SELF_PORT']}"
    collector = {name: address for name, address in found.items() if name.startswith("OTELCOL_")}
    assert collector == {name: said[name] for name in collector}
    assert set(collector) == {name for name, address in said.items() if re.search(r":\d+$", address)}
    base = yaml.safe_load((ROOT / "otel-collector" / "prometheus.yaml").read_text())
    copy = json.loads(prometheus_config(addresses({}), tmp_path).read_text())
    assert copy["scrape_configs"] == base["scrape_configs"]
    assert copy["alerting"] == base["alerting"]


def test_stack_prometheus_configuration_uses_the_configured_addresses(tmp_path: Path) -> None:
    said = {"OTELCOL_PROMETHEUS": "0.0.0.0:1111", "OTELCOL_SELF_PORT": "2222", "ALERTMANAGER_ADDRESS": "[::1]:3333"}
    copy = json.loads(prometheus_config(addresses(said), tmp_path).read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in copy["scrape_configs"]}
    assert targets["draftd"] == ["127.0.0.1:1111"]
    assert targets["otel-collector"] == ["127.0.0.1:2222"]
    assert copy["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] == ["[::1]:3333"]
    assert all(Path(path).is_absolute() for path in copy["rule_files"])


@pytest.mark.parametrize("said", ["9090", "localhost:", "localhost:x", "localhost:0", "localhost:65536"])
def test_invalid_stack_address_is_refused_with_its_setting(said: str) -> None:
    with pytest.raises(SystemExit, match=rf"PROMETHEUS_ADDRESS: '{re.escape(said)}' is not an address"):
        addresses({"PROMETHEUS_ADDRESS": said})


def test_stack_names_each_taken_port_with_its_setting_and_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        one, other = first.getsockname()[1], second.getsockname()[1]
        said = {"OTELCOL_HEALTH": f"127.0.0.1:{one}", "PROMETHEUS_ADDRESS": "127.0.0.1:9999", FOLDER: str(tmp_path)}
        said |= {"ALERTMANAGER_ADDRESS": "127.0.0.1:9999"}
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL"))}
        command = [sys.executable, "-m", "scripts.stack", "--set", f"server.port={other}"]
        run = subprocess.run(command, cwd=ROOT, env=environ | said, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert f"port {one} of 127.0.0.1 is in use, but the collector's health needs it" in run.stderr
    assert "OTELCOL_HEALTH" in run.stderr
    assert "port 9999 of 127.0.0.1 is in use, but Alertmanager needs it" in run.stderr, "Prometheus has it"
    assert f"port {other} of 127.0.0.1 is in use, but draftd over gRPC needs it" in run.stderr
    assert "--port or DRAFTD_SERVER__PORT" in run.stderr
    assert not run.stdout
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_stack_takes_daemon_ports_from_options_and_config_file_named_by_option_or_env(tmp_path: Path) -> None:
    file = tmp_path / "draftd.toml"
    file.write_text("[server]\nport = 1001\n[webhook]\nport = 1002\n")
    found = daemon_settings(["--config", str(file), "--model", "x", "--http-port", "1003"], {})
    assert (found.server.port, found.webhook.port, found.server.http_port) == (1001, 1002, 1003)
    assert daemon_settings(["--port=1004"], {"DRAFTD_CONFIG": str(file)}).server.port == 1004
    with pytest.raises(SystemExit, match=r"server\.port"):
        daemon_settings(["--port", "x"], {})
    check_ports({}, daemon_settings(["--port", "0", "--set", "webhook.port=0"], {}))
