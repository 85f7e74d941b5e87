"""deploy/kubernetes: what the API server would accept, what belongs together, and what breakloop understands."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from breakloop.admin.app import AllowedHosts
from breakloop.cli.main import run as breakloop
from breakloop.config.loader import load_settings
from tests.deploy.command_lines import wrong_with
from tests.deploy.manifests import KUBERNETES, container, environment, manifests
from tests.deploy.tools import wrong_for_kubernetes, yaml_documents
from tests.e2e.served import eventually, serving


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return manifests()


@pytest.fixture(scope="module")
def deployment(objects: dict[str, Any]) -> Any:
    return objects["Deployment/breakloop"]


@pytest.mark.e2e
def test_the_api_server_would_accept_every_object(objects: dict[str, Any]) -> None:
    """The JSON schemas of the oldest and the newest version of Kubernetes that we say works; unknown fields fail."""
    assert len(objects) >= 10
    assert wrong_for_kubernetes(list(objects.values())) == []


@pytest.mark.e2e
def test_a_mistake_would_be_found(deployment: Any) -> None:
    """The check can fail: a field in the wrong place, and a value of the wrong kind."""
    wrong = deepcopy(deployment)
    wrong["spec"]["readinessProbe"] = container(wrong).pop("readinessProbe")
    container(wrong)["ports"][0]["containerPort"] = "8787"
    found = "\n".join(wrong_for_kubernetes([wrong]))
    assert "readinessProbe" in found or "8787" in found


def test_the_kustomization_names_what_is_there() -> None:
    """Every file is applied, or named as one that can be; the Secret is made by hand."""
    text = (KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8")
    (document,) = yaml_documents(text)
    files = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml", "secret.example.yaml"}
    assert set(document["resources"]) < files
    assert [name for name in files if f"- {name}" not in text] == []


def test_what_belongs_together_finds_each_other(objects: dict[str, Any], deployment: Any) -> None:
    """Service, disruption budget, network policy and spreading select the pods that the Deployment makes."""
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service/breakloop"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget/breakloop"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["NetworkPolicy/breakloop"]["spec"]["podSelector"]["matchLabels"] == labels
    assert objects["NetworkPolicy/breakloop-redis"]["spec"]["ingress"][0]["from"] == [
        {"podSelector": {"matchLabels": labels}}
    ]
    spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"][0]
    assert spread["labelSelector"]["matchLabels"] == labels
    target = objects["HorizontalPodAutoscaler/breakloop"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", "breakloop")
    assert (
        deployment["spec"]["template"]["spec"]["serviceAccountName"]
        in objects["ServiceAccount/breakloop"]["metadata"]["name"]
    )


def test_ports_agree(objects: dict[str, Any], deployment: Any) -> None:
    """What breakloop listens on is what the Service, the probes and the network policy mean."""
    port = int(environment(deployment)["BREAKLOOP_PORT"])
    admin = int(environment(deployment)["BREAKLOOP_ADMIN_PORT"])
    assert container(deployment)["ports"] == [
        {"name": "http", "containerPort": port, "protocol": "TCP"},
        {"name": "admin", "containerPort": admin, "protocol": "TCP"},
    ]
    assert [one["targetPort"] for one in objects["Service/breakloop"]["spec"]["ports"]] == ["http"]
    rules = objects["NetworkPolicy/breakloop"]["spec"]["ingress"]
    assert [rule["ports"] for rule in rules] == [[{"port": one, "protocol": "TCP"}] for one in (port, admin)]


def test_the_admin_plane_is_apart_from_the_traffic(objects: dict[str, Any], deployment: Any) -> None:
    """A Service of its own, within the cluster only; it answers to each of its names, agents cannot reach it
    (X-1, Y-3)."""
    service = objects["Service/breakloop-admin"]
    assert (service["spec"]["type"], service["spec"]["sessionAffinity"]) == ("ClusterIP", "ClientIP")
    assert service["spec"]["selector"] == objects["Service/breakloop"]["spec"]["selector"]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == ["admin"]
    variables = environment(deployment)
    assert variables["POD_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    names = list(variables)
    assert names.index("POD_NAMESPACE") < names.index("BREAKLOOP_ADMIN_HOSTS"), "it is filled in only then"
    given = variables["BREAKLOOP_ADMIN_HOSTS"].replace("$(POD_NAMESPACE)", "agents")
    settings = load_settings(env={"BREAKLOOP_ADMIN_HOSTS": given}).settings
    hosts = AllowedHosts(variables["BREAKLOOP_ADMIN_HOST"], settings.admin_hosts)
    for name in ("", ".agents", ".agents.svc", ".agents.svc.cluster.local"):
        assert hosts.known(f"{service['metadata']['name']}{name}:8788"), name
    assert hosts.known("localhost:8788"), "through kubectl port-forward"
    assert hosts.known("10.1.2.3:8788"), "a pod by its address, as Prometheus asks"
    assert not hosts.known("breakloop.agents:8788")
    (rule,) = [one for one in objects["NetworkPolicy/breakloop"]["spec"]["ingress"] if one["ports"][0]["port"] == 8788]
    assert [list(one) for one in rule["from"]] == [["namespaceSelector"]]


def test_history_is_where_the_secret_says(deployment: Any) -> None:
    """Without that key a file; the pod has room for it, and is not evicted for what it keeps (G-2)."""
    assert environment(deployment)["BREAKLOOP_HISTORY"]["secretKeyRef"]["optional"] is True
    (data,) = [one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == "data"]
    assert data["emptyDir"]["sizeLimit"] == "2Gi"


def test_the_pod_starts_what_exists(deployment: Any) -> None:
    """Its command line is ours, its settings are valid, and it is waited for when it stops (X-3, T-1)."""
    only = container(deployment)
    assert wrong_with(only["args"]) == ""
    texts = {name: value for name, value in environment(deployment).items() if isinstance(value, str)}
    assert load_settings(env={**texts, "BREAKLOOP_STATE": "redis://r:6379/0"}).warnings == ()
    settings = load_settings(env=texts).settings
    assert settings.host == "0.0.0.0"
    waited_s = float(only["lifecycle"]["preStop"]["exec"]["command"][-1].partition("sleep(")[2].rstrip(")"))
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= waited_s + settings.shutdown_grace_seconds + 5


def test_the_bundle_is_mounted_where_it_is_read(objects: dict[str, Any], deployment: Any) -> None:
    """As a directory, for what is mounted by subPath never changes (B-3)."""
    pod, only = deployment["spec"]["template"]["spec"], container(deployment)
    mount = next(one for one in only["volumeMounts"] if one["name"] == "policy")
    volume = next(one for one in pod["volumes"] if one["name"] == "policy")
    assert "subPath" not in mount
    folder, _, file = environment(deployment)["BREAKLOOP_POLICY"].rpartition("/")
    assert mount["mountPath"] == folder
    assert file in objects[f"ConfigMap/{volume['configMap']['name']}"]["data"]
    data = next(one for one in only["volumeMounts"] if one["name"] == "data")
    assert data["mountPath"] == environment(deployment)["BREAKLOOP_DATA_DIR"]


def test_the_bundle_is_valid(objects: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle is valid (B-2)."""
    file = tmp_path / "policy.yaml"
    file.write_text(objects["ConfigMap/breakloop-policy"]["data"]["policy.yaml"])
    assert breakloop(["validate", str(file)]) == 0, capsys.readouterr().out


