"""Every report opens with the verdict; evidence is written with its unit."""

from __future__ import annotations

from dataclasses import replace

import pytest

import warplens
from tests.diagnosis import programs
from tests.diagnosis.fleet import US, Fleet, run_of_files
from tests.diagnosis.programs import judged, record
from tests.shipped import of_others
from warplens.analysis.headroom import headrooms
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import diagnose
from warplens.diagnosis.across import diagnose_run
from warplens.diagnosis.findings import Place, times
from warplens.report.brief import brief, brief_table
from warplens.report.document import SectionOf, Table
from warplens.report.html import render_html
from warplens.report.markdown import escaped, render_markdown
from warplens.report.overview.document import overview_document, report_document
from warplens.report.overview.numbers import examine
from warplens.report.run import by_itself_table, run_strips
from warplens.report.verdict import (
    checklist_blocks,
    coverage_lines,
    diagnosis_tables,
    evidence_label,
    evidence_text,
    factor,
    finding_blocks,
    places,
    standing,
)


@pytest.fixture(scope="module")
def numbers():
    timeline = Timeline(record(programs.unfused_optimizer))
    return examine(timeline, timeline.window())


def test_a_report_opens_with_what_limits_how_much_and_what_to_do(numbers):
    answer = overview_document(numbers).answer
    assert answer is not None
    first = numbers.diagnosis.findings[0]
    assert answer.verdict.removesuffix(".") in numbers.diagnosis.headline
    assert answer.gain == factor(first.expected)
    assert (answer.do, answer.code, answer.refute) == (first.remedies[0].action, first.remedies[0].how, first.refute)


def test_the_parts_of_the_first_screens_strips_are_the_whole(numbers):
    answer = overview_document(numbers).answer
    assert answer is not None
    for strip in answer.strips:
        assert sum(part.share for part in strip.segments) == pytest.approx(1.0, abs=0.03)


def test_a_cause_on_the_gpu_behind_the_host_is_told_with_what_both_remedies_bring():
    """Short products beside the tensor cores: the host launches too slowly, and hides what they cost."""
    timeline = Timeline(record(lambda machine: machine.launch(3 * US, programs.FP32_GEMM, times=200) or machine.wait()))
    numbers = examine(timeline, timeline.window())
    found = numbers.diagnosis
    first, behind = found.findings[0], found.finding("precision")
    assert first.id == "launch-overhead"
    assert behind is not None
    assert (behind.severity, behind.expected < 1.02) == ("info", True)
    (also,) = (line.text for line in brief(found) if line.label == "also")
    together = max(change.expected for change in found.what_if.changes if len(change.findings) > 1)
    assert also.startswith(f"{behind.remedies[0].action} [precision]: together about {times(together)} (")
    assert together > 2 * first.expected
    document = overview_document(numbers)
    assert f"<strong>Beside it:</strong> {also}" in render_html(document).replace("\N{NO-BREAK SPACE}", " ")
    assert f"- Beside it: {escaped(also)}" in render_markdown(document)


def test_remedies_that_leave_almost_nothing_bring_more_than_a_number(numbers):
    found = numbers.diagnosis
    vast = replace(found.findings[0], expected=250.0, expected_interval=(40.0, 250.0))
    told = [line.text for line in brief(replace(found, findings=(vast,)))]
    assert any(text.startswith("More than 100× as fast: 40.0× to >100×") for text in told)
    other = replace(found.findings[0], id="precision", expected=1.1)
    change = replace(found.what_if.changes[0], findings=(vast.id, other.id), expected=250.0)
    both = replace(found, findings=(found.findings[0], other), what_if=replace(found.what_if, changes=(change,)))
    assert any(line.text.endswith(": together more than 100×.") for line in brief(both) if line.label == "also")


def test_the_answer_says_where_if_a_place_says_more_than_the_step(numbers):
    found = numbers.diagnosis
    place = Place("kernels", 3, 4, 0.75, "aten::mul", "step 3", None, "src/train.py", 12, "update")
    lines = [
        [line.text for line in brief(replace(found, findings=(replace(found.findings[0], places=(one,)),)))]
        for one in (place, replace(place, share=0.1), replace(place, operator=None, file=None))
    ]
    said = "75.0 % of it in aten::mul, src/train.py:12 (update)."
    assert [said in texts for texts in lines] == [True, False, False]
    labels = [line.label for line in brief(replace(found, findings=(replace(found.findings[0], places=()),)))]
    assert "where" not in labels


