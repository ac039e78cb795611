"""Sweeps read from measurements: sides, axes, rounds, and what is refused."""

from __future__ import annotations

from importlib import resources

import pytest

from tests.compare.surface.sweeps import measurements, record
from warplens.errors import UsageError
from warplens.readers.measurements import read_measurements
from warplens.studies.sweeps.reading import matched, side_of, sweep_of

TOKENS = resources.files("warplens").joinpath("data/measurements/token_reduction.json.xz")


@pytest.fixture(scope="module")
def h200():
    with resources.as_file(TOKENS) as path:
        return read_measurements(path)


def test_a_side_is_written_as_settings():
    assert side_of("method=topk, keep=0.1") == {"method": "topk", "keep": "0.1"}
    assert side_of("method=topk,locations=3,6,9,keep=0.1") == {"method": "topk", "locations": "3,6,9", "keep": "0.1"}
    with pytest.raises(UsageError, match="has no '='"):
        side_of("topk")
    with pytest.raises(UsageError, match="names 'keep' twice"):
        side_of("keep=1,keep=2")


def test_the_reference_workload_tells_its_baseline_by_its_method(h200):
    sweep = sweep_of(h200)
    assert sweep.baseline["method"] == "none"
    assert (sweep.variant["method"], sweep.variant["keep"]) == ("topk", 0.1)
    assert sweep.axes == ("input_size", "batch", "execution", "attention")
    assert sweep.shared["precision"] == "fp16"
    assert sweep.paired
    assert len(sweep.points) == 40


def test_the_medians_are_those_of_the_file(h200):
    stated = {
        (row["input_size"], row["batch"], row["execution"], row["method"]): row["latency_ns"]
        for row in h200.cells.filter(attention="explicit").iter_rows(named=True)
    }
    sweep = matched(sweep_of(h200))
    assert sweep.axes == ("input_size", "batch", "execution")
    assert sweep.shared["attention"] == "explicit"
    assert len(sweep.points) == 20
    for point in sweep.points:
        key = tuple(point.settings.values())
        # The file rounds the medians of rounds to whole nanoseconds.
        assert point.baseline.time_ns == pytest.approx(stated[(*key, "none")], abs=1)
        assert point.variant.time_ns == pytest.approx(stated[(*key, "topk")], abs=1)


def test_rounds_are_equal_parts_of_the_times_in_order(h200):
    first = sweep_of(h200).points[0].baseline
    times = h200.samples.filter(cell=0, of="wall").get_column("time_ns").to_list()
    assert len(first.wall.blocks) == 40
    assert [list(block) for block in first.wall.blocks] == [times[at : at + 4] for at in range(0, 160, 4)]


def test_another_baseline_can_be_named(h200):
    sweep = sweep_of(h200, side_of("method=none,attention=fused"), side_of("method=topk,locations=3,6,9"))
    assert sweep.axes == ("input_size", "batch", "execution")
    assert (sweep.baseline["attention"], sweep.variant["attention"]) == ("fused", "explicit")
    assert all(point.speedup is not None for point in sweep.points)


def test_a_file_that_names_its_sides_needs_no_options():
    cells = [record({"kind": kind, "batch": batch}, [100, 101]) for kind in ("x", "y") for batch in (1, 2)]
    with pytest.raises(UsageError, match=r"which cells are the baseline.*kind \(x, y\)"):
        sweep_of(measurements(*cells))
    stored = {"axes": {"batch": [1, 2]}, "baseline": {"kind": "x"}, "variant": {"kind": "y"}}
    sweep = sweep_of(measurements(*cells, sweep=stored))
    assert (sweep.axes, sweep.baseline, sweep.variant) == (("batch",), {"kind": "x"}, {"kind": "y"})


def test_several_variants_are_listed_rather_than_guessed():
    cells = [record({"method": method}, [100, 101]) for method in ("none", "topk", "tome")]
    with pytest.raises(UsageError, match="method=topk; method=tome"):
        sweep_of(measurements(*cells))


def test_the_baseline_repeats_along_an_axis_that_only_the_variant_has():
    cells = [record({"method": "none", "keep": 1.0}, [100])]
    cells += [record({"method": "topk", "keep": keep}, [time]) for keep, time in ((0.1, 40), (0.5, 80))]
    sweep = sweep_of(measurements(*cells), {"method": "none"}, {"method": "topk"})
    assert sweep.axes == ("keep",)
    assert [(point.settings["keep"], point.speedup) for point in sweep.points] == [(0.1, 2.5), (0.5, 1.25)]


def test_equal_cells_become_one_with_more_blocks():
    cells = [
        record({"method": "none"}, [100, 102]),
        record({"method": "none"}, [104]),
        record({"method": "topk"}, [50]),
    ]
    point = sweep_of(measurements(*cells)).points[0]
    assert [list(block) for block in point.baseline.wall.blocks] == [[100, 102], [104]]
    assert not point.baseline.wall.paired


def test_a_cell_that_ran_out_of_memory_stays_with_its_reason():
    cells = [record({"method": "none", "batch": 1}, [100]), record({"method": "topk", "batch": 1}, [50])]
    cells += [record({"method": "none", "batch": 2}, None), record({"method": "topk", "batch": 2}, [60])]
    lost = sweep_of(measurements(*cells)).points[1]
    assert (lost.baseline.status, lost.baseline.reason, lost.baseline.time_ns) == ("out-of-memory", "80 GiB", None)
    assert lost.speedup is None


def test_sides_of_different_rounds_are_not_paired():
    cells = [record({"method": "none"}, [1, 2, 3, 4], rounds=4), record({"method": "topk"}, [1, 2], rounds=2)]
    sweep = sweep_of(measurements(*cells))
    assert not sweep.paired
    assert not sweep.points[0].baseline.wall.paired


@pytest.mark.parametrize(
    ("baseline", "variant", "message"),
    [
        ({"model": "x"}, {"method": "topk"}, "no setting 'model'; the cells have method, batch"),
        ({"method": "nine"}, {"method": "topk"}, "no cell has method=nine for the baseline; there are none, topk"),
        ({"method": "none"}, {"batch": "1"}, "cells are of both sides"),
        ({}, {"method": "topk"}, "needs at least one setting"),
        ({"method": "topk", "batch": "1"}, {"method": "none", "batch": "2"}, "no cell has all of"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(baseline, variant, message):
    cells = [record({"method": "none", "batch": 1}, [100]), record({"method": "topk", "batch": 1}, [50])]
    cells.append(record({"method": "topk", "batch": 2}, [50]))
    with pytest.raises(UsageError, match=message):
        sweep_of(measurements(*cells), baseline, variant)
