"""The tables, as queries name them. How a database gets them is `migrations`' business; a test holds the two equal."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Double, MetaData, Table, Text

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
    Column("over_at", Double, nullable=False),  # `ended_at`, or when it ends if nothing more happens
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
    Column("steps_at", Double, nullable=False),  # when the last step of its picture was
    Column("steps_count", BigInteger, nullable=False),
)

# Apart from the incidents, so that a list of them stays small to read.
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


# Sums of `span_s` seconds that begin at `at`.
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
    Column("day", BigInteger, primary_key=True),  # since the epoch, UTC
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
