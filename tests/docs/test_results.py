"""The pages of results show what the stored measurements say, and those were made with care."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))

from generate_results import NAMES, PAGES, page_of

from tests import shipped
from tests.tiers import thinned
from warplens.readers.measurements import read_measurements

STORED = shipped.files("measurements", "*.json.xz")


@pytest.mark.parametrize("name", thinned(NAMES, slow=("lm-profiles", "findings-report")))
def test_the_page_is_what_the_stored_measurements_give(name):
    assert (PAGES / f"{name}.md").read_text("utf-8") == page_of(name), "run `python docs/generate_results.py`"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_stored_measurements_are_consistent_and_name_a_gpu_and_nobody(path):
    measurements = read_measurements(path)
    assert measurements.environment["device"]["name"] == "NVIDIA H200"
    text = lzma.decompress(path.read_bytes()).decode()
    assert set(json.loads(text)["environment"]) <= {
        "device", "versions", "python", "system", "cpu_count", "cpu", "cuda", "cudnn", "driver",
    }  # fmt: skip
    for trace in ("/home", "/root", "/tmp", "hostname"):
        assert trace not in text


def test_the_token_reduction_table_has_thirty_repetitions_a_cell():
    cells = read_measurements(next(path for path in STORED if path.name == "token_reduction.json.xz")).cells
    assert cells.get_column("samples").min() >= 30
    assert cells.get_column("latency_low_ns").null_count() == 0
    assert {(row["input_size"], row["batch"], row["method"]) for row in cells.iter_rows(named=True)} == {
        (side, batch, method) for side in (224, 448) for batch in (1, 2, 4, 8, 16) for method in ("none", "topk")
    }


def test_the_language_model_grid_has_every_cell_in_both_modes():
    found = {
        (row["size"], row["context"], row["mode"])
        for path in STORED
        if path.name.startswith("lm_grid")
        for row in read_measurements(path).cells.iter_rows(named=True)
    }
    sizes = ("small", "medium", "large", "xl", "2.7B")
    assert found == {
        (size, ctx, mode) for size in sizes for ctx in (128, 256, 512, 1024) for mode in ("forward", "train")
    }
