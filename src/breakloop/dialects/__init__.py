"""Bytes to model and back, one dialect a file. No I/O, and no opinion on what a request may do."""
