"""Formats of recordings, one module each; `recording` opens a file and detects its format."""
