"""Logs, events, metrics and traces. Nothing here waits on the request path."""
