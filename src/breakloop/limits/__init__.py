"""Limiters: each plans one store operation from a key and a call, and reads its result."""
