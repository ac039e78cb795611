"""Forward passes and steps by phase: the busy time of groups, and which steps are looked at."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.lm_steps import WHOLE, Program
from warplens.studies.grid.kernels import PASSES, PHASE_TIMES, Spread, busy_by_group, phased_work

INTERVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), max_size=25)


@given(INTERVALS)
def test_busy_time_of_a_group_is_the_number_of_its_covered_instants(rows):
    covered = [
        len({t for g, start, length in rows if g == group for t in range(start, start + length)}) for group in range(4)
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    found = busy_by_group(columns[:, 0], columns[:, 1], columns[:, 1] + columns[:, 2], 4)
    assert found.tolist() == covered


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**12)), max_size=9))
def test_a_spread_is_over_what_was_measured(values):
    known = sorted(value for value in values if value is not None)
    spread = Spread.of(pl.Series(values, dtype=pl.Int64))
    if not known:
        assert spread is None
    else:
        assert (spread.minimum, spread.maximum, spread.count) == (known[0], known[-1], len(known))
        assert spread.minimum <= spread.median <= spread.maximum


def test_tables_keep_their_schema_with_and_without_work():
    whole = phased_work(Program().step().step().timeline())
    nothing = phased_work(Program().step({"setup": (("kernel", 10),)}, name=None).timeline())
    for phased in (whole, nothing):
        assert phased.passes.schema == PASSES.schema
        assert phased.phases.schema == PHASE_TIMES.schema
    assert nothing.passes.height == 0


def test_leading_slow_steps_are_warm_up_where_only_phases_tell_steps():
    program = Program().step({phase: tuple((n, 9 * d) for n, d in works) for phase, works in WHOLE.items()}, name=None)
    for _ in range(4):
        program.step(name=None)
    phased = phased_work(program.timeline())
    assert [step.index for step in phased.steps] == [2, 3, 4, 5]
    assert phased.passes["gpu_ns"].to_list() == [400] * 4


def test_a_single_step_is_one_step_however_its_layers_repeat():
    layers = {"forward_pass": (("sgemm", 30), ("elementwise_kernel", 10)) * 20}
    phased = phased_work(Program().step(layers).timeline())
    assert len(phased.steps) == 1
    assert phased.passes["kernels"].to_list() == [40]


@pytest.mark.parametrize(("wait", "synchronised"), [("phase", True), ("step", False)])
def test_a_wait_after_the_range_does_not_count_as_one_inside(wait, synchronised):
    program = Program().step(wait=wait).step(wait=wait)
    assert phased_work(program.timeline()).passes["synchronised"].to_list() == [synchronised] * 2
