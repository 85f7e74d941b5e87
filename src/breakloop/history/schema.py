"""Tables, migrations and upserts; and the values of columns: text that every database accepts, integers that fit, JSON.

A new database gets the tables as they are here. One of an earlier version gets the steps that it lacks: the first leads
from version 1 to version 2, and none changes after its release. The version is stored in the database; a database of a
newer version is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")
UNREADABLE: Final[dict[str, Any]] = {"unreadable": True}  # stands for an object that cannot be read
METADATA: Final = sa.MetaData()

_TYPES: Final[dict[str, sa.types.TypeEngine[Any]]] = {
    "number": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),  # of a row, given by the database
    "text": sa.Text(),
    "real": sa.Double().with_variant(sa.REAL(), "sqlite"),
    "whole": sa.BigInteger(),
    "flag": sa.Boolean(),
}


def _table(name: str, keys: str, *columns: tuple[str, str], packed: bool = False) -> sa.Table:
    """Return a table of columns with their types. The columns in `keys` are its primary key. If it is `packed`, SQLite
    keeps the rows in the index of that key."""
    made: list[sa.Column[Any]] = [
        sa.Column(
            column,
            _TYPES[kind],
            *([sa.Identity(always=True)] if kind == "number" else []),
            primary_key=column in keys.split(),
            nullable=column in _NULLABLE,
        )
        for kind, names in columns
        for column in names.split()
    ]
    numbered = any(kind == "number" for kind, _ in columns)
    return sa.Table(name, METADATA, *made, sqlite_autoincrement=numbered, sqlite_with_rowid=not packed)


_NULLABLE: Final = ("ended_at",)
_SUMMED: Final = "requests denied loops input_tokens output_tokens cost_microusd saved_requests saved_microusd"

EVENTS: Final = _table(
    "breakloop_events",
    "id",
    ("number", "id"),
    ("text", "name"),
    ("real", "at"),
    ("text", "project agent request_id incident data"),
)
# `over_at` is `ended_at`, or when the incident ends without further events; `held_until` is of the agent's quarantine;
# `steps_at` is the time of the last step.
INCIDENTS: Final = _table(
    "breakloop_incidents",
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
PICTURES: Final = _table("breakloop_pictures", "incident", ("text", "incident steps score"))
AGENTS: Final = _table(
    "breakloop_agents",
    "project agent",
    ("text", "project agent"),
    ("real", "first_at last_at"),
    ("whole", "requests denied failed loops input_tokens output_tokens cost_microusd saved_microusd"),
    ("text", "model settings"),
)
CALLERS: Final = _table(
    "breakloop_callers", "project agent caller", ("text", "project agent caller"), ("real", "last_at"), packed=True
)
# Sums of `span_s` seconds from `at` on.
POINTS: Final = _table(
    "breakloop_points",
    "span_s at project",
    ("whole", "span_s at"),
    ("text", "project"),
    ("whole", _SUMMED),
    packed=True,
)
AGENT_POINTS: Final = _table(
    "breakloop_agent_points",
    "span_s project agent at",
    ("whole", "span_s"),
    ("text", "project agent"),
    ("whole", "at"),
    ("whole", _SUMMED),
    packed=True,
)
# `day` is the number of days since 1970, UTC.
SHADOWS: Final = _table(
    "breakloop_shadows",
    "day project policy rule reason",
    ("whole", "day"),
    ("text", "project policy rule reason"),
    ("whole", "requests"),
    packed=True,
)
AUDIT: Final = _table(
    "breakloop_audit", "id", ("number", "id"), ("real", "at"), ("text", "who role action target detail")
)


_INDEXES: Final = (  # table, name, columns, condition
    (EVENTS, "at", "at", ""),
    (EVENTS, "name", "name id", ""),
    (EVENTS, "project", "project name id", ""),
    (EVENTS, "agent", "agent name id", "agent <> ''"),
    (EVENTS, "incident", "incident id", "incident <> ''"),
    (INCIDENTS, "last", "last_at", ""),
    (INCIDENTS, "state", "state last_at", ""),
    (INCIDENTS, "project", "project last_at", ""),
    (INCIDENTS, "agent", "agent last_at", ""),
    (INCIDENTS, "kind", "kind last_at", ""),
    (INCIDENTS, "policy", "policy last_at", ""),
    (INCIDENTS, "agent_over", "agent over_at", ""),
    (INCIDENTS, "caller_over", "caller over_at", ""),
    (INCIDENTS, "live", "over_at", "ended_at IS NULL"),
    (AGENTS, "last", "last_at", ""),
    (CALLERS, "last", "last_at", ""),
    (AGENT_POINTS, "at", "span_s at", ""),
)


def _index(table: sa.Table, name: str, columns: str, condition: str) -> sa.Index:
    only = sa.text(condition) if condition else None
    indexed = [table.c[column] for column in columns.split()]
    return sa.Index(f"{table.name}_{name}", *indexed, sqlite_where=only, postgresql_where=only)


# Where two indexes fit a question equally well, SQLite uses the one that was created later.
INDEXES: Final = tuple([_index(*row) for row in _INDEXES])
STEPS: Final[tuple[str, ...]] = ()  # from version 1 on; statements are separated by semicolons


class NewerSchemaError(Exception):
    """The database was written by a newer version of breakloop."""

    def __init__(self, found: int, own: int) -> None:
        super().__init__(f"written by a newer version (schema {found}, supported is {own})")


def migrate(connection: sa.Connection, steps: Sequence[str] = STEPS) -> None:
    """Create the tables or run the missing steps, within the caller's exclusive transaction."""
    found, own = version(connection), 1 + len(steps)
    if found > own:
        raise NewerSchemaError(found, own)
    if not found:
        for table in METADATA.sorted_tables:
            connection.execute(sa.schema.CreateTable(table))
        for index in INDEXES:
            connection.execute(sa.schema.CreateIndex(index))
    for step in steps[found - 1 :] if found else ():
        for statement in filter(str.strip, step.split(";")):
            connection.exec_driver_sql(statement)
    if found < own:
        _set_version(connection, own)


def version(connection: sa.Connection) -> int:
    """Return the version of a database; 0 for a new one."""
    if connection.dialect.name == "sqlite":
        return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if connection.exec_driver_sql("SELECT to_regclass('breakloop_version')").scalar_one() is None:
        return 0
    return int(connection.exec_driver_sql("SELECT version FROM breakloop_version").scalar_one())


def _set_version(connection: sa.Connection, number: int) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {number}")
        return
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS breakloop_version (version BIGINT NOT NULL)")
    connection.exec_driver_sql("DELETE FROM breakloop_version")
    connection.exec_driver_sql(f"INSERT INTO breakloop_version (version) VALUES ({number:d})")  # noqa: S608 - a number


Insert = sqlite.Insert | postgresql.Insert


def insert(connection: sa.Connection, table: sa.Table) -> Insert:
    """Return an INSERT of the connection's dialect."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def replacing(connection: sa.Connection, table: sa.Table) -> Insert:
    """Return a statement that replaces the row with the same key."""
    new = insert(connection, table)
    return upsert(new, table, {column.name: new.excluded[column.name] for column in table.c if not column.primary_key})


def adding(connection: sa.Connection, table: sa.Table, sums: Iterable[str]) -> Insert:
    """Return a statement that adds sums to the row with the same key."""
    new = insert(connection, table)
    return upsert(new, table, {name: table.c[name] + new.excluded[name] for name in sums})


def upsert(new: Insert, table: sa.Table, changes: Mapping[str, Any]) -> Insert:
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
