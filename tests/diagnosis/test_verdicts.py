"""The planted cause is the verdict, its ceiling is what was planted, and healthy programs are left in peace."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.analysis.builders import kernel, launch, nvtx, overhead, trace
from tests.diagnosis import programs
from tests.diagnosis.machine import ADD, ADDCDIV, BF16_GEMM, FP32_GEMM, H200, MS, NCCL, US, Machine
from tests.diagnosis.programs import STEPS, judged, record, verdict
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import OPERATOR_KIND
from warplens.diagnosis import Diagnosis, Thresholds, diagnose
from warplens.diagnosis.findings import Remedy, about
from warplens.diagnosis.rule import in_order
from warplens.diagnosis.rules.stalls import HostStall
from warplens.profile import Device
from warplens.report.brief import brief
from warplens.report.verdict import coverage_lines

if TYPE_CHECKING:
    from tests.diagnosis.programs import Step

PLANTED = {
    "launch-overhead": programs.launch_bound,
    "host-sync": programs.item_per_layer,
    "host-stall": programs.stalled_input,
    "blocking-copy": programs.pageable_input,
    "allocator-churn": programs.allocating,
    "precision": programs.fp32_products,
    "small-kernels": programs.four_blocks,
    "memory-bandwidth": programs.elementwise_chain,
    "unfused-optimizer": programs.unfused_optimizer,
    "exposed-communication": programs.exposed_collectives,
    "graph-opaque": programs.whole_graph,
}

HEALTHY = (
    programs.large_products,
    programs.training_with_log,
    programs.many_short_kernels,
    programs.small_normalisation,
    programs.copies_hidden,
)


@pytest.mark.parametrize(("cause", "program"), PLANTED.items(), ids=PLANTED)
def test_the_planted_cause_is_the_verdict(cause: str, program: Step) -> None:
    found = verdict(program)
    assert found.verdict == cause
    assert found.findings[0].id == cause


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_a_healthy_program_gets_no_warning(program: Step) -> None:
    found = verdict(program)
    assert found.verdict == "below-roof", "nothing tells the size of these products, and so how near they are to a roof"
    assert [finding.id for finding in found.findings if finding.severity != "info"] == []
    assert "is unknown" in found.headline


def test_a_gpu_without_known_peaks_is_not_said_to_be_unnamed() -> None:
    found = verdict(programs.large_products, Machine(device=Device(0, "NVIDIA X900", compute_capability=(9, 0))))
    assert "no peaks are known of the NVIDIA X900" in found.headline
    assert found.findings[0].remedies[0].action == "Name a GPU with about the same peaks"
    unnamed = verdict(programs.large_products, Machine(device=Device(0, "GPU")))
    assert "the profile does not name its GPU" in unnamed.headline
    assert unnamed.findings[0].remedies[0].action == "Name the GPU that it ran on"


def test_remedies_of_waits_fit_what_the_host_waits_for() -> None:
    def waiting(machine: Machine) -> None:
        for _ in range(12):
            machine.launch(60 * US, times=2)
            machine.wait()
            machine.think(40 * US)

    found = verdict(waiting).finding("host-sync")
    assert found is not None
    actions = [remedy.action for remedy in found.remedies]
    assert actions == ["Remove the calls that wait", "Find all synchronizing operations"]
    assert found.remedies[0].gain == found.expected

    def sending(machine: Machine) -> None:
        for _ in range(12):
            machine.launch(60 * US, times=2)
            machine.copy(1 * US, 8, pinned=False)
            machine.wait()
            machine.think(40 * US)

    sent = verdict(sending).finding("host-sync")
    assert [remedy.id for remedy in sent.remedies] == ["sent-without-waiting", "find-waits"]
    read_back = verdict(programs.item_per_layer).finding("host-sync")
    assert read_back.remedies[0].action == "Read results back less often, or not inside the step"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (BF16_GEMM, "how far each matrix product is from its roof"),
        ("cunn_SoftMaxForward", "how many bytes each pass over memory moves"),
        ("bar", None),
    ],
)
def test_shapes_are_asked_for_with_what_they_show_of_this_program(name: str, shown: str | None) -> None:
    found = verdict(lambda machine: machine.launch(300 * US, name, times=12))
    assert found.verdict == "below-roof"
    texts = [remedy.expected for remedy in found.findings[0].remedies if "record_shapes" in remedy.how]
    assert len(texts) == (shown is not None)
    assert all(shown is not None and shown in text for text in texts)


def test_counters_are_collected_of_whole_names_of_functions() -> None:
    names = ("kernel_1", "void ns::kernel_10<float>(int)")
    found = verdict(lambda machine: [machine.launch(300 * US, name) for name in names])
    (code,) = (remedy.how for remedy in found.findings[0].remedies if remedy.how.startswith("ncu"))
    assert re.search(r"-k 'regex:\^\((kernel_1\|kernel_10|kernel_10\|kernel_1)\)\$' ", code)


# ── look-alikes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_waits_that_find_the_gpu_idle_are_not_what_limits_a_launch_bound_program() -> None:
    found = verdict(programs.launch_bound_with_items, Machine(python_ns=26 * US))
    assert found.verdict == "launch-overhead"
    sync = found.finding("host-sync")
    assert sync is None or sync.expected < found.findings[0].expected


def test_launches_before_waits_without_which_a_step_takes_as_long_are_launch_bound() -> None:
    """The wait at the end of the step stays, and without the other one three launches would hide behind 0.6 ms."""

    def step(machine: Machine) -> None:
        machine.launch(3 * US, times=200)
        machine.launch(600 * US)
        machine.wait(whole_device=True)
        machine.launch(3 * US, times=3)
        machine.wait(whole_device=True)

    found = verdict(step)
    assert found.verdict == "launch-overhead"
    # A launch every 8 µs is one every 4.6 without nsys, where the GPU's own 3 + 1 µs a kernel are 3.25 in a graph.
    assert found.findings[0].expected == pytest.approx((200 * 8 * 0.58 + 600) / (200 * 3.25 + 600), rel=0.05)


MAXIMUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MaxOps<float>>>(float)"


def test_what_slows_the_host_is_named_before_its_pace() -> None:
    def allocating(machine: Machine) -> None:
        for _ in range(20):
            machine.launch(2 * US, times=20)
            machine.allocate(300 * US)

    def averaging(machine: Machine) -> None:
        machine.launch(20 * US, times=100)
        for _ in range(50):  # a weight and a bias
            machine.launch(2 * US, ADD, times=2)
            machine.launch(2 * US, ADD, (1, 1, 1), times=2)

    def loss_by_class(machine: Machine) -> None:
        machine.launch(20 * US, times=100)
        machine.launch(2 * US, ADD, times=200)

    def search(machine: Machine) -> None:
        machine.launch(20 * US, times=100)
        for _ in range(70):  # of each word: a sum with all pairs of tags, the best of them, a sum
            for name, blocks in ((ADD, 72), (MAXIMUM, 2), (ADD, 3)):
                machine.launch(2 * US, name, (blocks, 1, 1))

    def reading(machine: Machine) -> None:
        machine.launch(20 * US, times=100)
        for _ in range(50):
            machine.launch(2 * US, "void at_cuda_detail::cub::DeviceSelectSweepKernel<long>(long)", times=2)
            machine.launch(2 * US, ADD, times=2)
            machine.item()

    slow = 26 * US
    assert verdict(allocating, Machine(python_ns=slow)).verdict == "allocator-churn"
    assert verdict(averaging, Machine(python_ns=slow)).verdict == "unfused-optimizer"
    # Tensors of one size are no parameters.
    assert verdict(loss_by_class, Machine(python_ns=slow)).verdict == "launch-overhead"
    # Nor are those of a loop that has a kernel for one size alone in each turn.
    assert verdict(search, Machine(python_ns=slow)).verdict == "launch-overhead"
    found = verdict(reading, Machine(python_ns=slow))
    assert found.verdict == "host-sync"
    assert "all items at once" in found.findings[0].remedies[0].action
    # 100 launches of 30 µs are left of 300, without the profiler's part of each.
    assert found.findings[0].expected == pytest.approx(3.0, rel=0.15)


def test_graphs_traced_as_a_whole_are_not_turns_of_a_loop_over_items() -> None:
    machine = Machine()
    for token in range(60):
        if token % 20 == 0:  # prefill
            machine.launch(300 * US, times=50)
        machine.copy(1 * US, 4096, pinned=True)
        machine.graph(2 * MS)
        machine.item()
        machine.think(400 * US)
    found = judged(machine.trace())
    assert all("looped_kernels_per_step" not in finding.evidence for finding in found.findings)
    busy = found.coverage.busy_ns / found.coverage.wall_ns
    assert all((finding.bound or finding.gain or 1.0) <= 1.05 / busy for finding in found.findings)


@pytest.mark.parametrize("waits", [False, True], ids=["copy", "copy and wait"])
def test_a_read_back_to_pageable_memory_is_a_wait_with_and_without_another(waits: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(20):
            machine.launch(100 * US)
            machine.copy(1 * US, 8, "device-to-host", pinned=False)
            if waits:
                machine.wait()
            machine.think(30 * US)

    found = verdict(step)
    assert found.verdict == "host-sync"
    assert found.findings[0].severity != "info"
    assert found.findings[0].evidence["waits_per_step"] == pytest.approx(20, abs=0.5)


def _served(pauses: list[int], kernel: str = BF16_GEMM) -> Diagnosis:
    """Requests of 8 ms of work, each behind one of these pauses."""
    machine = Machine()
    for pause in pauses:
        machine.think(pause)
        machine.copy(30 * US, 600_000, pinned=True)
        machine.launch(160 * US, kernel, times=50)
        machine.copy(1 * US, 4_000, "device-to-host", pinned=True)
        machine.wait()
    return judged(machine.trace())


#: Times between requests that come at random, 32 ms in the mean, in no order.
_AT_RANDOM = [int(-32 * MS * math.log(1 - (number * 29 % 48 + 0.5) / 48)) for number in range(48)]


def test_irregular_pauses_before_the_next_input_may_be_those_of_a_server_without_requests() -> None:
    found = _served(_AT_RANDOM)
    stall = found.findings[0]
    assert (stall.id, stall.variant, stall.confidence) == ("host-stall", HostStall.variants["requests"], "low")
    assert stall.severity == "warning"
    assert stall.remedies[0].action == "Record it under load"
    assert stall.remedies[0].gain is None
    assert "NumPy" not in "".join(remedy.how for remedy in stall.remedies)
    assert "as in a server without requests" in found.headline
    assert "waited for requests" in stall.refute


@pytest.mark.parametrize(
    ("pauses", "kernel"),
    [
        ([32 * MS] * 48, BF16_GEMM),
        ([(24 + number * 29 % 16) * MS for number in range(48)], BF16_GEMM),
        (_AT_RANDOM, "cutlass_wgrad_kernel"),
    ],
    ids=["equal", "about equal", "training"],
)
def test_pauses_of_about_the_same_length_and_those_of_training_are_work_of_the_host(
    pauses: list[int], kernel: str
) -> None:
    stall = _served(pauses, kernel).findings[0]
    assert (stall.id, stall.confidence) == ("host-stall", "high")
    assert stall.variant == HostStall.variants["round-trip"]


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_batch_that_is_late_every_few_steps_is_no_request(ranges: bool) -> None:
    """Inference behind four workers that load, one of which is late."""
    machine = Machine()
    for number in range(24):
        with (
            machine.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__") if ranges else nullcontext()
        ):
            machine.think(12 * MS if number % 4 == 0 else 600 * US)
        with machine.range("step") if ranges else nullcontext():
            machine.copy(300 * US, 4_000_000, pinned=True)
            machine.launch(100 * US, times=20)
            machine.item()
    stall = judged(machine.trace()).findings[0]
    assert (stall.id, stall.severity, stall.confidence) == ("host-stall", "critical", "high")
    assert stall.variant == HostStall.variants["input"]
    assert stall.remedies[0].action == "Prepare the input while the GPU computes"


def test_an_environment_that_is_slow_every_third_step_does_not_wait_for_requests() -> None:
    machine = Machine()
    for number in range(60):
        machine.copy(5 * US, 100_000, pinned=True)
        machine.launch(30 * US, times=20)
        machine.item()
        machine.think(2_800 * US if number % 3 == 0 else 300 * US)
    stall = judged(machine.trace()).findings[0]
    assert (stall.id, stall.severity, stall.confidence) == ("host-stall", "critical", "high")
    assert stall.variant == HostStall.variants["input"]


@pytest.mark.parametrize("named", ["pause", "step", "program"])
def test_a_range_around_a_pause_names_the_work_in_it_unless_it_is_a_step_or_holds_many(named: str) -> None:
    """Work on results that takes a time of its own for each, such as non-maximum suppression."""
    machine = Machine()
    with machine.range("serve") if named == "program" else nullcontext():
        for pause in _AT_RANDOM:
            with machine.range("step") if named != "program" else nullcontext():
                machine.copy(200 * US, 5_000_000, pinned=True)
                machine.launch(160 * US, times=50)
                machine.copy(20 * US, 400_000, "device-to-host", pinned=True)
                machine.wait()
                with machine.range("postprocess") if named == "pause" else nullcontext():
                    machine.think(pause)
    stall = judged(machine.trace()).findings[0]
    assert stall.id == "host-stall"
    if named == "pause":
        assert (stall.variant, stall.confidence) == (HostStall.variants["round-trip"], "high")
        assert stall.remedies[0].action == "Do this work where its data are"
    else:
        assert (stall.variant, stall.confidence) == (HostStall.variants["requests"], "low")
        assert stall.remedies[0].action == "Record it under load"


def test_what_the_host_does_with_each_value_it_read_is_not_the_wait_for_it() -> None:
    def step(machine: Machine) -> None:
        machine.launch(20 * US, times=20)
        for _ in range(20):
            machine.launch(2 * US, ADD, times=3)
            machine.item()
            machine.think(3 * MS)

    found = verdict(step)
    assert found.verdict == "host-stall"
    stalled = found.findings[0].evidence["idle_share"]
    assert stalled > 0.9
    waiting = found.finding("host-sync")
    assert waiting is None or waiting.evidence["idle_share"] < 0.05


def test_two_processes_with_a_gpu_each_are_diagnosed_like_one() -> None:
    one, machine = record(programs.item_per_layer), Machine()
    rows = (machine.kernels, machine.calls, machine.copies, machine.ranges)
    for _ in range(STEPS):
        with machine.step():
            programs.item_per_layer(machine)
    for kind in rows:
        kind += [{**row, "process": row["process"] + 1, **({"device": 1} if "device" in row else {})} for row in kind]
    alone, both = judged(one), judged(replace(machine.trace(), capture=one.capture))
    assert [finding.id for finding in both.findings] == [finding.id for finding in alone.findings]
    for first, second in zip(alone.findings, both.findings, strict=True):
        assert second.expected == first.expected
        per_step = {name: value for name, value in first.evidence.items() if name.endswith("per_step")}
        assert {name: second.evidence[name] for name in per_step} == per_step


def test_nobody_is_told_to_do_what_the_program_does_already() -> None:
    triton = "triton_poi_fused_add_mul_0"

    def compiled(machine: Machine) -> None:
        machine.launch(3 * US, triton, times=150)
        machine.launch(3 * US, times=50)

    def graphed(machine: Machine) -> None:
        for _ in range(10):
            machine.graph(100 * US)
            machine.think(90 * US)
            machine.wait()

    texts = {
        name: " ".join(remedy.how for finding in verdict(step).findings for remedy in finding.remedies)
        for name, step in (("compiled", compiled), ("graphed", graphed))
    }
    assert "torch.compile(model) " not in texts["compiled"]
    assert "reduce-overhead" in texts["compiled"]
    assert "reduce-overhead" not in texts["graphed"]
    assert "torch.cuda.graph(" not in texts["graphed"]


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("DataLoader.__next__", "DataLoader("),
        ("Optimizer.step#AdamW.step", "fused=True"),
        ("autograd::engine::evaluate_function: AddBackward0", "autograd"),
        ("CompiledFxGraph", "warm up"),
        ("generate", "every few tokens"),
        ("MPI_Recv", "warplens ranks"),
        ("gc.collect", "gc.freeze()"),
        ("aten::batch_norm", "the profile does not show"),
        ("work", "the profile does not show"),
    ],
)
def test_the_remedy_of_a_stall_fits_what_the_host_does(inside: str, says: str) -> None:
    def step(machine: Machine) -> None:
        with machine.range(inside):
            machine.think(4 * MS)
            machine.launch(100 * US, times=40)
        machine.wait()

    first, *_ = verdict(step).findings
    assert first.id == "host-stall"
    told = first.remedies[0].how
    assert says in told
    assert ("DataLoader(" in told) == (says == "DataLoader(")


def test_input_prepared_ahead_leaves_the_pauses_that_are_for_something_else() -> None:
    """Of 14 ms in which the GPU waits, 9 ms go into the next batch: the rest stays, whoever prepares batches."""

    def step(machine: Machine) -> None:
        machine.think(9 * MS)
        machine.copy(100 * US, 8_000_000, pinned=True)
        machine.launch(100 * US, times=40)
        machine.wait()
        machine.think(5 * MS)
        machine.launch(100 * US, times=40)
        machine.wait()

    stall, *_ = verdict(step).findings
    prepared = stall.remedies[0]
    assert (stall.id, prepared.action) == ("host-stall", "Prepare the input while the GPU computes")
    # 8 ms of kernels, the copy, 9 and 5 ms of pauses; 3 % of the 9 ms stay.
    assert stall.expected == prepared.gain == pytest.approx(22.2 / (22.2 - 0.97 * 9), rel=0.01)
    assert prepared.expected.endswith("the other pauses, 35.7 % of their time, stay")


@pytest.mark.parametrize(("copied", "told"), [(5 * US, False), (2 * MS, True)])
def test_work_on_results_is_not_predicted_to_go_away_with_pinned_memory(copied: int, *, told: bool) -> None:
    """Results are fetched within 5 µs, or 2 ms, and the host works on them for 2 ms."""

    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=100)
        machine.copy(copied, 100_000, "device-to-host", pinned=False)
        machine.think(2 * MS)

    changes = {prediction.change for prediction in verdict(step).predictions}
    assert "no-host-stall" in changes
    assert ("async-copies" in changes) == ("overlapped-copies" in changes) == told


def test_a_stall_is_named_by_the_thread_that_ends_it_not_by_the_one_that_launches_most() -> None:
    """The first thread compiles in two steps and sends the input; the second one launches what differentiates."""
    machine = Machine()
    for number in range(8):
        with machine.step():
            if number in (2, 5):
                with machine.range("_compile.compile_inner (dynamo_timed)"):
                    machine.think(80 * MS)
            machine.copy(20 * US, 1_000_000, pinned=True)
            machine.launch(20 * US, times=100)
            first = len(machine.calls)
            machine.launch(20 * US, times=200)
            machine.calls[first:] = [{**call, "thread": 2} for call in machine.calls[first:]]
    machine.ranges = [
        {**named, "kind": "push-pop" if named["name"] == "step" else OPERATOR_KIND} for named in machine.ranges
    ]

    stall = judged(machine.trace()).finding("host-stall")
    assert stall is not None
    assert stall.variant == HostStall.variants["compiling"]
    assert stall.remedies[0].action == "Compile before the loop"


def test_a_remedy_is_not_for_what_the_host_does_in_a_small_part_of_its_pauses() -> None:
    # Something in the step, outside of any other range, stops the host for long; so does the optimizer, for a little.
    def step(machine: Machine) -> None:
        machine.think(4 * MS)
        machine.launch(100 * US, times=40)
        machine.wait()
        with machine.range("optimizer"):
            machine.think(MS // 2)
            machine.launch(100 * US, times=4)
        machine.wait()

    first, *_ = verdict(step).findings
    assert (first.id, "optimizer" in first.where) == ("host-stall", True)
    assert "the profile does not show" in first.remedies[0].how


def _pausing(*paused: int, steps: int = 8) -> Timeline:
    machine = Machine()
    for step in range(1, steps + 1):
        with machine.step():
            machine.launch(100 * US, times=50, name=BF16_GEMM)
            if step in paused:
                machine.wait()
                machine.think(500 * MS)
            machine.launch(100 * US, times=50, name=BF16_GEMM)
            machine.wait()
    return Timeline(machine.trace())


def test_a_pause_that_happens_once_is_told_with_its_step_and_decides_no_gain() -> None:
    timeline = _pausing(4)
    found = diagnose(timeline, timeline.window())
    assert found.verdict == "below-roof"
    assert found.finding("host-stall") is None
    assert "A pause of 500." in found.headline
    assert "in step 4 is not counted, as it happens once: the GPU is busy for 98.9 %" in found.headline
    assert "of the other 7 steps" in found.headline
    (note,) = (note for note in found.notes if note.code == "lone-pause")
    assert "If it recurs as often, it takes 8" in note.text  # 500 of 580 ms
    # Who asks for all of it gets it, without a claim that it is sure to be so in each step.
    found = diagnose(timeline, timeline.window("all"))
    stall = found.finding("host-stall")
    assert stall.gain > 5
    assert stall.confidence != "high"
    assert "not counted" not in found.headline


@pytest.mark.parametrize(("paused", "recurs"), [((10, 20, 30), True), ((10, 17, 30), False)])
def test_pauses_as_long_as_several_steps_recur_or_belong_to_no_step(paused: tuple[int, ...], recurs: bool) -> None:
    machine = Machine()
    for step in range(40):
        if step in paused:
            machine.think(60 * MS)
        machine.copy(1 * MS, 8 << 20, pinned=False)
        machine.launch(100 * US, times=10)
        machine.launch(50 * US, "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(int)")
        machine.wait()
    timeline = Timeline(machine.trace())
    found = diagnose(timeline, timeline.window())
    stall = found.finding("host-stall")
    assert stall is not None
    assert found.what_if is not None
    assert (stall.variant == HostStall.variants["recurring"]) == recurs
    assert (found.verdict == "host-stall") == recurs
    # A recording of steps alone gains nothing, alone or together with remedies.
    together = [change.findings for change in found.what_if.changes if len(change.findings) > 1]
    assert bool(together) == recurs
    assert all(remedy.gain is None for remedy in stall.remedies if remedy.action == "Record steps only")
    assert "Record steps only" not in "\n".join(line.text for line in brief(found) if line.label == "also")


def test_a_pause_in_one_of_few_steps_or_in_few_of_many_is_not_sure() -> None:
    one, two, every_fourth = (
        _pausing(*paused, steps=steps) for paused, steps in ({(3,): 4, (5, 25): 32, (4, 8, 12, 16): 16}).items()
    )
    stalls = [diagnose(each, each.window()).finding("host-stall") for each in (one, two, every_fourth)]
    assert [stall.confidence for stall in stalls] == ["medium", "medium", "high"]
    assert [stall.evidence.get("stalled_steps_count") for stall in stalls] == [1, 2, None]


def test_a_start_in_a_window_without_ranges_is_no_stall_of_the_program() -> None:
    machine = Machine()
    for _ in range(12):
        machine.launch(50 * US, times=20)
        machine.launch(10 * US, ADD)
        machine.wait()
    machine.think(400 * MS)
    for _ in range(12):
        machine.launch(50 * US, times=20)
        machine.launch(10 * US, ADD)
        machine.wait()
    found = judged(machine.trace())
    assert all(finding.severity != "critical" for finding in found.findings)
    stall = found.finding("host-stall")
    assert stall is None or stall.severity == "info"


@pytest.mark.slow
@pytest.mark.parametrize("load_ms", [11, 13, 16])
def test_a_loader_slower_than_the_gpu_is_no_information_although_gpu_work_hides_most_of_its_time(load_ms: int) -> None:
    """The host never waits, and loads the next batch while the GPU computes the last one for 10 ms."""

    def step(machine: Machine) -> None:
        with machine.range("DataLoader.__next__"):
            machine.think(load_ms * MS)
        machine.launch(100 * US, times=100)

    found = verdict(step)
    assert found.verdict == "host-stall"
    finding = found.findings[0]
    assert finding.severity == ("warning" if load_ms < 15 else "critical")
    # Without the load, a step takes the 101 µs of each kernel.
    assert finding.expected == pytest.approx((load_ms + 100 * 8e-3 * 0.58) / 10.1, rel=0.05)


def test_what_is_expected_does_not_jump_with_the_length_of_the_kernels() -> None:
    """From a GPU that waits for the host to one that is far behind it, two per cent at a time."""
    before: dict[str, float] = {}
    for length in (int(5_000 * 1.02**number) for number in range(53)):

        def step(machine: Machine, length: int = length) -> None:
            for _ in range(6):
                machine.launch(length, FP32_GEMM, times=25)
                machine.item()

        found = verdict(step, Machine(python_ns=16 * US))
        now = {finding.id: finding.expected for finding in found.findings if finding.expected is not None}
        for name, expected in now.items():
            assert expected == pytest.approx(before.get(name, expected), rel=0.06), (name, length)
        before = now


def test_one_wait_a_step_is_no_finding_worth_a_warning() -> None:
    found = verdict(programs.training_with_log)
    sync = found.finding("host-sync")
    assert sync is None or sync.severity == "info"


def test_small_kernels_that_wait_for_their_launches_are_launch_bound() -> None:
    def step(machine: Machine) -> None:
        machine.launch(3 * US, grid=(4, 1, 1), times=200)
        machine.wait()

    assert verdict(step).verdict == "launch-overhead"


def test_a_pinned_copy_in_the_stream_of_the_kernels_is_in_the_way() -> None:
    found = verdict(programs.copy_in_the_way)
    assert found.verdict == "blocking-copy"
    assert found.findings[0].evidence["pageable_share"] == 0
    assert found.findings[0].confidence == "medium"


@pytest.mark.parametrize("differing", [0, 4_000])
def test_data_of_equal_size_in_every_step_may_stay_on_the_gpu(differing: int) -> None:
    """4 ms of a copy before 8 ms of work; without it, the work is left."""
    size = 40_000_000

    def step(machine: Machine) -> None:
        nonlocal size
        machine.copy(4 * MS, size, pinned=False)
        machine.launch(100 * US, times=80)
        size += differing

    remedies = {remedy.action: remedy for remedy in verdict(step).finding("blocking-copy").remedies}
    staying = remedies.get("If every step sends the same data, keep them on the GPU")
    assert (staying is not None) == (differing == 0)
    if staying is not None:
        assert staying.gain == pytest.approx(12 / 8, rel=0.05)


@pytest.mark.parametrize("values", [0, 1, 20])
def test_small_tensors_of_a_set_that_is_fetched_are_no_read_backs(values: int) -> None:
    """A copy of all weights waits for each, mostly small ones; only values that are read elsewhere are read back."""

    def step(machine: Machine) -> None:
        for place in range(40):
            machine.launch(5 * US)
            if place < values:
                machine.item()
        for weight in range(160):
            large = weight % 4 == 0
            size = 1_000_000 * (1 + weight % 5) if large else 1_024
            machine.copy(50 * US if large else 2 * US, size, "device-to-host", pinned=False)

    diagnosis = verdict(step)
    assert diagnosis.verdict == "blocking-copy"
    found = diagnosis.finding("host-sync")
    if values <= 1:  # a loss
        assert found is None or found.severity == "info"
    else:
        assert (found.evidence["waits_per_step"], found.evidence["readbacks_per_step"]) == (values, values)


@pytest.mark.parametrize("fetched_bytes", [40_000_000, 50_000_000])
def test_remedies_for_copies_in_one_direction_leave_those_in_the_other(fetched_bytes: int) -> None:
    """5 ms of input, 1 ms of work, and 6 ms of results, all of which block the host."""

    def step(machine: Machine) -> None:
        machine.copy(5 * MS, 40_000_000, pinned=False)
        machine.launch(100 * US, times=10)
        machine.copy(6 * MS, fetched_bytes, "device-to-host", pinned=False)

    finding = verdict(step).finding("blocking-copy")
    gains = {remedy.action: remedy.gain for remedy in finding.remedies}
    assert gains["Copy the next batch while this one is computed"] == pytest.approx(12 / 7, rel=0.05)
    assert gains["Copy these results while the next batch is computed"] == pytest.approx(12 / 6, rel=0.05)
    assert gains["If every step sends the same data, keep them on the GPU"] == pytest.approx(12 / 7, rel=0.05)
    assert finding.expected <= 2.1


def test_pinned_copies_in_both_directions_belong_on_streams_of_their_own() -> None:
    """4 ms of input, 3 ms of work, 4 ms of results: with streams, the input of one step hides the rest of others."""

    def step(machine: Machine) -> None:
        machine.copy(4 * MS, 100_000_000, pinned=True)
        machine.launch(3 * MS)
        machine.copy(4 * MS, 100_000_000, "device-to-host", pinned=True)
        machine.wait()

    finding = verdict(step).finding("blocking-copy")
    assert finding is not None
    assert finding.remedies[0].action == "Copy in both directions while the GPU computes"
    assert finding.expected == pytest.approx(11 / 4, rel=0.05)


def test_small_pieces_that_are_sent_one_by_one_belong_into_one_copy() -> None:
    found = verdict(programs.pieces_sent_one_by_one)
    first = found.findings[0]

    assert (first.id, first.evidence["copies_per_step"]) == ("blocking-copy", 40)
    assert "one by one" in first.title
    assert first.remedies[0].action == "Send all pieces in one copy"
    assert "loop" not in " ".join(each.title for each in found.findings[1:])


def test_one_large_copy_from_pageable_memory_is_not_sent_in_pieces() -> None:
    assert "one by one" not in verdict(programs.pageable_input).findings[0].title


def test_an_optimizer_without_a_range_is_known_by_its_kernels() -> None:
    def step(machine: Machine) -> None:
        machine.launch(30 * US, times=20)
        for _ in range(40):
            machine.launch(2 * US, ADD, times=13)
            machine.launch(2 * US, ADDCDIV)
        machine.wait()

    found = verdict(step)
    assert found.verdict == "unfused-optimizer"
    assert found.findings[0].evidence["parameter_tensors_count"] == 40


def test_slow_products_do_not_matter_while_the_gpu_waits_for_launches() -> None:
    def step(machine: Machine) -> None:
        machine.launch(2 * US, FP32_GEMM, times=200)
        machine.wait()

    found = verdict(step)
    assert found.verdict == "launch-overhead"
    precision = found.finding("precision")
    # Faster products would only wait longer: the host needs the time as it is.
    assert precision is None or precision.expected < 1.05


def test_products_in_fp32_are_no_fault_of_a_gpu_without_tensor_cores() -> None:
    pascal = Device(ordinal=0, name="GeForce GTX 1060", compute_capability=(6, 1), sm_count=10)
    assert verdict(programs.fp32_products, Machine(device=pascal)).finding("precision") is None


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ceiling_of_a_stall_is_the_step_over_the_step_without_it() -> None:
    stall = verdict(programs.stalled_input).findings[0]
    # 5 ms of 10 ms, of which 3 % stay: the rest is 50 kernels of 100 µs, a microsecond apart.
    assert stall.expected == pytest.approx(10 / 5.15, rel=0.02)
    assert stall.bound is None, "no name says what the host does, which may take longer in another run"
    assert stall.severity == "critical"


def test_the_bound_of_copies_is_what_stays_on_the_gpu() -> None:
    found = verdict(programs.pageable_input)
    copies = found.findings[0]
    # 12 ms, of which 8 ms of kernels stay; the little idle time between may be longer without the profiler.
    assert copies.bound == pytest.approx(12 / 8, rel=0.02)
    assert copies.expected_interval[1] <= copies.bound


@pytest.mark.parametrize("pinned", [True, False])
def test_copies_without_any_compute_are_not_advised_to_run_beside_it(pinned: bool) -> None:
    def step(machine: Machine) -> None:
        machine.copy(4 * MS, 40_000_000, pinned=pinned)
        machine.copy(4 * MS, 40_000_000, "device-to-host", pinned=pinned)

    found = verdict(step).finding("blocking-copy")
    assert not any("while" in remedy.action for remedy in found.remedies)
    if pinned:
        assert found.remedies[0].action == "Copy less"
        assert found.expected == pytest.approx(2, rel=0.02)


def test_the_bound_of_waits_is_that_of_longer_pauses_and_is_explained() -> None:
    found = verdict(programs.item_per_layer)
    waits, wall, busy = found.findings[0], found.coverage.wall_ns, found.coverage.busy_ns
    removed = wall - busy + 0.7 * (wall - busy)
    assert waits.id == "host-sync"
    assert waits.bound == pytest.approx((busy + removed) / busy, rel=0.05)
    assert any(line.startswith("at most: ") and "1.7 times as long" in line for line in coverage_lines(found))


def test_the_ceiling_of_exposed_communication_is_that_of_amdahl() -> None:
    found = verdict(programs.exposed_collectives).findings[0]
    assert found.bound == pytest.approx(6.021 / 4.02, rel=0.01)
    assert found.expected == pytest.approx(6.021 / 5.02, rel=0.01), "half of a layer's sums can be hidden"


def test_collectives_hide_behind_no_more_than_there_is_to_compute() -> None:
    def step(machine: Machine) -> None:
        machine.launch(200 * US, times=2)
        machine.launch(8 * MS, NCCL)

    found = verdict(step).findings[0]
    assert found.id == "exposed-communication"
    # Overlapped, 8.4 ms become 8; in half of the bytes, 4.4. The bound is that of no collectives at all.
    assert found.expected == pytest.approx(8.4 / 4.4, rel=0.01)
    assert found.bound == pytest.approx(8.4 / 0.4, rel=0.02)
    assert found.remedies[0].expected.startswith("about 1.9"), "what makes it less comes first"
    assert "limited by the compute" in found.remedies[1].expected


GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("gathered_ms", "scattered_ms", "format_", "expected"),
    [
        # Of 20 ms, 12 ms hide behind as much compute; the backward pass gathers for 8 ms.
        (2, 1, "bf16", {"Gather the next parameters": 32 / 20, "Keep parameters gathered": 32 / 24}),
        # Half of the sums' bytes, which are most of it; gathers stay.
        (4, 10, "f32", {"Communicate less": 84 / 64}),
        # Less often, as they have 16 bits already.
        (4, 10, "bf16", {"Communicate less": 84 / 64}),
    ],
)
def test_of_sharded_parameters_only_the_sums_take_half_of_the_bytes(
    gathered_ms: int, scattered_ms: int, format_: str, expected: dict[str, float]
) -> None:
    def step(machine: Machine) -> None:
        with machine.range("forward"):
            for _ in range(4):
                machine.launch(gathered_ms * MS, GATHER)
                machine.launch(1 * MS)
        with machine.range("backward"):
            for _ in range(4):
                machine.launch(gathered_ms * MS, GATHER)
                machine.launch(2 * MS)
                machine.launch(scattered_ms * MS, SCATTER.format(format_))

    found = verdict(step).findings[0]
    assert found.id == "exposed-communication"
    for remedy, (action, gain) in zip(found.remedies, expected.items(), strict=False):
        assert remedy.action.startswith(action)
        assert (remedy.gain or found.expected) == pytest.approx(gain, rel=0.01)
        assert ("bf16_compress_hook" in remedy.how) is (format_ == "f32")


def micro_batches(machine: Machine, *, layers: int = 0, updates: bool = False) -> None:
    """Four forward and backward passes of 20 ms in all, after each of which gradients are summed for 10 ms."""
    for _ in range(4):
        machine.launch(200 * US, times=10)
        machine.launch(500 * US, NCCL, times=layers)
        with machine.range("backward"):
            machine.launch(200 * US, times=15)
            machine.launch(10 * MS, NCCL)
        if updates:
            machine.launch(200 * US, "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>")
    machine.launch(200 * US, "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>")


def test_sums_of_gradients_after_each_micro_batch_wait_for_the_last_one() -> None:
    found = verdict(micro_batches).findings[0]
    assert found.id == "exposed-communication"
    assert found.evidence["micro_batches_per_step"] == 4
    assert found.evidence["summed_again_share"] == pytest.approx(3 / 4, abs=0.01)
    assert found.remedies[0].action == "Reduce gradients with the last micro-batch only"
    # 20.2 ms of compute and 40 ms of sums, of which 10 ms stay.
    assert found.expected == pytest.approx(60.2 / 30.2, rel=0.02)


@pytest.mark.parametrize("options", [{"layers": 2}, {"updates": True}], ids=["split layers", "an update each"])
def test_sums_that_the_next_pass_needs_do_not_wait(options: dict[str, Any]) -> None:
    found = verdict(lambda machine: micro_batches(machine, **options)).finding("exposed-communication")
    assert "micro_batches_per_step" not in found.evidence
    assert "last micro-batch only" not in found.remedies[0].action


@pytest.mark.parametrize(("kernel_ns", "said"), [(2 * US, True), (20 * US, False)])
def test_hidden_collectives_leave_the_pace_to_a_host_that_issues_longer_than_the_gpu_computes(
    kernel_ns: int, said: bool
) -> None:
    def step(machine: Machine) -> None:
        machine.launch(kernel_ns, times=200)
        machine.launch(2 * MS, NCCL)

    finding = verdict(step, Machine(python_ns=10 * US)).finding("exposed-communication")
    assert ("unprofiled_host_share" in finding.evidence) is said
    assert any("host then sets the pace" in remedy.expected for remedy in finding.remedies) is said


def test_copies_at_the_pace_of_the_link_are_the_limit_though_neither_pinning_nor_overlap_helps() -> None:
    def step(machine: Machine) -> None:
        machine.copy(5 * MS, 250_000_000, pinned=True)
        machine.launch(100 * US, times=3)

    found = verdict(step)
    assert found.verdict == "blocking-copy"
    # Half of the bytes: 5.3 ms become 2.8.
    assert found.findings[0].expected == pytest.approx(5.3 / 2.8, rel=0.02)
    assert found.findings[0].remedies[0].action == "Copy less"


@pytest.mark.parametrize(("last", "left"), [(ADD, 100 / 2 + 100), (MAXIMUM, 100)])
def test_of_passes_that_end_in_sums_the_bound_leaves_nothing(last: str, left: float) -> None:
    """Of a chain of 30, half of a pass is left; sums of pairwise terms need no memory (15.6 times were measured)."""

    def step(machine: Machine) -> None:
        machine.launch(100 * US, ADD, times=29)
        machine.launch(100 * US, last)
        machine.launch(100 * US)

    found = verdict(step).finding("memory-bandwidth")
    assert found is not None
    idle = 31  # µs of each step
    assert found.bound == pytest.approx((31 * 100 + idle) / (left + idle), rel=0.01)


def test_chains_that_may_go_on_behind_what_repeats_have_no_bound() -> None:
    marked = record(programs.elementwise_chain)
    known, guessed = judged(marked), judged(replace(marked, ranges=marked.ranges.clear()))
    assert known.finding("memory-bandwidth").bound is not None  # type: ignore[union-attr]
    (found,) = (each for each in guessed.findings if each.id == "memory-bandwidth")
    assert (found.bound is None) is (
        "may be parts of a step" in Timeline(replace(marked, ranges=marked.ranges.clear())).steps.how
    )


def test_what_only_a_model_puts_behind_a_wait_is_told_as_a_model() -> None:
    def step(machine: Machine) -> None:
        for _ in range(24):
            machine.launch(7 * US, times=3)
            machine.item()

    found = verdict(step)
    assert found.verdict == "host-sync"
    behind = found.findings[0].evidence["launches_behind_ns"] / found.coverage.wall_ns
    assert (f"and by a model another {100 * behind:.1f} % in launches that it delays" in found.headline) is (
        behind > (found.headline_share or 0.0)
    )


def _round_trip(machine: Machine) -> None:
    """Data that are fetched, worked on for 16 ms and sent again take 8 ms on the link; 4 ms of work."""
    machine.launch(100 * US, times=40)
    machine.copy(4 * MS, 40_000_000, "device-to-host", pinned=False)
    machine.think(16 * MS)
    machine.copy(4 * MS, 40_000_000, pinned=False)


def test_a_remedy_that_leaves_the_copies_has_the_gain_without_them() -> None:
    found = verdict(_round_trip).finding("host-stall")
    first, alone = found.remedies[:2]
    assert first.action == "Do this work where its data are"
    assert first.gain == found.expected
    assert first.gain == pytest.approx(28 / 4, rel=0.1)
    assert alone.action == "Move that host work out of the step"
    assert alone.gain == pytest.approx(28 / 12, rel=0.1)
    assert alone.expected.startswith(about(alone.gain))  # type: ignore[arg-type]


def test_a_gain_beyond_the_share_says_what_else_its_remedy_removes() -> None:
    found = verdict(_round_trip)
    assert found.verdict == "host-stall"
    assert found.headline_share == pytest.approx(16 / 28, rel=0.1)
    assert "; the first remedy saves more, as it also removes copies;" in found.headline


def test_a_gain_that_a_shorter_window_explains_says_so() -> None:
    def step(machine: Machine) -> None:
        machine.launch(2 * US, times=400)
        machine.launch(100 * US, times=10)
        machine.wait()
        machine.think(3 * MS)

    found = verdict(step)
    assert found.verdict == "host-stall"
    said = "; without the profiler the time is shorter, and the first remedy saves more of it;"
    assert said in found.headline


def test_a_gain_that_ends_at_the_pace_of_the_host_says_so() -> None:
    def step(machine: Machine) -> None:
        machine.launch(400 * US, FP32_GEMM, times=20)

    found = verdict(step, Machine(python_ns=200 * US))
    assert found.verdict == "precision"
    assert "; the first remedy saves a part of it, as the host then sets the pace;" in found.headline
    assert "the host then sets the pace" not in verdict(step).headline


def test_the_profiler_costs_a_part_of_a_share_only_if_it_slowed_the_host() -> None:
    def gain(found: Diagnosis) -> str:
        return next(line.text for line in brief(found) if line.label == "gain")

    slowed = verdict(programs.launch_bound)
    assert "whose cost is part of the" in gain(slowed)
    assert "first remedy" not in slowed.headline

    def step(machine: Machine) -> None:
        machine.copy(24 * MS, 200_000_000, pinned=False)
        machine.launch(100 * US, times=80)

    copied = verdict(step)  # pinned memory leaves a part of the copy
    assert copied.verdict == "blocking-copy"
    assert "whose cost is part of the" not in gain(copied)
    assert "; the first remedy saves a part of it; about" in copied.headline
    assert copied.headline.count("%") == 1, "one share, of the recorded time"


def test_data_between_two_parts_of_a_program_make_no_round_trip() -> None:
    machine = Machine()
    for part, count in enumerate((1, 2, 3)):
        machine.copy(4 * MS, 40_000_000, pinned=False)
        for number in range(count):
            machine.launch((2 + part + number) * MS, f"part_{part}_{number}")
        machine.copy(4 * MS, 40_000_000, "device-to-host", pinned=False)
        machine.think(4 * MS)
    found = judged(machine.trace())
    assert not found.coverage.steps
    stalls = found.finding("host-stall")
    assert stalls.variant != HostStall.variants["round-trip"]


def test_the_remedy_with_the_gain_of_the_finding_comes_before_others_with_a_gain() -> None:
    remedies = (Remedy("a", "", "", gain=1.4), Remedy("b", "", ""), Remedy("c", "", "", gain=2.2), Remedy("d", "", ""))
    assert [remedy.action for remedy in in_order(remedies, 2.2)] == ["b", "c", "a", "d"]
    assert [remedy.action for remedy in in_order(remedies, 3.0)] == ["c", "a", "b", "d"]


def test_where_a_gpu_is_busy_only_without_the_profiler_both_shares_are_told() -> None:
    def step(machine: Machine) -> None:
        machine.launch(21 * US, times=40)

    found = verdict(step, Machine(python_ns=23 * US))
    assert found.verdict == "below-roof"
    assert re.search(
        r"busy for 7\d\.\d % of the time \(an estimated 8\d\.\d % without the profiler's overhead\)", found.headline
    )


@pytest.mark.parametrize(
    ("name", "gain"),
    [
        ("NVIDIA GeForce RTX 4090", 1 / (1 / (0.9375 * 2) + 0.034)),
        ("NVIDIA H20", 1 / (1 / (0.9375 * 148 / 44) + 0.034)),
        ("NVIDIA H200", 0.55 * 989.4 / 67),
    ],
)
def test_products_in_fp32_gain_what_the_peaks_of_the_gpu_allow(name: str, gain: float) -> None:
    """Where the peaks are close, as much as the headroom says, less the casts."""
    found = verdict(programs.fp32_products, Machine(device=Device(0, name, compute_capability=(9, 0))))
    assert found.verdict == "precision"
    assert found.findings[0].expected == pytest.approx(gain, rel=0.02)
    assert ("TF32" in found.headline) is (name != "NVIDIA GeForce RTX 4090")  # its TF32 has the rate of its fp32
    assert any("TF32" in remedy.action for remedy in found.findings[0].remedies) is ("TF32" in found.headline)


@pytest.mark.parametrize(("name", "ratio"), [("AMD Instinct MI300X", 8.0), ("AMD Instinct MI250X", 191.5 / 47.85)])
def test_products_in_fp32_on_matrix_units_of_amd_gain_by_a_narrower_format(name: str, ratio: float) -> None:
    machine = Machine(device=Device(0, name, compute_capability=(9, 4)))
    for _ in range(STEPS):
        with machine.step():
            machine.launch(400 * US, "Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x2x1_SN_1LDSB0", times=20)
    made = machine.trace()
    recorder = replace(made.capture.recorder, counters="rocprof-compute")
    found = judged(replace(made, capture=replace(made.capture, recorder=recorder)))
    assert found.verdict == "precision"
    assert found.findings[0].evidence["peak_ratio_factor"] == pytest.approx(ratio, rel=0.01)
    assert "matrix products in fp32: bfloat16 could save" in found.headline


@pytest.mark.parametrize(
    ("name", "capability", "said"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), "fp16 could save"),
        ("NVIDIA H200", (9, 0), "TF32 or bfloat16 could save"),
        ("NVIDIA GeForce GTX 1060", (6, 1), None),
    ],
)
def test_a_format_is_named_that_the_gpu_has(name: str, capability: tuple[int, int], said: str | None) -> None:
    found = verdict(programs.fp32_products, Machine(device=Device(0, name, compute_capability=capability)))
    assert (found.verdict == "precision") is (said is not None)
    assert said is None or said in found.headline


@pytest.mark.parametrize(("capability", "raised"), [((8, 0), True), ((6, 1), False)])
def test_channels_last_is_for_tensor_cores(capability: tuple[int, int], raised: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(400 * US, "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)", times=4)
        machine.launch(400 * US, "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x128x8")

    found = verdict(step, Machine(device=Device(0, "GPU", compute_capability=capability)))
    assert (found.finding("memory-format") is not None) is raised


def test_a_cause_below_two_per_cent_is_not_raised() -> None:
    def step(machine: Machine) -> None:
        machine.copy(50 * US, 2_000_000, pinned=True)
        machine.launch(100 * US, times=80)

    assert verdict(step).finding("blocking-copy") is None


def test_what_only_a_replay_of_another_cause_shows_is_not_raised() -> None:
    def step(machine: Machine) -> None:
        machine.launch(2 * MS)
        machine.allocate(20 * MS)

    found = verdict(step)
    assert found.verdict == "allocator-churn"
    # A CUDA graph would take the allocations away, too: no pause is the launches' own.
    assert found.finding("launch-overhead") is None


@pytest.mark.parametrize(("stall_ms", "severity"), [(1, "info"), (2, "warning"), (8, "critical")])
def test_severity_follows_from_the_ceiling(stall_ms: int, severity: str) -> None:
    def step(machine: Machine) -> None:
        machine.think(stall_ms * MS)
        machine.launch(100 * US, times=120)
        machine.wait()

    finding = verdict(step).finding("host-stall")
    assert finding.severity == severity


def test_two_causes_are_both_found_and_the_larger_is_the_verdict() -> None:
    def step(machine: Machine) -> None:
        machine.think(6 * MS)
        machine.copy(2 * MS, 20_000_000, pinned=False)
        machine.launch(100 * US, times=60)
        machine.wait()

    found = verdict(step)
    assert found.verdict == "host-stall"
    stall, blocking = found.finding("host-stall"), found.finding("blocking-copy")
    assert blocking is not None
    # What the host prepares it sends: 6 ms of work and the 2 ms of its copy go away, but for a tenth; 6.07 ms stay.
    assert stall.expected == pytest.approx(14.07 / (6.07 + 0.1 * 8), rel=0.03)
    # 20 MB take 0.4 ms at the 50 GB/s of pinned memory, and none beside the kernels.
    assert 14.07 / 12.47 - 0.01 <= blocking.expected <= 14.07 / 12.07 + 0.01


def test_thresholds_are_what_rules_compare_with() -> None:
    profile = record(programs.stalled_input)
    timeline = Timeline(profile)
    strict = Thresholds(critical_ceiling=10.0)
    assert diagnose(timeline, timeline.window(), thresholds=strict).findings[0].severity == "warning"


# ── what a profile cannot tell ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("products", "first"), [(8, "precision"), (1, "small-kernels")])
def test_what_makes_the_same_work_faster_comes_before_grids_that_only_more_work_fills(
    products: int, first: str
) -> None:
    """If it is worth half as much."""

    def step(machine: Machine) -> None:
        machine.launch(400 * US, FP32_GEMM, times=products)
        machine.launch(80 * US, "my_kernel", grid=(4, 1, 1), times=40)

    found = verdict(step)
    assert found.verdict == first
    assert {finding.id for finding in found.findings} >= {"small-kernels", "precision"}


def test_small_grids_are_not_claimed_where_grids_or_multiprocessors_are_unknown() -> None:
    found = verdict(programs.four_blocks, Machine(device=None))
    assert found.finding("small-kernels") is None
    assert any("small-kernels" in line for line in found.coverage.unavailable)


@pytest.mark.parametrize(("blocks", "left"), [(4, "most of it"), (100, "a part of it")])
def test_how_much_small_grids_leave_empty_is_told_as_it_is(blocks: int, left: str) -> None:
    """Of 132 multiprocessors."""
    found = verdict(lambda machine: machine.launch(100 * US, grid=(blocks, 1, 1), times=50)).finding("small-kernels")
    assert left in found.title


def test_what_small_grids_fill_is_told_of_them_and_not_of_all_kernels() -> None:
    def step(machine: Machine) -> None:
        machine.launch(1000 * US, times=9)
        machine.launch(1000 * US, grid=(33, 1, 1))

    small = verdict(step).finding("small-kernels")
    assert small is not None
    assert small.evidence["multiprocessors_reached_by_small_kernels_share"] == pytest.approx(33 / 132)
    assert small.evidence["small_kernels_per_step"] == 1
    assert small.evidence["small_kernels_share"] == pytest.approx(0.1, rel=0.02)


def test_small_grids_of_few_threads_fill_less_than_the_multiprocessors_that_they_reach() -> None:
    """64 of 132 multiprocessors get a block each, of fewer threads than fit: throughput cannot rise beyond the work."""
    step = partial(Machine.launch, duration=4 * US, name=ADD, grid=(64, 1, 1), times=200)
    small = verdict(step, Machine(python_ns=0)).finding("small-kernels")
    assert small is not None
    assert small.evidence["multiprocessors_reached_by_small_kernels_share"] == pytest.approx(64 / 132)
    filled = small.evidence["gpu_filled_by_small_kernels_share"]
    assert filled == pytest.approx(64 * 128 / (132 * 2048), rel=0.02)
    assert small.expected == pytest.approx(1 / filled, rel=0.01)
    assert f"(about {1 / filled:.0f} times as much)" in small.remedies[0].expected


def test_pauses_before_queued_kernels_are_neither_busy_time_nor_the_profilers() -> None:
    def chained(machine: Machine) -> None:
        """Kernels of one block in streams that wait for one another: 6 µs to start, 2 µs to run, the host ahead."""
        machine.launch(2 * US, ADD, grid=(1, 1, 1), times=200)

    found = verdict(chained, Machine(python_ns=0, between_ns=6 * US))
    small = found.finding("small-kernels")
    assert small is not None
    assert found.verdict == "small-kernels"
    assert "longer to start them than to run them" in found.headline
    assert small.evidence["gpu_busy_share"] == pytest.approx(0.25, abs=0.02)
    of_one_block = (1 - 1 / 132) * STEPS * 200 * US
    assert small.evidence["empty_ns"] == pytest.approx(2 * of_one_block, rel=0.03)
    assert small.evidence["starting_ns"] == pytest.approx(6 * of_one_block, rel=0.03)
    assert (small.remedies[0].action, small.remedies[0].gain) == ("Put more work into each launch", small.expected)
    sooner = next(each for each in small.remedies if each.action.startswith("Make the pauses"))
    assert 1 < (sooner.gain or 0) < (small.expected or 0), "nodes of a graph start sooner, and still one by one"


@pytest.mark.parametrize(("length", "severity"), [(10, "info"), (400, "critical")])
def test_a_graph_of_turns_is_as_fast_as_it_gets_unless_kernels_of_few_blocks_take_long(
    length: int, severity: str
) -> None:
    kernels, calls, ranges, now = [], [], [], 0
    for number in range(1, 5):
        begin = now
        calls.append(launch(now, now + US, number, "cudaGraphLaunch"))
        for _ in range(24):
            for spent, name, blocks in (
                (6, BF16_GEMM, 8),
                (4, ADD, 8),
                (length, "void at::native::vectorized_layer_norm_kernel<float, float>(int)", 1),
            ):
                grid = (blocks, 1, 1)
                kernels.append(kernel(now + US, now + spent * US, "k", correlation=number, full_name=name, grid=grid))
                now += spent * US
        ranges.append(nvtx(begin, now, "step"))

    timeline = Timeline(trace(kernels, calls, ranges, devices=[H200]))
    found = diagnose(timeline, timeline.window())
    small = found.finding("small-kernels")

    assert small is not None
    assert small.severity == severity
    # They explain nearly all of the time, whatever is known of roofs.
    assert found.verdict == "small-kernels"
    assert found.verdict_known
    assert ("the program may be as good as it gets" in found.headline) == (severity == "info")


@pytest.mark.slow  # all programs are judged anew
def test_without_counters_nothing_is_said_about_the_inside_of_kernels() -> None:
    for program in (*PLANTED.values(), *HEALTHY):
        found = verdict(program)
        inside = {"occupancy", "uncoalesced", "bank-conflicts", "divergence"}
        assert not inside & {finding.id for finding in found.findings}
        assert found.coverage.counters_share is None


def test_memory_traffic_without_counters_is_marked_as_inferred() -> None:
    finding = verdict(programs.elementwise_chain).findings[0]
    assert finding.confidence != "high"
    assert "inferred" in finding.title


def test_a_profile_without_gpu_work_cannot_answer() -> None:
    machine = Machine()
    for _ in range(STEPS):
        with machine.step():
            machine.think(MS)
    found = judged(machine.trace())
    assert (found.verdict, found.verdict_known) == ("incomplete-profile", False)
    assert [finding.id for finding in found.findings] == ["incomplete-profile"]


def test_a_profile_without_api_calls_cannot_say_why_the_gpu_waited() -> None:
    kernels = [kernel(begin, begin + 10 * US, "gemm") for begin in range(0, 10 * MS, 50 * US)]
    found = judged(trace(kernels, [], [nvtx(0, 10 * MS, "step")]))
    assert found.verdict == "incomplete-profile"
    assert found.findings[0].evidence["idle_attributed_share"] == 0


def test_collectives_alone_are_no_program_that_could_be_judged() -> None:
    found = verdict(lambda machine: machine.launch(MS, NCCL, times=4))
    assert [finding.id for finding in found.findings] == ["incomplete-profile"]
    assert "but no compute" in found.headline
    assert found.predictions == ()


@pytest.mark.parametrize(("steps", "limited_by"), [(0, "incomplete-profile"), (1, "incomplete-profile"), (2, "launch")])
def test_launching_calls_of_milliseconds_load_code_unless_steps_repeat_them(steps: int, limited_by: str) -> None:
    kernels, calls = [], []
    for number in range(max(steps, 1) * 5):
        begin = 5 * MS * number
        calls.append(launch(begin, begin + 4 * MS, number + 1))
        kernels.append(
            kernel(begin + 4 * MS + 3 * US, begin + 4 * MS + 9 * US, f"gemm_{number % 5}", correlation=number + 1)
        )
    ranges = [nvtx(25 * MS * step, 25 * MS * (step + 1), "step") for step in range(steps)]
    found = judged(trace(kernels, calls, ranges))
    assert found.verdict.startswith(limited_by)
    if limited_by == "incomplete-profile":
        # Four of five milliseconds are in such calls; the first of them lies before the window where no step begins it.
        share = 4 / 5 if steps else 16 / 20.006
        assert f"The window has a start-up: for {100 * share:.1f} % of it" in found.headline
        assert found.findings[0].remedies[0].action == "Record steps only"
        assert found.predictions == ()


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (1.5, "about 1.50×"),
        (9.99, "about 9.99×"),
        (9.999, "about 10.0×"),
        (53.19, "about 53.2×"),
        (100.0, "many times"),
    ],
)
def test_a_factor_is_told_as_exactly_as_models_are_sure(gain: float, said: str) -> None:
    assert about(gain) == said


def _two_streams_in_turn() -> Diagnosis:
    """Kernels of two streams, each 30 µs after the last of the other; all were launched before."""
    kernels, calls = [], []
    for number in range(100):
        calls.append(launch(10 * number, 10 * number + 5, number + 1))
        begin = 100 * US + 60 * US * number
        kernels.append(kernel(begin, begin + 30 * US, "gemm", stream=7 + number % 2, correlation=number + 1))
    return judged(trace(kernels, calls, [nvtx(0, 7 * MS, "step")]))


def test_pauses_of_two_streams_that_wait_for_each_other_are_not_blamed_on_the_host() -> None:
    found = _two_streams_in_turn()
    assert found.verdict == "incomplete-profile"
    assert found.findings[0].evidence["dependency_share"] == pytest.approx(99 * 30 / 7000)


def test_idle_time_whose_reason_is_only_named_is_not_said_to_be_explained() -> None:
    found = _two_streams_in_turn()
    coverage = found.coverage
    assert coverage.idle_attributed_share == 1
    assert coverage.idle_explained_share is not None
    unexplained = found.findings[0].evidence["unexplained_idle_ns"]
    assert coverage.idle_explained_share == pytest.approx(1 - unexplained / coverage.idle_ns)
    told = next(coverage_lines(found))
    assert f"{100 * coverage.idle_explained_share:.1f} % of the idle time is explained" in told


# ── the profiler's own cost ──────────────────────────────────────────────────────────────────────────────────────────


def test_severity_counts_launches_without_what_the_profiler_adds() -> None:
    """A launch every 8 µs is one every 4.6 without nsys, where the GPU's own 3 + 1 µs a kernel are 3.25 in a graph."""
    found = verdict(programs.launch_bound)
    finding = found.findings[0]
    assert finding.expected == pytest.approx(8 * 0.58 / 3.25, rel=0.03)
    assert finding.bound >= found.coverage.wall_ns / found.coverage.busy_ns


