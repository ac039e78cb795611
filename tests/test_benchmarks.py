"""Benchmarks are run by hand: that they fit the package is checked here."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
#: What is not everywhere.
PEERS = ("torch", "playwright", "triton")


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_finds_what_it_imports(path):
    try:
        importlib.import_module(".".join(path.relative_to(BENCHMARKS.parent).with_suffix("").parts))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(PEERS):
            raise
        pytest.skip(f"needs {error.name}")
