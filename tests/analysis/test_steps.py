"""Finding the repetitions of the workload, and leaving warm-up out."""

from __future__ import annotations

from tests.analysis.builders import Row, graph, kernel, launch, nvtx, trace
from warplens.analysis.phases import step_statistics
from warplens.analysis.steps import StepSearch
from warplens.analysis.timeline import Timeline

US = 1_000


def _search(**tables: list[Row]) -> StepSearch:
    return Timeline(trace(**tables)).steps


def _program(pattern: str, *, gap: int = 50 * US, first: int = 0) -> tuple[list[Row], list[Row]]:
    """Kernels of 10 µs named by the letters of the pattern; a space is a pause."""
    kernels, calls, time = [], [], first
    for letter in pattern:
        if letter == " ":
            time += gap
            continue
        number = len(kernels) + 1
        calls.append(launch(time - 5 * US, time - 3 * US, number))
        kernels.append(kernel(time, time + 10 * US, letter, correlation=number))
        time += 11 * US
    return kernels, calls


def test_ranges_called_step_are_the_steps() -> None:
    kernels, calls = _program("ab ab ab ab")
    ranges = [nvtx(k["start_ns"] - 6 * US, k["start_ns"] + 30 * US, "step") for k in kernels[::2]]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert (search.source, search.name, len(search.steps)) == ("range", "step", 4)
    assert (search.steps[0].start_ns, search.steps[0].end_ns) == (-6 * US, 30 * US)


def test_numbers_in_names_do_not_matter() -> None:
    kernels, calls = _program("ab ab ab")
    ranges = [
        nvtx(k["start_ns"] - 6 * US, k["start_ns"] + 30 * US, f"ProfilerStep#{i}") for i, k in enumerate(kernels[::2])
    ]
    assert _search(kernels=kernels, api=calls, ranges=ranges).name == "ProfilerStep#N"


def test_steps_inside_a_warm_up_range_are_not_steps() -> None:
    kernels, calls = _program("ab ab ab ab")
    ranges = [nvtx(k["start_ns"] - 6 * US, k["start_ns"] + 30 * US, "step") for k in kernels[::2]]
    warm = nvtx(-10 * US, kernels[2]["start_ns"] + 40 * US, "warm-up")
    search = _search(kernels=kernels, api=calls, ranges=[*ranges, warm])
    assert len(search.steps) == 2
    assert search.steps[0].start_ns == kernels[4]["start_ns"] - 6 * US


def test_a_part_of_the_step_is_not_the_step() -> None:
    # The attention ranges repeat, but hold only half of the launches.
    kernels, calls = _program("aabb aabb aabb")
    ranges = [nvtx(k["start_ns"] - 6 * US, k["start_ns"] + 17 * US, "attention") for k in kernels[::4]]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert search.source == "sequence"
    assert len(search.steps) == 3


def test_two_numbered_stages_of_a_program_are_no_repetition() -> None:
    kernels, calls = _program("abc de")
    ranges = [nvtx(-6 * US, 32 * US, "phase1"), nvtx(kernels[3]["start_ns"] - 6 * US, 300 * US, "phase2")]
    assert _search(kernels=kernels, api=calls, ranges=ranges).source == "none"


def test_where_the_host_runs_ahead_a_step_lasts_from_its_first_work_to_the_next_ones() -> None:
    calls = [launch(10 * i, 10 * i + 2, i + 1) for i in range(4)]
    kernels = [kernel(1000 * i + 500, 1000 * i + 1400, "a", correlation=i + 1) for i in range(4)]
    ranges = [nvtx(10 * i, 10 * i + 5, "train_step") for i in range(4)]
    steps = _search(kernels=kernels, api=calls, ranges=ranges).steps
    assert [(s.start_ns, s.end_ns) for s in steps] == [(500, 1500), (1500, 2500), (2500, 3500), (3500, 4400)]


