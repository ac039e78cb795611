"""What a grid cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from warplens.studies.sweeps.regimes import confounding
from warplens.studies.sweeps.sweep import Cell, Point, Sweep


def grid(points: Sequence[Mapping[str, Any]], **sides: Any) -> Sweep:
    """A sweep with both sides at these points."""
    measured = Cell("measured", time_ns=1e6)
    made = tuple(Point(settings, measured, measured) for settings in points)
    told = {"baseline": {"method": "none"}, "variant": {"method": "topk"}, "shared": {}, **sides}
    return Sweep("grid", "grid", tuple(points[0]), points=made, environment={}, paired=False, **told)


def test_batch_and_resolution_that_changed_together_are_told():
    """The published table: batch 1 at 224, batch 8 at 448."""
    found = confounding(grid([{"input_size": 224, "batch": 1}, {"input_size": 448, "batch": 8}]))
    assert [(item.settings, item.kind) for item in found.found] == [(("input_size", "batch"), "together")]
    assert "measure input_size 224 with batch 8" in found.found[0].text
    assert found.confounded_axes == ("input_size", "batch")
    assert found.axes.rows() == [("input_size", 2, 0, False), ("batch", 2, 0, False)]


def test_a_full_grid_confounds_nothing():
    points = [{"input_size": size, "batch": batch} for size in (224, 448) for batch in (1, 4, 8)]
    found = confounding(grid(points))
    assert found.found == ()
    # 3 batches × one pair of sizes; 2 sizes × three pairs of batches
    assert found.axes.rows() == [("input_size", 2, 3, True), ("batch", 3, 6, True)]


def test_a_grid_with_a_hole_can_still_tell_its_axes_apart():
    points = [{"a": a, "b": b} for a in (1, 2, 3) for b in (1, 2) if (a, b) != (3, 2)]
    assert confounding(grid(points)).confounded_axes == ()


def test_an_axis_nested_in_another_is_told():
    """Each context has one size, but sizes have several contexts."""
    points = [{"context": context, "size": size} for context, size in ((128, "s"), (256, "s"), (512, "m"), (1024, "m"))]
    found = confounding(grid(points)).found
    assert [(item.settings, item.kind) for item in found] == [(("context", "size"), "nested")]


def test_three_axes_of_which_two_tell_the_third():
    """A half of a 2×2×2 design: c follows from a and b together, from neither alone."""
    points = [{"a": a, "b": b, "c": a ^ b} for a in (0, 1) for b in (0, 1)]
    assert confounding(grid(points)).confounded_axes == ()
    # With one point fewer, three effects and a mean stand against three figures.
    found = confounding(grid(points[:3]))
    assert [(item.settings, item.kind) for item in found.found] == [(("a", "b", "c"), "jointly")]


def test_points_without_one_side_say_nothing():
    sweep = grid([{"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 1, "b": 2}])
    alone = Point({"a": 1, "b": 2}, Cell("out-of-memory"), Cell("measured", time_ns=1.0))
    sweep = Sweep("grid", "grid", ("a", "b"), {}, {}, {}, (*sweep.points[:2], alone), {}, False)
    assert confounding(sweep).confounded_axes == ("a", "b")


def test_sides_that_differ_in_more_than_the_method_are_told():
    points = [{"batch": 1}, {"batch": 2}]
    sides = {
        "baseline": {"method": "none", "attention": "fused"},
        "variant": {"method": "topk", "attention": "explicit"},
    }
    (found,) = confounding(grid(points, **sides)).found
    assert found.kind == "sides"
    assert "attention fused → explicit" in found.text


@pytest.mark.parametrize("shared", [{"input_size": 224}, {"input_size": 224, "schedule": ""}])
def test_what_was_not_varied_is_named(shared):
    assert confounding(grid([{"batch": 1}, {"batch": 2}], shared=shared)).unvaried == ("input_size",)