def test_tables_of_ranks_profiles_and_phases_use_the_words_of_the_diagnosis_itself():
    """The sizes of these products are unknown, and so how near they are to a roof."""
    words = "not known; below-roof is not ruled out"
    found = judged(record(programs.training_with_log))
    assert (found.verdict, found.verdict_known) == ("below-roof", False)
    assert brief_table([("a.json", found)]).rows["verdict"].to_list() == [words]
    phases = next(table for table in diagnosis_tables(found) if table.id == "phase-verdicts")
    assert phases.rows["verdict"].to_list() == [words] * 3
    files = Fleet(2).run(_training_of_two).files()
    run = diagnose_run(run_of_files(files), dict(enumerate(map(judged, files))))
    assert by_itself_table(run).rows["verdict"].to_list() == [words, words]


def test_ranks_with_windows_of_different_lengths_are_each_split_as_a_whole_and_a_bound_is_no_gain():
    files = Fleet(2).run(_late_rank).files()
    run = diagnose_run(run_of_files(files), dict(enumerate(map(judged, files))))
    strips = list(run_strips(run.run.result))
    assert sorted(strip.scale for strip in strips)[0] < max(strip.scale for strip in strips) == 1.0
    for strip in strips:
        assert sum(part.share for part in strip.segments) == pytest.approx(1.0)
    first = next(found for found in run.ranks[0].findings if found.bound)
    bounded = replace(first, expected=None, expected_interval=None)
    only_bounded = replace(run, ranks={0: replace(run.ranks[0], findings=(bounded,))})
    assert bounded.gain is not None
    assert by_itself_table(only_bounded).rows["gain"].to_list() == ["–"]


def _late_rank(fleet: Fleet) -> None:
    _training_of_two(fleet)
    fleet.machines[1].launch(400 * US, times=5)
    fleet.machines[1].wait()


def _training_of_two(fleet: Fleet) -> None:
    for machine in fleet.machines:
        machine.launch(500 * US, times=20)
    fleet.meet(10 * US)
    for machine in fleet.machines:
        machine.wait()


def test_times_of_several_gpus_are_said_to_be_added_up(numbers):
    found = numbers.diagnosis
    assert not any("GPUs" in line for line in coverage_lines(found))
    of_two = replace(found, coverage=replace(found.coverage, gpus=2))
    assert "the times of 2 GPUs added up" in next(iter(coverage_lines(of_two)))
    assert [evidence_label(found.findings[0], each).endswith("2 GPUs)") for each in (found, of_two)] == [False, True]


def test_figures_per_step_of_a_window_that_cuts_steps_are_those_of_a_step():
    trace = Timeline(record(programs.item_per_layer))
    steps = trace.window().steps
    half = steps[0].duration_ns // 2
    window = trace.window(f"{steps[1].start_ns - half}:{steps[2].end_ns + half}")
    whole, cut = diagnose(trace, trace.window()), diagnose(trace, window)
    assert cut.coverage.steps == pytest.approx(3, abs=0.01)
    assert next(iter(coverage_lines(cut))).startswith("based on: 3 steps")
    per_step = cut.finding("host-sync").evidence["waits_per_step"]
    assert per_step == pytest.approx(whole.finding("host-sync").evidence["waits_per_step"], rel=0.1)
    (predicted,) = (each for each in cut.predictions if each.change == "no-synchronization")
    assert predicted.measured_ns == pytest.approx(steps[1].duration_ns, rel=0.05)
    (headroom,) = headrooms(trace, window)
    assert headroom.per_step(headroom.duration_ns) == pytest.approx(steps[1].duration_ns, rel=0.05)


