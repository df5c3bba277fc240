"""The manifests of a cluster: the one broker's with their changes, held against Kubernetes' schemas and the broker."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gnatswarm.broker.options import Options
from gnatswarm.router.config.flags import parse
from gnatswarm.router.config.options_build import build
from tests.deploy.test_kubernetes import MANIFESTS, ROOT, VERSIONS

CLUSTER = ROOT / "deploy" / "kubernetes-cluster"


def changed(document: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """The document after a JSON patch (RFC 6902) of additions and replacements."""
    document = copy.deepcopy(document)
    for operation in operations:
        *way, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
        at: Any = document
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "add" and last == "-":
            at.append(operation["value"])
        elif operation["op"] == "add":
            assert last not in at, f"{operation['path']} is there"
            at[last] = operation["value"]
        else:
            assert operation["op"] == "replace"
            assert last in at, f"{operation['path']} is not there"
            at[last] = operation["value"]
    return document


def documents() -> list[dict[str, Any]]:
    """What kustomize makes: the resources of the base, each with its patch."""
    said = yaml.safe_load((CLUSTER / "kustomization.yaml").read_text())
    assert set(said) == {"apiVersion", "kind", "resources", "patches"}
    (base,) = [(CLUSTER / name).resolve() for name in said["resources"]]
    assert base == MANIFESTS
    patches = {(one["target"]["kind"], one["target"]["name"]): yaml.safe_load(one["patch"]) for one in said["patches"]}
    found = []
    for name in yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]:
        for document in yaml.safe_load_all((base / name).read_text()):
            key = document["kind"], document["metadata"]["name"]
            found.append(changed(document, patches.pop(key, [])))
    assert not patches, "a patch of what is not there"
    return found


def the(kind: str, name: str = "gnatswarm") -> Any:
    (found,) = [doc for doc in documents() if (doc["kind"], doc["metadata"]["name"]) == (kind, name)]
    return found["spec"] if "spec" in found else found["data"]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """The configuration of the second pod."""
    config = tmp_path / "gnatswarm.conf"
    config.write_text(the("ConfigMap")["gnatswarm.conf"])
    monkeypatch.setenv("POD_NAME", "gnatswarm-1")
    return build(parse(["-c", str(config)])).options


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_the_schema(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_each_pod_knows_all_of_them_and_has_a_name_of_its_own(options: Options) -> None:
    stateful = the("StatefulSet")
    assert options.server_name == "gnatswarm-1"
    assert options.notices == ()
    hosts = [f"gnatswarm-{number}.{stateful['serviceName']}" for number in range(stateful["replicas"])]
    assert list(options.cluster.routes) == [f"nats://{host}:{options.cluster.port}" for host in hosts]
    headless = the("Service", stateful["serviceName"])
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True


def test_ports_meet_and_only_members_reach_that_of_the_cluster(options: Options) -> None:
    (container,) = the("StatefulSet")["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"nats": options.port, "monitoring": options.http_port, "cluster": options.cluster.port}
    labels = the("StatefulSet")["template"]["metadata"]["labels"]
    members = [{"podSelector": {"matchLabels": labels}}]
    policy = the("NetworkPolicy")
    ours = [rule for rule in policy["ingress"] if any(port["port"] == "cluster" for port in rule["ports"])]
    assert [rule["from"] for rule in ours] == [members]
    assert [rule["to"] for rule in policy["egress"] if rule["ports"][0]["port"] == "cluster"] == [members]
    # Without names no member finds another.
    assert {port["protocol"] for rule in policy["egress"] for port in rule["ports"] if port["port"] == 53} == {
        "TCP",
        "UDP",
    }
    assert "cluster" not in {port["name"] for port in the("Service")["ports"]}  # clients' Service


def test_one_pod_may_leave_at_a_time(options: Options) -> None:
    stateful = the("StatefulSet")
    assert the("PodDisruptionBudget")["maxUnavailable"] == 1 < stateful["replicas"]
    limits = options.limits
    time_s = stateful["template"]["spec"]["terminationGracePeriodSeconds"]
    assert time_s > limits.lame_duck_duration_s + limits.lame_duck_grace_s
