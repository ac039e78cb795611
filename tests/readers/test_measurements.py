"""Measurements files: what is read, and what contradicts itself and is refused. No PyTorch is needed."""

from __future__ import annotations

import copy
import gzip
import json
from dataclasses import asdict

import pytest

from warplens.errors import UnreadableInputError
from warplens.readers.measurements import read_measurements
from warplens.workloads.samples import summary

#: Written by hand from docs/reference/measurements.md: two sequences a step, 4 ms each.
SPREAD = {
    "samples": 6, "median": 4e6, "low": 3_000_000, "high": 6_000_000, "confidence": 0.95, "minimum": 3_000_000,
    "p5": 3.1e6, "p25": 3.5e6, "p75": 4.5e6, "p95": 5.8e6, "p99": 5.9e6, "maximum": 6_000_000, "mean": 4.1e6,
    "deviation": 1e6, "outliers": 0,
}  # fmt: skip
MEASURED = {
    "cell": {"size": "small", "context": 128, "locations": [3, 6]},
    "status": "measured", "launch": "eager", "unit": "sequence", "items": 2, "latency_ns": SPREAD, "rounds": 1,
    "gpu_ns": {**SPREAD, "median": 3.8e6}, "phases_ns": {"forward_pass": SPREAD}, "throughput_per_s": 500.0,
    "sustained_per_s": 2 / 4.1e-3, "work": {"macs": 10**12, "flops": 2 * 10**12}, "peak_allocated_bytes": 7,
    "peak_reserved_bytes": 8, "stopped": "precision", "drift": {"share": 0.01, "significance": 0.5}, "clocks": None,
    "doubts": ["one"], "details": {"parameters": 5},
    "samples": {"warmup_ns": [9], "wall_ns": [1, 2], "gpu_ns": [3], "phases_ns": {"forward_pass": [4]}},
}  # fmt: skip
DOCUMENT = {
    "schema": "warplens.measurements/1", "version": "0.1.0", "workload": "lm", "command": "warplens bench lm",
    "environment": {"device": {"name": "NVIDIA H200"}, "versions": {"torch": "2.11.0"}}, "plan": {"most": 6},
    "measurements": [
        MEASURED,
        {"cell": {"size": "xl", "context": 1024, "locations": []}, "status": "out-of-memory", "reason": "80 GiB"},
    ],
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def run(document):
        path = tmp_path / "lm.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_measurements(path)

    return run


def test_a_row_a_cell_with_its_settings_and_figures(read):
    found = read(DOCUMENT)
    assert (found.source, found.workload, found.settings) == ("lm.json", "lm", ("size", "context", "locations"))
    measured, lost = found.cells.rows(named=True)
    assert (measured["size"], measured["context"], measured["locations"]) == ("small", 128, "3,6")
    assert (measured["latency_ns"], measured["latency_low_ns"], measured["throughput_per_s"]) == (4e6, 3_000_000, 500)
    # 2 TFLOP in 3.8 ms of GPU time
    assert measured["flops_per_s"] == pytest.approx(2e12 / 3.8e-3)
    assert (lost["status"], lost["reason"], lost["latency_ns"], lost["doubts"]) == ("out-of-memory", "80 GiB", None, [])
    assert found.details == ({"parameters": 5}, {})


def test_phases_and_samples_say_which_cell_they_are_of(read):
    found = read(DOCUMENT)
    assert found.phases.rows() == [(0, "forward_pass", 4e6, 3_000_000, 6_000_000)]
    assert found.samples.rows() == [
        (0, "warmup", 0, 9), (0, "wall", 0, 1), (0, "wall", 1, 2), (0, "gpu", 0, 3), (0, "forward_pass", 0, 4),
    ]  # fmt: skip


def test_a_compressed_file_is_read_as_well(tmp_path):
    path = tmp_path / "lm.json.gz"
    path.write_bytes(gzip.compress(json.dumps(DOCUMENT).encode()))
    assert read_measurements(path).cells.height == 2


def test_the_median_of_short_rounds_may_lie_beyond_a_quartile(read):
    """Rounds of (101, 100), (150, 900) and (100, 101) ns: the median of their medians is 100, a quarter are less."""
    spread = asdict(summary([101, 100, 150, 900, 100, 101], rounds=3))
    assert spread["median"] < spread["p25"]
    cell = {**MEASURED, "latency_ns": spread, "rounds": 3, "throughput_per_s": None, "sustained_per_s": None}
    assert read({**DOCUMENT, "measurements": [cell]}).cells["latency_ns"].to_list() == [spread["median"]]
    with pytest.raises(UnreadableInputError, match="order"):
        read({**DOCUMENT, "measurements": [{**cell, "latency_ns": {**spread, "median": 99}}]})


def test_a_file_without_cells_is_an_empty_table(read):
    assert read({**DOCUMENT, "measurements": []}).cells.height == 0


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"throughput_per_s": 250.0}, "throughput × latency is 1, but a step has 2 items"),
        ({"sustained_per_s": 500.0}, "throughput × latency is 2.05"),
        ({"work": {"macs": 10**12, "flops": 10**12}}, "not twice"),
        ({"latency_ns": {**SPREAD, "p99": 3e6}}, "order"),
        ({"gpu_ns": {**SPREAD, "low": 5_000_000}}, "order"),
        ({"status": "fine"}, "'fine', none of measured"),
        ({"latency_ns": {"median": 4e6}}, "lacks"),
        ({"samples": {"wall_ns": [5, 0]}}, "took no time"),
        ({"samples": {"gpu_ns": [-3]}}, "took no time"),
        ({"details": [1]}, "details are not an object"),
    ],
)
def test_figures_that_cannot_be_are_refused(read, change, found):
    document = copy.deepcopy(DOCUMENT)
    document["measurements"][0].update(change)
    with pytest.raises(UnreadableInputError, match=found):
        read(document)


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("{", "not valid JSON"),
        ([], "does not say that it holds measurements"),
        ({**DOCUMENT, "schema": "warplens.measurements/2"}, "'warplens.measurements/2'"),
        ({"schema": "warplens.measurements/1"}, "lacks"),
        ({**DOCUMENT, "measurements": [{"status": "measured"}]}, "lacks"),
    ],
)
def test_another_file_is_refused_with_what_was_found(read, document, found):
    with pytest.raises(UnreadableInputError, match=found) as refusal:
        read(document)
    assert str(refusal.value).startswith("lm.json: ")


def test_the_sides_of_a_sweep_are_kept(read):
    sides = {"axes": {"context": [128, 1024]}, "baseline": {"size": "small"}, "variant": {"size": "xl"}}
    assert read({**DOCUMENT, "sweep": sides}).sweep == sides
    assert read(DOCUMENT).sweep is None


def test_a_setting_of_several_types_is_named_without_internals(read):
    first = DOCUMENT["measurements"][0]
    records = [{**first, "cell": {**first["cell"], "batch": batch}} for batch in (1, "big")]
    with pytest.raises(UnreadableInputError, match="the setting 'batch' has values of several types") as refusal:
        read({**DOCUMENT, "measurements": records})
    assert "strict" not in str(refusal.value)


@pytest.mark.parametrize(
    "change", [{"environment": 3}, {"environment": {"device": 3}}, {"plan": []}, {"sweep": 3}, {"workload": ["lm"]}]
)
def test_a_head_of_another_form_is_refused_by_the_name_of_the_key(read, change):
    with pytest.raises(UnreadableInputError, match=f"lacks .*{next(iter(change))}"):
        read({**DOCUMENT, **change})
