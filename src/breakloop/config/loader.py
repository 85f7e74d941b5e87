"""Loads the settings of a process: flags over environment variables over breakloop.yaml over defaults.

Every value keeps its origin: `breakloop doctor` shows it, and error messages name the line, variable or flag. The
variable of a field in a block has both names joined: `jwt.secret` is BREAKLOOP_JWT_SECRET (or BREAKLOOP_JWT__SECRET).
Lists in variables are separated by commas. An empty variable counts as not set. Paths in breakloop.yaml are relative
to that file. No other module reads the environment. Secrets that settings refer to (`env:VARIABLE`, `file:/PATH`) are
read here too, and never appear in messages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from breakloop.alerts.channels import secret_references
from breakloop.config.settings import POLICY_REDIS, RELATIVE, UNSAID, Settings
from breakloop.errors import BundleError, Problem, SettingsError
from breakloop.policy.diagnostics import KINDS, blocks_in, did_you_mean, nearest
from breakloop.policy.documents import DocumentPlaces, path_text, read_yaml
from breakloop.policy.schema.types import Model
from breakloop.store.redis.url import is_redis_url

Name = tuple[str, ...]  # such as ("jwt", "secret")

_FAULTS: Final = {
    "int_from_float": "must be a whole number",
    "string_sub_type": "must be text",
    "string_too_short": "must not be empty",
    "missing": "is missing",
}
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s]+(?=@)")


def fields_of(model: type[Model], above: Name = ()) -> Iterator[tuple[Name, FieldInfo]]:
    """Yield every setting with its name; for a block, its fields."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Model):
            yield from fields_of(field.annotation, (*above, name))
        else:
            yield (*above, name), field


def blocks_of(field: FieldInfo) -> list[type[Model]]:
    """Return the models of the items of a list or a map."""
    return [*blocks_in(field.annotation)] if get_origin(field.annotation) in (list, dict) else []


def shown(value: Any) -> str:
    """Format a value for display: secrets masked, of a map only the names."""
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "-"
    if isinstance(value, list):
        value = [getattr(one, "name", "?") if isinstance(one, Model) else masked(one) for one in value]
    if isinstance(value, list | dict):
        return ", ".join(value) or "-"
    return masked(f"{value:g}" if isinstance(value, float) else str(value)) or "-"


def masked(text: str) -> str:
    """Return a text without the secrets that a URL may contain: user and password, and what is in its query. The
    options of Redis are no secrets.
    """
    if "://" not in text:
        return text
    text = _USER_INFO.sub("***", text)
    if is_redis_url(text):
        return text
    base, mark, query = text.partition("?")
    return base + mark + "&".join(_masked_parameter(one) for one in query.split("&")) if mark else text


def _masked_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    return f"{name}={'***' if value else ''}" if equals else "***"


class EffectiveSetting(NamedTuple):
    """One setting as `breakloop doctor` and the dashboard show it, with secrets masked."""

    name: str
    value: str
    origin: str


def effective_settings(settings: Settings) -> list[EffectiveSetting]:
    """Return every setting with its value and origin, in the order of the fields."""
    found: list[EffectiveSetting] = []
    for name, _ in fields_of(Settings):
        value: Any = settings
        for step in name:
            value = getattr(value, step)
        dotted = ".".join(name)
        found.append(EffectiveSetting(dotted, shown(value), settings.origins.get(dotted, "default")))
    return found


def parse(text: str, field: FieldInfo) -> Any:
    """Convert the text of a variable to the type of the field. Text that does not fit is left to validation."""
    kind = field.annotation
    if NoneType in get_args(kind):  # a value that may be left out: `Annotated[int, ...] | None`
        kind = get_args(kind)[0]
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) in (Union, UnionType) and int in get_args(kind):  # a number, or a word in its place
        kind = int
    if get_origin(kind) is list and not blocks_of(field):
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool:
        low = text.lower()
        return True if low in _TRUE else False if low in _FALSE else text
    if kind in (int, float) or get_origin(kind) in (dict, list):
        try:
            return kind(text) if kind in (int, float) else json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text.lower() if get_origin(kind) is Literal and text.lower() in get_args(kind) else text


def _read_secret(setting: str, reference: str, env: Mapping[str, str], *, spaces: bool) -> str:
    kind, _, name = reference.partition(":")
    text = (env.get(name, "") if kind == "env" else _read(setting, name)).strip()
    where = f"environment variable {name}" if kind == "env" else name
    if not text:
        raise SettingsError(f"{setting}: {where} is {'not set' if kind == 'env' else 'empty'}")
    if not (text.isascii() and text.isprintable()) or (" " in text and not spaces):
        allowed = "one line of ASCII characters" if spaces else "only a key, without spaces or line breaks"
        raise SettingsError(f"{setting}: {where} must contain {allowed}")
    return text


def _read(setting: str, file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"{setting}: {file} cannot be read: {why}") from None


