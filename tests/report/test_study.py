"""Reports of the studies, from the H200's measurements: figures against those counted from the file by hand."""

from __future__ import annotations

import json
import lzma
from copy import deepcopy
from statistics import median

import polars as pl
import pytest

from tests import shipped
from warplens.readers.measurements import measurements_of
from warplens.studies.reports.document import attention_tables, lm_tables, study_data, study_document
from warplens.studies.reports.token_reduction import token_tables


def stored(name):
    (path,) = shipped.files("measurements", f"{name}.json.xz")
    return json.loads(lzma.decompress(path.read_bytes()))


@pytest.fixture(scope="module")
def token_file():
    content = stored("token_reduction")
    content["sweep"] = {
        "axes": {}, "baseline": {"method": "none", "attention": "explicit"}, "variant": {"method": "topk", "keep": 0.1},
    }  # fmt: skip
    return content


@pytest.fixture(scope="module")
def lm_file():
    return stored("lm_grid")


def _latency(content, **settings):
    (record,) = (
        record
        for record in content["measurements"]
        if all(record["cell"][name] == value for name, value in settings.items())
    )
    return record["latency_ns"]["median"]


def test_speedups_are_those_of_the_medians_and_their_intervals_enclose_them(token_file):
    rows = token_tables(measurements_of(token_file, "x"))["speedups"]
    assert rows.height == 20
    for row in rows.iter_rows(named=True):
        where = {name: row[name] for name in ("input_size", "batch", "execution")}
        before = _latency(token_file, method="none", attention="explicit", **where)
        after = _latency(token_file, method="topk", **where)
        assert row["speedup"] == pytest.approx(before / after, rel=0.05)
        assert row["low"] <= row["speedup"] <= row["high"]
        assert row["flops_ratio"] == pytest.approx(3.16, abs=0.02)
        decided = "slower" if row["high"] < 1 else "faster" if row["low"] > 1 else None
        assert row["verdict"] == decided


def test_the_best_mode_of_each_side_is_the_fastest_that_was_measured(token_file):
    rows = token_tables(measurements_of(token_file, "x"))["best_modes"]
    assert rows.height == 10
    for row in rows.iter_rows(named=True):
        same = [
            record
            for record in token_file["measurements"]
            if (record["cell"]["input_size"], record["cell"]["batch"]) == (row["input_size"], row["batch"])
        ]
        fastest = {
            is_baseline: min(
                record["latency_ns"]["median"] for record in same if (record["cell"]["method"] == "none") == is_baseline
            )
            for is_baseline in (True, False)
        }
        assert (row["baseline_ns"], row["variant_ns"]) == (fastest[True], fastest[False])
        assert row["baseline_mode"] == "graph, fused"


def test_the_report_tells_the_study_from_answer_to_cells(token_file):
    document = study_document(measurements_of(token_file, "x"))
    assert document.lead == (
        "With keep 0.10, the variant is slower at 7 and faster at 13 of 20 points, run the way of the baseline. "
        "Each in its best mode, it is slower at 7 and faster at 3 of 10 points."
    )
    assert [section.id for section in document.sections] == [
        "paradox", "best-modes", "growth", "sweep", "cells", "doubts",
    ]  # fmt: skip
    assert "crossovers" in [part.id for part in document.sections[3].subsections]


def test_a_study_of_which_little_was_measured_still_has_a_report(token_file):
    for kept in (0, 1, 2):
        content = {**token_file, "measurements": [
            record if number < kept else {"cell": record["cell"], "status": "out-of-memory", "reason": "80 GiB"}
            for number, record in enumerate(token_file["measurements"])
        ]}  # fmt: skip
        measurements = measurements_of(content, "x")
        missing = next(section for section in study_document(measurements).sections if section.id == "missing")
        assert missing.blocks[1].rows.height == 60 - kept
        assert study_data(measurements)["rows"].height == 60


