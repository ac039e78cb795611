"""`python -m warplens` is the same as `warplens`."""

from __future__ import annotations

from warplens.cli.main import script

if __name__ == "__main__":
    script()
