"""Runs in the environment of scripts/install-apart.sh: a question on each line of standard input, its answer on
a line of standard output, both JSON. The questions are asked by `tools.ask`."""

from __future__ import annotations

import json
import sys
from typing import Any

import helm_python
import kubernetes_validate


def render(question: dict[str, Any]) -> dict[str, Any]:
    """What `helm template` makes of a chart: texts by file, or why not. Its schema is checked first, as Helm does."""
    with helm_python.Chart.load(question["chart"]) as chart:
        try:
            chart.validate_schema(question["values"])
            files = chart.render(question["values"], name=question["name"], namespace="agents")
        except helm_python.HelmError as error:
            return {"refused": str(error)}
    return {"files": files}


def lint(question: dict[str, Any]) -> list[str]:
    """What `helm lint --strict` warns of; advice (that an icon would be nice) is left out."""
    found = helm_python.lint(question["chart"], question["values"], strict=True)
    return [one["error"] for one in found["messages"] if one["severity"] > 1] + list(found["errors"])


def validate(question: dict[str, Any]) -> list[str]:
    """What the schemas of these versions of Kubernetes refuse: unknown fields, too."""
    found = []
    for document in question["documents"]:
        for version in question["versions"]:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                where = "/".join(map(str, getattr(error, "path", ())))
                found.append(f"{document['kind']} in {version}: {where}: {error.message}")
    return found


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        json.dump({"render": render, "lint": lint, "validate": validate}[asked["do"]](asked), sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()
