"""No nanosecond is claimed twice, and work and pauses are the window."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import kernel, launch, trace
from tests.analysis.random_traces import any_trace
from tests.diagnosis import programs
from tests.diagnosis.machine import ADD, ADDCDIV, BF16_GEMM, FP32_GEMM, MS, NCCL, US, Machine
from tests.diagnosis.programs import record
from tests.diagnosis.test_verdicts import HEALTHY, PLANTED
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.diagnosis.claims import divide
from warplens.diagnosis.facts import Facts, gather
from warplens.diagnosis.rules import RULES
from warplens.profile import Trace


def _facts(profile: Trace, spec: str = "steady", range_name: str | None = None) -> Facts:
    timeline = Timeline(profile)
    return gather(timeline, timeline.window(spec, range_name))


def _claimed_ns(facts: Facts) -> int:
    claims = divide(facts, RULES)
    return int(claims.work_ns.sum()) + sum(spent.total for spent in claims.gaps.values())


@pytest.mark.parametrize("program", [*PLANTED.values(), *HEALTHY], ids=lambda program: program.__name__)
def test_work_and_pauses_add_up_to_the_window_and_claims_to_no_more(program: programs.Step) -> None:
    facts = _facts(record(program))
    assert facts.wall_ns == facts.window.duration_ns
    assert 0 <= _claimed_ns(facts) <= facts.wall_ns


@given(any_trace(devices=(0, 1, 2), steps=True))
def test_waits_for_another_gpu_are_told_apart_without_a_nanosecond_lost(profile: Trace) -> None:
    facts = _facts(profile, "all")
    assert sum(spent.total for spent in facts.causes.values()) == facts.idle_ns
    assert all((spent.ns >= 0).all() for spent in facts.causes.values())
    assert 0 <= facts.own_idle_ns <= facts.idle_ns
    assert _claimed_ns(facts) <= facts.wall_ns


_KINDS = st.sampled_from([BF16_GEMM, FP32_GEMM, ADD, ADDCDIV, NCCL])
_ACTS = st.one_of(
    st.tuples(st.just("launch"), st.integers(1, 200), _KINDS),
    st.tuples(st.sampled_from(["think", "allocate", "free"]), st.integers(1, 2000)),
    st.tuples(st.sampled_from(["wait", "item"])),
    st.tuples(st.just("copy"), st.integers(1, 500), st.booleans()),
    st.tuples(st.just("graph"), st.integers(1, 500)),
)


@given(st.lists(st.lists(_ACTS, min_size=1, max_size=12), min_size=1, max_size=4))
def test_any_program_is_divided_without_a_nanosecond_counted_twice(steps: list[list[tuple[object, ...]]]) -> None:
    machine = Machine()
    for acts in steps:
        with machine.step():
            for act in acts:
                _perform(machine, act)
    for spec in ("steady", "all"):
        facts = _facts(machine.trace(), spec)
        assert _claimed_ns(facts) <= facts.wall_ns
        assert facts.busy_ns + facts.idle_ns == facts.wall_ns


def _perform(machine: Machine, act: tuple[object, ...]) -> None:
    name, *given = act
    if name == "launch":
        machine.launch(int(given[0]) * US, str(given[1]))  # type: ignore[call-overload]
    elif name == "copy":
        machine.copy(int(given[0]) * US, 1_000_000, pinned=bool(given[1]))  # type: ignore[call-overload]
    else:
        getattr(machine, str(name))(*(int(value) * US for value in given))  # type: ignore[call-overload]


def test_owned_times_are_those_of_the_budget_where_streams_overlap() -> None:
    rng = np.random.default_rng(0)
    starts = np.sort(rng.integers(0, 10 * MS, 300))
    names = [BF16_GEMM, ADD, NCCL]
    kernels = [
        kernel(int(start), int(start) + int(length), full_name=names[number % 3], stream=number % 4, correlation=number)
        for number, (start, length) in enumerate(zip(starts, rng.integers(1, 90_000, 300), strict=True))
    ]
    calls = [launch(number, number + 1, number) for number in range(300)]
    facts = _facts(trace(kernels, calls, []), "all")
    (budget,) = time_budgets(facts.timeline, facts.window)
    by_label = dict(facts.work.group_by(pl.col("label").cast(pl.String)).agg(pl.col("own_ns").sum()).iter_rows())
    expected = budget.parts.filter(pl.col("group") != "idle")
    assert by_label == dict(zip(expected["part"], expected["time_ns"], strict=True))
    assert facts.idle_ns == budget.idle_ns


def test_the_time_of_phases_adds_up_to_the_window() -> None:
    facts = _facts(record(programs.unfused_optimizer))
    parts = [facts.wall_of_phase(phase) for phase in ("forward", "backward", "optimizer", "none")]
    assert sum(parts) == facts.wall_ns
    assert all(parts[:3])


def test_a_range_is_judged_by_the_spans_of_its_work() -> None:
    facts = _facts(record(programs.unfused_optimizer), range_name="forward")
    (budget,) = time_budgets(facts.timeline, facts.window)
    assert (facts.busy_ns, facts.idle_ns) == (budget.busy_ns, budget.idle_ns)


def test_the_start_latency_behind_a_late_launch_counts_with_the_launch() -> None:
    facts = _facts(record(programs.launch_bound))
    # Each of the kernels but the first of a step waits for its launch, and then 2 µs for the GPU.
    assert facts.idle("start-latency") == 0
    assert divide(facts, RULES).idle_ns("launch-overhead") > 0.9 * facts.idle_ns


def test_an_empty_window_has_no_time() -> None:
    facts = _facts(trace([kernel(0, 10)], [], [], window_ns=(0, 1000)), "50ns:60ns")
    assert facts.wall_ns == 0
    assert _claimed_ns(facts) == 0


def test_a_large_copy_in_a_loop_of_read_backs_is_a_copy_not_a_wait():
    def step(machine: Machine) -> None:
        for _ in range(12):
            machine.launch(20 * US, ADD, times=2)
            machine.item()
            machine.copy(300 * US, 4_000_000, "device-to-host", pinned=False)

    claims = divide(_facts(record(step, Machine())), RULES)

    # Both rules are certain of it: the loop ends with one read-back, but its large copies have to be made.
    assert claims.busy_ns("blocking-copy") == programs.STEPS * 12 * 300 * US
    assert claims.busy_ns("host-sync") > 0
