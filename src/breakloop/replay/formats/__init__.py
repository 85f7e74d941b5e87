"""Readers of recordings, one file a format. `files` opens what it is given and finds out which of them to ask."""
