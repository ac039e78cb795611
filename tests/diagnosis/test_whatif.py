"""What remedies bring together, against programs that were timed without a profiler, and without either cause."""

from __future__ import annotations

import polars as pl
import pytest

import warplens
from tests.diagnosis.machine import MS, US, Machine
from tests.diagnosis.programs import verdict
from tests.shipped import capture, of_others
from warplens.analysis.timeline import Timeline
from warplens.answers import diagnose_selection
from warplens.answers.inputs import selected
from warplens.diagnosis import Diagnosis, diagnose
from warplens.diagnosis.rules.stalls import HostStall
from warplens.diagnosis.whatif import WhatIf
from warplens.errors import UsageError

#: Milliseconds of a step without a profiler, and after the change that the first finding names: as timed.
TIMED = {
    "attention_eager": (182.7, 60.6),
    "fp32_vit": (165.7, 26.6),
    "checkpoint_small": (74.9, 41.3),
    "gc_and_logging": (43.1, 35.8),
    "moe_loop": (23.2, 3.3),
}


def of(found: Diagnosis, *ids: str) -> WhatIf:
    assert found.what_if is not None
    return next(each for each in found.what_if.changes if set(each.findings) == set(ids))


@pytest.mark.parametrize("name", TIMED)
def test_the_step_without_a_profiler_and_after_the_change_lies_where_it_is_told(name: str) -> None:
    found = warplens.diagnose(of_others(f"pairs/{name}.sqlite")).diagnosis
    before, after = (time * MS for time in TIMED[name])

    low, high = found.what_if.step_interval_ns
    # Runs of one program differ by about a percent, more than the GPU-bound ones are uncertain about their host.
    assert low * 0.99 <= before <= high * 1.01
    first = of(found, found.verdict)
    assert first.step_interval_ns[0] <= after <= first.step_interval_ns[1]


def test_a_single_remedy_brings_what_its_finding_says_and_the_parts_are_the_step() -> None:
    found = warplens.diagnose(capture("lm_small_ctx256_train.sqlite.xz")).diagnosis
    what_if = found.what_if
    assert what_if is not None
    for finding in found.findings:
        if finding.expected is not None and (finding.id,) in [each.findings for each in what_if.changes]:
            single = of(found, finding.id)
            assert (single.expected, single.expected_interval) == (finding.expected, finding.expected_interval)
    for each in (what_if, *what_if.changes):
        assert sum(each.busy_ns.values()) + each.idle_ns == pytest.approx(each.step_ns, rel=1e-5)
    pairs = [each for each in what_if.changes if len(each.findings) > 1]
    assert pairs
    for pair in pairs:
        low, high = pair.expected_interval
        assert low <= pair.expected <= high
        assert all(pair.expected >= of(found, id_).expected - 1e-9 for id_ in pair.findings)


def test_two_causes_together_bring_what_the_program_without_both_takes() -> None:
    """A pause of 6 ms, and a drain after each of 12 layers: the step that is left is the GPU's own 12.5 ms."""

    def step(machine: Machine, *, stalled: bool, drained: bool) -> None:
        machine.think(6 * MS if stalled else 0)
        for _ in range(12):
            machine.launch(500 * US, times=2)
            if drained:
                machine.item()
                machine.think(90 * US)
        machine.wait()

    found = verdict(lambda machine: step(machine, stalled=True, drained=True))
    alone = {
        id_: verdict(lambda machine, left=left: step(machine, **left)).coverage.wall_ns / 6
        for id_, left in (
            ("host-sync", {"stalled": True, "drained": False}),
            ("host-stall", {"stalled": False, "drained": True}),
        )
    }
    neither = verdict(lambda machine: step(machine, stalled=False, drained=False)).coverage.wall_ns / 6
    both = of(found, "host-sync", "host-stall")

    # Of what the host does elsewhere, a part stays: it has to be handed over.
    assert both.step_ns == pytest.approx(neither + HostStall.kept_share * 6 * MS, rel=0.02)
    assert both.step_ns < min(alone.values())
    assert both.idle_ns < found.what_if.idle_ns


def test_three_causes_together_bring_what_the_program_without_any_takes() -> None:
    """A pause of 6 ms, drains, and a copy from pageable memory: without them, the GPU's own time and a short copy."""

    def step(machine: Machine, *, mended: bool) -> None:
        machine.think(0 if mended else 6 * MS)
        machine.copy(400 * US if mended else 3 * MS, 20 << 20, pinned=mended)
        for _ in range(12):
            machine.launch(500 * US, times=2)
            if not mended:
                machine.item()
                machine.think(90 * US)
        machine.wait()

    found = verdict(lambda machine: step(machine, mended=False))
    mended = verdict(lambda machine: step(machine, mended=True)).coverage.wall_ns / 6
    every = of(found, "host-sync", "host-stall", "blocking-copy")
    pairs = [each for each in found.what_if.changes if len(each.findings) == 2]

    assert every.step_ns == pytest.approx(mended + HostStall.kept_share * 6 * MS, rel=0.05)
    assert every.step_ns < min(pair.step_ns for pair in pairs)
    assert found.what_if.asked is None


