"""The Kubernetes manifests fit Kubernetes' own schemas, and each other, and the broker."""

from __future__ import annotations

import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gnatswarm.broker.version import OWN_VERSION
from gnatswarm.router.commands.signals import SIGNALS
from gnatswarm.router.config import cores
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from gnatswarm.router.monitoring.metrics import Accounts, exposition
from gnatswarm.shards.boundary.rows import DeniedRow
from tests.router.monitoring.broker_facts import A_LEAF, facts, shard
from tests.support import swarm
from tests.support.authority import Authority
from tests.support.pages import Pages
from tests.support.servers import Broker, oracle_is_required

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
# The oldest that is looked at, and the newest that the package of schemas knows.
VERSIONS = ("1.27", kubernetes_validate.latest_version())


def documents() -> list[dict[str, Any]]:
    found = []
    for path in sorted(MANIFESTS.rglob("*.yaml")):
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


@pytest.mark.parametrize("directory", [MANIFESTS, MANIFESTS / "prometheus-operator"], ids=lambda path: path.name)
def test_kustomization_names_every_file(directory: Path) -> None:
    named = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in directory.glob("*.yaml") if path.name != "kustomization.yaml")


def test_what_everybody_applies_needs_nothing_but_kubernetes() -> None:
    for name in yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]:
        for document in yaml.safe_load_all((MANIFESTS / name).read_text()):
            group = document["apiVersion"].rpartition("/")[0]
            assert "." not in group or group.endswith(".k8s.io"), f"{name}: {group} is an extension"


@pytest.mark.kinds("gnatswarm-2")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_probes_go_on_with_a_password(
    container: dict[str, Any], start_broker: Callable[..., Broker], tmp_path: Path, scheme: str
) -> None:
    pair = Authority(tmp_path).server()
    config = "http_user: prometheus\nhttp_password: $PASSWORD\n"
    args = ["-m", "-1"]
    if scheme == "https":
        args, config = ["-ms", "-1"], f"{config}tls {{\n {pair.lines}\n}}\n"
    broker = start_broker(args=args, config=config, environment={"PASSWORD": "0123"})
    # As the kubelet: it looks at no certificate.
    pages = Pages.of(broker, context=ssl._create_unverified_context())
    for probe in ("readinessProbe", "startupProbe", "livenessProbe"):
        page = pages.get(container[probe]["httpGet"]["path"])
        assert (page.status, page.json) == (200, {"status": "ok"}), probe
    assert pages.get("/varz").status == 401


@pytest.mark.kinds("gnatswarm-2")
async def test_alive_is_not_well(container: dict[str, Any], start_broker: Callable[..., Broker]) -> None:
    """A shard that hangs is no reason to restart the pod, which has the clients of the others."""
    broker = start_broker(args=["-m", "-1"])
    pages = Pages.of(broker)
    hung = (await swarm.pids(broker))[1]
    swarm.signal_shard(broker, hung, signal.SIGSTOP)
    while (page := pages.get(container["readinessProbe"]["httpGet"]["path"])).status == 200:
        pass
    assert "shard 1" in page.json["error"]
    assert pages.get(container["livenessProbe"]["httpGet"]["path"]).status == 200


def test_the_network_policy_lets_in_clients_and_prometheus(container: dict[str, Any]) -> None:
    policy = the("NetworkPolicy")["spec"]
    labels = the("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]]
    assert ports == [["nats"], ["monitoring"]]
    assert {port["name"] for port in container["ports"]} == {"nats", "monitoring"}
    clients, viewers = (rule["from"] for rule in policy["ingress"])
    assert {"podSelector": {}} in clients
    # An empty selector of pods, or of namespaces, would be everybody.
    assert all(peer.get("namespaceSelector", {}).get("matchLabels") for peer in viewers)


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
    denied = [(0, DeniedRow("$G", "u", publishes=1, subscriptions=1, waits=1))]
    shown = exposition(facts(shard(0), options=A_LEAF), [], {}, Accounts(unwanted_msgs={0: 1}), denied, 1)
    known = {sample.name for family in text_string_to_metric_families(shown) for sample in family.samples} | {"up"}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "gnatswarm.rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            used = set(re.findall(r"\b(gnatswarm_\w+|up)\b", re.sub(r'"[^"]*"', "", rule["expr"])))
            assert used and used <= known, rule["alert"]
            assert rule["labels"]["severity"] in ("page", "ticket", "info"), rule["alert"]
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert config["rule_files"] == ["gnatswarm.rules.yml"]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "gnatswarm"


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if oracle_is_required():
            pytest.fail("promtool is not installed", pytrace=False)
        pytest.skip("promtool is not installed (Debian: prometheus)")
    directory = ROOT / "deploy" / "prometheus"
    command = [promtool, "test", "rules", "gnatswarm.rules.test.yml"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = yaml.safe_load((directory / "gnatswarm.rules.yml").read_text())
    cases = yaml.safe_load((directory / "gnatswarm.rules.test.yml").read_text())["tests"]
    tested = [test for case in cases for test in case["alert_rule_test"]]
    every = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {test["alertname"] for test in tested if test.get("exp_alerts")} == every
    assert {test["alertname"] for test in tested if not test.get("exp_alerts")} == every
