"""Finding the repetitions of the workload, and leaving warm-up out; real recordings with their marks hidden."""

from __future__ import annotations

import pytest
from benchmarks.steps_scorecard import FOLDERS, REPOSITORY, RESULTS, Case, judged, misses, recordings, scorecard

from tests.analysis.builders import Row, call, graph, kernel, launch, memset, nvtx, trace
from tests.tiers import in_sample
from warplens.analysis.phases import step_statistics
from warplens.analysis.steps import StepSearch
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import phase_of_name, xla_program
from warplens.readers import read

US = 1_000


def _search(**tables: list[Row]) -> StepSearch:
    return Timeline(trace(**tables)).steps


def _program(pattern: str, *, gap: int = 50 * US, first: int = 0, **full_names: str) -> tuple[list[Row], list[Row]]:
    """Kernels of 10 µs named by the letters of the pattern, some with full names; a space is a pause."""
    kernels, calls, time = [], [], first
    for letter in pattern:
        if letter == " ":
            time += gap
            continue
        number = len(kernels) + 1
        calls.append(launch(time - 5 * US, time - 3 * US, number))
        kernels.append(kernel(time, time + 10 * US, letter, correlation=number, full_name=full_names.get(letter)))
        time += 11 * US
    return kernels, calls


def _around(kernels: list[Row], name: str, until: int = 30 * US) -> list[Row]:
    """A range from before each kernel's launch to this long after its begin; `{}` in the name is its number."""
    return [
        nvtx(row["start_ns"] - 6 * US, row["start_ns"] + until, name.format(number))
        for number, row in enumerate(kernels)
    ]


def test_ranges_called_step_are_the_steps():
    kernels, calls = _program("ab ab ab ab")
    ranges = _around(kernels[::2], "step")
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert (search.source, search.name, len(search.steps)) == ("range", "step", 4)
    assert (search.steps[0].start_ns, search.steps[0].end_ns) == (-6 * US, 30 * US)


def test_numbers_in_names_do_not_matter():
    kernels, calls = _program("ab ab ab")
    ranges = _around(kernels[::2], "ProfilerStep#{}")
    assert _search(kernels=kernels, api=calls, ranges=ranges).name == "ProfilerStep#N"


def test_steps_inside_a_warm_up_range_are_not_steps():
    kernels, calls = _program("ab ab ab ab")
    ranges = _around(kernels[::2], "step")
    warm = nvtx(-10 * US, kernels[2]["start_ns"] + 40 * US, "warm-up")
    search = _search(kernels=kernels, api=calls, ranges=[*ranges, warm])
    assert len(search.steps) == 2
    assert search.steps[0].start_ns == kernels[4]["start_ns"] - 6 * US


def test_of_two_threads_that_mark_steps_those_with_most_of_the_gpu_time_count():
    kernels, calls, ranges = [], [], []
    for number in range(6):
        thread, begin = 1 + number % 2, 1000 * US * number
        long = 100 * US if thread == 2 else 5 * US
        calls.append(launch(begin, begin + 3 * US, number + 1, thread=thread))
        kernels.append(kernel(begin + 5 * US, begin + 5 * US + long, "a", correlation=number + 1, stream=6 + thread))
        ranges.append(nvtx(begin - US, begin + 200 * US, "step", thread=thread))
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert [step.start_ns for step in search.steps] == [999 * US, 2999 * US, 4999 * US]


def test_a_part_of_the_step_is_not_the_step():
    # The attention ranges repeat, but hold only half of the launches.
    kernels, calls = _program("aabb aabb aabb")
    ranges = _around(kernels[::4], "attention", 17 * US)
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert search.source == "sequence"
    assert len(search.steps) == 3


def test_two_numbered_stages_of_a_program_are_no_repetition():
    kernels, calls = _program("abc de")
    ranges = [nvtx(-6 * US, 32 * US, "phase1"), nvtx(kernels[3]["start_ns"] - 6 * US, 300 * US, "phase2")]
    assert _search(kernels=kernels, api=calls, ranges=ranges).source == "none"


def test_where_the_host_runs_ahead_a_step_lasts_from_its_first_work_to_the_next_ones():
    calls = [launch(10 * i, 10 * i + 2, i + 1) for i in range(4)]
    kernels = [kernel(1000 * i + 500, 1000 * i + 1400, "a", correlation=i + 1) for i in range(4)]
    ranges = [nvtx(10 * i, 10 * i + 5, "train_step") for i in range(4)]
    steps = _search(kernels=kernels, api=calls, ranges=ranges).steps
    assert [(s.start_ns, s.end_ns) for s in steps] == [(500, 1500), (1500, 2500), (2500, 3500), (3500, 4400)]


