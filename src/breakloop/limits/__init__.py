"""Limiters: each plans store operations from keys and a call, and reads their results (`limiter.Limiter`)."""
