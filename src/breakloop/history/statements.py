"""Statements that both databases know under different names: writing a row that may be there already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

Insert = sqlite.Insert | postgresql.Insert


def insert(connection: Connection, table: Table) -> Insert:
    """Return an INSERT of the connection's database."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def replacing(connection: Connection, table: Table) -> Insert:
    """Return a statement that puts a row in the place of the one with its key."""
    new = insert(connection, table)
    return upsert(new, table, {column.name: new.excluded[column.name] for column in _others(table)})


def adding(connection: Connection, table: Table, sums: Iterable[str]) -> Insert:
    """Return a statement that adds a row's sums to those of the one with its key."""
    new = insert(connection, table)
    return upsert(new, table, {name: table.c[name] + new.excluded[name] for name in sums})


def _others(table: Table) -> list[Column[Any]]:
    return [column for column in table.c if not column.primary_key]


def upsert(new: Insert, table: Table, changes: Mapping[str, Any]) -> Insert:
    """Return the INSERT that changes the row with its key instead, if there is one."""
    return new.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=dict(changes))