def test_a_kernel_sequence_repeats_by_step_not_by_layer():
    kernels, calls = _program(" ".join(["e" + "xyz" * 6 + "h"] * 5))
    search = _search(kernels=kernels, api=calls)
    assert search.source == "sequence"
    assert len(search.steps) == 5
    assert search.steps[1].start_ns == kernels[20]["start_ns"]


def test_layers_that_repeat_inside_one_forward_pass_are_not_steps():
    kernels, calls = _program("e" + "xyz" * 8 + "h")
    ranges = [nvtx(-6 * US, kernels[-1]["end_ns"], "forward_pass")]
    assert _search(kernels=kernels, api=calls, ranges=ranges).source == "none"


def test_a_single_range_called_step_is_the_step_however_its_layers_repeat():
    kernels, calls = _program("e" + "xyz" * 8 + "h")
    ranges = [nvtx(-6 * US, kernels[-1]["end_ns"], "step")]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert (search.source, len(search.steps)) == ("range", 1)


def test_start_up_work_before_the_loop_is_outside_of_the_steps():
    kernels, calls = _program("ijklm " + " ".join(["abcd"] * 6))
    search = _search(kernels=kernels, api=calls)
    assert len(search.steps) == 6
    assert search.steps[0].start_ns == kernels[5]["start_ns"]


def test_repeated_graph_launches_are_steps():
    calls = [launch(1000 * i, 1000 * i + 5, i + 1, "cudaGraphLaunch") for i in range(5)]
    graphs = [graph(1000 * i + 10, 1000 * i + 900, correlation=i + 1) for i in range(5)]
    assert len(_search(api=calls, graph_launches=graphs).steps) == 5


def test_the_optimizer_ends_a_step_even_if_no_two_steps_launch_alike():
    # Experts are chosen anew in each step, so that nothing repeats: 21, 20, 22 and 21 launches.
    steps = [
        "abcde" * 3 + "xyxy" + "OO",
        "bcdea" * 3 + "xyy" + "OO",
        "acdbe" * 3 + "yxyxy" + "OO",
        "eabdc" * 3 + "yyxx" + "OO",
    ]
    kernels, calls = _program("".join(steps), O="multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>")
    search = _search(kernels=kernels, api=calls)
    assert (search.source, search.is_sure) == ("sequence", True)
    assert "from the passes of the optimizer" in search.how
    firsts = [sum(map(len, steps[:number])) for number in range(4)]
    assert [step.start_ns for step in search.steps] == [kernels[first]["start_ns"] for first in firsts]


def test_what_precedes_the_first_optimizer_pass_is_a_step_behind_a_start():
    kernels, calls = _program("ijklmnopq" + "abcdeO" * 4 + "abc", O="adamw_kernel")
    search = _search(kernels=kernels, api=calls)
    assert [step.start_ns for step in search.steps] == [kernels[9 + 6 * number]["start_ns"] for number in range(4)]
    # What runs behind the last pass is a step that the recording cuts off.
    assert search.steps[-1].end_ns == kernels[9 + 24 - 1]["end_ns"]


def test_layers_of_one_step_are_no_steps_where_an_optimizer_runs_beside_them():
    kernels, calls = _program("e" + "xyz" * 12 + "hO")
    kernels[-1]["full_name"] = "adamw_kernel"
    assert _search(kernels=kernels, api=calls).source == "none"


def test_a_data_loader_tells_the_steps_of_an_evaluation():
    # Batches of unequal shape: nothing repeats.
    steps = ["abcd", "badc", "cdab", "dcba"]
    kernels, calls = _program("".join(steps))
    asked = [kernels[4 * number]["start_ns"] - 6 * US for number in range(4)]
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    ranges = [nvtx(time, time + US, name, kind="user-annotation") for time in asked]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert [step.start_ns for step in search.steps] == [kernels[4 * number]["start_ns"] for number in range(4)]
    assert "from the requests to the data loader" in search.how


def test_compiled_regions_are_no_steps_though_they_hold_all_work():
    kernels, calls = _program(" ".join(["abcdef"] * 4))
    ranges = _around(kernels[::2], "## Call CompiledFxGraph f1 ##", 17 * US)
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert (search.source, len(search.steps)) == ("sequence", 4)


def test_tokens_of_a_text_are_not_surely_steps():
    layers = "abc" * 6
    kernels, calls = _program(" ".join(["e" + layers + "hm"] * 6))
    sure = _search(kernels=kernels, api=calls)
    for row in kernels:
        if row["name"] == "m":
            row["full_name"] = "reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps<float>>>"
    chosen = _search(kernels=kernels, api=calls)
    assert (len(sure.steps), sure.is_sure) == (len(chosen.steps), True)
    assert not chosen.is_sure
    assert "they may be parts of a step" in chosen.how


