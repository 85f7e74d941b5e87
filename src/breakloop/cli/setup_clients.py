"""The programs that `breakloop setup` configures, one row each: where their settings are, and what is set there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from breakloop.cli.config_edit import Change, value_at
from breakloop.cli.init import has_ours, hook_line, texts

PATHS: Final = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}  # what a base URL of a provider's SDK ends with
_KEYS: Final = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "google": "GOOGLE_GENERATIVE_AI_API_KEY"}
_OPENCODE_SCHEMA: Final = "https://opencode.ai/config.json"
_LITELLM_FILES: Final = ("config.yaml", "litellm.yaml", "litellm_config.yaml")


def _table(data: Any, *path: str) -> dict[str, Any]:
    found = value_at(data, path)
    return found if isinstance(found, dict) else {}


def _list(data: Any, *path: str) -> list[Any]:
    found = value_at(data, path)
    return found if isinstance(found, list) else []


class Machine(NamedTuple):
    """What settings depend on: the environment, and how breakloop is reached."""

    env: Mapping[str, str]
    url: str  # of the gateway, with the name of the agent
    command: str  # that starts breakloop, in a shell without the virtual environment that is active here
    hook_options: str = ""

    @property
    def home(self) -> Path:
        return Path(self.env.get("HOME") or Path.home())

    def folder(self, variable: str, *default: str) -> Path:
        """Return a folder that a variable names, or the default one below the home directory."""
        return Path(self.env[variable]) if self.env.get(variable) else self.home.joinpath(*default)

    def base(self, provider: str, path: str | None = None) -> str:
        return self.url + (PATHS[provider] if path is None else path)


class Setting(NamedTuple):
    """A change, and the provider whose requests it sends to the gateway ("": another kind of change)."""

    change: Change
    provider: str = ""


class Client(NamedTuple):
    """A program that can be configured."""

    label: str
    program: str  # on the PATH where it is installed
    kind: str  # of its settings file
    file: Callable[[Machine], Path | None]
    settings: Callable[[Any, Machine], list[Setting]]
    notes: Callable[[Any], Iterator[str]] = lambda _data: iter(())
    nothing: str = ""  # why there may be nothing to set


def _claude_file(machine: Machine) -> Path:
    return machine.folder("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"


def _claude(_data: Any, machine: Machine) -> list[Setting]:
    return [Setting(Change(("env", "ANTHROPIC_BASE_URL"), machine.base("anthropic")), "anthropic")]


def _claude_hooks(data: Any, machine: Machine) -> list[Setting]:
    """Return our hooks for the events that have none of ours; arguments may have been changed."""
    hooks = json.loads(texts("claude-code")[".claude/settings.json"])["hooks"]
    found = []
    for event, (matcher,) in hooks.items():
        if not has_ours(value_at(data, ("hooks", event))):
            matcher["hooks"][0]["command"] = hook_line(machine.command, machine.hook_options)
            found.append(Setting(Change(("hooks", event), matcher, append=True)))
    return found


def _codex(_data: Any, machine: Machine) -> list[Setting]:
    provider = {
        "name": "OpenAI through breakloop",
        "base_url": machine.base("openai"),
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    }
    lines = [Change(("model_providers", "breakloop", key), value) for key, value in reversed(provider.items())]
    changes = [Change(("model_provider",), "breakloop"), *lines]
    return [Setting(one, "openai" if one.path[-1] == "base_url" else "") for one in changes]


def _codex_notes(_data: Any) -> Iterator[str]:
    yield "it needs an API key in OPENAI_API_KEY; a ChatGPT login uses another server"


def _opencode_file(machine: Machine) -> Path:
    if machine.env.get("OPENCODE_CONFIG"):
        return Path(machine.env["OPENCODE_CONFIG"])
    folder = machine.folder("XDG_CONFIG_HOME", ".config") / "opencode"
    return next((one for one in (folder / "opencode.jsonc",) if one.exists()), folder / "opencode.json")


def _opencode(data: Any, machine: Machine) -> list[Setting]:
    """Return base URLs for the providers that have a key or a login, because others would be listed as available."""
    try:
        logins = (machine.folder("XDG_DATA_HOME", ".local", "share") / "opencode" / "auth.json").read_text("utf-8")
    except OSError:
        logins = ""
    known = _table(data, "provider")
    used = [one for one, key in _KEYS.items() if machine.env.get(key) or f'"{one}"' in logins or one in known]
    # OpenCode adds this line to files that lack it, after which `--undo` would have to refuse.
    made = [Setting(Change(("$schema",), _OPENCODE_SCHEMA))] if not data else []
    for name in used or ["anthropic", "openai"]:
        provider, path = ("gemini", "/v1beta") if name == "google" else (name, "/v1")
        change = Change(("provider", name, "options", "baseURL"), machine.base(provider, path))
        made.append(Setting(change, provider))
    return made


def _cline(data: Any, machine: Machine) -> list[Setting]:
    known = {"anthropic": ("anthropic", "/v1"), "openai-native": ("openai", "/v1"), "gemini": ("gemini", "/v1beta")}
    return [
        Setting(Change(("providers", name, "settings", "baseUrl"), machine.base(*known[name])), known[name][0])
        for name in _table(data, "providers")
        if name in known
    ]


def _goose(_data: Any, machine: Machine) -> list[Setting]:
    names = {"ANTHROPIC_HOST": "anthropic", "OPENAI_HOST": "openai", "GOOGLE_HOST": "gemini"}
    return [Setting(Change((name,), machine.url), provider) for name, provider in names.items()]


def _cursor(data: Any, machine: Machine) -> list[Setting]:
    """Put `breakloop mcp --` in front of the servers that are commands."""
    found: list[Change] = []
    for name, server in _table(data, "mcpServers").items():
        command, args = value_at(server, ("command",)), _list(server, "args")
        if not isinstance(command, str):  # a server with a URL
            continue
        if Path(command).stem != "breakloop":
            args, command = ["mcp", "--agent", "cursor", "--", command, *args], machine.command
        found += [Change(("mcpServers", name, "command"), command), Change(("mcpServers", name, "args"), args)]
    return [Setting(change) for change in found]


def _cursor_notes(_data: Any) -> Iterator[str]:
    yield "Cursor calls models from its own servers, which cannot reach this machine: only MCP servers are guarded"


def _aider(data: Any, machine: Machine) -> list[Setting]:
    variables = {"ANTHROPIC_API_BASE": "anthropic", "GEMINI_API_BASE": "gemini"}
    there = _list(data, "set-env")
    made = [Setting(Change(("openai-api-base",), machine.base("openai")), "openai")]
    for name, provider in variables.items():
        ours = f"{name}={machine.base(provider)}"
        if not any(str(one).startswith(f"{name}=") and one != ours for one in there):
            made.append(Setting(Change(("set-env",), ours, append=True), provider))
    return made


def _aider_notes(data: Any) -> Iterator[str]:
    for one in _list(data, "set-env"):
        if str(one).startswith(("ANTHROPIC_API_BASE=", "GEMINI_API_BASE=")):
            yield f"set-env has {one}, which was not changed"


def _litellm(_data: Any, machine: Machine) -> list[Setting]:
    names = {"OPENAI_API_BASE": "openai", "ANTHROPIC_API_BASE": "anthropic", "GEMINI_API_BASE": "gemini"}
    place = "environment_variables"
    changes = [(Change((place, name), machine.base(provider)), provider) for name, provider in names.items()]
    return [Setting(change, provider) for change, provider in changes]


def _litellm_file(_machine: Machine) -> Path | None:
    return next((Path(name) for name in _LITELLM_FILES if Path(name).is_file()), None)


def _litellm_notes(data: Any) -> Iterator[str]:
    named = [
        str(value_at(model, ("model_name",)))
        for model in _list(data, "model_list")
        if value_at(model, ("litellm_params", "api_base"))
    ]
    if named:
        yield f"these models have an api_base of their own, which was not changed: {', '.join(named)}"


CLIENTS: Final[Mapping[str, Client]] = {
    "claude-code": Client("Claude Code, through the gateway", "claude", "json", _claude_file, _claude),
    "claude-code-hooks": Client("Claude Code, with hooks: no gateway", "claude", "json", _claude_file, _claude_hooks),
    "codex": Client(
        "Codex",
        "codex",
        "toml",
        lambda machine: machine.folder("CODEX_HOME", ".codex") / "config.toml",
        _codex,
        _codex_notes,
    ),
    "opencode": Client("OpenCode", "opencode", "json", _opencode_file, _opencode),
    "cline": Client(
        "Cline",
        "cline",
        "json",
        lambda machine: machine.folder("CLINE_DIR", ".cline") / "data" / "settings" / "providers.json",
        _cline,
        nothing="no provider is configured whose address can be set: run `cline auth` first (anthropic, openai-native "
        "or gemini)",
    ),
    "goose": Client(
        "Goose",
        "goose",
        "yaml",
        lambda machine: machine.folder("XDG_CONFIG_HOME", ".config") / "goose" / "config.yaml",
        _goose,
    ),
    "cursor": Client(
        "Cursor: its MCP servers",
        "cursor",
        "json",
        lambda machine: machine.home / ".cursor" / "mcp.json",
        _cursor,
        _cursor_notes,
        nothing="no MCP server is configured that is started as a command",
    ),
    "aider": Client("aider", "aider", "yaml", lambda machine: machine.home / ".aider.conf.yml", _aider, _aider_notes),
    "litellm": Client("LiteLLM's proxy", "litellm", "yaml", _litellm_file, _litellm, _litellm_notes),
}
