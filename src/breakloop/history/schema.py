"""Tables, migrations and upserts.

Migrations only go forward. Step N leads from version N to N + 1 and never changes after its release; the version is
stored in the database. A database of a newer version is left alone. A test compares the tables with what the
migrations create.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Connection, Double, MetaData, Table, Text
from sqlalchemy.dialects import postgresql, sqlite

METADATA: Final = MetaData()

EVENTS: Final = Table(
    "breakloop_events",
    METADATA,
    Column("id", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("project", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("data", Text, nullable=False),  # JSON
)

INCIDENTS: Final = Table(
    "breakloop_incidents",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("caller", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("shadow", Boolean, nullable=False),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("over_at", Double, nullable=False),  # `ended_at`, or when the incident ends without further events
    Column("held_until", Double, nullable=False),  # of the agent's quarantine
    Column("detections", BigInteger, nullable=False),
    Column("hit_count", BigInteger, nullable=False),
    Column("cooldown_seconds", BigInteger, nullable=False),
    Column("spent_requests", BigInteger, nullable=False),
    Column("spent_tokens", BigInteger, nullable=False),
    Column("spent_microusd", BigInteger, nullable=False),
    Column("saved_requests", BigInteger, nullable=False),
    Column("saved_tokens", BigInteger, nullable=False),
    Column("saved_microusd", BigInteger, nullable=False),
    Column("steps_at", Double, nullable=False),  # time of the last step
    Column("steps_count", BigInteger, nullable=False),
)

# Separate from the incidents, so that listing them reads little.
PICTURES: Final = Table(
    "breakloop_pictures",
    METADATA,
    Column("incident", Text, primary_key=True),
    Column("steps", Text, nullable=False),  # JSON
    Column("score", Text, nullable=False),  # JSON
)

AGENTS: Final = Table(
    "breakloop_agents",
    METADATA,
    Column("project", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("first_at", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("denied", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("loops", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_microusd", BigInteger, nullable=False),
    Column("saved_microusd", BigInteger, nullable=False),
    Column("model", Text, nullable=False),
    Column("settings", Text, nullable=False),  # JSON
)

CALLERS: Final = Table(
    "breakloop_callers",
    METADATA,
    Column("project", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("caller", Text, primary_key=True),
    Column("last_at", Double, nullable=False),
)


def _sums() -> list[Column[int]]:
    names = ("requests", "denied", "loops", "input_tokens", "output_tokens", "cost_microusd")
    return [Column(name, BigInteger, nullable=False) for name in (*names, "saved_requests", "saved_microusd")]


# Sums of `span_s` seconds from `at` on.
POINTS: Final = Table(
    "breakloop_points",
    METADATA,
    Column("span_s", BigInteger, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("project", Text, primary_key=True),
    *_sums(),
)

AGENT_POINTS: Final = Table(
    "breakloop_agent_points",
    METADATA,
    Column("span_s", BigInteger, primary_key=True),
    Column("project", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    *_sums(),
)

SHADOWS: Final = Table(
    "breakloop_shadows",
    METADATA,
    Column("day", BigInteger, primary_key=True),  # days since 1970, UTC
    Column("project", Text, primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("rule", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
)

AUDIT: Final = Table(
    "breakloop_audit",
    METADATA,
    Column("id", BigInteger, primary_key=True),
    Column("at", Double, nullable=False),
    Column("who", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", Text, nullable=False),  # JSON
)


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
        super().__init__(f"written by a newer version (its form is {found}, known is {own})")


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
    return upsert(new, table, {column.name: new.excluded[column.name] for column in _others(table)})


def adding(connection: Connection, table: Table, sums: Iterable[str]) -> Insert:
    """Return a statement that adds sums to the row with the same key."""
    new = insert(connection, table)
    return upsert(new, table, {name: table.c[name] + new.excluded[name] for name in sums})


def _others(table: Table) -> list[Column[Any]]:
    return [column for column in table.c if not column.primary_key]


def upsert(new: Insert, table: Table, changes: Mapping[str, Any]) -> Insert:
    """Return an INSERT that updates the row with the same key, if there is one."""
    return new.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=dict(changes))
