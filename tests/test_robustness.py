"""First causes do not depend on what should not matter: names of library versions, shapes, the GPU and its speed."""

from __future__ import annotations

import polars as pl
import pytest
from benchmarks.pairs import pairs
from benchmarks.robustness import CHANGES, flips

from warplens.readers import read

pytestmark = pytest.mark.skipif(not pairs(), reason="the pairs (data/pairs) are not here")

#: Of different kinds: sizes, formats, a history that is copied, a host that launches, work of the host.
CASES = [
    ("genes_as_counted", "nsys"),
    ("denoised_under_autocast", "nsys"),
    ("history_joined_each_turn", "torch"),
    ("series_one_by_one", "nsys"),
    ("masks_made_by_numpy", "torch"),
]
#: Without the ranges of its steps, one step alone does not show what the host does between two.
CHANGED = ["older_names", "no_shapes", "times_0.5", "times_5.0", "on_L4", "on_B200"]


@pytest.mark.parametrize(("name", "source"), CASES)
def test_what_should_not_matter_leaves_the_first_cause_as_it_is(name, source):
    pair = next(each for each in pairs() if each.name == name)
    found = list(flips(pair, source, CHANGED))
    assert len(found) >= len(CHANGED) - 1
    assert [(change, before, after) for change, before, after in found if not before == after == pair.habit] == []


def test_each_change_changes_what_is_recorded():
    pair = next(each for each in pairs() if each.name == "history_joined_each_turn")
    path = pair.path("torch")
    assert path is not None
    trace = read(path)
    older = CHANGES["older_names"](trace)
    assert not any(name.startswith("nvjet") for name in older.kernels["full_name"].cast(pl.String).unique())
    assert CHANGES["no_shapes"](trace).operators["input_shapes"].is_null().all()
    assert set(CHANGES["no_ranges"](trace).ranges["kind"].cast(pl.String).unique()) == {"cpu-op"}
    assert CHANGES["times_5.0"](trace).kernels["end_ns"].max() == 5 * trace.kernels["end_ns"].max()
    assert CHANGES["on_L4"](trace).capture.devices[0].sm_count == 58
