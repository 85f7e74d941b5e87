"""What people run, for `breakloop init --for`: which files each of them needs beside the policy, and what to type next.
The files themselves are in templates/for; those of gateways are copies of examples/."""

from __future__ import annotations

from importlib.resources import files
from typing import Final, NamedTuple

_TEST: Final = ("breakloop test policy-test.yaml", "does the policy do what is expected?")
_SERVE: Final = ("breakloop serve", "run it (settings are in breakloop.yaml)")
_DECISION: Final = "# The gateway forwards; breakloop only decides.\nmode: decision\n"
_MCP: Final = "# /tools/... goes to this server; put yours here.\nupstream: [tools=http://127.0.0.1:9000]\n"

_NOT_OURS: Final = ".txt"  # at the end of programs that are no modules of this package
_PLACES: Final = {"claude-hooks.json": ".claude/settings.json"}
MERGED: Final = frozenset(_PLACES.values())  # what others keep there, too, stays

Line = tuple[str, str]  # a command, and why


class Choice(NamedTuple):
    """One of them."""

    label: str
    template: str
    last: Line  # the third of the commands to type next
    settings: str = ""  # what breakloop.yaml says more
    folder: str = ""  # where its files go; "": beside the policy
    served: Line = _SERVE

    @property
    def commands(self) -> tuple[Line, ...]:
        """The next three commands."""
        return (_TEST, self.served, self.last)


def _gateway(label: str, name: str, command: str) -> Choice:
    return Choice(label, "gateway", (command, "in another terminal; your application on 9000"), _DECISION, name)


CHOICES: Final[dict[str, Choice]] = {
    "openai": Choice("OpenAI's SDK, or anything that speaks its API", "llm", ("python client.py", "a first call")),
    "anthropic": Choice("Anthropic's SDK", "llm", ("python client.py", "a first call")),
    "langchain": Choice("LangChain or LangGraph", "llm", ("python client.py", "a first call")),
    "litellm": Choice("LiteLLM", "llm", ("litellm --config litellm.yaml", "its proxy, with models behind breakloop")),
    "crewai": Choice("CrewAI", "llm", ("python client.py", "a first call")),
    "claude-code": Choice(
        "Claude Code",
        "llm",
        (
            "claude --settings claude-settings.json",
            "through it; hooks are in .claude/settings.json, and need no server",
        ),
    ),
    "mcp": Choice("an MCP server (HTTP)", "minimal", ("claude --mcp-config mcp.json", "or another client"), _MCP),
    "nginx": _gateway("nginx", "nginx", 'nginx -p "$PWD/nginx" -c nginx.conf'),
    "envoy": _gateway("Envoy", "envoy", "envoy -c envoy/envoy.yaml"),
    "caddy": _gateway("Caddy", "caddy", "caddy run --config caddy/Caddyfile"),
    "haproxy": _gateway("HAProxy", "haproxy", "haproxy -C haproxy -f haproxy.cfg"),
    "traefik": _gateway(
        "Traefik",
        "traefik",
        "traefik --entrypoints.web.address=:8080 --providers.file.filename=traefik/dynamic.yaml",
    ),
    "docker": Choice(
        "Docker",
        "llm",
        ("curl -s http://127.0.0.1:8787/readyz", "is it there?"),
        served=("docker compose up -d", "run it; compose.yaml says where the image comes from"),
    ),
    "kubernetes": Choice(
        "Kubernetes",
        "llm",
        ("kubectl rollout status deployment/breakloop", "is it there?"),
        served=(
            "helm install breakloop deploy/helm/breakloop -f values.yaml --set-file policy=policy.yaml",
            "the chart is in a checkout of breakloop",
        ),
    ),
}
PLAIN: Final[tuple[Line, ...]] = (("breakloop validate policy.yaml", "is the bundle right?"), _TEST, _SERVE)


def texts(name: str) -> dict[str, str]:
    """Return the files of a choice by where they go."""
    folder = f"{CHOICES[name].folder}/" if CHOICES[name].folder else ""
    found = (files("breakloop.cli") / "templates" / "for" / name).iterdir()
    return {
        folder + _PLACES.get(file.name, file.name.removesuffix(_NOT_OURS)): file.read_text(encoding="utf-8")
        for file in sorted(found, key=lambda file: file.name)
    }
