"""Data types that all layers share: calls, answers, verdicts, events, records and upstreams. Only the standard library
is used, and nothing here does I/O.
"""
