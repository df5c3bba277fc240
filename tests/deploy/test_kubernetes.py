"""The Kubernetes manifests fit Kubernetes' own schemas, and each other, and the broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.commands.signals import SIGNALS
from gnatswarm.router.config import cores
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from gnatswarm.router.monitoring.metrics import _PER_SHARD

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
# The oldest that is looked at, and the newest that the package of schemas knows.
VERSIONS = ("1.27", kubernetes_validate.latest_version())


def documents() -> list[dict[str, Any]]:
    found = []
    for path in sorted(MANIFESTS.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            found += list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    return found


def the(kind: str, name: str = "gnatswarm") -> dict[str, Any]:
    (found,) = [doc for doc in documents() if doc["kind"] == kind and doc["metadata"]["name"] == name]
    return found


@pytest.fixture
def pod() -> dict[str, Any]:
    return dict(the("StatefulSet")["spec"]["template"]["spec"])


@pytest.fixture
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", documents(), ids=lambda doc: f"{doc['kind']}-{doc['metadata']['name']}")
def test_every_manifest_fits_the_schema(document: dict[str, Any], version: str) -> None:
    if document["kind"] == "ServiceMonitor":
        # No schema of it is at hand: the Prometheus operator brings its own.
        assert document["apiVersion"] == "monitoring.coreos.com/v1"
        assert set(document["spec"]) == {"selector", "endpoints"}
        return
    kubernetes_validate.validate(document, version, strict=True)


def test_a_mistake_would_be_found() -> None:
    document = the("StatefulSet")
    document["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_kustomization_names_every_file() -> None:
    named = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in MANIFESTS.glob("*.yaml") if path.name != "kustomization.yaml")


def test_selectors_and_ports_meet(pod: dict[str, Any], container: dict[str, Any]) -> None:
    stateful = the("StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    assert the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    names = {port["name"] for port in container["ports"]}
    services = [doc for doc in documents() if doc["kind"] == "Service"]
    assert stateful["serviceName"] in {service["metadata"]["name"] for service in services}
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    assert the("Service", "gnatswarm-headless")["spec"]["clusterIP"] == "None"
    wanted = the("ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    scraped = [service for service in services if wanted <= service["metadata"]["labels"].items()]
    (endpoint,) = the("ServiceMonitor")["spec"]["endpoints"]
    assert [endpoint["port"] in {port["name"] for port in service["spec"]["ports"]} for service in scraped] == [True]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    assert mounts == claims | {volume["name"] for volume in pod["volumes"]}


def test_the_pod_is_the_image_of_this_version_and_may_nothing(pod: dict[str, Any], container: dict[str, Any]) -> None:
    assert container["image"] == f"gnatswarm:{OWN_VERSION}"
    assert pod["securityContext"]["runAsNonRoot"] is True
    containerfile = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    assert f"--uid {pod['securityContext']['runAsUser']} " in containerfile
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_it_leaves_slowly_and_has_the_time(
    pod: dict[str, Any], container: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *words = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "gnatswarm"
    assert parse(words).values["sl"] in SIGNALS
    config = tmp_path / "gnatswarm.conf"
    config.write_text(the("ConfigMap")["data"]["gnatswarm.conf"])
    monkeypatch.setenv("POD_NAME", "gnatswarm-0")
    options = build(parse(["-c", str(config)])).options
    assert options.server_name == "gnatswarm-0"
    limits = options.limits
    assert pod["terminationGracePeriodSeconds"] > limits.lame_duck_duration_s + limits.lame_duck_grace_s
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"nats": options.port, "monitoring": options.http_port}
    assert options.http_host == "0.0.0.0"  # probes come from outside of the pod


def test_a_cpu_limit_is_that_many_shards(container: dict[str, Any], tmp_path: Path) -> None:
    resources = container["resources"]
    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    limit = float(resources["limits"]["cpu"])
    # As the kubelet writes it, and as a process in a container sees it.
    (tmp_path / "cpu.max").write_text(f"{int(limit * 100_000)} 100000\n")
    (tmp_path / "self").write_text("0::/\n")
    affinity = len(__import__("os").sched_getaffinity(0))
    assert cores.usable_cores(str(tmp_path / "self"), str(tmp_path)) == min(int(limit), affinity)
    assert cores._quota_cores(str(tmp_path / "self"), str(tmp_path)) == limit


def test_alerts_ask_for_metrics_that_there_are() -> None:
    known = {f"gnatswarm_{name}" for name, *_ in _PER_SHARD}
    known |= {"gnatswarm_healthy", "gnatswarm_max_connections", "gnatswarm_config_reload_failed_time_seconds", "up"}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "gnatswarm.rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"\b(gnatswarm_\w+|up)\b", re.sub(r'"[^"]*"', "", rule["expr"])))
            assert used and used <= known, rule["alert"]
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert config["rule_files"] == ["gnatswarm.rules.yml"]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "gnatswarm"
