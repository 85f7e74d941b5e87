"""Composition: builds a process from its settings, and runs one process or several."""