def test_what_happens_once_in_several_turns_makes_them_one_step():
    kernels, calls = _program("ab" * 12)
    waits = [
        call(kernels[i]["start_ns"], kernels[i]["start_ns"] + US, "cudaDeviceSynchronize") for i in range(7, 24, 8)
    ]
    search = _search(kernels=kernels, api=[*calls, *waits])
    assert [step.start_ns for step in search.steps] == [kernels[i]["start_ns"] for i in (0, 8, 16)]
    assert "4 turns in each" in search.how


def test_what_repeats_inside_of_a_step_and_beyond_it_is_listed_beside_it():
    kernels, calls = _program("ab" * 12)
    waits = [
        call(kernels[i]["start_ns"], kernels[i]["start_ns"] + US, "cudaDeviceSynchronize") for i in range(7, 24, 8)
    ]
    grouped = _search(kernels=kernels, api=[*calls, *waits]).rhythms
    assert [(each.count, each.launches, each.chosen) for each in grouped] == [(3, 8, True), (12, 2, False)]
    kernels, calls = _program(" ".join(["e" + "xyz" * 6 + "h"] * 5))
    layered = _search(kernels=kernels, api=calls).rhythms
    assert [(each.count, each.launches, each.confidence) for each in layered] == [(5, 20, "medium"), (30, 3, "low")]


def test_of_ranges_that_could_be_steps_all_are_listed_and_the_named_one_is_taken():
    kernels, calls = _program("ab ab ab ab")
    ranges = [
        nvtx(k["start_ns"] - depth * US, k["start_ns"] + 30 * US, name)
        for k in kernels[::2]
        for name, depth in (("step", 7), ("model", 6))
    ]
    found = _search(kernels=kernels, api=calls, ranges=ranges)
    assert [(each.what, each.confidence, each.chosen) for each in found.rhythms] == [
        ("ranges named 'step'", "high", True),
        ("ranges named 'model'", "medium", False),
    ]


def test_an_evaluation_ends_the_steady_steps_and_start_and_compilation_are_told_apart():
    step = "abcdeO"
    kernels, calls = _program("ijk" + "abc deO" + step * 7 + "vwxyz" * 6 + step * 3 + "ab", O="adamw_kernel")
    loading = call(kernels[4]["start_ns"], kernels[4]["start_ns"] + US, "cuModuleLoadData")
    search = _search(kernels=kernels, api=[*calls, loading])
    # The ninth step holds the evaluation: launches lie between its end and the last pass of the optimizer.
    assert (search.steady[-1].index, len(search.steps)) == (8, 11)
    assert "the longest stretch without interruption by evaluation or other work" in search.how
    told = [(each.what, each.launches) for each in search.left_out]
    assert told == [("start-up", 3), ("compilation", 6), ("interruption", 36), ("other steps", 12), ("rest", 2)]


def test_what_was_launched_before_the_recording_began_keeps_its_place():
    # The host is 400 µs ahead: of the first eight kernels no launch was recorded.
    step = "abcdeO"
    kernels, _ = _program("deO" + step * 5, O="adamw_kernel")
    calls = [launch(k["start_ns"] - 400 * US, k["start_ns"] - 398 * US, k["correlation"]) for k in kernels[8:]]
    search = _search(kernels=kernels, api=calls)
    assert [step.duration_ns for step in search.steps[:-1]] == [66 * US] * 4
    assert search.confidence == "high"


def test_two_passes_of_an_optimizer_are_no_sure_steps():
    kernels, calls = _program("abcdeO" + "bacdfO" + "ab", O="adamw_kernel")
    search = _search(kernels=kernels, api=calls)
    assert (len(search.steps), search.confidence) == (2, "low")


@pytest.mark.parametrize(("turns", "confidence"), [(6, "medium"), (16, "low")])
def test_many_turns_that_take_nothing_in_may_be_those_of_a_sampler(turns, confidence):
    kernels, calls = _program(" ".join(["e" + "xyz" * 6 + "h"] * turns))
    assert _search(kernels=kernels, api=calls).confidence == confidence