@pytest.mark.slow
def test_planted_exponents_are_found_with_the_range_over_which_they_hold(token_file):
    """A host that takes 3 ms, and a GPU that takes 1 ms an image and, without the reduction, 0.5 ms: no floor there."""
    records = [r for r in deepcopy(token_file["measurements"]) if r["cell"]["attention"] == "explicit"]
    for record in (one for one in records if one["status"] == "measured"):
        cell = record["cell"]
        graph, whole = cell["execution"] == "graph", cell["method"] == "none"
        work = (1e6 if whole else 5e5) * cell["batch"]
        time = work if graph else max(work, 3e6)
        _rescale(record, time)
        record["latency_ns"] |= {"low": round(time), "high": round(time)}
    rows = token_tables(measurements_of({**token_file, "measurements": records}, "x"))["growth"]
    assert set(rows.get_column("axis")) == {"batch"}
    for row in rows.iter_rows(named=True):
        assert row["holds"] == (row["execution"] == "graph")
        if row["holds"]:
            assert (row["exponent"], row["smallest_size"], row["largest_size"]) == (pytest.approx(1, abs=0.01), 1, 16)
            assert row["low"] <= 1.0001
            assert row["high"] >= 0.9999
        else:
            assert row["first_exponent"] == pytest.approx(0, abs=0.01)
            assert row["last_exponent"] > 0.5
    document = study_document(measurements_of({**token_file, "measurements": records}, "x"))
    (section,) = (section for section in document.sections if section.id == "growth")
    figures = [block.id for block in section.blocks if hasattr(block, "chart")]
    assert figures == [f"{what}-batch-{how}" for how in ("eager", "graph") for what in ("latency", "throughput")]


def test_time_a_layer_and_training_ratio_are_those_of_the_medians(lm_file):
    tables = lm_tables(measurements_of(lm_file, "x"))
    layers = {"small": 12, "medium": 24, "large": 36}
    assert tables["layer_times"].height == 12
    for row in tables["layer_times"].iter_rows(named=True):
        step = _latency(lm_file, size=row["size"], context=row["context"], mode="forward")
        assert row["layer_ns"] == pytest.approx(step / layers[row["size"]])
    assert tables["training_ratios"].height == 12
    for row in tables["training_ratios"].iter_rows(named=True):
        steps = [
            _latency(lm_file, size=row["size"], context=row["context"], mode=mode) for mode in ("train", "forward")
        ]
        assert row["ratio"] == pytest.approx(steps[0] / steps[1])


def test_a_matrix_has_sizes_in_rising_order_and_leaves_lost_cells_empty(lm_file):
    records = [dict(record) for record in reversed(lm_file["measurements"])]
    lost = next(record for record in records if record["cell"]["size"] == "large" and record["cell"]["context"] == 1024)
    mode = lost["cell"]["mode"]
    for name in [name for name in lost if name != "cell"]:
        del lost[name]
    lost |= {"status": "out-of-memory", "reason": "CUDA out of memory"}
    document = study_document(measurements_of({**lm_file, "measurements": records}, "x"))
    matrix = next(table for table in document.tables() if table.id == f"{mode}-latency-ns")
    assert matrix.rows.get_column("size").to_list() == ["small", "medium", "large"]
    assert matrix.rows.get_column("1024").to_list()[2] is None
    assert "23 of 24 cells were measured, 1 ran out of memory" in document.lead
    missing = next(table for table in document.tables() if table.id == "missing-cells")
    assert missing.rows.select("size", "context", "reason").rows() == [("large", 1024, "CUDA out of memory")]


def test_a_layer_that_takes_as_long_at_every_width_is_laid_at_the_hosts_door(lm_file):
    records = json.loads(json.dumps(lm_file["measurements"]))
    layers = {"small": 12, "medium": 24, "large": 36}
    for record in records:
        if record["cell"]["mode"] == "forward" and record["cell"]["context"] == 128:
            _rescale(record, layers[record["cell"]["size"]] * 1.5e6)
    document = study_document(measurements_of({**lm_file, "measurements": records}, "x"))
    assert (
        "At context 128, a layer takes 1.50 ms to 1.50 ms from small to large, though its work grows 2."
        in document.lead
    )


