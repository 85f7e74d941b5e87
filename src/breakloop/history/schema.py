"""Tables, migrations and upserts; and the values of columns: text that every database accepts, integers that fit, JSON.

Migrations only go forward. Step N leads from version N to N + 1 and never changes after its release; the version is
stored in the database. A database of a newer version is left alone. A test compares the tables with what the
migrations create.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, Boolean, Column, Connection, Double, MetaData, Table, Text
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")
UNREADABLE: Final[dict[str, Any]] = {"unreadable": True}  # stands for an object that cannot be read
METADATA: Final = MetaData()

_TYPES: Final = {"text": Text, "real": Double, "whole": BigInteger, "flag": Boolean}


def _table(name: str, keys: str, *columns: tuple[str, str]) -> Table:
    """Return a table of columns with their types. The columns in `keys` are its primary key."""
    made: list[Column[Any]] = [
        Column(column, _TYPES[kind], primary_key=column in keys.split(), nullable=column in _NULLABLE)
        for kind, names in columns
        for column in names.split()
    ]
    return Table(f"breakloop_{name}", METADATA, *made)


_NULLABLE: Final = ("ended_at",)
_SUMMED: Final = "requests denied loops input_tokens output_tokens cost_microusd saved_requests saved_microusd"

EVENTS: Final = _table(
    "events",
    "id",
    ("whole", "id"),
    ("text", "name"),
    ("real", "at"),
    ("text", "project agent request_id incident data"),
)
# `over_at` is `ended_at`, or when the incident ends without further events; `held_until` is of the agent's quarantine;
# `steps_at` is the time of the last step.
INCIDENTS: Final = _table(
    "incidents",
    "id",
    ("text", "id state project agent caller model kind fingerprint policy action evidence"),
    ("flag", "shadow"),
    ("real", "first_at last_at ended_at over_at held_until"),
    ("whole", "detections hit_count cooldown_seconds spent_requests spent_tokens spent_microusd"),
    ("whole", "saved_requests saved_tokens saved_microusd"),
    ("real", "steps_at"),
    ("whole", "steps_count"),
)
# Separate from the incidents, so that listing them reads little. Steps and score are JSON.
PICTURES: Final = _table("pictures", "incident", ("text", "incident steps score"))
AGENTS: Final = _table(
    "agents",
    "project agent",
    ("text", "project agent"),
    ("real", "first_at last_at"),
    ("whole", "requests denied failed loops input_tokens output_tokens cost_microusd saved_microusd"),
    ("text", "model settings"),
)
CALLERS: Final = _table("callers", "project agent caller", ("text", "project agent caller"), ("real", "last_at"))
# Sums of `span_s` seconds from `at` on.
POINTS: Final = _table("points", "span_s at project", ("whole", "span_s at"), ("text", "project"), ("whole", _SUMMED))
AGENT_POINTS: Final = _table(
    "agent_points",
    "span_s project agent at",
    ("whole", "span_s"),
    ("text", "project agent"),
    ("whole", "at"),
    ("whole", _SUMMED),
)
# `day` is the number of days since 1970, UTC.
SHADOWS: Final = _table(
    "shadows",
    "day project policy rule reason",
    ("whole", "day"),
    ("text", "project policy rule reason"),
    ("whole", "requests"),
)
AUDIT: Final = _table("audit", "id", ("whole", "id"), ("real", "at"), ("text", "who role action target detail"))


# Column types and constraints that differ between the two databases.
_WORDS: Final = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "real": "REAL", "packed": " WITHOUT ROWID"},
    "postgresql": {
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "real": "DOUBLE PRECISION",
        "packed": "",
    },
}

_SUMS: Final = (
    "requests BIGINT NOT NULL, denied BIGINT NOT NULL, loops BIGINT NOT NULL, input_tokens BIGINT NOT NULL,"
    " output_tokens BIGINT NOT NULL, cost_microusd BIGINT NOT NULL, saved_requests BIGINT NOT NULL,"
    " saved_microusd BIGINT NOT NULL"
)

_FIRST: Final = """
CREATE TABLE breakloop_events (
    id {serial}, name TEXT NOT NULL, at {real} NOT NULL, project TEXT NOT NULL, agent TEXT NOT NULL,
    request_id TEXT NOT NULL, incident TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX breakloop_events_at ON breakloop_events (at);
CREATE INDEX breakloop_events_name ON breakloop_events (name, id);
CREATE INDEX breakloop_events_project ON breakloop_events (project, name, id);
CREATE INDEX breakloop_events_agent ON breakloop_events (agent, name, id) WHERE agent <> '';
CREATE INDEX breakloop_events_incident ON breakloop_events (incident, id) WHERE incident <> '';
CREATE TABLE breakloop_incidents (
    id TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL, project TEXT NOT NULL, agent TEXT NOT NULL,
    caller TEXT NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, fingerprint TEXT NOT NULL,
    policy TEXT NOT NULL, action TEXT NOT NULL, evidence TEXT NOT NULL, shadow BOOLEAN NOT NULL,
    first_at {real} NOT NULL, last_at {real} NOT NULL, ended_at {real}, over_at {real} NOT NULL,
    held_until {real} NOT NULL, detections BIGINT NOT NULL, hit_count BIGINT NOT NULL,
    cooldown_seconds BIGINT NOT NULL, spent_requests BIGINT NOT NULL, spent_tokens BIGINT NOT NULL,
    spent_microusd BIGINT NOT NULL, saved_requests BIGINT NOT NULL, saved_tokens BIGINT NOT NULL,
    saved_microusd BIGINT NOT NULL, steps_at {real} NOT NULL, steps_count BIGINT NOT NULL
);
CREATE INDEX breakloop_incidents_last ON breakloop_incidents (last_at);
CREATE INDEX breakloop_incidents_state ON breakloop_incidents (state, last_at);
CREATE INDEX breakloop_incidents_project ON breakloop_incidents (project, last_at);
CREATE INDEX breakloop_incidents_agent ON breakloop_incidents (agent, last_at);
CREATE INDEX breakloop_incidents_kind ON breakloop_incidents (kind, last_at);
CREATE INDEX breakloop_incidents_policy ON breakloop_incidents (policy, last_at);
CREATE INDEX breakloop_incidents_agent_over ON breakloop_incidents (agent, over_at);
CREATE INDEX breakloop_incidents_caller_over ON breakloop_incidents (caller, over_at);
CREATE INDEX breakloop_incidents_live ON breakloop_incidents (over_at) WHERE ended_at IS NULL;
CREATE TABLE breakloop_pictures (
    incident TEXT NOT NULL PRIMARY KEY, steps TEXT NOT NULL, score TEXT NOT NULL
);
CREATE TABLE breakloop_agents (
    project TEXT NOT NULL, agent TEXT NOT NULL, first_at {real} NOT NULL, last_at {real} NOT NULL,
    requests BIGINT NOT NULL, denied BIGINT NOT NULL, failed BIGINT NOT NULL, loops BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL, output_tokens BIGINT NOT NULL, cost_microusd BIGINT NOT NULL,
    saved_microusd BIGINT NOT NULL, model TEXT NOT NULL, settings TEXT NOT NULL, PRIMARY KEY (project, agent)
);
CREATE INDEX breakloop_agents_last ON breakloop_agents (last_at);
CREATE TABLE breakloop_callers (
    project TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL, last_at {real} NOT NULL,
    PRIMARY KEY (project, agent, caller)
){packed};
CREATE INDEX breakloop_callers_last ON breakloop_callers (last_at);
CREATE TABLE breakloop_points (
    span_s BIGINT NOT NULL, at BIGINT NOT NULL, project TEXT NOT NULL, {sums}, PRIMARY KEY (span_s, at, project)
){packed};
CREATE TABLE breakloop_agent_points (
    span_s BIGINT NOT NULL, project TEXT NOT NULL, agent TEXT NOT NULL, at BIGINT NOT NULL, {sums},
    PRIMARY KEY (span_s, project, agent, at)
){packed};
CREATE INDEX breakloop_agent_points_at ON breakloop_agent_points (span_s, at);
CREATE TABLE breakloop_shadows (
    day BIGINT NOT NULL, project TEXT NOT NULL, policy TEXT NOT NULL, rule TEXT NOT NULL, reason TEXT NOT NULL,
    requests BIGINT NOT NULL, PRIMARY KEY (day, project, policy, rule, reason)
){packed};
CREATE TABLE breakloop_audit (
    id {serial}, at {real} NOT NULL, who TEXT NOT NULL, role TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, detail TEXT NOT NULL
);
"""

STEPS: Final = (_FIRST,)


class NewerSchemaError(Exception):
    """The database was written by a newer version of breakloop."""

    def __init__(self, found: int, own: int) -> None:
        super().__init__(f"written by a newer version (schema {found}, supported is {own})")


def migrate(connection: Connection, steps: Sequence[str] = STEPS) -> None:
    """Run the missing steps, within the caller's exclusive transaction."""
    found = version(connection)
    if found > len(steps):
        raise NewerSchemaError(found, len(steps))
    words = _WORDS[connection.dialect.name]
    for step in steps[found:]:
        for statement in filter(str.strip, step.format(sums=_SUMS, **words).split(";")):
            connection.exec_driver_sql(statement)
    if found < len(steps):
        _set_version(connection, len(steps))


def version(connection: Connection) -> int:
    """Return the number of steps that a database has completed."""
    if connection.dialect.name == "sqlite":
        return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if connection.exec_driver_sql("SELECT to_regclass('breakloop_version')").scalar_one() is None:
        return 0
    return int(connection.exec_driver_sql("SELECT version FROM breakloop_version").scalar_one())


def _set_version(connection: Connection, number: int) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {number}")
        return
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS breakloop_version (version BIGINT NOT NULL)")
    connection.exec_driver_sql("DELETE FROM breakloop_version")
    connection.exec_driver_sql(f"INSERT INTO breakloop_version (version) VALUES ({number:d})")  # noqa: S608 - a number


Insert = sqlite.Insert | postgresql.Insert


def insert(connection: Connection, table: Table) -> Insert:
    """Return an INSERT of the connection's dialect."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def replacing(connection: Connection, table: Table) -> Insert:
    """Return a statement that replaces the row with the same key."""
    new = insert(connection, table)
    return upsert(new, table, {column.name: new.excluded[column.name] for column in table.c if not column.primary_key})


def adding(connection: Connection, table: Table, sums: Iterable[str]) -> Insert:
    """Return a statement that adds sums to the row with the same key."""
    new = insert(connection, table)
    return upsert(new, table, {name: table.c[name] + new.excluded[name] for name in sums})


def upsert(new: Insert, table: Table, changes: Mapping[str, Any]) -> Insert:
    """Return an INSERT that updates the row with the same key, if there is one."""
    return new.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=dict(changes))


TEXT_MAX: Final = 400  # characters; an index entry of PostgreSQL has at most 2,700 bytes
MOMENT_MAX: Final = 1e11  # seconds since 1970: the year 5138
_WHOLE_MAX: Final = 2**62


def text(value: object, most: int = TEXT_MAX) -> str:
    """Return text for a column, or "" for other types. PostgreSQL accepts no NUL, and no database a lone surrogate."""
    if not isinstance(value, str):
        return ""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    if "\0" in value:
        value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value[:most]


def whole(value: object) -> int:
    """Return an integer that fits a 64-bit column; 0 for other types."""
    if not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - not a number
        return 0
    return int(min(max(value, -_WHOLE_MAX), _WHOLE_MAX))


def moment(value: float) -> float:
    """Return a time within the supported range."""
    return min(value, MOMENT_MAX) if value > 0.0 else 0.0


def to_json(value: object) -> str:
    """Return JSON in ASCII, which every database accepts unchanged."""
    return _ENCODER.encode(value)


def from_json(value: str, otherwise: T) -> T:
    """Return the value of a column; `otherwise` if it cannot be read, so that one bad row does not hide the others."""
    try:
        found = json.loads(value)
    except ValueError:
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


def _other(value: object) -> object:
    """Values without a JSON form are replaced by their type: their text may contain private data."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return f"<{type(value).__name__}>"


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=_other)