@pytest.mark.parametrize(("launch", "confidence"), [(20, "high"), (9, "low")], ids=["behind each", "inside of each"])
def test_waits_tell_steps_only_where_they_lie_between_the_turns(launch, confidence):
    kernels, calls = _program(" ".join(["e" + "xyz" * 6 + "h"] * 6))
    lasts = kernels[launch - 1 :: 20]
    waits = [call(row["start_ns"] + US, row["start_ns"] + 2 * US, "cudaStreamSynchronize") for row in lasts]
    assert _search(kernels=kernels, api=[*calls, *waits]).confidence == confidence


@pytest.mark.parametrize("beside", ["forward", "loss"])
def test_an_optimizer_of_many_launches_is_a_part_of_the_step_where_another_phase_lies_beside(beside):
    kernels, calls = _program(" ".join(["f" + "xyz" * 10] * 4))
    firsts = kernels[::31]
    ranges = [nvtx(row["start_ns"] - 6 * US, row["start_ns"], beside) for row in firsts]
    ranges += [nvtx(row["start_ns"] + US, row["start_ns"] + 350 * US, "optimizer") for row in firsts]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert len(search.steps) == 4
    assert (search.source, search.name) == (("sequence", None) if beside == "forward" else ("range", "optimizer"))


def test_of_two_turns_with_a_wait_each_the_first_is_the_step_whose_length_is_known():
    turn = "e" + "xyz" * 6 + "hb"
    kernels, calls = _program(turn + " " + turn, gap=500 * US)
    waits = [call(kernels[i]["end_ns"], kernels[i]["end_ns"] + US, "cudaDeviceSynchronize") for i in (20, 41)]
    search = _search(kernels=kernels, api=[*calls, *waits])
    assert (search.confidence, [step.index for step in search.steady]) == ("medium", [1])
    assert [each.what for each in search.left_out] == ["last step"]