def test_what_places_tell_with_numbers_is_not_told_again_without(numbers):
    """The third of three ranges alone, called where most of it is, while nine tenths were outside all ranges."""
    finding = replace(numbers.diagnosis.findings[0], where=("attention", "softmax", "product"), places=())
    assert places(finding) == "attention, softmax, product"
    outside = Place("launches", 90, 100, 0.9, None, None, None, None, None, None)
    assert places(replace(finding, places=(outside, replace(outside, range="softmax")))) == ""
    kernels = replace(finding, where=("gemm",), places=(outside,))
    assert places(kernels) == "gemm"
    alike = tuple(f"cutlass_{'x' * 60}{type_name}{'x' * 60}_align8" for type_name in ("bf16", "fp16"))
    assert ", " not in places(replace(finding, where=alike, places=())), "one name, where the difference is not shown"


def test_each_of_several_profiles_has_its_answer_under_ids_of_its_own(numbers):
    document = report_document([numbers, numbers])
    assert [part.answer.id for part in document.parts if part.answer] == ["p1-answer", "p2-answer"]
    comparison = document.tables()[0]
    assert comparison.rows["part"].to_list() == ["p1-answer", "p2-answer"]
    assert comparison.rows["remedy"].to_list() == ["Use the fused optimizer"] * 2
    ids = [table.id for table in document.tables()]
    assert len(ids) == len(set(ids))


def test_the_shares_of_the_phases_add_up_with_what_lies_outside_of_them(numbers):
    def shares(found):
        table = next(table for table in diagnosis_tables(found) if table.id == "phase-verdicts")
        return dict(table.rows.select("phase", "share").iter_rows())

    assert "outside of all phases" not in shares(numbers.diagnosis) or sum(shares(numbers.diagnosis).values()) == 1
    few = replace(numbers.diagnosis, per_phase=numbers.diagnosis.per_phase[:1])
    assert list(shares(few))[1:] == ["outside of all phases"]
    assert sum(shares(few).values()) == pytest.approx(1)


