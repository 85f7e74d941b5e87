"""The manifests of deploy/kubernetes, read, and what tests look at in a pod."""

from __future__ import annotations

from typing import Any

from tests.deploy.tools import DEPLOY, yaml_documents

KUBERNETES = DEPLOY / "kubernetes"


def manifests() -> dict[str, Any]:
    """Every object of the folder, as `Kind/name`; the kustomization is not one."""
    found = [one for path in sorted(KUBERNETES.glob("*.yaml")) for one in yaml_documents(path.read_text("utf-8"))]
    return by_name([one for one in found if one["kind"] != "Kustomization"])


def by_name(objects: list[Any]) -> dict[str, Any]:
    """Objects by kind and name, each once."""
    named = {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}
    assert len(named) == len(objects)
    return named


def container(deployment: Any) -> Any:
    """The one container of a Deployment."""
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return only


def environment(deployment: Any) -> dict[str, Any]:
    """Its variables: texts, or where they come from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(deployment)["env"]}
