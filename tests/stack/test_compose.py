"""What docker-compose.yml promises, read from the files, for containers do not run in tests. What it mounts is shown to
what reads it, where that runs here as well: the real collector and the real promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from dashboards.external import EXTERNALS
from draftd.fallback.alerts.authentication import SIGNATURE_HEADER
from draftd.settings import WebhookSettings
from draftd.telemetry.catalog import METRICS
from tests.stack.components import CONFIG, ROOT, collector_binary, promtool_binary

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LAYER = CONFIG.parent / "containers.yaml"
PROVISIONING = ROOT / "dashboards" / "provisioning"
GENERATED = ROOT / "daemon" / "draftd" / "grafana"

PINNED = re.compile(r"^[a-z0-9/.-]+:v?\d+\.\d+\.\d+[a-z.-]*@sha256:[0-9a-f]{64}$")
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY")


def provisioned(kind: str) -> dict[str, Any]:
    return yaml.safe_load((PROVISIONING / kind / "draftd.yaml").read_text())  # type: ignore[no-any-return]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of nested maps and lists, with the way to it."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list):
        for value in tree:
            yield from leaves(value, f"{path}[]")
    else:
        yield path, tree


def binds() -> Iterator[tuple[str, str, str, list[str]]]:
    """What is mounted from this tree: service, source, target, options."""
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target, *options = volume.split(":")
            if source.startswith("."):
                yield name, source, target, options


def uids_named(tree: Any) -> set[str]:
    """The data sources that a dashboard or a file of rules asks for; a variable is none."""
    named = {str(value) for path, value in leaves(tree) if re.search(r"(datasource\.uid|datasourceUid)$", path)}
    return {uid for uid in named if "$" not in uid} - {"-- Grafana --", "grafana", "__expr__"}


# What anyone but this machine may reach, and who may sign in.


def test_compose_publishes_every_port_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert [port for port in ports if not re.match(r"^127\.0\.0\.1:\d+:\d+$", str(port))] == []
    assert [service for service in SERVICES.values() if service.get("network_mode") == "host"] == []


def test_compose_images_are_pinned_by_tag_and_digest() -> None:
    for name, service in SERVICES.items():
        assert "build" in service or PINNED.match(service["image"]), name
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert all(PINNED.match(base) for base in bases), bases


def test_compose_secrets_come_from_required_environment_variables() -> None:
    secrets = {
        key: value
        for service in SERVICES.values()
        for key, value in service.get("environment", {}).items()
        if SECRET.search(key)
    }
    assert set(secrets) == {"GF_SECURITY_ADMIN_PASSWORD", "DRAFTD_WEBHOOK_SECRET"}
    for key, value in secrets.items():
        assert re.match(rf"^\$\{{{key}:\?[^}}]+\}}$", value), "compose says what is missing, and starts nothing"
    example = (ROOT / ".env.example").read_text()
    assert dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE)) == dict.fromkeys(secrets, "")
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    literal = [
        (path, value)
        for file in PROVISIONING.rglob("*.yaml")
        for path, value in leaves(yaml.safe_load(file.read_text()))
        if SECRET.search(path.rsplit(".", 1)[-1].upper()) and str(value).count("$") != 1 and not path.endswith("key")
    ]
    assert literal == []


def test_compose_services_have_resource_limits_and_no_capabilities() -> None:
    for name, service in SERVICES.items():
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
    asked = {name for name, service in SERVICES.items() if service.get("healthcheck", {}).get("test", [""])[0] == "CMD"}
    unasked = set(SERVICES) - asked
    assert unasked == {"collector", "tempo"}, "their images hold nothing that could ask"


def test_compose_daemon_is_opt_in_and_publishes_no_port() -> None:
    daemon = SERVICES["draftd"]
    assert daemon["profiles"] == ["cpu"]
    assert daemon["network_mode"] == "service:collector"
    assert "ports" not in daemon
    assert [key for key in daemon["environment"] if key.startswith("DRAFTD_SERVER__")] == []
    assert re.search(r"^USER 10001", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


# What is mounted, and what it says of the rest.


def test_compose_mounts_existing_files_read_only() -> None:
    mounts = list(binds())
    assert len(mounts) >= 10
    for name, source, _, options in mounts:
        assert (ROOT / source).exists(), f"{name}: {source}"
        assert options == ["ro"], f"{name}: {source}"
    volumes = {v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", []) if not v.startswith(".")}
    assert volumes == set(COMPOSE["volumes"])


def test_container_collector_overlay_sets_only_addresses_folders_and_resource_detectors() -> None:
    assert {path for path, _ in leaves(yaml.safe_load(LAYER.read_text()))} == {
        "extensions.health_check.endpoint",
        "extensions.file_storage.directory",
        "extensions.file_storage.compaction.directory",
        "receivers.otlp.protocols.grpc.endpoint",
        "receivers.otlp.protocols.http.endpoint",
        "processors.resource_detection.detectors[]",
        "exporters.otlp_grpc/tempo.endpoint",
        "exporters.otlp_http/loki.endpoint",
        "exporters.prometheus.endpoint",
        "service.telemetry.metrics.readers[].pull.exporter.prometheus.host",
        "service.telemetry.metrics.readers[].pull.exporter.prometheus.port",
    }


def test_collector_accepts_its_base_configuration_with_the_container_overlay() -> None:
    said = subprocess.run(
        [collector_binary(), "validate", "--config", str(CONFIG), "--config", str(LAYER)],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr


def test_container_prometheus_configuration_differs_only_in_addresses() -> None:
    native = yaml.safe_load((CONFIG.parent / "prometheus.yaml").read_text())
    here = yaml.safe_load((CONFIG.parent / "containers" / "prometheus.yaml").read_text())
    for one in (native, here):
        del one["rule_files"]
        for job in one["scrape_configs"]:
            job["static_configs"] = [t.split(":")[1] for s in job["static_configs"] for t in s["targets"]]
    del native["alerting"]
    assert here == native


@pytest.mark.parametrize("name", ["prometheus.yaml", "containers/prometheus.yaml"])
def test_promtool_accepts_the_prometheus_configurations_with_their_rules(name: str, tmp_path: Path) -> None:
    text = (CONFIG.parent / name).read_text()
    text = re.sub(r"\S+/\*\.rules\.yaml", str(ROOT / "dashboards" / "prometheus" / "*.rules.yaml"), text)
    (tmp_path / "prometheus.yaml").write_text(text)
    said = subprocess.run(
        [promtool_binary(), "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "1 rule files found" in said.stdout


def test_compose_addresses_name_existing_services_at_their_listening_ports() -> None:
    tempo = yaml.safe_load((CONFIG.parent / "containers" / "tempo.yaml").read_text())
    loki = yaml.safe_load((CONFIG.parent / "containers" / "loki.yaml").read_text())
    layer = yaml.safe_load(LAYER.read_text())
    listens = {
        "collector": {9464, 8888},
        "prometheus": {9090},
        "tempo": {4317, tempo["server"]["http_listen_port"]},
        "loki": {loki["server"]["http_listen_port"]},
    }
    exporters = layer["exporters"]
    prometheus = yaml.safe_load((CONFIG.parent / "containers" / "prometheus.yaml").read_text())
    asked = [source["url"] for source in provisioned("datasources")["datasources"]]
    asked += [f"//{exporters['otlp_grpc/tempo']['endpoint']}", exporters["otlp_http/loki"]["endpoint"]]
    asked += [f"//{t}" for job in prometheus["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    assert len(asked) == 7
    for one in map(urlsplit, asked):
        assert one.port in listens[one.hostname or ""], one
    assert tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].startswith("0.0.0.0:")
    inside = {port.rsplit(":", 1)[1] for port in SERVICES["collector"]["ports"]}
    endpoints = {
        str(value).rsplit(":", 1)[1] for path, value in leaves(layer) if re.search(r"^(rec|ext).*point$", path)
    }
    assert inside == endpoints


# Grafana's own set-up.


def test_grafana_data_sources_have_the_uids_dashboards_and_rules_use() -> None:
    uids = {source["uid"] for source in provisioned("datasources")["datasources"]}
    assert uids == {"draftd-prometheus", "draftd-tempo", "draftd-loki"}
    assert uids_named(provisioned("datasources")) <= uids, "they are linked to one another"
    dashboards = sorted((GENERATED / "dashboards").glob("*.json"))
    assert len(dashboards) >= 5
    for file in dashboards:
        assert uids_named(json.loads(file.read_text())) <= uids, file.name
    rules = yaml.safe_load((GENERATED / "alerting" / "rules.yaml").read_text())
    assert uids_named(rules) == {"draftd-prometheus"}


def test_grafana_data_sources_link_exemplars_traces_logs_and_metrics() -> None:
    sources = {source["type"]: source["jsonData"] for source in provisioned("datasources")["datasources"]}
    (exemplar,) = sources["prometheus"]["exemplarTraceIdDestinations"]
    assert exemplar == {"name": "trace_id", "datasourceUid": "draftd-tempo"}
    assert sources["tempo"]["tracesToLogsV2"]["datasourceUid"] == "draftd-loki"
    (field,) = sources["loki"]["derivedFields"]
    assert field["datasourceUid"] == "draftd-tempo"
    # A dollar of Grafana's own is written twice, or the environment's takes its place.
    assert [value for _, value in leaves(sources) if "$" in str(value).replace("$$", "")] == []
    queries = " ".join(query["query"] for query in sources["tempo"]["tracesToMetrics"]["queries"])
    known = {metric.prometheus for metric in METRICS} | {one.prometheus for one in EXTERNALS}
    assert set(re.findall(r"\bdraftd_\w+(?=\{)", queries)) <= known


def test_grafana_dashboards_are_provisioned_read_only_from_the_repository() -> None:
    (provider,) = provisioned("dashboards")["providers"]
    assert provider["allowUiUpdates"] is False
    assert (provider["folder"], provider["folderUid"]) == ("draftd", "draftd")
    targets = {target: source for _, source, target, _ in binds()}
    assert targets[provider["options"]["path"]] == "./daemon/draftd/grafana/dashboards"
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (GENERATED / "dashboards" / home.name).exists()


def test_grafana_routes_level_alerts_signed_to_the_daemon_and_mutes_others() -> None:
    alerting = provisioned("alerting")
    (point,) = alerting["contactPoints"]
    (receiver,) = point["receivers"]
    settings = receiver["settings"]
    assert (point["name"], receiver["type"]) == ("draftd-daemon", "webhook")
    assert receiver["disableResolveMessage"] is False
    assert settings["url"] == "$DRAFTD_WEBHOOK_URL"
    assert settings["hmacConfig"]["secret"] == "$DRAFTD_WEBHOOK_SECRET"
    assert settings["hmacConfig"]["header"] == SIGNATURE_HEADER
    assert settings["hmacConfig"]["timestampHeader"] == WebhookSettings().timestamp_header
    assert {"DRAFTD_WEBHOOK_URL", "DRAFTD_WEBHOOK_SECRET"} <= set(SERVICES["grafana"]["environment"])

    (policy,) = alerting["policies"]
    asking, other = policy["routes"]
    assert asking["object_matchers"] == [["fallback_level", "=~", ".+"]]
    assert "mute_time_intervals" not in asking
    assert other["object_matchers"] == [["fallback_level", "=", ""]]
    (always,) = alerting["muteTimes"]
    assert other["mute_time_intervals"] == [always["name"]]
    assert always["time_intervals"] == [{"times": [{"start_time": "00:00", "end_time": "24:00"}]}]
    rules = yaml.safe_load((GENERATED / "alerting" / "rules.yaml").read_text())
    levels = {rule["labels"].get("fallback_level") for group in rules["groups"] for rule in group["rules"]}
    assert levels - {None} <= {"short_block", "light_draft", "autoregressive", "streaming", "local"}
    assert len(levels) > 1
