"""Attacks and faults with real processes: `make torture` runs all of them and prints a table, and `test_short.py` runs
those that take a second or two as part of `make test`. Each scenario is a function that fills one row of the table."""
