"""What operators mean for ranges, phases and steps: they tell, but they are no annotations."""

from __future__ import annotations

from tests.analysis.builders import AUTOGRAD_THREAD, kernel, launch, python_call
from tests.analysis.operators.programs import ENGINE, annotation, operator, program
from warplens.analysis.phases import phase_statistics
from warplens.analysis.quality import quality_notes
from warplens.analysis.ranges import plain_range_name, range_coverage, range_statistics
from warplens.analysis.timeline import Timeline

HELPER = 5


def test_an_operator_of_another_thread_lends_nothing() -> None:
    timeline = program(
        [kernel(100, 110, correlation=1)],
        [launch(5, 6, 1, thread=HELPER)],
        [operator(0, 10, "aten::mm")],
    )
    assert timeline.work["range"].to_list() == [None]


def test_an_annotation_around_a_waiting_operator_lends_its_place() -> None:
    timeline = program(
        [kernel(100, 110, correlation=1)],
        [launch(5, 6, 1, thread=HELPER)],
        [annotation(0, 20, "epoch"), operator(1, 10, "wait")],
    )
    assert timeline.work.select("range", "inferred").rows() == [(0, True)]


def annotated_step() -> Timeline:
    return program(
        [kernel(100, 110, correlation=1), kernel(110, 117, correlation=2), kernel(120, 125, correlation=3)],
        [launch(3, 4, 1), launch(9, 10, 2), launch(22, 23, 3, thread=AUTOGRAD_THREAD)],
        [
            annotation(0, 40, "train"),
            operator(2, 8, "aten::linear"),
            annotation(8, 12, "loss"),
            operator(8, 11, "aten::nll_loss"),
            operator(20, 25, f"{ENGINE}NllLossBackward0", thread=AUTOGRAD_THREAD),
        ],
    )


def test_ranges_without_operators_keep_the_work_of_the_operators_inside() -> None:
    timeline = annotated_step()
    window = timeline.window("all")
    table = range_statistics(timeline, window, operators=False)
    shown = table.select("depth", "name", "gpu_ns", "gpu_exclusive_ns", "inferred_ns").rows()
    assert shown == [(0, "train", 22, 15, 5), (1, "loss", 7, 7, 0)]
    coverage = range_coverage(timeline, window, operators=False)
    assert (coverage.total_ns, coverage.same_thread_ns, coverage.inferred_ns) == (22, 17, 5)


def test_operators_can_be_listed_among_the_ranges() -> None:
    timeline = annotated_step()
    names = set(range_statistics(timeline, timeline.window("all"), "name")["name"])
    assert {"aten::linear", "train"} <= names


def test_numbered_profiler_steps_are_one_range() -> None:
    assert plain_range_name("ProfilerStep#12") == "ProfilerStep#N"
    assert plain_range_name("ProfilerStep#12 of mine") == "ProfilerStep#12 of mine"


def unannotated_training(forward_name: str | None = None) -> Timeline:
    """Two steps of a forward operator, one without a gradient, its backward operator and an unnamed update."""
    kernels, api, ranges = [], [], []
    for step in (0, 1):
        at, sequence = 1000 * step, 10 * step
        starts = {"mask": 10, "linear": 20, "dropout_mask": 30, "loss": 40, "backward": 60, "update": 80}
        for number, start in enumerate(starts.values(), start=100 * step):
            thread = AUTOGRAD_THREAD if start == 60 else 1
            api.append(launch(at + start + 1, at + start + 2, number, thread=thread))
            kernels.append(kernel(at + 500 + start, at + 501 + start, f"kernel{start}", correlation=number))
        ranges += [
            operator(at + 10, at + 15, "aten::ones"),
            operator(at + 20, at + 25, "aten::linear", sequence=sequence),
            operator(at + 30, at + 35, "aten::rand"),
            operator(at + 40, at + 45, "aten::loss", sequence=sequence + 1),
            operator(
                at + 60,
                at + 65,
                f"{ENGINE}LossBackward",
                sequence=sequence + 1,
                forward_thread=1,
                thread=AUTOGRAD_THREAD,
            ),
            operator(
                at + 66,
                at + 67,
                f"{ENGINE}LinearBackward",
                sequence=sequence,
                forward_thread=1,
                thread=AUTOGRAD_THREAD,
            ),
            operator(at + 80, at + 85, "aten::add_"),
        ]
        if forward_name is not None:
            ranges.append(annotation(at + 5, at + 50, forward_name))
    return program(kernels, api, ranges)