def test_a_kernel_sequence_repeats_by_step_not_by_layer() -> None:
    kernels, calls = _program(" ".join(["e" + "xyz" * 6 + "h"] * 5))
    search = _search(kernels=kernels, api=calls)
    assert search.source == "sequence"
    assert len(search.steps) == 5
    assert search.steps[1].start_ns == kernels[20]["start_ns"]


def test_layers_that_repeat_inside_one_forward_pass_are_not_steps() -> None:
    kernels, calls = _program("e" + "xyz" * 8 + "h")
    ranges = [nvtx(-6 * US, kernels[-1]["end_ns"], "forward_pass")]
    assert _search(kernels=kernels, api=calls, ranges=ranges).source == "none"


def test_a_single_range_called_step_is_the_step_however_its_layers_repeat() -> None:
    kernels, calls = _program("e" + "xyz" * 8 + "h")
    ranges = [nvtx(-6 * US, kernels[-1]["end_ns"], "step")]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert (search.source, len(search.steps)) == ("range", 1)


def test_start_up_work_before_the_loop_is_outside_of_the_steps() -> None:
    kernels, calls = _program("ijklm " + " ".join(["abcd"] * 6))
    search = _search(kernels=kernels, api=calls)
    assert len(search.steps) == 6
    assert search.steps[0].start_ns == kernels[5]["start_ns"]


def test_repeated_graph_launches_are_steps() -> None:
    calls = [launch(1000 * i, 1000 * i + 5, i + 1, "cudaGraphLaunch") for i in range(5)]
    graphs = [graph(1000 * i + 10, 1000 * i + 900, correlation=i + 1) for i in range(5)]
    assert len(_search(api=calls, graph_launches=graphs).steps) == 5


def test_a_slow_first_step_is_warm_up() -> None:
    calls = [launch(1000 * i, 1000 * i + 2, i + 1) for i in range(5)]
    lengths = [900, 300, 310, 290, 300]
    kernels = [kernel(1000 * i + 10, 1000 * i + 10 + lengths[i], "a", correlation=i + 1) for i in range(5)]
    ranges = [nvtx(1000 * i, 1000 * i + 20 + lengths[i], "step") for i in range(5)]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert [step.index for step in search.steady] == [2, 3, 4, 5]
    assert "the first left out as warm-up" in search.how


def test_steps_that_all_differ_are_all_kept() -> None:
    calls = [launch(1000 * i, 1000 * i + 2, i + 1) for i in range(4)]
    kernels = [kernel(1000 * i + 10, 1000 * i + 100 + 150 * i, "a", correlation=i + 1) for i in range(4)]
    ranges = [nvtx(1000 * i, 1000 * i + 800, "iteration") for i in range(4)]
    assert len(_search(kernels=kernels, api=calls, ranges=ranges).steady) == 4


def test_without_any_repetition_the_window_reaches_over_all_gpu_work_and_says_so() -> None:
    timeline = Timeline(trace([kernel(10, 20, "a"), kernel(30, 44, "b")], window_ns=(0, 100)))
    window = timeline.window()
    assert (window.kind, window.start_ns, window.end_ns, window.steps) == ("device", 10, 44, ())
    assert "neither ranges nor the kernel sequence" in window.how


def test_step_statistics_count_wall_and_busy_time_of_each_step() -> None:
    calls = [launch(100 * i, 100 * i + 2, i + 1) for i in range(3)]
    kernels = [kernel(100 * i + 10, 100 * i + 40 + i, "a", correlation=i + 1) for i in range(3)]
    ranges = [nvtx(100 * i, 100 * i + 60, "step") for i in range(3)]
    timeline = Timeline(trace(kernels, calls, ranges))
    table = step_statistics(timeline, timeline.window())
    assert table["wall_ns"].to_list() == [60, 60, 60]
    assert table["busy_ns"].to_list() == [30, 31, 32]
    assert table["gap_ns"].to_list() == [40, 40, None]
    assert table["kernels"].to_list() == [1, 1, 1]
