"""Limiters: each plans store operations for a call and interprets their results (`base.Limiter`)."""
