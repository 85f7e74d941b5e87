"""How a database gets its tables: steps, forward only. Step N leads from version N to N + 1 and is never changed once
it was released; the version is kept in the database. A database of a newer version is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

# What the two databases call the same thing.
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


class NewerError(Exception):
    """The database was written by a version that is newer than this one."""

    def __init__(self, found: int, own: int) -> None:
        super().__init__(f"written by a newer version (its form is {found}, known is {own})")


def migrate(connection: Connection, steps: Sequence[str] = STEPS) -> None:
    """Bring a database up to date, within the caller's transaction, which nobody else writes beside."""
    found = version(connection)
    if found > len(steps):
        raise NewerError(found, len(steps))
    words = _WORDS[connection.dialect.name]
    for step in steps[found:]:
        for statement in filter(str.strip, step.format(sums=_SUMS, **words).split(";")):
            connection.exec_driver_sql(statement)
    if found < len(steps):
        _set_version(connection, len(steps))


def version(connection: Connection) -> int:
    """Return how many steps a database has behind it."""
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
