"""What a comparison says: sentences, tables and the page, from real captures and from results made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests import shipped
from tests.compare.difference.programs import Launch, program
from tests.compare.difference.programs import side as costed_side
from tests.diagnosis import programs
from tests.diagnosis.machine import ADD, US, Machine
from tests.diagnosis.programs import record
from tests.report.conftest import Visit
from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.compare.decisions import Comparison, Interval, compare, regression
from warplens.compare.difference import Contribution
from warplens.compare.shift import Samples
from warplens.compare.side import Side
from warplens.profile import Note, NoteLevel
from warplens.readers import read
from warplens.report.charts.bars import waterfall_chart
from warplens.report.comparison.document import step_document
from warplens.report.comparison.numbers import StepNumbers, TraceFiles, compare_steps, step_data
from warplens.report.comparison.steps import kernel_table, part_table, waterfall_rows
from warplens.report.comparison.words import (
    cause_sentence,
    change_text,
    confidence_text,
    forbids_gate,
    gate_doubts,
    gate_line,
    interval_text,
    needed_sentence,
    needed_text,
    signed_share,
    step_answer,
    verdict_text,
)
from warplens.report.html import render_html
from warplens.report.markdown import render_markdown

CAPTURES = Path(str(files("warplens") / "data" / "captures"))
RECORDED = Path(__file__).resolve().parents[2] / "data"


def side(name: str, folder: Path = CAPTURES) -> TraceFiles:
    timeline = Timeline(read(shipped.capture(name) if folder == CAPTURES else folder / f"{name}.sqlite.xz"))
    window = timeline.window()
    return TraceFiles.of(name, [Side(name, timeline, window)], [quality_notes(timeline, window)])


@pytest.fixture(scope="module")
def baseline():
    return side("deit224_bs1_baseline")


@pytest.fixture(scope="module")
def paradox(baseline):
    return compare_steps(baseline, side("deit224_bs1_topk0.1"), margin=0.02, level=0.05, fail_on=0.05)


@pytest.fixture(scope="module")
def graph(baseline):
    return compare_steps(baseline, side("deit224_bs1_graph_nodes"), margin=0.02, level=0.05)


def noisy(mean: float, share: float, seed: int, blocks: int = 12) -> Samples:
    random = np.random.default_rng(seed)
    return Samples.of(random.normal(mean, share * mean, (blocks, 5)))


@pytest.mark.parametrize(
    "code",
    [
        *("different-gpu", "different-programs", "different-tool", "same-file", "other-steps", "range-in-some-steps"),
        "unlike-repeats",
    ],
)
def test_a_gate_has_nothing_to_go_by_where_more_than_the_program_changed(paradox, code):
    assert forbids_gate(paradox) is None
    assert forbids_gate(replace(paradox, notes=(Note(code, NoteLevel.WARNING, "They differ"),))) is not None


def test_a_result_in_python_tells_that_its_gate_is_refused(baseline):
    """A recording against itself would pass any gate."""
    numbers = compare_steps(baseline, baseline, margin=0.02, level=0.05, fail_on=0.05)
    assert numbers.gate_refusal is not None
    assert numbers.gate_refusal.code == "same-recording"
    gate = step_data(numbers)["gate"]
    assert (gate["found"], gate["excluded"], gate["refused"]) == (False, False, "same-recording")
    assert "the gate has nothing to go by" in render_markdown(step_document(numbers))


def test_a_gate_goes_by_another_profiler_only_where_the_gpu_work_is_slower_as_well(paradox):
    notes = (Note("different-tool", NoteLevel.WARNING, "The profilers differ"),)
    calm = noisy(1e6, 0.005, 1)
    slower, same = compare(calm, noisy(1.2e6, 0.005, 2)), compare(calm, noisy(1e6, 0.005, 3))
    for step, work, stands in ((slower, slower, True), (slower, same, False), (same, slower, False)):
        numbers = replace(paradox, notes=notes, comparison=step, regression=regression(step, 0.05), gpu_work=work)
        assert (forbids_gate(numbers) is None) == stands
        assert gate_doubts(numbers) == ["caution: The profilers differ"]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.171, "17.1 % slower"), (0.46, "54.0 % less time"), (3.1, "3.10 times as long"), (1.0, "0.0 % slower")],
)
def test_a_ratio_reads_as_the_change_that_it_is(ratio, text):
    assert change_text(ratio) == text


def test_signs_stand_before_changes_and_not_before_none():
    assert [signed_share(change) for change in (0.171, -0.54, 0.0)] == ["+17.1 %", "−54.0 %", "0.0 %"]


def test_each_verdict_has_its_sentence():
    calm = noisy(1e6, 0.005, 1)
    slower, faster = compare(calm, noisy(1.2e6, 0.005, 2)), compare(calm, noisy(0.5e6, 0.005, 3))
    same, undecided = compare(calm, noisy(1e6, 0.005, 4)), compare(noisy(1e6, 0.2, 5), noisy(1.01e6, 0.2, 6))
    assert verdict_text(slower, "it").startswith("it is 2")
    assert "slower (95 %: +" in verdict_text(slower, "it")
    assert verdict_text(faster, "it").startswith("it is 2")
    assert "times as fast: 5" in verdict_text(faster, "it")
    assert verdict_text(same, "it").startswith("it takes the same time within 2.0 %: ")
    assert verdict_text(undecided, "it").startswith("Whether it is faster or slower is undecided: ")
    assert needed_text(slower) is None
    assert "of each side would decide it" in str(needed_text(undecided))


def test_a_single_duration_has_no_interval_and_says_so():
    found = compare(Samples.of([[1e6]]), Samples.of([[2e6]]))
    assert interval_text(found.ratio) == "no interval: a side has a single duration"
    assert str(needed_text(found)).startswith("The variation of the times is unknown")
    assert str(needed_text(found)).endswith(", of each side.")


def test_the_side_of_a_single_duration_is_named():
    found = compare(Samples.of([[1e6, 1.01e6, 0.99e6]]), Samples.of([[1e6]]))
    assert any(doubt.startswith("The variant has a single duration") for doubt in found.doubts)
    assert str(needed_text(found)).endswith(", of the variant.")


def test_the_gate_has_three_ends():
    calm = noisy(1e6, 0.005, 1)
    slower, noise = compare(calm, noisy(1.2e6, 0.005, 2)), compare(noisy(1e6, 0.2, 5), noisy(1.01e6, 0.2, 6))
    assert gate_line(regression(slower, 0.05), slower).startswith("gate failed: slower by more than 5.0 %")
    assert gate_line(regression(slower, 0.5), slower).startswith("gate passed: not slower by more than 50.0 %")
    assert gate_line(regression(noise, 0.05), noise).startswith("gate undecided (not a failure)")


def test_the_gate_does_not_certify_a_loss_of_throughput_by_a_few_long_steps():
    """Every fifth step takes three times as long: the typical one is the same, and the mean is not."""
    random = np.random.default_rng(1)
    steps, others = 4e6 * np.exp(random.normal(0, 0.005, (2, 20)))
    others[::5] *= 3
    found = compare(Samples.of([steps]), Samples.of([others]))
    gate = regression(found, 0.05)
    assert (found.verdict, gate.found, gate.excluded, gate.needed_blocks) == ("same", False, False, None)
    line = gate_line(gate, found)
    assert line.startswith("gate undecided (not a failure): the typical time is not slower by more than 5.0 % (95 %: ")
    assert line.endswith("but the mean changes by +40.0 %: a few steps take far longer")
    assert regression(found, 0.5).excluded
    assert regression(compare(Samples.of([others]), Samples.of([steps])), 0.05).excluded


def test_a_difference_within_the_noise_says_why_it_is_undecided():
    within = replace(noisy_comparison(), ratio=Interval(1.01, 1.02, 1.03, 0.05), verdict="undecided")
    assert "(95 %: +1.0 % to +3.0 %), but halves of one side differ by up to " in verdict_text(within, "it")
    assert ", but halves of one side differ by up to " in gate_line(regression(within, 0.0), within)


def test_an_open_gate_names_the_noise_only_for_an_interval_beyond_its_limit():
    within = replace(noisy_comparison(), ratio=Interval(1.01, 1.02, 1.03, 0.05), verdict="undecided")
    line = gate_line(regression(within, 0.02), within)
    assert line.startswith("gate undecided")
    assert "halves" not in line


def test_an_open_gate_says_what_would_decide_the_gate():
    noise = noisy_comparison()
    gate = regression(noise, 0.05)
    line = gate_line(gate, noise)
    assert f" About {gate.needed_blocks:,} runs " in line
    assert line.endswith(" of each side would decide the gate.")


def noisy_comparison() -> Comparison:
    return compare(noisy(1e6, 0.2, 5), noisy(1.01e6, 0.2, 6))


def test_a_drift_is_the_reason_why_no_number_of_repeats_decides():
    steps = 1e6 * np.exp(np.linspace(0, 0.3, 20) + np.random.default_rng(1).normal(0, 0.01, 20))
    found = compare(Samples.of([steps]), Samples.of([1.1 * steps]))
    assert (found.verdict, found.needed_blocks) == ("undecided", None)
    assert str(needed_text(found)).startswith("No number of repeats would decide it while the times drift")


def test_one_step_resembles_no_other():
    steps = 1e6 * np.exp(np.repeat([0.0, 0.1], 6))
    assert not any("resemble" in doubt for doubt in compare(Samples.of([steps]), Samples.of([[1e6]])).doubts)


def test_no_interval_is_of_all_confidence():
    assert [confidence_text(level) for level in (0.05, 0.0025, 1e-6)] == ["95", "99.75", "99.9999"]


def test_a_cause_is_no_reason_where_the_verdict_is_open(paradox):
    undecided = replace(paradox.comparison, verdict="undecided")
    first, second = step_answer(replace(paradox, comparison=undecided, gpu_work=None))
    assert "because" not in first
    assert second.startswith("In what was recorded, ")


def test_gpu_work_is_told_with_its_interval_where_only_it_is_decided(paradox):
    undecided = replace(paradox, comparison=replace(paradox.comparison, verdict="undecided"))
    _, work, _ = step_answer(undecided)
    assert re.fullmatch(r"The GPU's work per step is certainly less \(95 %: −9\.\d % to −9\.\d %\)\.", work)
    assert str(needed_sentence(undecided)).endswith(" would decide the step time.")
    open_too = replace(undecided, gpu_work=replace(undecided.gpu_work, verdict="undecided"))
    exact = replace(undecided, gpu_work=compare(Samples.of([[1e6, 1e6]]), Samples.of([[2e6, 2e6]])))
    for numbers in (replace(paradox, comparison=replace(paradox.comparison, verdict="slower")), open_too, exact):
        assert "certainly" not in " ".join(step_answer(numbers))


def test_a_gate_is_open_though_gpu_work_is_decided_and_says_what_it_goes_by(paradox):
    gate, noise = regression(noisy_comparison(), 0.05), noisy_comparison()
    assert gate_line(gate, noise, paradox.gpu_work) == (
        f"{gate_line(gate, noise)} The gate goes by the step time alone, not by the GPU's work."
    )


def test_the_gpu_is_the_first_explanation_where_the_sides_ran_on_different_ones(paradox):
    slower = replace(
        paradox, comparison=replace(paradox.comparison, verdict="slower"),
        notes=(Note("different-gpu", NoteLevel.WARNING, "The GPUs differ"),),
    )  # fmt: skip
    verdict, gpu, cause = step_answer(slower)
    assert "because" not in verdict
    assert gpu == "The first explanation is the GPU: the variant ran on NVIDIA H200, the baseline on NVIDIA H200."
    assert cause.startswith("In what was recorded, ")


def test_a_verdict_of_trimmed_means_is_told_from_the_tables_of_all_steps(paradox):
    ratio = paradox.why.ratio * 1.015
    interval = Interval(1.05, ratio, 1.2, 0.05)
    numbers = replace(paradox, comparison=replace(paradox.comparison, verdict="slower", ratio=interval))
    assert step_answer(numbers)[-1] == (
        f"The {signed_share(ratio - 1)} is of trimmed means, of typical steps; the tables are of all steps, whose "
        f"plain mean changes by {signed_share(paradox.why.ratio - 1)}."
    )
    near = replace(interval, estimate=paradox.why.ratio * 1.005)
    assert "means" not in " ".join(step_answer(replace(numbers, comparison=replace(numbers.comparison, ratio=near))))


def test_the_sum_of_the_causes_of_launching_has_not_the_name_of_one_of_them():
    found = compare_steps(side("deit448_bs8_baseline"), side("deit448_bs8_topk0.1"), margin=0.02, level=0.05)
    assert "; launching (waiting, start latency) takes 812 µs of it back" in " ".join(step_answer(found))


def test_gpu_work_has_a_margin_of_its_own_where_none_is_asked_for(paradox):
    exact = compare_steps(paradox.baseline, paradox.baseline, margin=0.0, level=0.05)
    assert (exact.comparison.margin, exact.gpu_work.margin) == (0.0, 0.02)


def test_a_paradox_is_no_reason_of_the_verdict(paradox):
    decided = replace(paradox.comparison, verdict="slower")
    (answer,) = step_answer(replace(paradox, comparison=decided))
    assert "because" not in answer
    assert "; GPU work fell 9.6 %, but the step is limited by the host's launch rate" in answer


def test_a_factor_has_its_interval_in_factors():
    text = verdict_text(compare(noisy(1e6, 0.005, 1), noisy(13e6, 0.005, 2)), "it")
    assert re.fullmatch(r"it takes 1[23]\.\d times as long \(95 %: 1[23]\S* to 13\S* times\)", text)
    assert signed_share(184.766) == "+18,477 %"
    assert signed_share(0.0002) == "+<0.1 %"
    assert signed_share(-0.0002) == "−<0.1 %"


def test_a_small_gain_is_no_factor():
    calm, faster = noisy(1e6, 0.0005, 1), noisy(0.99e6, 0.0005, 2)
    assert verdict_text(compare(calm, faster, margin=0.001), "it").startswith("it takes 1.0 % less time (95 %: ")


def test_launches_that_became_fewer_are_no_reason_to_be_slower(paradox):
    """Then it is what each of them costs."""
    before, after = paradox.difference.launches.baseline, paradox.difference.launches.variant
    fewer = replace(after, calls=before.calls - 20, issue_ns=2 * float(after.issue_ns or 0))
    launches = replace(paradox.difference.launches, variant=fewer)
    text = cause_sentence(replace(paradox.difference, launches=launches), paradox.why)
    assert re.search(r"20 fewer launches per step, but at \S+ µs each instead of \S+ µs", text)


def test_only_launches_of_added_kernels_are_priced_by_them(graph, baseline):
    """The kernels of the top-k selection are not in the graph; the others are, and their launches are spared.

    The launch of the graph takes longer than one of them, so the host's whole time is told on both sides.
    """
    found = compare_steps(side("deit224_bs1_topk0.1"), graph.variant, margin=0.02, level=0.05)
    text = " ".join(step_answer(found))
    told = re.search(
        r"210 fewer launches per step, so that launching takes the host (\S+) (.)s instead of (\S+) ms", text
    )
    assert told, text
    launches = found.difference.launches
    for number, unit, host in ((told[1], told[2], launches.variant), (told[3], "m", launches.baseline)):
        assert float(number) * {"µ": 1e3, "m": 1e6}[unit] == pytest.approx(host.issue_ns, rel=0.01)


def test_nothing_is_most_of_a_change_that_others_oppose(paradox):
    wall, why = paradox.difference.wall, paradox.why
    parts = tuple(part for part in wall.parts if part.group == "compute")
    gemm = next(part for part in parts if part.part == "gemm")
    other = next(part for part in parts if part.part == "elementwise")
    opposed = (
        replace(gemm, baseline_ns=Fraction(0), variant_ns=Fraction(3_000_000)),
        replace(other, baseline_ns=Fraction(1_000_000), variant_ns=Fraction(0)),
    )
    grown = replace(
        why, cause="gpu-work", direction="slower", change_ns=2e6, share=1.0, gpu_change_share=2.0,
        contributions=(Contribution("gpu-work", 2e6, 1.0),),
    )  # fmt: skip
    text = cause_sentence(replace(paradox.difference, wall=replace(wall, parts=opposed)), grown)
    assert "most of it" not in text
    assert "above all in matrix products (GEMM) (+3.00 ms per step), against −1.00 ms in elementwise" in text


def test_gaps_near_the_limit_count_on_both_sides():
    """0.9 % and 1.1 % of the window lie between equal steps: on one side alone, they would be a slowdown of 1 %."""
    sides = []
    for pause in (900, 1100):
        one = costed_side(program([Launch()] * 8, steps=8, pause=pause))
        sides.append(TraceFiles.of("a", [one], [()]))
    begins = [np.array([step.start_ns for step in files.typical.window.steps]) for files in sides]
    assert [files.typical.has_gaps for files in sides] == [False, True]
    found = compare_steps(*sides, margin=0.02, level=0.05).comparison
    assert found.ratio.estimate == pytest.approx(np.diff(begins[1]).mean() / np.diff(begins[0]).mean(), rel=1e-9)


def test_sides_without_gaps_keep_their_last_step_beside_a_side_with_gaps():
    sides = [TraceFiles.of("a", [costed_side(program([Launch()] * 8, pause=pause))], [()]) for pause in (0, 50_000)]
    samples = compare_steps(*sides, margin=0.02, level=0.05).samples
    assert [side.count for side in samples] == [len(sides[0].typical.window.steps), samples[0].count - 1]


def test_what_cannot_be_compared_has_no_verdict(paradox):
    stopped = Note("aborted-steps", NoteLevel.BLOCKING, "one of its steps did not finish")
    first, second = step_answer(replace(paradox, notes=(stopped,)))
    assert first == "No verdict: the sides cannot be compared: one of its steps did not finish."
    assert second.startswith("In what was recorded, the time changes by +9")
    alone = replace(stopped, code="steps-on-one-side")
    assert len(step_answer(replace(paradox, notes=(alone,)))) == 1
    assert "Not comparable" in render_markdown(step_document(replace(paradox, notes=(stopped,))))


def _training(updates: Callable[[int], bool], window: str) -> TraceFiles:
    """Twelve steps of 30 kernels, some with 12 more, as a side."""
    machine = Machine()
    for number in range(12):
        with machine.step():
            with machine.range("forward"):
                machine.launch(40 * US, times=10)
            with machine.range("backward"):
                machine.launch(40 * US, times=20)
            if updates(number):
                with machine.range("optimizer"):
                    machine.launch(40 * US, ADD, times=12)
            machine.wait()
    timeline = Timeline(machine.trace())
    part = timeline.window(window)
    return TraceFiles.of("side", [Side("side", timeline, part)], [quality_notes(timeline, part)])


@pytest.mark.parametrize(
    ("updates", "window", "steps", "noted"),
    [
        (lambda _: True, "steady", 12, []),
        (lambda number: number % 4 == 3, "steady", 12, ["steps-in-turn INFO"]),
        (lambda number: number % 4 == 3, "1us:16ms", 10, ["steps-in-turn WARNING"]),
        (lambda number: number in (2, 3, 7, 8, 10), "steady", 12, ["unequal-steps WARNING"]),
    ],
)
def test_how_steps_differ_is_told_of_each_side_as_of_its_file(updates, window, steps, noted):
    side = _training(updates, window)
    assert len(side.typical.window.steps) == steps
    notes = compare_steps(side, side, margin=0.02, level=0.05).notes
    told = [f"{note.code} {note.level.name}" for note in notes if note.code in ("steps-in-turn", "unequal-steps")]
    assert told == 2 * noted


def test_kernels_have_not_gone_for_certain_where_a_side_has_no_gpu_work():
    trace = record(programs.launch_bound)
    empty = replace(trace, kernels=trace.kernels.clear(), copies=trace.copies.clear(), memsets=trace.memsets.clear())
    sides = []
    for name, each in (("before", trace), ("after", empty)):
        timeline = Timeline(each)
        window = timeline.window("all")
        sides.append(TraceFiles.of(name, [Side(name, timeline, window)], [quality_notes(timeline, window)]))
    numbers = compare_steps(*sides, margin=0.02, level=0.05)
    assert numbers.notes[0].code == "no-gpu-work"
    assert numbers.kernels.filter(pl.col("change") == "removed").height > 0
    assert not numbers.kernels["decided"].any()
    assert "undecided: the sides cannot be compared" in render_markdown(step_document(numbers))


def test_gpu_work_that_changed_in_a_step_as_long_is_told_with_what_made_up_for_it(paradox):
    why = replace(
        paradox.why, cause="no-difference", direction="same", gpu_change_share=0.29,
        contributions=(Contribution("gpu-work", 9e6, None), Contribution("communication", -8e6, None)),
    )  # fmt: skip
    text = cause_sentence(paradox.difference, why)
    assert text.endswith(": GPU work rose 29.0 %, against 8.00 ms less of exposed communication")


def test_opposing_changes_have_no_shares_of_what_they_leave(paradox):
    difference, wall = paradox.difference, paradox.difference.wall
    assert "share" in [column.name for column in part_table(difference).columns]
    least = replace(wall.variant, wall_ns=wall.baseline.wall_ns + 1000)
    table = part_table(replace(difference, wall=replace(wall, variant=least)))
    assert "share" not in [column.name for column in table.columns]
    assert table.caption.endswith("opposing changes that nearly cancel")
    noise = [replace(part, variant_ns=part.baseline_ns + part.change_ns / 10_000) for part in wall.parts]
    slight = replace(least, wall_ns=wall.baseline.wall_ns + 1)
    table = part_table(replace(difference, wall=replace(wall, variant=slight, parts=tuple(noise))))
    assert "cancel" not in table.caption


def test_the_last_row_is_the_sum_of_the_others(paradox):
    difference = paradox.difference
    for table in (part_table(difference), part_table(difference, most=4)):
        *parts, total = table.rows.iter_rows(named=True)
        assert total["title"] == "step"
        for column in ("baseline_ns", "variant_ns", "change_ns", "share"):
            assert sum(row[column] for row in parts) == pytest.approx(total[column])
    assert part_table(difference, most=4).rows.height == 6, "four parts, the smaller ones together, and the sum"


def test_the_waterfall_leads_from_one_step_to_the_other(paradox):
    wall = paradox.difference.wall
    rows = waterfall_rows(wall)
    assert float(wall.baseline.wall_ns) + rows["delta"].sum() == pytest.approx(float(wall.variant.wall_ns))
    assert rows["delta"][0] < 0 < rows["delta"][-2]


def test_a_waterfall_of_nothing_can_be_drawn(baseline):
    wall = compare_steps(baseline, baseline, margin=0.02, level=0.05).difference.wall
    rows = waterfall_rows(wall)
    assert rows.is_empty()
    assert waterfall_chart(("one", 1.0), rows, ("other", 1.0)).svg("nothing changed").startswith("<svg")


def test_a_kernel_that_took_anothers_place_is_named_with_it(paradox):
    rows = kernel_table(paradox, limit=None).rows
    replaced = rows.filter(pl.col("before").is_not_null())
    assert replaced.height > 0
    assert (replaced["baseline_full_name"] != replaced["variant_full_name"]).all()
    assert set(rows.filter(pl.col("change") == "added")["sure"]) == {"yes"}


def test_what_a_graph_hides_is_not_called_removed_for_certain(baseline):
    whole = compare_steps(baseline, side("deit224_bs1_graph_whole"), margin=0.02, level=0.05)
    removed = whole.kernels.filter(pl.col("change") == "removed")
    assert removed.height > 0
    assert not removed["decided"].any()
    assert "hidden-graphs" in [item.code for item in whole.notes]
    assert "they may be inside the other side's CUDA graphs" in render_markdown(step_document(whole))


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_draws_its_waterfall_in_both_themes(browser, paradox, tmp_path, theme):
    path = tmp_path / "compare.html"
    path.write_text(render_html(step_document(paradox)), "utf-8")
    visit = Visit(browser, path, "waterfall", color_scheme=theme, viewport={"width": 390, "height": 844})
    drawing = visit.page.locator("[data-chart=waterfall] svg")
    texts = drawing.locator("text").all_text_contents()
    assert drawing.bounding_box()["width"] <= 390
    assert "baseline step" in texts
    assert "idle: waiting for a launch" in texts
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    assert visit.trouble == []


def test_the_first_screen_shows_both_steps_on_one_scale(paradox):
    found = step_document(paradox).answer
    assert found is not None
    wall = paradox.difference.wall
    baseline, variant = found.strips
    longest = max(wall.baseline.wall_ns, wall.variant.wall_ns)
    for strip, side in ((baseline, wall.baseline), (variant, wall.variant)):
        assert strip.scale == pytest.approx(float(side.wall_ns / longest))
        assert sum(part.time_ns for part in strip.segments) == pytest.approx(float(side.wall_ns))
        assert sum(part.share for part in strip.segments) == pytest.approx(1.0)
    assert found.headings[1] == "Why"


def recorded(baseline: str, variant: str) -> StepNumbers:
    return compare_steps(side(baseline, RECORDED), side(variant, RECORDED), margin=0.02, level=0.05)


def test_kernels_that_run_at_the_same_time_are_no_less_work():
    (answer,) = step_answer(recorded("recordings/streams_default-stream", "recordings/streams_overlapped"))
    assert answer.endswith("because GPU work fell 48.3 %, as 1.94 kernels run at a time instead of 1.")


def test_graphs_that_hide_kernels_of_one_side_tell_nothing_certain_of_gpu_work():
    numbers = recorded("recordings/graph_nodes", "recordings/graph_whole")
    assert numbers.gpu_work is None
    assert "GPU work rose 3.9 %, counting CUDA graphs with hidden kernels as a whole" in " ".join(step_answer(numbers))
    assert {"baseline alone", "kept"} == set(kernel_table(numbers).rows["change"])


def test_a_launch_rate_that_limits_neither_side_is_not_called_the_limit():
    numbers = recorded("recordings/graph_whole", "recordings/graph_nodes")
    assert {numbers.why.baseline_bound, numbers.why.variant_bound} == {"gpu"}
    assert "limited by" not in " ".join(step_answer(numbers))


def test_what_is_saved_by_the_sum_of_work_and_launching_is_not_said_of_launching():
    (answer, *_) = step_answer(recorded("planted/ddp_exposed", "planted/ddp_straggler-gpu"))
    assert answer.endswith("; the sum of GPU work and launching (waiting, start latency) saves 3.76 ms of it.")