def test_waits_are_the_verdict_where_the_host_would_be_ahead_without_them() -> None:
    """The GPU has 120 µs of work in 8 kernels, which the host issues in 64 µs; but it waits after each eight."""

    def step(machine: Machine) -> None:
        for _ in range(12):
            machine.launch(15 * US, times=8)
            machine.item()
            machine.think(60 * US)

    assert verdict(step).verdict == "host-sync"


def test_a_wait_in_each_of_many_unnamed_repetitions_is_one_inside_the_step() -> None:
    machine = Machine()
    for _ in range(60):
        machine.launch(40 * US, times=3)
        machine.wait()
        machine.think(60 * US)
    profile = machine.trace()
    timeline = Timeline(profile)
    assert timeline.steps.source == "sequence"
    assert judged(profile).verdict == "host-sync"


@pytest.mark.parametrize(("helper_ns", "confidence"), [(0, "high"), (1 * US, "high"), (400 * US, "low")])
def test_only_a_process_that_takes_time_of_the_gpu_keeps_the_program_from_being_replayed(helper_ns, confidence):
    machine = Machine()
    for _ in range(20):
        with machine.step():
            machine.launch(3 * US, times=100)
            machine.item()
    times = [machine.host * part // 10 for part in (1, 9)] if helper_ns else []
    calls = [launch(time - 5 * US, time - 1 * US, 9_000 + time, process=2, thread=2) for time in times]
    helper = [kernel(time, time + helper_ns, "k", correlation=9_000 + time, process=2) for time in times]
    profile = trace([*machine.kernels, *helper], [*machine.calls, *calls], machine.ranges, copies=machine.copies)

    finding = judged(replace(profile, capture=replace(profile.capture, devices=(H200,)))).finding("launch-overhead")

    assert finding.confidence == confidence
    assert (finding.expected < 1.5) == (confidence == "high")


def test_of_pauses_that_the_profiler_makes_the_remedy_is_to_record_less() -> None:
    """No stream waits for another one there, and no other program has the GPU."""
    machine = Machine()
    held = []
    for _ in range(6):
        with machine.step():
            machine.launch(500 * US, times=4)
            machine.wait()
            begin = machine.host
            machine.think(3 * MS)
            held.append(overhead(begin, machine.host))
            machine.launch(500 * US, times=4)
            machine.wait()
    recorded = machine.trace()
    profile = trace(
        machine.kernels, machine.calls, sorted(machine.ranges, key=lambda row: row["start_ns"]), profiler_overhead=held
    )
    timeline = Timeline(replace(profile, capture=recorded.capture))
    finding = diagnose(timeline, timeline.window()).finding("incomplete-profile")
    assert finding.evidence["profiler_share"] > 0.4
    assert [remedy.action for remedy in finding.remedies] == ["Record fewer things at once"]
    assert "single stream" not in finding.refute
