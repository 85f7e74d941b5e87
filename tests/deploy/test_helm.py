"""deploy/helm/breakloop, rendered by Helm itself: accepted by Kubernetes, the same pod as the plain manifests, and
refused where it could not work."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from breakloop.cli.main import run as breakloop
from breakloop.settings import environment_names, load_settings
from tests.deploy.command_lines import wrong_with
from tests.deploy.manifests import by_name, container, environment, manifests
from tests.deploy.tools import DEPLOY, ask, wrong_for_kubernetes, yaml_documents

CHART = DEPLOY / "helm" / "breakloop"
STATE = {"state": {"url": "redis://:s3cr3t@redis:6379/0"}}
SECRET = {"secret": "0123456789abcdef"}
EVERYTHING = {
    "replicaCount": 3,
    "state": {"existingSecret": "mine"},
    "policySource": "redis",
    "settings": {"BREAKLOOP_UPSTREAM": "openai=https://api.openai.com", "BREAKLOOP_LIMITS_BODY_BYTES": "20000000"},
    "extraEnv": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}],
    "image": {"repository": "registry.example/breakloop", "tag": "7", "pullSecrets": ["pull"]},
    "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}},
    "autoscaling": {"enabled": True},
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "networkPolicy": {"from": [{"namespaceSelector": {}}], "egressPorts": [443, 6380]},
    "podAnnotations": {"c": "d"},
    "podLabels": {"e": "f"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "g", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "shutdownGraceSeconds": 3600,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": STATE,
    "everything": EVERYTHING,
    "one for trying": {"replicaCount": 1, "state": {"url": "memory://"}},
    "a config map of mine": {**STATE, "existingPolicyConfigMap": "rules"},
    "bare": {**STATE, "podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}},
}


def rendered(values: dict[str, Any], name: str = "breakloop") -> dict[str, Any]:
    """Texts by file of the chart, or why it was refused."""
    found: dict[str, Any] = ask({"do": "render", "chart": str(CHART), "values": values, "name": name})
    return found


def objects(values: dict[str, Any], name: str = "breakloop") -> dict[str, Any]:
    files = rendered(values, name)["files"]
    texts = [text for file, text in files.items() if file.endswith(".yaml")]
    return by_name([one for text in texts for one in yaml_documents(text)])


def values_yaml() -> dict[str, Any]:
    (document,) = yaml_documents((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_the_schema_knows_every_value_and_no_other() -> None:
    """What values.yaml documents can be set, and nothing else is taken."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values_yaml())
    for name, value in values_yaml().items():
        part = schema["properties"][name]
        if part.get("additionalProperties") is False:
            assert set(part["properties"]) == set(value), name
    assert schema["additionalProperties"] is False


def test_settings_that_the_chart_sets_are_settings() -> None:
    """T-1: a name that may not be given twice exists."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    refused = schema["properties"]["settings"]["propertyNames"]["not"]["enum"]
    known = {name for names in environment_names().values() for name in names}
    assert set(refused) < known


@pytest.mark.e2e
def test_helm_has_nothing_to_say() -> None:
    """`helm lint --strict`."""
    assert ask({"do": "lint", "chart": str(CHART), "values": STATE}) == []


@pytest.mark.e2e
@pytest.mark.parametrize("variant", VARIANTS)
def test_kubernetes_accepts_what_is_rendered(variant: str) -> None:
    """Every object, whatever is switched on or off."""
    found = objects(VARIANTS[variant], "prod")
    assert "Deployment/prod-breakloop" in found
    assert wrong_for_kubernetes(list(found.values())) == []
    deployment = found["Deployment/prod-breakloop"]
    assert wrong_with(container(deployment)["args"]) == ""
    texts = {name: value for name, value in environment(deployment).items() if isinstance(value, str)}
    assert load_settings(env={**texts, "BREAKLOOP_STATE": "redis://r:6379/0"}).warnings == ()


@pytest.mark.e2e
def test_the_pod_is_that_of_the_plain_manifests() -> None:
    """One truth: whoever changes one changes the other."""
    plain, chart = manifests(), objects({**STATE, **SECRET})
    for name in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"):
        assert stripped(chart[f"{name}/breakloop"]) == stripped(plain[f"{name}/breakloop"]), name
    assert stripped(
        objects({**STATE, "autoscaling": {"enabled": True}})["HorizontalPodAutoscaler/breakloop"]
    ) == stripped(plain["HorizontalPodAutoscaler/breakloop"])
    policies = [found["ConfigMap/breakloop-policy"]["data"] for found in (plain, chart)]
    assert policies[0] == policies[1]


def stripped(found: Any) -> Any:
    """Without labels that only Helm sets, checksums, and the image's tag (kustomize sets that)."""
    if isinstance(found, dict):
        left = {
            name: stripped(value) for name, value in found.items() if name not in {"annotations", "labels", "image"}
        }
        return {name: value for name, value in left.items() if name != "app.kubernetes.io/instance"}
    return [stripped(one) for one in found] if isinstance(found, list) else found


