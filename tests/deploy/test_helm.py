"""deploy/helm/breakloop, rendered by Helm itself: accepted by Kubernetes, the same pod as the plain manifests, and
refused where it could not work."""

from __future__ import annotations

import json
import re
import shlex
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from breakloop.cli.init import texts
from breakloop.cli.main import run as breakloop
from breakloop.config.loader import environment_names, load_settings
from tests.deploy.command_lines import wrong_with
from tests.deploy.manifests import by_name, container, environment, manifests
from tests.deploy.tools import DEPLOY, ROOT, ask, wrong_for_kubernetes, yaml_documents
from tests.pages.blocks import blocks_of

CHART = DEPLOY / "helm" / "breakloop"
TOKEN = {"admin": {"token": "t0ken-for-the-operator"}}
STATE = {"state": {"url": "redis://:s3cr3t@redis:6379/0"}, **TOKEN}
SECRET = {"secret": "0123456789abcdef"}
EVERYTHING = {
    "replicaCount": 3,
    "state": {"existingSecret": "mine"},
    "admin": {
        "tokens": ["prometheus:viewer:" + "a" * 64, "ann:operator:" + "b" * 64],
        "hosts": ["breakloop.example.com"],
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "tokenSecret": "viewer"},
    },
    "history": {"existingSecret": "past", "existingSecretKey": "uri"},
    "policySource": "redis",
    "settings": {"BREAKLOOP_UPSTREAM": "openai=https://api.openai.com", "BREAKLOOP_LIMITS_BODY_BYTES": "20000000"},
    "extraEnv": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}],
    "image": {"repository": "registry.example/breakloop", "tag": "7", "pullSecrets": ["pull"]},
    "service": {"type": "LoadBalancer", "port": 80, "annotations": {"a": "b"}},
    "autoscaling": {"enabled": True},
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "networkPolicy": {"from": [{"namespaceSelector": {}}], "adminFrom": [], "egressPorts": [443, 6380]},
    "podAnnotations": {"c": "d"},
    "podLabels": {"e": "f"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "g", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "shutdownGraceSeconds": 3600,
}


POLICY = (ROOT / "examples" / "nginx" / "policy.yaml").read_text(encoding="utf-8")


def of_the_page(beginning: str) -> str:
    """The block of the page that begins like this."""
    (found,) = (one for one in blocks_of(ROOT / "docs/how-to/kubernetes.md") if one.text.startswith(beginning))
    return found.text


def set_by(command: str) -> dict[str, Any]:
    """The values that a `helm` command sets, as Helm reads them."""
    values: dict[str, Any] = {}
    command = re.sub(r"\$\(.*?\)(?=})", "a" * 64, command[command.index("helm ") :].replace("\\\n", " "))
    words = shlex.split(command)
    for option, word in pairwise(words):
        if option in {"--set", "--set-file"}:
            path, _, text = word.partition("=")
            *above, name = path.split(".")
            place = values
            for part in above:
                place = place.setdefault(part, {})
            listed = text[1:-1].split(",") if text.startswith("{") else None
            place[name] = POLICY if option == "--set-file" else listed or yaml_documents(text)[0]
    return values


INSTALLED = set_by(of_the_page("$ helm install"))
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": STATE,
    "everything": EVERYTHING,
    "one for trying": {"replicaCount": 1, "state": {"url": "memory://"}, "admin": {"enabled": False}},
    "one history": {**STATE, "history": {"url": "postgresql://b:pa55@db/breakloop"}},
    "the operator's token for Prometheus": {**STATE, "admin": {**TOKEN["admin"], "serviceMonitor": {"enabled": True}}},
    "a config map of mine": {**STATE, "existingPolicyConfigMap": "rules"},
    "what `breakloop init` writes": yaml_documents(texts("kubernetes")["values.yaml"])[0],
    "what the page shows": {**STATE, **yaml_documents(of_the_page("settings:"))[0]},
    "`helm install` of the page": INSTALLED,
    "`helm upgrade` of the page": {**INSTALLED, **set_by(of_the_page("$ TOKEN="))},
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
    """A name that may not be given twice exists (T-1)."""
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
    own = [one for one in found.values() if one["apiVersion"] != "monitoring.coreos.com/v1"]  # of an operator's
    assert wrong_for_kubernetes(own) == []
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
    assert stripped(chart["Service/breakloop-admin"]) == stripped(plain["Service/breakloop-admin"])
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
    """The default one is valid, and quotes, colons and braces of another survive (B-2)."""
    odd = "bundle_version: 3\n# a {{ brace }}, a 'quote', a \"double\"\npolicies: []\n"
    assert objects({**STATE, "policy": odd})["ConfigMap/breakloop-policy"]["data"] == {"policy.yaml": odd}
    (tmp_path / "policy.yaml").write_text(objects(STATE)["ConfigMap/breakloop-policy"]["data"]["policy.yaml"])
    assert breakloop(["validate", str(tmp_path / "policy.yaml")]) == 0


@pytest.mark.e2e
def test_a_new_policy_restarts_nothing_and_a_new_secret_does() -> None:
    """Bundles are read as they change, settings at start (B-3, T-1)."""
    first = objects({**STATE, **SECRET})["Deployment/breakloop"]
    policy = objects({**STATE, **SECRET, "policy": "bundle_version: 2\npolicies: []\n"})["Deployment/breakloop"]
    secret = objects({**STATE, "secret": "fedcba9876543210"})["Deployment/breakloop"]
    assert policy == first
    assert secret["spec"]["template"] != first["spec"]["template"]