def test_the_forward_pass_lasts_from_the_first_to_the_last_operator_that_has_a_gradient() -> None:
    timeline = unannotated_training()
    table = {row["phase"]: row for row in phase_statistics(timeline, timeline.window("all")).iter_rows(named=True)}
    # Before the first such operator the mask is made, after the backward pass the parameters are updated.
    assert {phase: row["kernels"] for phase, row in table.items()} == {"forward": 6, "backward": 2, "none": 4}
    assert table["forward"]["inferred_ns"] == table["forward"]["gpu_ns"]
    assert table["backward"]["inferred_ns"] == 0


def test_an_annotated_forward_pass_is_taken_as_annotated() -> None:
    timeline = unannotated_training("## forward ##")
    table = {row["phase"]: row for row in phase_statistics(timeline, timeline.window("all")).iter_rows(named=True)}
    assert {phase: row["kernels"] for phase, row in table.items()} == {"forward": 8, "backward": 2, "none": 2}
    assert table["forward"]["inferred_ns"] == 0


def test_an_inference_has_no_forward_pass_to_infer() -> None:
    timeline = program(
        [kernel(100, 110, correlation=1)], [launch(1, 2, 1)], [operator(0, 10, "aten::linear", sequence=4)]
    )
    assert phase_statistics(timeline, timeline.window("all"))["phase"].to_list() == ["none"]


def test_operators_that_repeat_are_no_steps() -> None:
    starts = range(0, 1000, 100)
    timeline = program(
        [kernel(50 + at, 60 + at, f"kernel{at}", correlation=at) for at in starts],
        [launch(10 + at, 11 + at, at) for at in starts],
        [operator(at, at + 90, "inference_step") for at in starts],
    )
    assert timeline.steps.source == "none"


def test_layers_of_one_module_call_are_no_steps() -> None:
    starts = range(0, 1000, 100)
    rows = (
        [kernel(50 + at, 60 + at, correlation=at) for at in starts],
        [launch(10 + at, 11 + at, at) for at in starts],
        [operator(at, at + 90, "aten::linear") for at in starts],
    )
    assert len(program(*rows).steps.steps) == len(starts)
    assert program(*rows, python=[python_call(0, 1000, "nn.Module: Model_0")]).steps.steps == ()
    calls = [python_call(at, at + 95, "nn.Module: Model_0") for at in starts]
    assert len(program(*rows, python=calls).steps.steps) == len(starts)


def test_kernels_of_one_graph_launch_are_no_steps() -> None:
    timeline = program([kernel(at, at + 9, correlation=1) for at in range(100, 500, 10)], [launch(1, 2, 1)], [])
    assert timeline.steps.steps == ()


def test_remedies_are_those_of_the_profiler_that_recorded() -> None:
    timeline = program([kernel(100, 110)], [], [operator(0, 10, "aten::mm")])
    remedies = [note.remedy or "" for note in quality_notes(timeline, timeline.window("steady"))]
    assert remedies
    assert not any("nsys" in remedy or "nvtx" in remedy for remedy in remedies)


def test_a_backward_pass_without_its_forward_pass_is_noted() -> None:
    timeline = program(
        [kernel(100, 110, correlation=1)],
        [launch(22, 23, 1, thread=AUTOGRAD_THREAD)],
        [operator(20, 25, f"{ENGINE}MmBackward0", sequence=3, forward_thread=1, thread=AUTOGRAD_THREAD)],
    )
    assert "unlinked-backward" in [note.code for note in quality_notes(timeline, timeline.window("all"))]