@pytest.mark.e2e
def test_the_bundle_arrives_as_it_was_written(tmp_path: Path) -> None:
    """B-2: the default one is valid, and quotes, colons and braces of another survive."""
    odd = "bundle_version: 3\n# a {{ brace }}, a 'quote', a \"double\"\npolicies: []\n"
    assert objects({**STATE, "policy": odd})["ConfigMap/breakloop-policy"]["data"] == {"policy.yaml": odd}
    (tmp_path / "policy.yaml").write_text(objects(STATE)["ConfigMap/breakloop-policy"]["data"]["policy.yaml"])
    assert breakloop(["validate", str(tmp_path / "policy.yaml")]) == 0


@pytest.mark.e2e
def test_a_new_policy_restarts_nothing_and_a_new_secret_does() -> None:
    """B-3, T-1: bundles are read as they change, settings at start."""
    first = objects({**STATE, **SECRET})["Deployment/breakloop"]
    policy = objects({**STATE, **SECRET, "policy": "bundle_version: 2\npolicies: []\n"})["Deployment/breakloop"]
    secret = objects({**STATE, "secret": "fedcba9876543210"})["Deployment/breakloop"]
    assert policy == first
    assert secret["spec"]["template"] != first["spec"]["template"]


@pytest.mark.e2e
def test_secrets_are_in_the_secret_only() -> None:
    """Y-1: neither the password in the URL nor the key is anywhere else."""
    files = rendered({**STATE, **SECRET})["files"]
    for text in ("s3cr3t", SECRET["secret"]):
        assert [name for name, content in files.items() if text in content] == ["breakloop/templates/secret.yaml"]
    assert "Secret/breakloop" not in objects(EVERYTHING)


@pytest.mark.e2e
def test_notes_say_how_to_use_it() -> None:
    notes = rendered(STATE, "prod")["files"]["breakloop/templates/NOTES.txt"]
    assert "OPENAI_BASE_URL=http://prod-breakloop.agents:8787/v1" in notes
    assert "2 instance(s), policy from ConfigMap prod-breakloop-policy" in notes


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no state": ({}, "set state.url (redis://...) or state.existingSecret"),
    "two states": ({"state": {"url": "redis://r", "existingSecret": "s"}}, "not both"),
    "memory for two": ({"state": {"url": "memory://"}}, "several replicas share a Redis"),
    "a secret beside one's own": ({"state": {"existingSecret": "s"}, **SECRET}, "put it into the Secret"),
    "a policy out of memory": (
        {"state": {"url": "memory://"}, "replicaCount": 1, "policySource": "redis"},
        "policySource: redis needs a Redis",
    ),
    "a misspelt value": ({**STATE, "replicas": 3}, "additional properties 'replicas' not allowed"),
    "a setting twice": ({**STATE, "settings": {"BREAKLOOP_PORT": "1"}}, "invalid propertyName 'BREAKLOOP_PORT'"),
    "a number": ({**STATE, "settings": {"BREAKLOOP_WORKERS": 2}}, "got number, want string"),
    "another store": ({"state": {"url": "postgres://x"}}, "does not match pattern"),
    "a short secret": ({**STATE, "secret": "short"}, "does not match pattern"),
}


@pytest.mark.e2e
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_a_reason(case: str) -> None:
    """S-5: before anything is installed."""
    values, why = REFUSED[case]
    assert why in rendered(deepcopy(values)).get("refused", "it was rendered")