def _rescale(record, to_ns):
    times = record["samples"]["wall_ns"]
    factor = to_ns / median(times)
    spread = record["latency_ns"]
    for name in ("median", "low", "high", "minimum", "p5", "p25", "p75", "p95", "p99", "maximum", "mean"):
        spread[name] = round(spread[name] * factor, 6)
    spread["low"], spread["high"] = round(spread["low"]), round(spread["high"])
    spread["median"] = to_ns
    record["throughput_per_s"] = record["items"] * 1e9 / to_ns
    record["sustained_per_s"] = record["items"] * 1e9 / spread["mean"]


def _attention(rates):
    """A file with these rates in TFLOP/s: kernel → length → rate, or a status."""
    records = []
    for kernel, by_length in rates.items():
        for length, rate in by_length.items():
            cell = {"kernel": kernel, "seq_len": length, "head_dim": 64, "batch": 16_384 // length, "heads": 16}
            cell |= {"dtype": "bfloat16", "causal": False, "mode": "forward"}
            if isinstance(rate, str):
                records.append({"cell": cell, "status": rate, "reason": "why"})
                continue
            flops = 4 * 16_384 * 16 * length * 64
            time = flops / rate / 1e3
            names = ("low", "median", "high", "minimum", "p5", "p25", "p75", "p95", "p99", "maximum", "mean")
            spread = {**dict.fromkeys(names, time), "samples": 30, "outliers": 0}
            work = {"macs": flops // 2, "flops": flops}
            records.append({"cell": cell, "status": "measured", "items": cell["batch"], "gpu_ns": spread, "work": work})
    plan = {"least": 30, "most": 30, "warmup_steps": 3, "precision": 0, "confidence": 0.95, "most_ns": 1, "fewest": 6}
    return {
        "schema": "warplens.measurements/1", "version": "0", "workload": "attention", "plan": plan,
        "environment": {"device": {"name": "G"}, "versions": {"torch": "2"}}, "measurements": records,
    }  # fmt: skip


def test_flash_is_held_against_the_best_backend_that_ran():
    content = _attention(
        {
            "naive": {128: 50.0, 2048: 74.0, 4096: 72.0},
            "tiled": {128: 100.0, 2048: 245.0, 4096: 242.0},
            "flash": {128: 120.0, 2048: 426.0, 4096: 459.0},
            "sdpa-flash": {128: 170.0, 2048: 292.0, 4096: 299.0},
            "sdpa-cudnn": {128: 240.0, 2048: 459.0, 4096: "unsupported"},
        }
    )
    measurements = measurements_of(content, "x")
    against = attention_tables(measurements)["flash_against_best"]
    assert against.select("seq_len", "best").rows() == [(128, "sdpa-cudnn"), (2048, "sdpa-cudnn"), (4096, "sdpa-flash")]
    assert against.get_column("of_best_share").to_list() == pytest.approx([120 / 240, 426 / 459, 459 / 299])
    document = study_document(measurements)
    assert "From 2,048 tokens on, own flash attention reaches 92.8 % to 153.5 %" in document.lead
    assert "get faster in that order at all 2 problems" in document.lead
    figure = document.figures()[0]
    assert figure.id.startswith("curves-")
    assert "<svg" in figure.chart.svg("x")


def test_an_order_that_theory_does_not_expect_is_named():
    rates = {"naive": {2048: 300.0}, "tiled": {2048: 200.0}, "flash": {2048: 400.0}}
    document = study_document(measurements_of(_attention(rates), "x"))
    assert "The order naive, tiled, flash is broken at 2,048 tokens" in document.lead


def test_a_study_without_a_single_figure_says_so():
    rates = {"naive": {2048: "failed"}, "sdpa-math": {2048: "out-of-memory"}}
    document = study_document(measurements_of(_attention(rates), "x"))
    assert document.lead.startswith("0 of 2 cells were measured")
    assert all(isinstance(table.rows, pl.DataFrame) for table in document.tables())