def test_secrets_come_out_of_the_secret(objects: dict[str, Any], deployment: Any) -> None:
    """The key of fingerprints and the URL with the password; its example has every key that is asked for (Y-1)."""
    secret = objects["Secret/breakloop"]
    for name in ("BREAKLOOP_STATE", "BREAKLOOP_SECRET", "BREAKLOOP_ADMIN_TOKEN", "BREAKLOOP_HISTORY"):
        found = environment(deployment)[name]["secretKeyRef"]
        assert found["name"] == secret["metadata"]["name"]
        assert found["key"] in secret["stringData"]
    redis = environment(objects["StatefulSet/breakloop-redis"])["REDIS_PASSWORD"]["secretKeyRef"]
    assert redis["key"] in secret["stringData"]
    assert set(secret["stringData"].values()) == {""}


def test_the_pod_has_no_rights(deployment: Any) -> None:
    """What the restricted pod security standard asks for, and a root file system that nobody writes to."""
    pod, only = deployment["spec"]["template"]["spec"], container(deployment)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]  # they would set BREAKLOOP_PORT=tcp://...


@pytest.mark.e2e
def test_an_edit_of_the_config_map_is_in_force_within_a_second(objects: dict[str, Any], tmp_path: Path) -> None:
    """The kubelet swaps a link; the file that the pod reads is seen to change. Probes say what they should (B-3)."""
    text = objects["ConfigMap/breakloop-policy"]["data"]["policy.yaml"]
    mount = tmp_path / "policy"
    for version in (1, 2):
        (mount / f"..{version}").mkdir(parents=True)
        (mount / f"..{version}" / "policy.yaml").write_text(
            text.replace("bundle_version: 1", f"bundle_version: {version}")
        )
    (mount / "..data").symlink_to("..1")
    (mount / "policy.yaml").symlink_to("..data/policy.yaml")
    only = container(objects["Deployment/breakloop"])
    with serving(tmp_path, "--policy", str(mount / "policy.yaml")) as served:
        assert served.ready()["bundle_version"] == 1
        (mount / "..data_tmp").symlink_to("..2")
        (mount / "..data_tmp").replace(mount / "..data")
        eventually(lambda: served.ready()["bundle_version"] == 2, "version 2")
        for probe in ("livenessProbe", "readinessProbe"):
            assert served.ask(only[probe]["httpGet"]["path"])[0] == 200