@pytest.mark.parametrize(("pause", "kept"), [(500 * US, 3), (US // 2, 4)])
def test_a_last_step_counts_where_the_pause_that_it_lacks_does_not_matter(pause, kept):
    kernels, calls = _program(" ".join(["abcdefghij"] * 4), gap=pause)
    search = _search(kernels=kernels, api=calls)
    assert (len(search.steps), len(search.steady)) == (4, kept)
    assert ("the last left out, because the pause after it was not recorded" in search.how) == (kept == 3)


def test_two_turns_are_a_repetition_only_if_nothing_else_was_recorded():
    turn = "e" + "xyz" * 6 + "hb"
    kernels, calls = _program(turn + " " + turn)
    assert (len(_search(kernels=kernels, api=calls).steps), _search(kernels=kernels, api=calls).is_sure) == (2, False)
    for row in kernels:
        if row["name"] == "b":
            row["full_name"] = "layer_norm_backward_kernel"
    assert _search(kernels=kernels, api=calls).is_sure, "who trains has passed through forward and backward pass twice"
    kernels, calls = _program(turn + "pqrstuvw" + turn)
    assert _search(kernels=kernels, api=calls).source == "none"


def _marked(steps: list[str], **full_names: str) -> StepSearch:
    """A search in a program of these steps, each inside a range, with kernels of the letters.

    `-` is a fill, `*` a CUDA graph traced as a whole.
    """
    kernels, calls, fills, graphs, ranges, time = [], [], [], [], [], 0
    for step in steps:
        begin = time
        for letter in step:
            number = len(calls) + 1
            calls.append(launch(time, time + 2 * US, number))
            at = {"start": time + 5 * US, "end": time + 15 * US, "correlation": number}
            if letter == "-":
                fills.append(memset(**at))
            elif letter == "*":
                graphs.append(graph(**at))
            else:
                kernels.append(kernel(**at, name=letter, full_name=full_names.get(letter)))
            time += 16 * US
        ranges.append(nvtx(begin - US, time, "step"))
        updates = [index for index, letter in enumerate(step) if letter == "u"]
        if updates:
            inside = begin + 16 * US * updates[0]
            ranges.append(nvtx(inside - US // 2, inside + 16 * US * len(updates) - US, "Optimizer.step#AdamW.step"))
        time += 2 * US
    return _search(kernels=kernels, api=calls, memsets=fills, graph_launches=graphs, ranges=ranges)


_MICRO = "abcabc"


def test_a_step_that_also_updates_the_weights_is_no_interruption_and_the_window_holds_whole_cycles():
    cycle = [_MICRO] * 3 + [_MICRO + "u" * 30]
    search = _marked(cycle * 4)
    assert ([step.index for step in search.steady], search.cycle) == ([*range(1, 17)], 4)
    assert "every 4th updates the weights" in search.how
    assert "interruption" not in search.how
    # Begun and cut inside of a cycle.
    search = _marked([*cycle[2:], *cycle * 3, *cycle[:1]])
    assert [step.index for step in search.steady] == [*range(3, 15)]
    assert "only whole cycles count" in search.how
    assert [(each.what, each.launches) for each in search.left_out] == [
        ("part of a cycle", 42),
        ("part of a cycle", 6),
    ]


def test_an_optimizer_is_known_by_its_kernels_as_well_and_makes_cycles_however_short_it_is():
    search = _marked(
        [_MICRO, _MICRO + "O"] * 4 + [_MICRO], O="multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
    )
    assert ([step.index for step in search.steady], search.cycle) == ([*range(1, 9)], 2)


def test_an_update_that_every_step_runs_makes_no_cycle():
    assert _marked([_MICRO + "uuu"] * 6).cycle == 1
    # Two steps were skipped, because their gradients overflowed.
    search = _marked([_MICRO] * 2 + [_MICRO + "uuu"] * 8)
    assert (search.cycle, len(search.steady)) == (1, 8)


def test_a_step_without_an_update_behind_one_with_it_may_have_failed():
    assert "updates the weights" not in _marked([_MICRO + "u" * 9, _MICRO]).how
    assert "updates the weights" not in _marked([_MICRO + "u" * 9, _MICRO, _MICRO]).how
    search = _marked([_MICRO, _MICRO, _MICRO + "u" * 9])
    assert ("not every one updates the weights" in search.how, len(search.steady)) == (True, 3)


def test_steps_that_are_longer_in_a_regular_pattern_are_a_part_of_the_program():
    cycle = [_MICRO] * 2 + [_MICRO + "eeeeeeeee"]
    search = _marked(cycle * 3)
    assert ([step.index for step in search.steady], search.cycle) == ([*range(1, 10)], 3)
    assert "every 3rd does more than the others" in search.how


@pytest.mark.parametrize(("extra", "cycle"), [("e", 4), ("g", 1)], ids=["elementwise", "products"])
def test_two_longer_steps_are_a_cycle_only_if_what_they_do_in_addition_is_no_forward_pass(extra, cycle):
    steps = ["g" + _MICRO] * 3 + ["g" + _MICRO + extra * 20]
    assert _marked(steps * 2, g="ampere_sgemm_128x64_nn").cycle == cycle


def test_steps_that_launch_what_others_replay_from_graphs_are_no_interruption():
    # The tokens of three prompts, of which each has a prefill at an irregular place.
    tokens, prefill = ["-*"], "-" + _MICRO * 5
    search = _marked([*tokens * 9, prefill, *tokens * 4, prefill, *tokens * 7, prefill, *tokens * 2])
    assert len(search.steady) == len(search.steps) == 25
    assert "some do more than the others" in search.how
    # An evaluation lies in a step that replays the graph, too.
    search = _marked([*tokens * 9, "-*" + _MICRO * 5, *tokens * 4])
    assert [step.index for step in search.steady] == [*range(1, 10)]


def test_a_cycle_that_starts_cold_is_warm_up_compared_with_steps_of_its_kind():
    cycle = [_MICRO, _MICRO + "u" * 30]
    assert len(_marked(cycle * 5).steady) == 10
    search = _marked([_MICRO + "cc", *cycle[1:], *cycle * 4])
    assert [step.index for step in search.steady] == [*range(3, 11)]


def test_an_evaluation_inside_a_step_interrupts_cycles_too():
    cycle = [_MICRO] * 3 + [_MICRO + "u" * 6]
    steps = [*cycle * 3, _MICRO + "v" * 90, *cycle[1:]]
    search = _marked(steps)
    assert [step.index for step in search.steady] == [*range(1, 13)]
    assert "the longest stretch without interruption by evaluation or other work" in search.how


def test_only_what_lies_between_the_steps_interrupts_them_and_is_named_with_its_share():
    kernels, calls = _program(("abcd " * 3 + "vw" * 6 + " ") * 2 + "abcd " * 4)
    ranges, place = [], 0
    for name, launches in [*([("step", 4)] * 3 + [("evaluate", 12)]) * 2, *[("step", 4)] * 4]:
        first, last = kernels[place], kernels[place + launches - 1]
        ranges.append(nvtx(first["start_ns"] - 6 * US, last["end_ns"] + US, name))
        place += launches
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert [step.index for step in search.steady] == [7, 8, 9, 10]
    between = [("other steps", 12), ("interruption", 12)]
    assert [(each.what, each.launches) for each in search.left_out] == between * 2
    told = search.interruptions
    assert told is not None
    assert (told.count, told.names) == (2, ("evaluate",))
    assert told.time_ns == sum(each.end_ns - each.start_ns for each in search.left_out[1::2])
    assert told.share == pytest.approx(told.time_ns / (search.steps[-1].end_ns - search.steps[0].start_ns))
    assert told.told.startswith("2 interruptions of the steps (evaluate) are not counted: ")
    assert _marked(["abcd"] * 10).interruptions is None


@pytest.mark.parametrize(("inner", "names"), [("evaluate", ("evaluate",)), (None, ("steps with far more work",))])
def test_interruptions_inside_steps_are_named_after_what_is_only_there(inner, names):
    numbers = [4, 4, 4, 12, 4, 4, 12, 4, 4, 4, 4, 4, 12, 4, 4]
    kernels, calls = _program("".join("abcd" + "v" * (number - 4) for number in numbers))
    ranges, place = [], 0
    for number in numbers:
        begin, end = kernels[place]["start_ns"] - 6 * US, kernels[place + number - 1]["start_ns"] + 4 * US
        ranges += [nvtx(begin, end, "step"), nvtx(begin + 1, kernels[place + 3]["start_ns"] - 6 * US, "forward")]
        if inner is not None and number > 4:
            ranges.append(nvtx(kernels[place + 4]["start_ns"] - 6 * US, end - 1, inner))
        place += number
    told = _search(kernels=kernels, api=calls, ranges=ranges).interruptions
    assert told is not None
    assert (told.count, told.names) == (3, names)


def _paused(pauses: dict[float, int], steps: int = 8) -> StepSearch:
    """Steps of 48 µs, with these pauses in µs inside of steps; one number and a half is between it and the next."""
    kernels, calls, ranges, time = [], [], [], 0
    for step in range(1, steps + 1):
        begin = time
        for letter in "abc":
            number = len(calls) + 1
            time += pauses.get(step, 0) * US if letter == "b" else 0
            calls.append(launch(time, time + 2 * US, number))
            kernels.append(kernel(time + 5 * US, time + 15 * US, letter, correlation=number))
            time += 16 * US
        ranges.append(nvtx(begin, time, "step"))
        time += 2 * US + pauses.get(step + 0.5, 0) * US
    return _search(kernels=kernels, api=calls, ranges=ranges)


def test_a_pause_that_happens_once_is_no_property_of_a_step():
    search = _paused({4: 9_000})
    assert [step.index for step in search.steady] == [5, 6, 7, 8]
    assert "the longest stretch without interruption by a pause of 9.0 ms in step 4" in search.how
    (pause,) = search.pauses
    assert (pause.step, pause.inside, pause.idle_ns, pause.others) == (4, True, 9_000 * US, 7)
    # Of the time from one step to the next, 50 µs, the GPU works for 30.
    assert pause.busy_share == pytest.approx(0.6, rel=0.01)
    assert [(each.what, each.launches) for each in search.left_out] == [("other steps", 9), ("interruption", 3)]


def test_a_pause_between_two_steps_leaves_both_of_them():
    search = _paused({5.5: 2_000_000})
    assert [step.index for step in search.steady] == [1, 2, 3, 4, 5]
    assert "by a pause of 2.0 s between steps 5 and 6" in search.how
    assert search.pauses[0].others == 8


def test_what_is_left_of_the_steps_is_searched_for_another_pause():
    search = _paused({3: 9_000_000, 9: 500}, steps=12)
    assert [pause.step for pause in search.pauses] == [3, 9]
    assert [step.index for step in search.steady] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("pauses", "steps"),
    [
        (dict.fromkeys(range(4, 25, 8), 900), 24),
        ({3: 900, 9: 800}, 16),
        ({3: 900}, 5),
        ({4: 20}, 8),
        ({4: 50}, 60),
    ],
    ids=["every eighth", "two alike", "few steps", "less than half a step", "less than two percent"],
)
def test_pauses_that_recur_or_cost_little_are_parts_of_the_steps(pauses, steps):
    search = _paused(pauses, steps)
    assert (len(search.steady), search.pauses) == (steps, ())


def test_steps_whose_kernels_were_lost_are_not_the_steady_window():
    whole, partial, lost = "-abcdefghi", "-abcd", "-"
    search = _marked([whole] * 5 + [partial] + [lost] * 6)
    assert [step.index for step in search.steady] == [1, 2, 3, 4, 5]
    assert [step.index for step in search.unrecorded] == [6, 7, 8, 9, 10, 11, 12]
    assert search.how.endswith("steps 6–12 left out, because their kernels were not recorded")
    assert [(each.what, each.launches) for each in search.left_out] == [("not recorded", 11)]
    search = _marked([lost] * 5 + [whole] * 5)
    assert [step.index for step in search.steady] == [6, 7, 8, 9, 10]


def test_steps_that_only_copy_in_turn_with_others_are_steps():
    search = _marked(["-", "abc"] * 5)
    assert (len(search.steady), search.unrecorded) == (10, ())


def test_a_slow_first_step_is_warm_up():
    calls = [launch(1000 * i, 1000 * i + 2, i + 1) for i in range(5)]
    lengths = [900, 300, 310, 290, 300]
    kernels = [kernel(1000 * i + 10, 1000 * i + 10 + lengths[i], "a", correlation=i + 1) for i in range(5)]
    ranges = [nvtx(1000 * i, 1000 * i + 20 + lengths[i], "step") for i in range(5)]
    search = _search(kernels=kernels, api=calls, ranges=ranges)
    assert [step.index for step in search.steady] == [2, 3, 4, 5]
    assert "the first left out as warm-up" in search.how


@pytest.mark.parametrize(
    ("beside", "kept"),
    [
        ([], [1, 2]),
        ([call(5, 9, "cudaMalloc")], [2]),
        ([call(5, 9, "cuModuleLoadData")], [2]),
        ([launch(5, 9, 3)], [2]),
    ],
    ids=["slower-alone", "memory", "code", "more-work"],
)
def test_the_slower_of_two_steps_is_warm_up_only_if_it_does_what_a_warm_up_does(beside, kept):
    calls = [launch(0, 2, 1), launch(1000, 1002, 2), *beside]
    kernels = [kernel(10, 910, "a", correlation=1), kernel(1010, 1310, "a", correlation=2)]
    kernels += [kernel(920, 930, "b", correlation=3)] if any(row["correlation"] == 3 for row in beside) else []
    ranges = [nvtx(0, 940, "step"), nvtx(1000, 1320, "step")]
    assert [step.index for step in _search(kernels=kernels, api=calls, ranges=ranges).steady] == kept


@pytest.mark.parametrize(
    ("name", "kept"), [("eleventh/masks_made_by_numpy__before.sqlite.xz", 2), ("fifth/blocks_are_timed__before.pt.", 1)]
)
def test_the_first_of_two_steps_pays_for_a_profiler_inside_of_the_program(name, kept):
    """NumPy makes masks in each step, not in the first alone; PyTorch's profiler starts in the first."""
    (path,) = (REPOSITORY / "data" / "pairs").glob(f"{name}*")
    search = Timeline(read(path)).steps
    assert (len(search.steps), len(search.steady)) == (2, kept)


def test_steps_that_all_differ_are_all_kept():
    calls = [launch(1000 * i, 1000 * i + 2, i + 1) for i in range(4)]
    kernels = [kernel(1000 * i + 10, 1000 * i + 100 + 150 * i, "a", correlation=i + 1) for i in range(4)]
    ranges = [nvtx(1000 * i, 1000 * i + 800, "iteration") for i in range(4)]
    assert len(_search(kernels=kernels, api=calls, ranges=ranges).steady) == 4


def test_without_any_repetition_the_window_reaches_over_all_gpu_work_and_says_so():
    timeline = Timeline(trace([kernel(10, 20, "a"), kernel(30, 44, "b")], window_ns=(0, 100)))
    window = timeline.window()
    assert (window.kind, window.start_ns, window.end_ns, window.steps) == ("device", 10, 44, ())
    assert "no repeating steps in ranges or kernel sequence" in window.how


def test_step_statistics_count_wall_and_busy_time_of_each_step():
    calls = [launch(100 * i, 100 * i + 2, i + 1) for i in range(3)]
    kernels = [kernel(100 * i + 10, 100 * i + 40 + i, "a", correlation=i + 1) for i in range(3)]
    ranges = [nvtx(100 * i, 100 * i + 60, "step") for i in range(3)]
    timeline = Timeline(trace(kernels, calls, ranges))
    table = step_statistics(timeline, timeline.window())
    assert table["wall_ns"].to_list() == [60, 60, 60]
    assert table["busy_ns"].to_list() == [30, 31, 32]
    assert table["gap_ns"].to_list() == [40, 40, None]
    assert table["kernels"].to_list() == [1, 1, 1]


#: Training, inference, CUDA graphs, experts chosen anew, a loop over tokens, layers of a single step, a denoiser.
_SAMPLE = {
    "data/captures/lm_medium_ctx128_train.sqlite.xz": "right",
    "data/planted/vit_bs1__cuda-graph.json.xz": "right",
    "data/planted/healthy_input_pipeline__baseline.sqlite.xz": "right",
    "data/pairs/development/qwen_expert_loop__before.sqlite.xz": "right",
    "data/pairs/development/healthy_vit_inference__before.pt.trace.json.gz": "right",
    "data/pairs/development/bert_empty_cache__before.pt.trace.json.gz": "right",
    "data/planted/synchronize_per_layer__baseline.sqlite.xz": "unsure",
    "benchmarks/diagnosis/held_out/tolist_per_token__baseline.json.xz": "unsure",
}


@pytest.mark.parametrize("path", _SAMPLE)
def test_steps_are_those_that_were_marked(path):
    case = judged(REPOSITORY / path)
    assert case.answer == _SAMPLE[path], case.line()


@pytest.mark.slow
def test_recordings_whose_steps_are_not_found_are_the_stored_ones():
    cases = [case for path in recordings() if in_sample(path.name) and (case := judged(path)) is not None]
    assert len(cases) > 250, f"recordings in {', '.join(FOLDERS)}"
    stored = {row.split("`")[1] for row in RESULTS.read_text("utf-8").splitlines() if row.startswith("| `")}
    assert {case.path.name for case in cases if case.answer == "wrong"} == {name for name in stored if in_sample(name)}


@pytest.mark.slow
@pytest.mark.every
def test_the_scorecard_is_the_stored_one_and_what_is_called_a_step_is_one():
    cases: list[Case] = [case for path in recordings() if (case := judged(path)) is not None]
    assert len(cases) > 250, f"recordings in {', '.join(FOLDERS)}"
    sure = [case for case in cases if case.answer != "unsure"]
    assert sum(case.answer == "right" for case in sure) >= 0.95 * len(sure)
    assert RESULTS.read_text("utf-8") == f"{scorecard(cases)}\n{misses(cases)}"


def _xla(programs: str, *, gap: int = 40 * US) -> StepSearch:
    """Runs of the programs S (100 µs on the GPU), m (5 µs), c and d (20 µs), each in ranges of XLA."""
    lengths = {"S": 100 * US, "m": 5 * US, "c": 20 * US, "d": 20 * US}
    ids = {"S": 77, "m": 78, "c": 5, "d": 6}
    kernels, calls, ranges, time = [], [], [], 0
    for program in programs:
        number = len(kernels) + 1
        calls.append(launch(time, time + 2 * US, number))
        kernels.append(kernel(time + 5 * US, time + 5 * US + lengths[program], program, correlation=number))
        ranges.append(nvtx(time - US, time + 3 * US, f"XlaModule:#hlo_module=jit_{program},program_id={ids[program]}#"))
        ranges.append(
            nvtx(time - US // 2, time + 2 * US + 500, f"Thunk:#name=jit({program})/dot,hlo_op=fusion.{number}#")
        )
        time += lengths[program] + gap
    ranges.append(nvtx(-90 * US, -2 * US, "XlaPass:#name=optimizer-step,module=fusion,program_id=7#"))
    return _search(kernels=kernels, api=calls, ranges=ranges)


def test_runs_of_the_program_that_xla_compiled_for_the_step_are_the_steps():
    search = _xla("cSmmSmmSmmSmmSmm")
    assert (search.source, len(search.steps)) == ("sequence", 5)
    assert "XLA compiled as jit_S" in search.how
    first, second = search.steps[0], search.steps[1]
    # From the first work of one run to that of the next, with what runs in between.
    assert second.start_ns == first.end_ns
    assert first.end_ns - first.start_ns == (140 + 45 + 45) * US
    assert [each.launches for each in search.rhythms] == [3]


def test_operations_that_xla_compiled_one_by_one_are_no_steps():
    assert "XLA compiled" not in _xla("ScccccdddddScccccdddddSccccc").how


def test_what_xla_does_to_compile_is_no_phase_of_a_step():
    assert phase_of_name("XlaPass:#name=optimizer-step,module=fusion#") == "none"
    assert phase_of_name("optimizer step") == "optimizer"
    assert xla_program("XlaModule:#prefix=args[0],hlo_module=jit_stage,program_id=12603#") == "jit_stage"
    assert xla_program("XlaModule:#hlo_module=gemm_fusion_dot.108#") is None  # a candidate that is tried out


@pytest.mark.parametrize("name", ["cub::DeviceRadixSort", "thrust::sort", "cublasSgemm_v2", "ncclAllReduce"])
def test_calls_of_libraries_that_mark_themselves_are_no_steps(name):
    kernels, calls = _program("ab ab ab ab")
    marked = _around(kernels[::2], name)
    assert _search(kernels=kernels, api=calls, ranges=marked).name is None
    assert _search(kernels=kernels, api=calls, ranges=_around(kernels[::2], "sort")).name == "sort"
