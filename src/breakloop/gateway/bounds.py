"""What one client may cost: the numbers behind every refusal for size, count or time (Y-2). The defaults of those that
can be set are declared in the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from breakloop import settings_fields

_DEFAULTS: Final = settings_fields.Limits()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the traffic port. Times are whole seconds, for the server's one coarse sweep."""

    head_bytes: int = _DEFAULTS.head_bytes
    fields: int = _DEFAULTS.fields
    request_line_bytes: int = 16 * 1024
    body_bytes: int = _DEFAULTS.body_bytes
    all_bodies_bytes: int = 256 * 1024 * 1024  # of bodies that are still arriving, over all connections
    chunk_line_bytes: int = 256  # a chunk's size with its extensions
    trailer_bytes: int = 8 * 1024
    free_chunks: int = 1000  # so many chunks of any size; beyond that they must carry 64 bytes each on average
    backlog_bytes: int = 64 * 1024  # read ahead of a reply that waits, before reading pauses
    pipelined: int = 16  # requests of one connection answered before others get their turn
    connections: int = _DEFAULTS.connections
    idle_s: int = _DEFAULTS.idle_seconds
    head_s: int = _DEFAULTS.head_seconds
    body_s: int = _DEFAULTS.body_seconds  # without progress; the same for a client that does not read its answers
    linger_s: int = 2  # after a refusal, so that the client can read it