FILE = "breakloop.yaml"
_PREFIX = "BREAKLOOP_"
_ORIGINS = "_origins"
_LOOP_GUARD = "LOOP_GUARD_"  # these variables also work without the prefix
_OTEL = "OTEL_EXPORTER_OTLP_ENDPOINT"  # the standard variable of OpenTelemetry
_ELSEWHERE = frozenset({"BREAKLOOP_CONFIG", "BREAKLOOP_URL"})  # not settings: the settings file, the URL for clients


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: Settings
    warnings: tuple[str, ...] = ()
    file: str = ""


def load_settings(
    flags: Mapping[str, object] | None = None, *, env: Mapping[str, str] | None = None, directory: Path | None = None
) -> LoadedSettings:
    """Load the settings. Flags that are None or an empty tuple were not given. Raises `SettingsError`."""
    sources = _Sources(os.environ if env is None else env, directory or Path())
    sources.read_file((flags or {}).get("config"))
    sources.read_environment()
    for name, value in (flags or {}).items():
        if name != "config" and value is not None and value != ():
            plain = list(value) if isinstance(value, tuple) else value
            sources.set((name,), plain, "flag --" + name.replace("_", "-"))
    return sources.settings()


def provider_keys(settings: Settings, env: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Read the keys of `upstream_keys`, by name of the upstream. Raises `SettingsError` for an invalid key."""
    keys = {}
    for entry in settings.upstream_keys:
        name, _, reference = entry.partition("=")
        text = _read_secret(f"upstream_keys: {name}", reference, os.environ if env is None else env, spaces=False)
        keys[name] = text.encode("ascii")
    return keys


def alert_secrets(settings: Settings, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read the secrets of alert targets, by their reference (`env:VARIABLE`, `file:/PATH`). Raises `SettingsError`."""
    env, named = os.environ if env is None else env, secret_references(settings.alert_targets)
    return {reference: _read_secret(setting, reference, env, spaces=True) for setting, reference in named}


def settings_json_schema() -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def settings_text(settings: Settings, secret: str = "") -> str:
    """Serialise settings, including secrets, for a worker, whose `workers` is 1. `secret` is used if none is set."""
    values = settings.model_dump(exclude_unset=True) | {"workers": 1, _ORIGINS: settings.origins}
    if secret:
        values["secret"] = secret
    return json.dumps(values, default=_plain)


def settings_from_text(text: str) -> Settings:
    values = json.loads(text)
    origins = values.pop(_ORIGINS)
    settings = Settings.model_validate(values)
    settings.origins.update(origins)
    return settings


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def environment_names() -> dict[str, list[str]]:
    """Return the variables of every setting, by its dotted name. The first one takes precedence."""
    names: dict[str, list[str]] = {}
    for name, _ in fields_of(Settings):
        names[".".join(name)] = [_PREFIX + "_".join(name).upper()]
        if name[0] == "loop_guard":
            names[".".join(name)].append(_LOOP_GUARD + name[1].upper())
    return names


class _Sources:
    """Collects raw values from the lowest source to the highest; a later value replaces an earlier one."""

    def __init__(self, env: Mapping[str, str], directory: Path) -> None:
        self._env = env
        self._directory = directory
        self._fields = dict(fields_of(Settings))
        self._raw: dict[str, Any] = {}
        self._origins: dict[Name, str] = {}
        self._warnings: list[str] = []
        self._file = ""
        self._places: DocumentPlaces | None = None
        self._from_file: set[Name] = set()
        self._default_data_dir()
        if env.get(_OTEL):
            self.set(("otel_endpoint",), env[_OTEL], f"environment {_OTEL}")

    def set(self, name: Name, value: object, origin: str) -> None:
        block = self._raw
        for step in name[:-1]:
            inner = block.get(step)
            if not isinstance(inner, dict):
                inner = block[step] = {}
            block = inner
        block[name[-1]] = value
        self._origins[name] = origin
        self._from_file.discard(name)

    def _default_data_dir(self) -> None:
        """The directory of the service manager, else that of the user, else one in the working directory."""
        env = self._env
        if env.get("STATE_DIRECTORY"):
            self.set(("data_dir",), env["STATE_DIRECTORY"].split(":")[0], "environment STATE_DIRECTORY")
        elif env.get("XDG_DATA_HOME"):
            self.set(("data_dir",), str(Path(env["XDG_DATA_HOME"], "breakloop")), "default")
        elif env.get("HOME"):
            self.set(("data_dir",), str(Path(env["HOME"], ".local", "share", "breakloop")), "default")
        else:
            self.set(("data_dir",), str(self._directory / ".breakloop"), "default")

    # -- breakloop.yaml --------------------------------------------------------------------------------------------

    def read_file(self, named: object) -> None:
        """Read the file of the flag or of BREAKLOOP_CONFIG, else ./breakloop.yaml if it exists."""
        name = str(named or self._env.get("BREAKLOOP_CONFIG") or "")
        path = self._directory / (name or FILE)
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            if name:
                raise SettingsError(f"{name}: no such file") from None
            return
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SettingsError(f"{name or FILE}: cannot be read: {why}") from None
        self._file = name or FILE
        try:
            data, self._places = read_yaml(text, self._file)
        except BundleError as error:
            if [problem.message for problem in error.problems] == ["is empty"]:
                return
            raise SettingsError(str(error)) from None
        if data is not None and not isinstance(data, dict):
            raise SettingsError(str(Problem(self._file, 1, 1, "", "must be a map", "write port: 8787")))
        self._read_map(data or {}, (), path.parent)

    def _read_map(self, data: Mapping[str, Any], above: Name, folder: Path) -> None:
        for key, value in data.items():
            name = (*above, key)
            if isinstance(value, dict) and any(field[:-1][: len(name)] == name for field in self._fields):
                self._read_map(value, name, folder)
            elif value is not None:
                field = self._fields.get(name)
                relative = field is not None and RELATIVE in field.metadata and isinstance(value, str) and value
                elsewhere = relative and ("://" in value or (name == ("policy",) and value == POLICY_REDIS))
                given = str(folder / value) if relative and not elsewhere else value
                assert self._places is not None  # noqa: S101 - the document was parsed
                self.set(name, given, f"{self._file}:{self._places.locate(name, key=True).line}")
                self._from_file.add(name)

    # -- the environment -------------------------------------------------------------------------------------------

    def read_environment(self) -> None:
        """Read the variables of all settings, and warn about unknown ones with our prefix."""
        known = {_PREFIX + "_".join(name).upper(): name for name in self._fields}
        for name in self._fields:
            if name[0] == "loop_guard":
                self._read_variable(_LOOP_GUARD + name[1].upper(), name)
        for variable in sorted(self._env):
            if not variable.startswith(_PREFIX) or variable in _ELSEWHERE:
                continue
            setting = known.get(variable.replace("__", "_"))
            if setting is None:
                meant = nearest(variable.removeprefix(_PREFIX).lower(), ("_".join(name) for name in self._fields))
                hint = f"; did you mean {_PREFIX}{meant.upper()}?" if meant else ""
                self._warnings.append(f"environment {variable} is not a setting{hint}")
            else:
                self._read_variable(variable, setting)

    def _read_variable(self, variable: str, name: Name) -> None:
        text = self._env.get(variable, "").strip()
        if text:
            self.set(name, parse(text, self._fields[name]), f"environment {variable}")

    # -- the result ------------------------------------------------------------------------------------------------

    def settings(self) -> LoadedSettings:
        """Validate the collected values. Raises `SettingsError` with one line for each problem."""
        try:
            settings = Settings.model_validate(self._raw)
        except ValidationError as error:
            problems = sorted({self._explain(dict(found)) for found in error.errors(include_url=False)})
            raise SettingsError("\n".join(line for _, line in problems)) from None
        settings.origins.update({".".join(name): self._origins.get(name, "default") for name in self._fields})
        return LoadedSettings(settings, tuple(self._warnings), self._file)

    def _explain(self, found: dict[str, Any]) -> tuple[int, str]:
        """Return the message of one problem, and its line in the file, for sorting."""
        at: tuple[str | int, ...] = found["loc"]
        name = tuple(step for step in at if isinstance(step, str))
        message, hint = self._message(found, name)
        given = self._given(name)
        if given in self._from_file and self._places is not None:
            unknown = found["type"] == "extra_forbidden"
            place = self._places.locate(at, key=unknown)
            return place.line, str(Problem(*place, path_text(name), message, hint))
        inside = f": {path_text(name[len(given) :])}" if given != name else ""
        where = self._origins.get(given, path_text(given)) + inside
        return 0, f"{where}: {message}" + (f" ({hint})" if hint else "")

    def _given(self, name: Name) -> Name:
        """Return the setting or block that was given as one value."""
        heads = (name[:length] for length in range(len(name), 0, -1))
        return next((head for head in heads if head in self._origins), name)

    def _message(self, found: dict[str, Any], name: Name) -> tuple[str, str]:
        kind, context = found["type"], found.get("ctx", {})
        if kind == "breakloop":
            return context["message"], context["hint"]
        if kind == "extra_forbidden":
            return "is not a setting" + did_you_mean(name[-1], sorted(self._siblings(name))), ""
        message = f"must be {KINDS[kind]}" if kind in KINDS else _FAULTS.get(kind)
        message = message or str(found["msg"]).replace("Input should", "must")
        field = self._fields.get(name)
        if field is None or field.annotation is SecretStr or UNSAID in field.metadata:
            return message, ""  # do not repeat a value that may be a secret
        return f"{message}, got {found['input']!r:.80}", ""

    def _siblings(self, name: Name) -> Iterable[str]:
        """Return the valid names in the same place."""
        for around in (self._fields.get(name[:-2]), self._fields.get(name[:-1])):  # a map of blocks, a list of blocks
            if around is not None and blocks_of(around):
                return {field for block in blocks_of(around) for field in block.model_fields}
        return {field[: len(name)][-1] for field in self._fields if field[: len(name) - 1] == name[:-1]}
