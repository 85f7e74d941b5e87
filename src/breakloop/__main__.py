"""`python -m breakloop` is the same as the `breakloop` command."""

from __future__ import annotations

from breakloop.cli.main import main

if __name__ == "__main__":
    main()
