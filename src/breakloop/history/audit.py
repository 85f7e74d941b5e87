"""Who did what (SPEC K-3, X-2): written before it is acknowledged, and kept longer than everything else."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, insert, select

from breakloop.history.schema import AUDIT
from breakloop.history.values import data_json, from_json, moment, text, whole
from breakloop.model.records import AuditRecord

PAGE_MAX: Final = 1000


def add_audit(connection: Connection, record: AuditRecord) -> None:
    """Write one; its id is the database's business."""
    row = {"at": moment(record.at), "who": text(record.who), "role": text(record.role), "action": text(record.action)}
    connection.execute(insert(AUDIT), row | {"target": text(record.target), "detail": data_json(record.detail)})


def find_audit(connection: Connection, before: int, most: int) -> list[AuditRecord]:
    """Return a page, newest first."""
    found = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(min(max(most, 1), PAGE_MAX))
    if before > 0:
        found = found.where(AUDIT.c.id < whole(before))
    return [
        AuditRecord(row.id, row.at, row.who, row.role, row.action, row.target, from_json(row.detail))
        for row in connection.execute(found)
    ]