@pytest.mark.parametrize(("seen", "named"), [(0.2, None), (0.4, "host-stall")])
def test_the_time_outside_of_all_phases_has_its_part_of_the_verdict(numbers, seen, named):
    """Of a window of 100 ms, 30 ms are outside; two thirds of the verdict's 20 or 40 ms lie there."""
    phase = replace(numbers.diagnosis.per_phase[0], wall_ns=70_000_000, busy_ns=70_000_000, of_verdict_share=1 / 3)
    coverage = replace(numbers.diagnosis.coverage, wall_ns=100_000_000, busy_ns=75_000_000)
    found = replace(numbers.diagnosis, verdict="host-stall", per_phase=(phase,), coverage=coverage, headline_share=seen)
    table = next(table for table in diagnosis_tables(found) if table.id == "phase-verdicts")
    assert table.rows["of_verdict_share"].to_list() == [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert table.rows["verdict"][1] == named


def test_a_phase_that_is_the_whole_window_does_not_repeat_its_verdict(numbers):
    whole = replace(numbers.diagnosis.per_phase[0], share=1.0)
    tables = diagnosis_tables(replace(numbers.diagnosis, per_phase=(whole,)))
    assert "phase-verdicts" not in {table.id for table in tables}


def test_phases_tell_how_much_of_the_verdict_lies_in_each():
    """Recomputed work runs in the backward pass, whose own limit may be another one."""
    timeline = Timeline(warplens.read(of_others("pairs/checkpoint_small.sqlite")))
    found = diagnose(timeline, timeline.window())
    table = next(table for table in diagnosis_tables(found) if table.id == "phase-verdicts")
    assert (found.verdict, table.columns[-1].title) == ("recomputation", "Of recomputation")
    assert table.rows["of_verdict_share"].to_list() == [0.0, 1.0, 0.0]
    assert "# timm: model.set_grad_checkpointing(False)" in found.findings[0].remedies[0].how
    unclaimed = replace(found, per_phase=tuple(replace(part, of_verdict_share=None) for part in found.per_phase))
    table = next(table for table in diagnosis_tables(unclaimed) if table.id == "phase-verdicts")
    assert "of_verdict_share" not in {column.name for column in table.columns}


def test_the_checklist_counts_its_items_in_a_sentence(numbers):
    rows = numbers.checklist
    unknown = rows.filter(rows["found"] == "cannot tell").height
    assert unknown
    first = next(iter(checklist_blocks(rows)))
    assert f" not applicable; {unknown} cannot be told from these files. What" in first.text


def test_a_bound_is_no_gain_of_a_phase(numbers):
    unexplained = replace(numbers.diagnosis.per_phase[0], verdict="incomplete-profile", expected=None, gain_ceiling=5.0)
    table = next(
        table
        for table in diagnosis_tables(replace(numbers.diagnosis, per_phase=(unexplained,)))
        if table.id == "phase-verdicts"
    )
    assert table.rows["gain"][0] == "–"


def test_the_room_of_findings_holds_phases_predictions_and_remedies(numbers):
    assert numbers.diagnosis is not None
    section = SectionOf("findings", "Findings", finding_blocks).of(numbers.diagnosis)
    tables = {block.id for block in section.all_blocks() if isinstance(block, Table)}
    assert {"findings", "phase-verdicts", "predictions", "remedies-unfused-optimizer"} <= tables


def test_numbers_are_written_with_their_units():
    evidence = {
        "idle_ns": 1_500_000,
        "idle_share": 0.25,
        "waits_per_step": 12.0,
        "copied_bytes_per_step": 40e6,
        "bandwidth_bytes_per_s": 1e10,
        "host_needed_ns_per_step": 2_000_000.0,
        "launches_per_tensor_factor": 14.0,
        "passes_per_attention_factor": 4.5,
        "peak_ratio_factor": 14.8,
    }
    assert evidence_text(evidence) == (
        "idle 1.50 ms (25.0 %), waits 12 per step, copied 40.0 MB per step, bandwidth 10.0 GB/s, "
        "host needed 2.00 ms per step, launches per tensor 14, passes per attention 4.5, peak ratio 14.8×"
    )


def test_no_time_is_no_evidence():
    """A wait that costs nothing by itself stood in front of what it does cost."""
    idle = {"idle_ns": 0, "idle_share": 0.0, "idle_ns_per_wait": 0.0}
    assert evidence_text({**idle, "waits_per_step": 2.0, "busy_share": 0.0}) == "waits 2 per step, busy 0.0 %"
    assert evidence_text(idle) == "idle 0 ns (0.0 %, 0 ns per wait)"
    claimed = {"idle_ns": 20_000_000, "idle_share": 0.02, "gpu_busy_share": 0.55}
    assert evidence_text(claimed).startswith("idle from this cause 20.0 ms (2.0 %)"), "45 % of the time is idle"
    assert evidence_text({**claimed, "idle_share": 0.45}).startswith("idle 20.0 ms")
    assert evidence_text({"affected_ns": 1e6, "saved_ns": 5e6}) == (
        "affected kernels 1.00 ms, expected saving with pauses, as recorded 5.00 ms"
    )


@pytest.mark.parametrize(("gain", "said"), [(1.234, "1.23×"), (99.9, "99.9×"), (99.96, "100×"), (7254.0, ">100×")])
def test_no_model_tells_a_factor_beyond_a_hundred(gain, said):
    assert times(gain) == factor(gain) == said


def test_without_steps_counts_are_those_of_the_window():
    assert (
        evidence_text({"readbacks_per_step": 12.0, "held_ns_per_step": 2e6}, steps=0) == "read-backs 12, held 2.00 ms"
    )


@pytest.mark.parametrize(
    ("expected", "bound", "said"),
    [
        (2.0, 3.0, "about 2.00× (1.50× to 2.50×), at most 3.00×"),
        (2.0, 30.0, "about 2.00× (1.50× to 2.50×)"),
        (2.0, None, "about 2.00× (1.50× to 2.50×)"),
        (100.0, None, "many times"),
        (None, 3.0, "at most 3.00×"),
    ],
)
def test_what_is_not_known_leaves_no_comma_behind(expected, bound, said):
    finding = replace(
        programs.verdict(programs.launch_bound).findings[0],
        expected=expected,
        expected_interval=None if expected is None else (1.5, 2.5),
        bound=bound,
    )
    assert standing(finding).endswith(f", {said} as fast without it")


def test_ceilings_beyond_reason_are_not_written_out():
    assert (factor(1.5), factor(50_000.0), factor(None)) == ("1.50×", ">100×", "–")


def test_what_a_gpu_does_is_not_said_to_cost_time():
    saturated = programs.verdict(programs.large_products).findings[0]
    assert "faster" not in standing(saturated)
