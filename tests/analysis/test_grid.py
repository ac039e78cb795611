"""The five questions over a grid: synthetic programs counted by hand, real captures counted with plain SQL."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests import shipped
from tests.analysis.lm_steps import WHOLE, Program, forward_only
from tests.analysis.plain_sql import held, in_steps, opened, ops, ranges
from warplens.analysis.phases import step_statistics
from warplens.analysis.timeline import Timeline
from warplens.readers import read
from warplens.readers.timings import read_timings
from warplens.studies.grid.answers import CellAnswers, ForwardTime, GridCell, answer_cell
from warplens.studies.grid.cells import Unplaced, model_size, recognise_cell
from warplens.studies.grid.forward_section import answer_a, forward_times, host_bound
from warplens.studies.grid.grid import Grid, _with_other_gpus, answer_grid, grid_status
from warplens.studies.grid.passes import Spread


def steps(count=3, phases=None, **how):
    program = Program()
    for _ in range(count):
        program.step(phases, **how)
    return program


def test_a_host_range_that_waits_inside_is_the_time_of_the_pass():
    forward = answer_cell(steps(wait="phase").cell()).forward
    # launches 10 + 10 + gemm 300 − 10 overlapped + elementwise 100, wait and end 5 each: 10 + 300 + 100 + 5 + 5
    assert forward.synchronised
    assert forward.host == Spread(420, 420, 420, 3)
    assert forward.time == forward.host
    assert forward.time_is == "host range, waits inside"


def test_without_a_wait_the_pass_lasts_until_its_last_gpu_work():
    forward = answer_cell(steps(wait="step").cell()).forward
    assert not forward.synchronised
    assert forward.host.median == 25  # two launches of 10 ns and the end: says nothing about the pass
    assert forward.time == Spread(410, 410, 410, 3)
    assert forward.time_is == "host start to last GPU end"
    assert (forward.span.median, forward.gpu.median, forward.busy.median) == (400, 400, 400)
    assert forward.busy_share == 400 / 410


def test_while_the_gpu_is_still_at_earlier_work_only_the_device_span_is_a_time():
    program = steps(4, wait="never")  # the host runs ahead of the GPU
    forward = answer_cell(program.cell()).forward
    assert forward.elapsed is None
    assert forward.time_is == "device span"
    assert forward.time.median == 400


def test_time_per_layer_uses_the_table_where_no_attention_range_counts_them():
    forward = answer_cell(steps().cell()).forward
    assert (forward.layers, forward.layers_counted) == (12, False)
    assert forward.per_layer.median == 410 / 12
    assert answer_cell(steps().cell(model="my own")).forward.per_layer is None


def test_overlapping_work_counts_once_in_busy_time_and_twice_in_gpu_time():
    program = steps()
    for row in program.kernels:
        if row["name"] == "elementwise_kernel":
            row["start_ns"] -= 50
            row["end_ns"] -= 50
            row["stream"] = 8
    forward = answer_cell(program.cell()).forward
    assert (forward.gpu.median, forward.busy.median) == (400, 350)


def test_python_times_of_several_batches_are_not_mixed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("model,context,batch,forward_ms\nsmall,512,4,5\nsmall,512,8,9\nsmall,512,8,9.2\n")
    timings = read_timings(path)
    assert answer_cell(steps().cell(), timings=timings).python == {}
    grid = answer_grid([steps().cell()], timings=timings)
    assert "times of small 512 were not used: there are several batches, and --batch N" in " ".join(answer_a(grid))
    named = answer_cell(steps().cell(), timings=timings, batch=8).python["forward"]
    assert (named.minimum_ns, named.maximum_ns, named.count) == (9e6, 9.2e6, 2)


def test_python_times_are_matched_by_cell_and_kind_of_step(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "model,context,mode,forward_s,step_s,batch\n"
        "small,512,train,0.000000400,0.000001,4\nsmall,512,train,0.000000420,0.000001,4\n"
        "small,512,train,0.000000430,0.000001,4\nsmall,512,forward,0.1,0.1,4\nmedium,512,train,0.2,0.2,4\n"
    )
    answers = answer_cell(steps().cell(), timings=read_timings(path))
    assert answers.python["forward"].centre_ns == 420
    assert (answers.python["forward"].minimum_ns, answers.python["forward"].maximum_ns) == (400, 430)
    assert answers.python["forward"].count == 3
    assert "backward" not in answers.python
    assert answers.batch == 4


def test_given_statistics_stand_in_for_samples(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("model,context,forward_mean_ms,forward_std_ms,n\nSMALL,512,0.5,0.01,10\n")
    time = answer_cell(steps().cell(), timings=read_timings(path)).python["forward"]
    assert (time.centre_ns, time.statistic, time.deviation_ns, time.count) == (500_000, "mean", 10_000, 10)


def _cell(model, context, per_layer_ns, busy, mode="forward"):
    size = model_size(model)
    time = Spread(per_layer_ns * size.layers, 0, 0, 3)
    forward = ForwardTime(None, False, time, time, time, time.scaled(1 / busy), size.layers, True)
    return CellAnswers(model, context, mode, f"{model}_{context}", 4, None, None, size, "", forward=forward)


def _host_bound(*cells):
    return host_bound(forward_times(Grid(cells))).to_dicts()


def test_layers_of_equal_time_on_a_waiting_gpu_mean_that_the_host_sets_the_pace():
    waiting = [_cell("small", 128, 2.19e6, 0.4), _cell("medium", 128, 2.25e6, 0.5), _cell("2.7B", 128, 2.2e6, 0.7)]
    working = [_cell("small", 1024, 3.4e6, 0.97), _cell("medium", 1024, 4.9e6, 0.98)]
    (bound,) = _host_bound(*waiting, *working)
    assert (bound["context"], bound["models"]) == (128, ["small", "medium", "2.7B"])
    assert (bound["least_ns"], bound["greatest_ns"], bound["busy_share"]) == pytest.approx((2.19e6, 2.25e6, 0.7))


def test_a_busy_gpu_or_a_single_model_tells_nothing_about_the_host():
    assert _host_bound(_cell("small", 128, 2e6, 0.9), _cell("medium", 128, 2e6, 0.9)) == []
    assert _host_bound(_cell("small", 128, 2e6, 0.4)) == []
    assert _host_bound(_cell("small", 128, 1e6, 0.4), _cell("medium", 128, 2e6, 0.4)) == []


def test_the_leading_kernel_its_calls_in_one_pass_and_its_model_part():
    program = steps()
    program.ranges += [
        {**row, "name": "feed_forward", "end_ns": row["start_ns"] + 10}
        for row in program.ranges
        if row["name"] == "forward_pass"
    ]
    kernel = answer_cell(program.cell()).kernel
    assert (kernel["name"], kernel["calls_each"], kernel["calls"], kernel["repetitions"]) == ("sgemm_tn", 1, 3, 3)
    assert kernel["gpu_ns_each"] == 300
    assert kernel["share"] == 300 / 400
    assert kernel["parts"].select("part", "launches", "share").rows() == [("feed_forward", 3, 1.0)]


def test_launches_outside_of_inner_ranges_are_called_so():
    kernel = answer_cell(steps().cell()).kernel
    assert kernel["parts"]["part"].to_list() == ["forward_pass, outside of inner ranges"]


def test_another_kernel_may_lead_forward_and_backward_together():
    answers = answer_cell(steps().cell())
    assert answers.kernel["full_name"] == "sgemm_tn"
    assert answers.kernel_with_backward["full_name"] == "sgemm_nn"  # 350 as sgemm_nt; the name decides
    assert answers.kernel_with_backward["share"] == 350 / 1200


def test_calls_that_differ_from_pass_to_pass_are_not_averaged_into_a_number():
    program = Program()
    for passes in (1, 2, 1):
        program.step(forward_only(forward_pass=(("sgemm_tn", 300),) * passes + (("elementwise_kernel", 100),)))
    kernel = answer_cell(program.cell(mode="forward")).kernel
    assert kernel["calls_each"] is None
    assert (kernel["calls_min"], kernel["calls_max"]) == (1, 2)


def test_a_kernel_that_some_passes_do_not_run_has_no_calls_there():
    program = Program()
    for extra in ((), (("sgemm_nt", 900),), ()):
        program.step(forward_only(forward_pass=(*WHOLE["forward_pass"], *extra)))
    kernel = answer_cell(program.cell(mode="forward")).kernel
    assert (kernel["full_name"], kernel["calls_min"], kernel["calls_max"]) == ("sgemm_nt", 0, 1)


def test_shares_of_kernels_and_of_categories_sum_to_one():
    answers = answer_cell(steps(phases=forward_only(forward_pass=(*WHOLE["forward_pass"], ("fill", 20)))).cell())
    assert answers.labels["label"].to_list() == ["gemm", "elementwise", "memory fills"]
    assert answers.labels["share"].sum() == pytest.approx(1.0)
    assert answers.kernels["share"].sum() == pytest.approx(400 / 420)


def test_a_training_step_is_the_sum_of_its_phases():
    split = answer_cell(steps().cell()).training
    by_phase = {row["phase"]: row["gpu_ns"] / 3 for row in split.phases.iter_rows(named=True)}
    assert by_phase == {"forward": 400, "backward": 800, "optimizer": 120, "none": 0}
    assert split.gpu_ns / 3 == 1320
    assert split.residual_ns == 0
    assert split.phase("backward")["inferred_ns"] == 3 * 800  # launched by autograd's thread
    assert split.matmul_share == 1000 / 1320
    assert split.busy_ns <= split.wall_ns


def test_work_outside_of_the_phases_is_a_part_of_its_own():
    program = steps(phases={**WHOLE, "zero_grad": (("fill", 10),)})
    split = answer_cell(program.cell()).training
    assert split.phase("none")["gpu_ns"] == 30
    assert int(split.phases["gpu_ns"].sum()) == split.gpu_ns


def test_steps_are_found_from_the_phases_where_no_range_is_called_step():
    program = Program().step(name="warmup")
    for _ in range(3):
        program.step(name=None)
    answers = answer_cell(program.cell())
    assert answers.training.steps == 3
    assert answers.training.gpu_ns == 3 * 1320


def test_accumulated_gradients_belong_to_one_step():
    twice = Program()
    for _ in range(2):
        twice.step({phase: WHOLE[phase] for phase in ("forward_pass", "backward_pass")}, name=None)
        twice.step(WHOLE, name=None)
    split = answer_cell(twice.cell()).training
    assert split.steps == 2
    assert split.phase("forward")["gpu_ns"] == 4 * 400
    assert split.phase("optimizer")["gpu_ns"] == 2 * 120


def test_an_optimizer_whose_gpu_runs_dry_waits_for_launches():
    slow = answer_cell(steps(pause=200, wait="phase").cell()).optimizer
    # two kernels of 60 ns with a launch of 10 ns after 200 ns of host work in between: 60 + 150 + 60
    assert slow["span_ns"] == 270
    assert slow["busy_share"] == 120 / 270
    assert slow["starved_share"] == 150 / 270
    assert slow["between_share"] == 0
    assert slow["pace"] == "launches"


def test_an_optimizer_whose_launches_are_ahead_waits_for_the_gpu():
    ahead = answer_cell(steps(wait="step").cell()).optimizer
    assert (ahead["busy_share"], ahead["starved_share"], ahead["pace"]) == (1.0, 0.0, "gpu")
    program = steps(wait="step")
    for row in program.kernels:
        if row["name"] == "multi_tensor_apply_kernel":
            row["end_ns"] -= 5  # the GPU itself needs 5 ns between two kernels
    gaps = answer_cell(program.cell()).optimizer
    assert gaps["starved_share"] == 0
    assert gaps["between_share"] == 5 / 115
    assert gaps["launches"] == 2
    assert gaps["span_ns_per_launch"] == 115 / 2


def test_traffic_is_modelled_only_for_the_optimizer_of_the_assignment():
    assert answer_cell(steps().cell()).optimizer["modelled_bytes_per_s"] is None
    launches = 16 * 111
    program = steps(phases={**WHOLE, "optimizer_step": (("elementwise_kernel", 60),) * launches})
    cost = answer_cell(program.cell()).optimizer
    assert cost["launches_per_tensor"] == 16
    assert cost["modelled_bytes_per_s"] == pytest.approx(140 * 128_625_408 / (launches * 60e-9))


def without(phase, *, empty=False):
    return {name: (() if name == phase else works) for name, works in WHOLE.items() if empty or name != phase}


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        (without("backward_pass", empty=True) | {"optimizer_step": ()}, "no backward and no optimizer work"),
        (without("optimizer_step"), "no optimizer work on the GPU"),
        (without("optimizer_step", empty=True), "no optimizer work on the GPU"),
    ],
)
def test_an_aborted_step_is_invalid_and_answers_nothing(phases, reason):
    answers = answer_cell(Program().step(phases).cell())
    assert reason in answers.invalid[0]
    assert answers.invalid[-1] == "out of memory is suspected"
    assert not any(answers.answers(question) for question in "abcde")


def test_one_aborted_step_among_whole_ones_makes_the_profile_invalid():
    program = steps(2).step(WHOLE | {"backward_pass": WHOLE["backward_pass"][:1]})
    answers = answer_cell(program.cell())
    assert "the backward of step 3 runs 1 of 3 kernels" in answers.invalid


def test_failed_allocations_are_the_evidence_where_they_were_recorded():
    program = Program().step(without("optimizer_step"))
    program.calls.append({**program.calls[0], "name": "cudaMalloc", "return_value": 2, "correlation": 999})
    assert answer_cell(program.cell()).invalid[-1] == "1 memory allocations failed: out of memory"


def test_a_training_step_shorter_than_the_forward_pass_alone_is_invalid():
    alone = steps(phases=forward_only(forward_pass=(("sgemm_tn", 5000),)))
    grid = answer_grid([steps().cell(source="t"), alone.cell(mode="forward", source="f")])
    (training,) = [cell for cell in grid.cells if cell.mode == "train"]
    assert "less GPU time than the forward pass alone in f" in training.invalid[0]
    assert grid.answering("d") == []


def test_a_forward_pass_with_too_few_layers_is_not_this_model():
    program = Program()
    parts = ("computing_attention_scores", "computing_softmax", "final_matmul")
    for _ in range(3):
        program.step(forward_only(forward_pass=(("sgemm_tn", 30), ("elementwise_kernel", 30), ("sgemm_nn", 30))))
        forward = program.ranges[-2]
        program.ranges += [
            {
                **forward,
                "name": part,
                "start_ns": forward["start_ns"] + 10 * i,
                "end_ns": forward["start_ns"] + 10 * i + 9,
            }
            for i, part in enumerate(parts)
        ]
    cell = program.cell(mode="forward")
    assert "holds 1 of the 12 attention layers of small" in answer_cell(cell).invalid[0]
    own = answer_cell(replace(cell, model="mine"))
    assert own.invalid == ()
    assert own.forward.layers == 1


def test_training_without_named_phases_is_not_called_aborted():
    program = steps(phases={"everything": tuple(work for works in WHOLE.values() for work in works)})
    answers = answer_cell(program.cell())
    assert answers.invalid == ()
    assert "`backward_pass`" in answers.lacking["d"]
    assert "`forward_pass`" in answers.lacking["a"]


def test_an_optimizer_without_a_name_is_missing_not_aborted():
    program = steps(phases={"forward_pass": WHOLE["forward_pass"], "backward_pass": WHOLE["backward_pass"],
                            "update": WHOLE["optimizer_step"]})  # fmt: skip
    answers = answer_cell(program.cell())
    assert answers.invalid == ()
    assert answers.lacking["d"].startswith("put NVTX ranges around optimizer")
    assert answers.answers("a")


def test_the_ranges_tell_what_a_step_does_where_the_name_does_not():
    assert answer_cell(steps().cell(mode=None)).mode == "train"
    assert answer_cell(steps(phases=without("optimizer_step")).cell(mode=None)).mode == "forward+backward"
    assert answer_cell(steps(phases=forward_only()).cell(mode=None)).mode == "forward"
    assert answer_cell(steps(phases={"run": WHOLE["forward_pass"]}).cell(mode=None)).mode is None


def test_a_step_counts_as_forward_pass_only_where_the_name_says_so():
    program = steps(phases={"run": WHOLE["forward_pass"]})
    named = answer_cell(program.cell(mode="forward"))
    assert named.forward.gpu.median == 400
    assert "a whole step counts as one" in named.notes[0]
    assert "--cell" in answer_cell(program.cell(mode=None)).lacking["a"]


LAYERS = {"attention": (("sgemm_tn", 600),), "mlp.forward": (("sgemm_tn", 100),), "norm.forward": (("sgemm_tn", 100),)}


def test_ranges_of_layers_are_no_forward_passes():
    answers = answer_cell(steps(phases=LAYERS).cell(mode="forward"))
    assert (answers.forward.gpu.median, answers.forward.gpu.count) == (800, 3)
    assert "a whole step counts as one" in answers.notes[0]
    several_passes = {"data": (("fill", 10),), "forward a": (("sgemm_tn", 100),), "forward b": (("sgemm_tn", 100),)}
    assert answer_cell(steps(phases=several_passes).cell(mode="forward")).forward.gpu.count == 6


def test_a_training_step_with_more_forward_than_backward_ranges_has_a_note():
    layers = {**LAYERS, **{phase: WHOLE[phase] for phase in ("backward_pass", "optimizer_step")}}
    (note,) = answer_cell(steps(phases=layers).cell()).notes
    assert note.startswith("6 ranges are named after the forward pass, and 3 after the backward pass")
    assert answer_cell(steps().cell()).notes == ()


def test_a_second_profile_of_a_cell_is_listed_and_an_invalid_one_is_kept():
    aborted = Program().step(without("optimizer_step"))
    grid = answer_grid(
        [steps().cell(source="one"), steps().cell(source="two"), aborted.cell(source="three")],
        unplaced=[Unplaced("four", "why")],
    )
    assert [(cell.source, bool(cell.invalid)) for cell in grid.cells] == [("one", False), ("three", True)]
    assert [item.source for item in grid.unplaced] == ["four", "two"]


def test_work_of_phases_that_the_name_excludes_has_a_note():
    (note,) = answer_cell(steps().cell(mode="forward+backward")).notes
    assert note == "it is said to be forward+backward, and its steps have optimizer work as well"
    (note,) = answer_cell(steps().cell(mode="forward")).notes
    assert "have backward and optimizer work" in note
    assert answer_cell(steps(phases=without("optimizer_step")).cell(mode="forward+backward")).notes == ()


def test_a_profile_of_another_gpu_has_a_note():
    cells = [replace(answer_cell(steps().cell(context=context)), device=gpu) for context, gpu in OF_GPUS]
    assert [len(cell.notes) for cell in _with_other_gpus(cells)] == [0, 1, 0, 0]


OF_GPUS = ((128, "NVIDIA H200"), (256, "NVIDIA A100"), (512, "NVIDIA H200"), (1024, None))


def test_cells_are_in_order_of_model_size_and_of_context_as_a_number():
    names = ["xl_ctx1024", "small_ctx1024", "small_ctx128", "2p7b_ctx128", "medium_ctx256"]
    cells = [recognise_cell(name) for name in names]
    program = steps(phases=forward_only())
    grid = answer_grid(GridCell(cell.model, cell.context, "forward", "s", program.timeline()) for cell in cells)
    assert [(cell.model, cell.context) for cell in grid.cells] == [
        ("small", 128), ("small", 1024), ("medium", 256), ("xl", 1024), ("2.7B", 128),
    ]  # fmt: skip
    assert grid.contexts == [128, 256, 1024]


def test_missing_cells_say_what_to_run():
    forward = steps(phases=forward_only())
    aborted = Program().step(without("optimizer_step"))
    grid = answer_grid([
        forward.cell("small", 128, "forward", "s128"),
        aborted.cell("medium", 256, "train", "m256"),
    ])  # fmt: skip
    status = {(row[0], row[1], row[2]): row[3:] for row in grid_status(grid).rows()}
    assert status["small", 128, "a"] == ("measured", "s128")
    assert status["small", 128, "d"][0] == "missing"
    assert "--output=small_ctx128_train" in status["small", 128, "d"][1]
    assert "--output=medium_ctx128_forward" in status["medium", 128, "a"][1]
    assert status["medium", 256, "d"][0] == "invalid"
    assert status["medium", 256, "d"][1].startswith("m256: the only step had no optimizer work")
    assert "computing_softmax" in status["small", 128, "e"][1]


def test_no_profiles_make_an_empty_grid():
    grid = answer_grid([])
    assert grid.models == []
    assert grid_status(grid).height == 0


@pytest.fixture(scope="module")
def real():
    """The answers for small at 512, forward and training, and what SQL and loops count in the same files."""
    answers, counted = {}, {}
    timings = read_timings(shipped.capture("lm_timings"))
    for mode in ("forward", "train"):
        path = shipped.capture(f"lm_small_ctx512_{mode}")
        cell = GridCell("small", 512, mode, path.name, Timeline(read(path)), 4)
        answers[mode] = answer_cell(cell, timings=timings)
        with opened(path) as connection:
            work = ops(connection)
            phases = {
                phase: [held(work, item) for item in in_steps(connection, phase)]
                for phase in ("forward_pass", "backward_pass", "optimizer_step")
            }
            begins = [item.start for item in in_steps(connection, "forward_pass")]
            steps = [held(work, item) for item in ranges(connection, "step")]
        counted[mode] = {"phases": phases, "begins": begins, "steps": steps}
    return answers, counted


def is_product(op):
    """Every matrix product of these captures names itself a GEMM, but for the second half of split ones."""
    return "gemm" in op.name or "splitKreduce" in op.name


def test_real_forward_time_equals_sql(real):
    answers, counted = real
    for mode in ("forward", "train"):
        passes = counted[mode]["phases"]["forward_pass"]
        forward = answers[mode].forward
        elapsed = [
            max(op.end for op in found) - begin for found, begin in zip(passes, counted[mode]["begins"], strict=True)
        ]
        assert forward.time == Spread(statistics.median(elapsed), min(elapsed), max(elapsed), len(elapsed))
        assert forward.gpu.median == statistics.median(sum(op.duration for op in found) for found in passes)
        assert forward.span.median == statistics.median(
            max(op.end for op in found) - min(op.start for op in found) for found in passes
        )
        assert (forward.layers, forward.layers_counted) == (12, True)


def test_real_python_time_equals_the_csv(real):
    answers, _ = real
    lines = (shipped.capture("lm_timings")).read_text().splitlines()
    own = [round(float(line.split(",")[4]) * 1e9) for line in lines if line.startswith("small,512,forward,")]
    assert len(own) == 10
    assert answers["forward"].python["forward"].centre_ns == statistics.median(own)
    assert answers["forward"].python["forward"].maximum_ns == max(own)


def test_real_leading_kernel_equals_sql(real):
    answers, counted = real
    passes = counted["forward"]["phases"]["forward_pass"]
    spent, calls = defaultdict(int), defaultdict(list)
    for found in passes:
        in_pass = defaultdict(int)
        for op in found:
            spent[op.name] += op.duration
            in_pass[op.name] += 1
        for name, count in in_pass.items():
            calls[name].append(count)
    top = max(spent, key=spent.__getitem__)
    kernel = answers["forward"].kernel
    assert (kernel["full_name"], kernel["gpu_ns"]) == (top, spent[top])
    assert calls[top] == [kernel["calls_each"]] * len(passes)
    assert kernel["share"] == pytest.approx(spent[top] / sum(spent.values()))
    # 7 linear maps and 2 attention products in each of 12 layers, and the head
    assert answers["forward"].category["calls_each"] == 9 * 12 + 1


def test_real_matrix_product_share_equals_sql(real):
    answers, counted = real
    passes = [op for found in counted["forward"]["phases"]["forward_pass"] for op in found]
    products = sum(op.duration for op in passes if is_product(op))
    labels = dict(answers["forward"].labels.select("label", "share").rows())
    assert labels["gemm"] == pytest.approx(products / sum(op.duration for op in passes))
    assert sum(labels.values()) == pytest.approx(1.0)


def test_real_training_split_equals_sql(real):
    answers, counted = real
    split = answers["train"].training
    assert split.steps == len(counted["train"]["steps"]) == 2
    for phase, name in (("forward", "forward_pass"), ("backward", "backward_pass"), ("optimizer", "optimizer_step")):
        found = [op for each in counted["train"]["phases"][name] for op in each]
        assert split.phase(phase)["gpu_ns"] == sum(op.duration for op in found), phase
        assert split.phase(phase)["ops"] == len(found), phase
        assert split.phase(phase)["matmul_ns"] == sum(op.duration for op in found if is_product(op)), phase
    assert split.gpu_ns == sum(op.duration for each in counted["train"]["steps"] for op in each)
    assert split.residual_ns == 0
    assert split.phase("none")["gpu_ns"] == 0


def test_real_optimizer_equals_sql(real):
    answers, counted = real
    cost = answers["train"].optimizer
    starved = between = span = 0
    for found in counted["train"]["phases"]["optimizer_step"]:
        found.sort(key=lambda op: op.start)
        assert len(found) == 16 * (9 * 12 + 3)
        reach = found[0].start
        for op in found:
            gap = max(0, op.start - reach)
            # Whether the call returned before is in the table only; that it began before is enough for most.
            starved, between = (starved + gap, between) if op.launched >= reach else (starved, between + gap)
            reach = max(reach, op.end)
        span += reach - found[0].start
    assert cost["launches_per_tensor"] == 16
    assert cost["span_ns"] == span / 2
    assert cost["starved_share"] + cost["between_share"] == pytest.approx((starved + between) / span)
    assert cost["starved_share"] >= starved / span
    assert cost["busy_share"] + cost["starved_share"] + cost["between_share"] == pytest.approx(1.0)


def test_real_parts_never_exceed_the_whole(real):
    answers, _ = real
    for cell in answers.values():
        forward = cell.forward
        assert forward.busy.median <= forward.span.median <= forward.time.median
        assert cell.invalid == ()
    split = answers["train"].training
    assert (split.phases["gpu_ns"] <= split.gpu_ns).all()
    assert split.phases["span_ns"].sum() <= split.wall_ns
    assert split.busy_ns + split.idle_ns == split.wall_ns
    assert split.phases["share"].sum() == pytest.approx(1.0)
    assert isinstance(answers["train"].step_labels, pl.DataFrame)
    assert answers["train"].step_labels["share"].sum() == pytest.approx(1.0)


def test_real_aborted_step_is_invalid():
    """The program ran out of memory in this step's backward pass."""
    path = shipped.capture("lm_large_ctx1024_train")
    answers = answer_cell(GridCell("large", 1024, "train", path.name, Timeline(read(path)), 4))
    with opened(path) as connection:
        work = ops(connection)
        (backward,) = ranges(connection, "backward_pass")
        assert ranges(connection, "optimizer_step") == []
        began = [op for op in held(work, backward) if op.name not in ("copy", "fill")]
    assert answers.invalid == ("the only step had no optimizer work on the GPU", "out of memory is suspected")
    assert answers.training.phase("backward")["kernels"] == len(began) > 0
    assert not any(answers.answers(question) for question in "abcde")


