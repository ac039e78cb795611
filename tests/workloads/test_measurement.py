"""Measuring a step: what counts, when it ends, what is told to profilers. On a CPU, with steps of known length."""

from __future__ import annotations

import gc
import getpass
import platform
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="measuring needs PyTorch")

from warplens.errors import UsageError
from warplens.workloads.cells import environment
from warplens.workloads.launching import precision
from warplens.workloads.measurement import Marks, Stamp, measure, measure_in_turns
from warplens.workloads.registry import Plan, Program, Ranges
from warplens.workloads.samples import round_medians

MILLISECOND = 1_000_000


class _Steps:
    """A millisecond each, the first ones twenty; `spread` makes every second one longer by that share."""

    def __init__(self, clock, slow_first: int = 0, spread: float = 0.0) -> None:
        self.clock, self.taken, self.slow_first, self.spread = clock, 0, slow_first, spread

    def __call__(self) -> None:
        self.taken += 1
        usual = 1 + self.spread * (self.taken % 2)
        self.clock.pass_ms(20 if self.taken <= self.slow_first else usual)


def test_warm_up_is_in_no_figure(clock):
    steps = _Steps(clock, slow_first=3)
    taken = measure(steps, device="cpu", plan=Plan.exactly(8, warmup_steps=3))
    assert steps.taken == 11
    assert taken.warmup_ns == (20 * MILLISECOND,) * 3
    assert taken.wall_ns == (MILLISECOND,) * 8


def test_warm_up_lasts_as_long_as_it_should(clock):
    plan = Plan(warmup_steps=1, warmup_ns=15 * MILLISECOND, least=6, most=6)
    assert len(measure(_Steps(clock), device="cpu", plan=plan).warmup_ns) == 15


def test_it_stops_when_the_median_is_known(clock):
    plan = Plan(warmup_steps=0, warmup_ns=0, least=10, most=500, precision=0.02)
    taken = measure(_Steps(clock, spread=0.03), device="cpu", plan=plan)
    # Half of the times are 3 % longer: half the interval is 1.5 % at the first look, after ten.
    assert (taken.stopped, len(taken.wall_ns)) == ("precision", 10)


def test_it_stops_at_the_most_repetitions_if_the_median_stays_unknown(clock):
    plan = Plan(warmup_steps=0, warmup_ns=0, least=6, most=12, precision=0.02)
    taken = measure(_Steps(clock, spread=0.5), device="cpu", plan=plan)
    assert (taken.stopped, len(taken.wall_ns)) == ("most repetitions", 12)


def test_it_stops_when_the_time_is_over_but_never_before_six(clock):
    plan = Plan(warmup_steps=0, warmup_ns=0, least=100, most=100, most_ns=2 * MILLISECOND)
    taken = measure(_Steps(clock), device="cpu", plan=plan)
    assert (taken.stopped, len(taken.wall_ns)) == ("time", 6)


def test_phases_are_parts_of_their_step(clock):
    marks = Marks("cpu")

    def step():
        clock.pass_ms(2)
        marks.end("first")
        clock.pass_ms(1)
        marks.end("second")
        clock.pass_ms(0.5)

    taken = measure(step, device="cpu", plan=Plan.exactly(7, warmup_steps=1), marks=marks)
    assert taken.phases_ns == {"first": (2 * MILLISECOND,) * 7, "second": (MILLISECOND,) * 7}
    assert taken.wall_ns == (7 * MILLISECOND // 2,) * 7


def test_a_phase_that_ends_twice_is_counted_as_one(clock):
    marks, start = Marks("cpu"), Stamp("cpu")
    for milliseconds, phase in ((1, "a"), (2, "b"), (4, "a")):
        clock.pass_ms(milliseconds)
        marks.end(phase)
    assert marks.phases_ns(start) == {"a": 5 * MILLISECOND, "b": 2 * MILLISECOND}


def test_a_stamp_is_later_than_the_one_before():
    earlier = Stamp("cpu")
    time.sleep(0.001)
    assert Stamp("cpu").ns_since(earlier) >= MILLISECOND  # of the real clock


def test_there_is_no_l2_to_flush_without_a_gpu():
    with pytest.raises(UsageError, match="CUDA"):
        measure(lambda: None, device="cpu", plan=Plan(flush_l2=True))


@pytest.mark.parametrize(
    "wrong", [{"warmup_steps": -1}, {"least": 5, "fewest": 6}, {"least": 400}, {"confidence": 1.0}, {"precision": -0.1}]
)
def test_a_plan_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(UsageError):
        Plan(**wrong)


def test_a_failing_step_leaves_garbage_collection_on():
    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        measure(fail, device="cpu", plan=Plan.exactly(1, warmup_steps=0))
    assert gc.isenabled()


def _names_seen(ranges, run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [event.name for event in profile.events()]


def test_pytorchs_profiler_sees_warm_up_and_steps_apart():
    ranges = Ranges(on=True)
    seen = _names_seen(
        ranges, lambda: measure(lambda: None, device="cpu", plan=Plan.exactly(4, warmup_steps=2), ranges=ranges)
    )
    assert (seen.count("warmup"), seen.count("step")) == (2, 4)


def test_names_of_ranges_are_the_users_choice():
    ranges = Ranges(on=True, names={"softmax": "my softmax", "layer": "L{index}"})

    def run():
        with ranges("softmax"), ranges("layer", 7), ranges("scores"):
            pass

    seen = _names_seen(ranges, run)
    assert {"my softmax", "L7", "computing_attention_scores"} <= set(seen)


def test_ranges_that_are_off_leave_no_trace():
    ranges = Ranges()
    assert ranges("step") is ranges("softmax")

    def run():
        with ranges("step"):
            pass

    assert "step" not in _names_seen(ranges, run)


def test_a_range_is_closed_when_its_block_raises():
    ranges = Ranges(on=True)

    def run():
        with pytest.raises(RuntimeError), ranges("step"):
            raise RuntimeError
        with ranges("warmup"):
            pass

    assert "warmup" in _names_seen(ranges, run)


def test_an_unknown_range_is_refused():
    with pytest.raises(UsageError, match="soft_max"):
        Ranges(on=True, names={"soft_max": "x"})


def test_precision_holds_inside_the_block_alone():
    before = torch.get_float32_matmul_precision()
    with precision("tf32", "cpu"):
        assert torch.get_float32_matmul_precision() == "high"
    with precision("bf16", "cpu"):
        assert torch.get_float32_matmul_precision() == "highest"
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert torch.get_float32_matmul_precision() == before
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_the_environment_names_versions_and_nobody():
    facts = environment("cpu")
    assert facts["versions"]["torch"] == torch.__version__
    text = repr(facts)
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert getpass.getuser() not in text


def test_a_host_that_slows_down_slows_every_step(clock):
    def step(milliseconds):
        # From the tenth of a second on, the machine is ten times slower.
        clock.pass_ms(milliseconds * (10 if clock.now_ns > 1e8 else 1))

    programs = [Program(lambda: step(1), 1, "step"), Program(lambda: step(2), 1, "step")]
    shorter, longer = measure_in_turns(programs, device="cpu", rounds=12, per_round=3, warmup_steps=1)
    assert len(shorter.wall_ns) == len(longer.wall_ns) == 36
    assert set(longer.wall_ns) == {2_000_000, 20_000_000}
    ratios = [b / a for a, b in zip(round_medians(shorter.wall_ns, 12), round_medians(longer.wall_ns, 12), strict=True)]
    # Only the round in which it happens can be off.
    assert sorted(ratios)[1:-1] == [2.0] * 10
