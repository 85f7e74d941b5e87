"""The history database: events, incidents, agents, sums over time and the audit log, in SQLite or PostgreSQL."""
