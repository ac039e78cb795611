"""The same file gives the same bytes, whatever the seed of hashes and the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import shipped


def _printed(seed: int, threads: int, *arguments: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "POLARS_MAX_THREADS": str(threads)}
    command = [sys.executable, "-m", "warplens", *arguments, "--quiet"]
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout


@pytest.mark.parametrize(
    "name", [pytest.param("lm_small_ctx256_train", marks=pytest.mark.slow), "item_per_layer__baseline"]
)
def test_reports_do_not_differ_between_runs(name):
    found = next(path for kind in ("captures", "planted") for path in shipped.files(kind, f"{name}.*"))
    first, *others = (
        _printed(seed, threads, "report", str(found), "--format", "json") for seed, threads in ((0, 1), (1, 5))
    )
    assert others == [first]