def test_without_kernels_the_forward_time_is_that_of_its_ranges(tmp_path):
    """A profile as WSL2 gives it: ranges and API calls. The times are those of the file's own NVTX rows."""
    import lzma
    import sqlite3
    from contextlib import closing

    packed = Path(__file__).parents[1] / "golden" / "inputs" / "lm_small_ctx128_forward_ranges.sqlite.xz"
    plain = tmp_path / "lm_small_ctx128_forward.sqlite"
    plain.write_bytes(lzma.decompress(packed.read_bytes()))
    with closing(sqlite3.connect(plain)) as file:
        rows = file.execute(
            "SELECT n.end - n.start FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "WHERE coalesce(n.text, s.value) = 'forward_pass' ORDER BY n.start"
        ).fetchall()
    timeline = Timeline(read(packed))
    answers = answer_cell(GridCell("small", 128, "forward", packed.name, timeline, 4))
    # The first of the four passes stands in a range `warmup`.
    assert answers.forward.time.median == sorted(row[0] for row in rows[1:])[1]
    assert answers.forward.time_is == "host range, GPU not recorded, may end before the GPU does"
    assert (answers.forward.busy_share, answers.invalid) == (None, ())
    assert [question for question in "abcde" if answers.answers(question)] == ["a"]
    steps = step_statistics(timeline, timeline.window())
    assert steps.height == 3
    assert steps["busy_ns"].null_count() == steps["kernels"].null_count() == 3


def test_a_file_of_times_that_fits_no_cell_is_said_not_to_be_used(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("model,context,mode,forward_ms\nlarge,2048,forward,3\n")
    packed = Path(__file__).parents[1] / "golden" / "inputs" / "lm_small_ctx128_forward_ranges.sqlite.xz"
    cell = GridCell("small", 128, "forward", packed.name, Timeline(read(packed)), 4)
    grid = answer_grid([cell], timings=read_timings(path))
    assert grid.unused == ("large 2048",)
    assert "was not used: it has none of a forward pass here. It holds large 2048." in " ".join(answer_a(grid))