@pytest.mark.e2e
def test_secrets_are_in_the_secret_only() -> None:
    """Neither the password in the URL nor the key is anywhere else (Y-1)."""
    files = rendered({**STATE, **SECRET, "history": {"url": "postgresql://b:pa55@db/breakloop"}})["files"]
    for text in ("s3cr3t", "pa55", SECRET["secret"], TOKEN["admin"]["token"]):
        assert [name for name, content in files.items() if text in content] == ["breakloop/templates/secret.yaml"]
    assert "Secret/breakloop" not in objects(EVERYTHING)


@pytest.mark.e2e
def test_notes_say_how_to_use_it() -> None:
    notes = rendered(STATE, "prod")["files"]["breakloop/templates/NOTES.txt"]
    assert "OPENAI_BASE_URL=http://prod-breakloop.agents:8787/v1" in notes
    assert "2 instance(s), policy from ConfigMap prod-breakloop-policy" in notes
    assert "port-forward svc/prod-breakloop-admin 8788" in notes
    assert "Each instance has a history of its own" in notes
    shared = rendered(VARIANTS["one history"])["files"]["breakloop/templates/NOTES.txt"]
    assert "history" not in shared


@pytest.mark.e2e
def test_the_admin_plane_is_as_the_values_say() -> None:
    """Its names, its tokens, where history is; nothing of it where it is off (X-1)."""
    found = objects(EVERYTHING, "prod")
    variables = environment(found["Deployment/prod-breakloop"])
    hosts = load_settings(env={"BREAKLOOP_ADMIN_HOSTS": variables["BREAKLOOP_ADMIN_HOSTS"]}).settings.admin_hosts
    assert hosts[:2] == ["prod-breakloop-admin", "prod-breakloop-admin.$(POD_NAMESPACE)"]
    assert hosts[-1] == "breakloop.example.com"
    tokens = load_settings(env={"BREAKLOOP_ADMIN_TOKENS": variables["BREAKLOOP_ADMIN_TOKENS"]}).settings.admin_tokens
    assert tokens == EVERYTHING["admin"]["tokens"]  # type: ignore[index]  # it is a table
    assert variables["BREAKLOOP_ADMIN_TOKEN"] == {"secretKeyRef": {"name": "mine", "key": "admin-token"}}
    assert variables["BREAKLOOP_HISTORY"] == {"secretKeyRef": {"name": "past", "key": "uri"}}
    ingress = found["NetworkPolicy/prod-breakloop"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in ingress] == [8787]
    off = objects(VARIANTS["one for trying"])
    assert "Service/breakloop-admin" not in off
    assert [port["name"] for port in container(off["Deployment/breakloop"])["ports"]] == ["http"]
    assert environment(off["Deployment/breakloop"])["BREAKLOOP_ADMIN_PORT"] == "0"
    assert "BREAKLOOP_ADMIN_TOKEN" not in environment(off["Deployment/breakloop"])


@pytest.mark.e2e
def test_prometheus_finds_the_admin_port_of_every_pod() -> None:
    """The monitor selects the admin Service and no other, and shows a token (G-5)."""
    own = objects(VARIANTS["the operator's token for Prometheus"])
    monitor, service = own["ServiceMonitor/breakloop"], own["Service/breakloop-admin"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert not wanted <= own["Service/breakloop"]["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/metrics")
    assert endpoint["authorization"]["credentials"] == {"name": "breakloop", "key": "admin-token"}
    given = objects(EVERYTHING)["ServiceMonitor/breakloop"]
    assert given["spec"]["endpoints"][0]["authorization"]["credentials"] == {"name": "viewer", "key": "token"}
    assert given["metadata"]["labels"]["release"] == "prometheus"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no state": ({}, "set state.url (redis://...) or state.existingSecret"),
    "no token": ({"state": {"url": "redis://r"}}, "set admin.token"),
    "a token beside one's own": ({"state": {"existingSecret": "s"}, **TOKEN}, "under the key admin-token"),
    "a short token": ({**STATE, "admin": {"token": "short"}}, "does not match pattern"),
    "a token that is no hash": ({**STATE, "admin": {"tokens": ["ann:operator:plain"]}}, "does not match pattern"),
    "a history beside one's own": (
        {"state": {"existingSecret": "s"}, "history": {"url": "postgresql://b@db/b"}},
        "put the URL into a Secret of yours",
    ),
    "a history in a file": ({**STATE, "history": {"url": "/var/lib/h.db"}}, "does not match pattern"),
    "the admin port twice": (
        {**STATE, "settings": {"BREAKLOOP_ADMIN_PORT": "0"}},
        "invalid propertyName 'BREAKLOOP_ADMIN_PORT'",
    ),
    "two states": ({"state": {"url": "redis://r", "existingSecret": "s"}}, "not both"),
    "memory for two": ({"state": {"url": "memory://"}, **TOKEN}, "several replicas share a Redis"),
    "a secret beside one's own": ({"state": {"existingSecret": "s"}, **SECRET}, "put it into the Secret"),
    "a policy out of memory": (
        {"state": {"url": "memory://"}, "replicaCount": 1, "policySource": "redis", **TOKEN},
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
    """Before anything is installed (S-5)."""
    values, why = REFUSED[case]
    assert why in rendered(deepcopy(values)).get("refused", "it was rendered")