def test_beside_a_loop_that_reads_back_for_each_item_other_remedies_count() -> None:
    """Without the loop, its calls are gone as well: a chain of passes that fuses brings what it brings alone."""

    def step(machine: Machine, *, looped: bool) -> None:
        machine.launch(500 * US, times=4)
        machine.launch(60 * US, "void at::native::elementwise_kernel<128, 4, MulFunctor<float>>(int)", times=96)
        for _ in range(400 if looped else 0):
            machine.launch(2 * US, "void at::native::reduce_kernel<512, 1, NormOps<float>>(int)")
            machine.item()
            machine.think(4 * US)
        machine.wait()

    found, unlooped = (verdict(lambda machine, looped=looped: step(machine, looped=looped)) for looped in (True, False))
    both = of(found, "host-sync", "unfused-chain")
    assert both.step_ns == pytest.approx(of(unlooped, "unfused-chain").step_ns, rel=0.02)
    changes = {frozenset(change.findings): change.expected for change in found.what_if.changes}
    assert all(gain <= larger for ids, gain in changes.items() for more, larger in changes.items() if ids < more)


def test_what_is_asked_for_is_predicted_by_any_of_its_names() -> None:
    """Ids, ids without "un", and the changes that findings make to the schedule, in any order."""
    timeline = Timeline(warplens.read(capture("lm_small_ctx256_train.sqlite.xz")))
    window = timeline.window()
    usual = diagnose(timeline, window)
    ids = [each.findings[0] for each in usual.what_if.changes if len(each.findings) == 1]
    names = [{"launch-overhead": "cuda-graph"}.get(id_, id_.removeprefix("un")) for id_ in ids]
    asked = diagnose(timeline, window, together=names[::-1]).what_if.asked
    assert asked.findings == tuple(ids)
    assert asked == diagnose(timeline, window, together=["all"]).what_if.asked
    single = diagnose(timeline, window, together=ids[:1]).what_if.asked
    assert single == of(usual, ids[0])
    with pytest.raises(UsageError, match=f"'per-expert-loop' is not among .*{ids[0]}"):
        diagnose(timeline, window, together=["per-expert-loop"])


def test_what_cannot_be_replayed_has_no_panel() -> None:
    assert warplens.diagnose(capture("deit224_bs1_graph_whole.sqlite.xz")).diagnosis.what_if is None


def test_a_step_is_pictured_as_recorded_and_the_gpu_works_as_long_without_a_profiler() -> None:
    """What is drawn as recorded is what the tables hold of that step; no remedy of the host touches the GPU's work."""
    found = warplens.diagnose(capture("deit224_bs1_baseline.sqlite.xz")).diagnosis
    pictures = found.what_if.pictures
    timeline = Timeline(warplens.read(capture("deit224_bs1_baseline.sqlite.xz")))
    start, end = (step.start_ns for step in timeline.window().steps if step.index - pictures.step in (0, 1))
    work = timeline.work.filter(pl.col("start_ns").is_between(start, end, closed="left"))
    host, *streams = pictures.recorded.lanes
    assert pictures.recorded.length_ns == end - start
    assert host.stream is None
    assert sum(lane.pieces for lane in streams) == work.height
    assert streams[0].start_ns[0] == work["start_ns"].min() - start

    after = pictures.after["launch-overhead"]
    assert after.length_ns == of(found, "launch-overhead").step_ns
    assert [lane.pieces for lane in after.lanes[1:]] == [lane.pieces for lane in streams]
    busy = int((work["end_ns"] - work["start_ns"]).sum())
    assert sum(int((lane.end_ns - lane.start_ns).sum()) for lane in after.lanes[1:]) >= 0.99 * busy


def test_the_pictured_step_is_the_one_of_median_length() -> None:
    """Of three steps only the middle one is whole for certain, and it is the longest."""
    timeline = Timeline(warplens.read(of_others("nsys/h200_lm_small_train.sqlite")))
    lengths = {step.index: step.duration_ns for step in timeline.window().steps}
    pictures = diagnose(timeline, timeline.window()).what_if.pictures
    assert sorted(lengths, key=lengths.__getitem__)[1] == pictures.step


def test_a_change_that_is_named_twice_counts_once_and_nothing_to_mend_is_said_so() -> None:
    selection = selected(Timeline(warplens.read(capture("deit224_bs1_baseline.sqlite.xz"))))
    once, twice = (
        {each.change: each.predicted_ns for each in diagnose_selection(selection, together=names).diagnosis.predictions}
        for names in (["cuda-graph"], ["cuda-graph", "cuda-graph"])
    )
    assert once == twice
    graphs = Timeline(warplens.read(capture("deit224_bs1_graph_whole.sqlite.xz")))
    with pytest.raises(UsageError, match="no finding of this profile has an expected gain"):
        diagnose(graphs, graphs.window(), together=["all"])
