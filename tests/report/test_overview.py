"""The main document: what its first sentences say, that every number adds up, and that nothing is missing silently."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import warplens
from tests.analysis import builders as b
from tests.report import sample
from tests.report.sample import HOSTILE
from tests.shipped import OTHERS
from tests.tiers import thinned
from warplens._version import __version__
from warplens.analysis.kernels import category_coverage, tensor_core_use, time_by_class
from warplens.analysis.timeline import Timeline
from warplens.errors import SchemaError
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import KERNEL_NAME
from warplens.report.document import Table
from warplens.report.html import render_html
from warplens.report.jsonout import dumps, envelope
from warplens.report.markdown import render_markdown
from warplens.report.overview.document import overview_document, report_document
from warplens.report.overview.numbers import Numbers, answer, examine
from warplens.report.write import REPORT_FORMATS, report_json, write_examined

CAPTURES = OTHERS / "nsys"

GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8"


def training_trace(**extra):
    """Three steps of 1000 ns: a GEMM of 400, a fill of 100, idle while the host has not launched the next kernel."""
    kernels, api, ranges, memsets = [], [], [], []
    for step in range(3):
        at, first = 1_000_000 * step, 10 * step
        ranges.append(b.nvtx(at, at + 990_000, "step"))
        ranges.append(b.nvtx(at + 1_000, at + 600_000, "forward"))
        api.append(b.launch(at + 2_000, at + 9_000, correlation=first + 1))
        api.append(b.launch(at + 700_000, at + 740_000, correlation=first + 2, name="cudaMemsetAsync"))
        kernels.append(b.kernel(at + 10_000, at + 410_000, GEMM, correlation=first + 1))
        memsets.append(b.memset(at + 745_000, at + 845_000, correlation=first + 2))
    tables = {"kernels": kernels, "api": api, "ranges": ranges, "memsets": memsets, **extra}
    return b.trace(**tables)


def numbers_of(trace, spec: str = "steady", range_name: str | None = None) -> Numbers:
    timeline = Timeline(trace)
    return examine(timeline, timeline.window(spec, range_name))


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text)


@pytest.fixture(scope="module")
def training():
    return numbers_of(training_trace())


def test_kernels_that_took_no_time_have_no_shares_and_no_chart():
    """Coarse clocks round short kernels to nothing."""
    trace = b.trace(
        kernels=[b.kernel(at, at, GEMM, correlation=at) for at in range(1_000, 9_000, 1_000)],
        api=[b.launch(at - 500, at - 100, correlation=at) for at in range(1_000, 9_000, 1_000)],
    )
    text = render_markdown(report_document([numbers_of(trace)]))
    assert "images/kernels-chart.svg" not in text
    assert "Kernels by GPU time" in text


def test_the_answer_says_step_time_busy_share_what_and_why_idle(training):
    first, second = sentences(answer(training))
    assert re.match(r"A step takes \d+ µs \(median of 3\), and the GPU was busy for \d+\.\d % of the time, ", first)
    assert first.endswith("most of it (80.0 %) in matrix products (GEMM).")
    assert re.match(r"Of the \d+\.\d % idle, \d+\.\d % passed while the host ", second)


def test_the_busy_share_of_the_answer_is_counted_by_hand(training):
    window = training.window
    busy = 3 * (400_000 + 100_000)
    assert f"busy for {100 * busy / window.duration_ns:.1f} %" in answer(training)


def test_an_incomplete_profile_opens_with_what_is_missing_and_claims_nothing_else():
    note = Note("lost", NoteLevel.BLOCKING, "only 3 of 4,000 launched kernels were recorded")
    text = answer(numbers_of(training_trace(notes=[note])))
    assert text == (
        "Only 3 of 4,000 launched kernels were recorded. The numbers below describe only what was recorded."
    )


def test_a_profile_without_gpu_work_does_not_speak_of_idle_time():
    text = answer(numbers_of(b.trace(ranges=[b.nvtx(0, 10, "step")])))
    assert text == "The profile holds no GPU work in this window."


def test_work_inside_graphs_is_busy_and_named_hidden():
    graphs = [b.graph(step * 100, step * 100 + 100, correlation=step) for step in range(10)]
    text = answer(numbers_of(b.trace(graph_launches=graphs, kernels=[], api=[]), "all"))
    assert "most of it (100.0 %) inside CUDA graphs that were traced as a whole" in text
    assert "idle for 0.0 %" in text


def test_a_range_is_spoken_of_by_its_name(training):
    numbers = numbers_of(training_trace(), range_name="forward")
    assert "work launched inside “forward” spans" in answer(numbers)


def test_the_json_names_its_schema_and_every_table(training):
    found = json.loads(report_json([training, training]))
    assert found["schema"] == "warplens.report/1"
    assert found["source"] == ["synthetic", "synthetic"]
    tables = {"budget", "steps", "phases", "kernels", "categories", "precisions", "ranges", "launches", "copies", "api"}
    assert tables | {"streams", "graphs", "memory", "notes", "window", "answer"} <= found["data"]["profiles"][1].keys()
    assert found["data"]["profiles"][0]["memory"] is None, "not recorded is not an empty table"


def test_steps_left_out_are_listed_but_do_not_count():
    numbers = numbers_of(training_trace(), "1ms:3ms")
    assert numbers.steps["in_window"].to_list() == [False, True, True]
    assert numbers.window_steps.height == 2


def test_coverage_from_the_kernel_table_is_that_of_the_analysis(training):
    assert training.category_coverage == category_coverage(time_by_class(training.timeline, training.window))
    assert training.tensor_core_use == tensor_core_use(time_by_class(training.timeline, training.window))


def test_every_section_is_there_even_when_its_data_is_not():
    document = overview_document(numbers_of(b.trace(kernels=[b.kernel(0, 10)]), "all"))
    text = render_markdown(document)
    assert document.answer is not None
    assert {room.title: [inside.title for inside in room.subsections] for room in document.sections} == {
        "Timeline": ["Timeline", "Steps over time"],
        "Budget": ["Time budget", "Headroom", "Phases"],
        "Findings": [
            "below-roof: kernels that are not shown to be near their roof",
            "incomplete-profile: the profile cannot answer",
        ],
        "Kernels & operators": ["Kernels", "Categories"],
        "Program": ["GPU time by part of the program", "Ranges"],
        "Host": ["Launches", "CUDA API", "Streams", "CUDA graphs"],
        "Memory": ["Copies", "Memory"],
        "Data & method": ["Limits of these numbers", "Checklist", "Key figures"],
    }
    for title in ("Phases", "Ranges", "Copies", "CUDA API", "Memory"):
        assert re.search(rf"## {title}\n\nNot recorded in this profile\.\n", text), title


def test_recorded_but_empty_is_told_apart_from_not_recorded():
    text = render_markdown(overview_document(numbers_of(b.trace(kernels=[b.kernel(0, 10)], copies=[], api=[]), "all")))
    assert "## Copies\n\nNo copy or fill began in this window." in text
    assert "## CUDA API\n\nNo CUDA API call began in this window." in text


def test_hostile_names_of_kernels_ranges_and_calls_are_text():
    ranges = [b.nvtx(0, 900, HOSTILE)]
    hostile = b.trace(
        kernels=[b.kernel(10, 500, HOSTILE, correlation=1)],
        api=[b.launch(1, 5, 1, HOSTILE)],
        ranges=ranges,
        memory=[b.allocation(5, 100, memory=HOSTILE)],
    )
    document = overview_document(numbers_of(hostile, "all"))
    page = render_html(document)
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "<img" not in render_markdown(document)
    assert page.replace("<wbr>", "").count("&lt;img src=x onerror=alert(1)&gt;") >= 6


def test_several_profiles_make_one_document_with_a_comparison_on_top(training):
    document = report_document([training, numbers_of(b.trace(kernels=[b.kernel(0, 10)]), "all")])
    assert document.sections[0].id == "comparison"
    assert document.tables()[0].rows["source"].to_list() == ["synthetic (1)", "synthetic (2)"]
    ids = [block.id for block in (*document.figures(), *document.tables())]
    assert len(ids) == len(set(ids))
    rooms = re.findall(r'id="room/([^"]+)"', render_html(document))
    assert rooms[:3] == ["comparison", "p1-answer", "p1-timeline-room"]
    assert "p2-answer" in rooms


def test_a_budget_merges_small_parts_in_the_chart_but_not_in_the_table(training):
    api = [b.launch(1, 2, 1), *(b.launch(at, at + 1, at) for at in range(10, 14))]
    kernels = [b.kernel(20, 100_000, GEMM, correlation=1)]
    copies = [
        b.copy(100_000 + at, 100_001 + at, kind, correlation=at) for at, kind in ((10, "a"), (11, "b"), (12, "c"))
    ]
    document = overview_document(numbers_of(b.trace(kernels=kernels, api=api, copies=copies), "all"))
    (table,) = [table for table in document.tables() if table.id == "budget-table-0"]
    assert {"copy a", "copy b", "copy c"} <= set(table.rows["title"])
    (figure,) = [figure for figure in document.figures() if figure.id.startswith("budget-chart")]
    assert "3 smaller parts" in figure.chart.svg("words")


def test_json_alone_loads_neither_charts_nor_templates():
    code = (
        "import sys, warplens.report.write; "
        "print([name for name in ('altair', 'jinja2', 'vl_convert', 'rich') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.skipif(not CAPTURES.is_dir(), reason=f"there are no captures in {CAPTURES}")
@pytest.mark.slow
def test_the_training_step_of_the_h200_capture_adds_up_in_every_format(tmp_path):
    timeline = Timeline(warplens.read(CAPTURES / "h200_lm_small_train.sqlite"))
    window = timeline.window()
    page, text, data = write_examined([examine(timeline, window)], tmp_path, REPORT_FORMATS)
    profile = json.loads(data.read_bytes())["data"]["profiles"][0]
    assert profile["answer"] in text.read_text("utf-8")
    assert "GPU was busy for 53.6 %" in profile["answer"]
    assert re.search(r"Where the time goes \(mean step as recorded, [\d.]+ ms\): 53\.6 % busy", page.read_text("utf-8"))
    assert sum(row["calls"] for row in profile["kernels"]["rows"]) == 3 * 1182
    phases = {row["phase"]: row["gpu_ns"] for row in profile["phases"]["rows"]}
    assert sum(phases.values()) == profile["ranges"]["coverage"]["total_ns"]
    assert phases.keys() == {"forward", "backward", "optimizer"}


@pytest.mark.skipif(not CAPTURES.is_dir(), reason=f"there are no captures in {CAPTURES}")
@pytest.mark.parametrize(
    "path",
    thinned(sorted(CAPTURES.glob("*.sqlite")), slow=("h100x2_before", "h100x2_after")),
    ids=lambda path: path.stem,
)
def test_every_capture_makes_a_report_whose_parts_sum_and_whose_answer_is_short(path):
    if path.stem == "not_an_nsys_file":
        pytest.skip("it is not a profile")
    timeline = Timeline(warplens.read(path))
    numbers = examine(timeline, timeline.window())
    document = overview_document(numbers)
    assert len(sentences(document.lead)) <= 2
    assert len(document.sections) >= 7
    for budget in numbers.budgets:
        assert budget.parts["time_ns"].sum() == budget.duration_ns
    text = render_markdown(document)
    assert "None" not in text
    assert "nan" not in text


@pytest.mark.skipif(not CAPTURES.is_dir(), reason=f"there are no captures in {CAPTURES}")
@pytest.mark.parametrize("name", ["wsl2_no_cuda_tables", "empty_capture_old", "h200_lm_small_lost_kernels"])
def test_a_capture_that_lost_its_kernels_says_so_first_and_how_to_record_again(name):
    timeline = Timeline(warplens.read(CAPTURES / f"{name}.sqlite"))
    numbers = examine(timeline, timeline.window())
    worst = numbers.notes[0]
    assert worst.level is NoteLevel.BLOCKING
    assert worst.remedy
    document = overview_document(numbers)
    assert document.lead.lower().startswith(worst.text.lower())
    assert len(sentences(document.lead)) <= 2
    assert "nsys" in render_markdown(document)


def test_a_table_that_shows_a_column_it_does_not_have_is_refused():
    with pytest.raises(SchemaError, match="full_name not among"):
        Table("t", "T", (KERNEL_NAME,), pl.DataFrame({"name": ["a"]}))


def test_an_export_of_a_table_holds_full_names_and_depth_once():
    assert sample.kernel_table().keys == ["name", "full_name", "total_ns", "share", "calls", "stdev_ns"]
    assert sample.range_tree().keys == ["name", "gpu_ns", "depth"]


def test_the_limit_counts_rows_and_none_is_all():
    assert sample.kernel_table(limit=3).shown().height == 3
    assert sample.kernel_table(limit=None).shown().height == 40


def test_figures_and_tables_are_found_inside_subsections():
    document = sample.document()
    assert [table.id for table in document.tables()] == ["kernel-table", "range-table"]
    assert len(document.figures()) == len(sample.all_charts())


@dataclass(frozen=True)
class Answer:
    device: int
    rows: pl.DataFrame


def test_the_envelope_names_schema_version_source_and_warnings():
    note = Note("lost", NoteLevel.WARNING, "Events were dropped.")
    found = json.loads(envelope("kernels", "a.sqlite", {"rows": []}, [note, "plain"]))
    assert found == {
        "schema": "warplens.kernels/1",
        "version": __version__,
        "source": "a.sqlite",
        "data": {"rows": []},
        "warnings": [
            {"code": "lost", "level": "warning", "text": "Events were dropped.", "remedy": None},
            "plain",
        ],
    }


def test_a_frame_becomes_rows_with_exact_integers_and_null_for_the_undefined():
    rows = pl.DataFrame(
        {
            "name": pl.Series(["<k>\u2028\0", "ü"], dtype=pl.Enum(["<k>\u2028\0", "ü"])),
            "total_ns": [2**63 - 1, -1],
            "mean_ns": [float("nan"), float("inf")],
            "stdev_ns": [None, 0.5],
        }
    )
    assert json.loads(dumps(Answer(0, rows))) == {
        "device": 0,
        "rows": [
            {"name": "<k>\u2028\0", "total_ns": 2**63 - 1, "mean_ns": None, "stdev_ns": None},
            {"name": "ü", "total_ns": -1, "mean_ns": None, "stdev_ns": 0.5},
        ],
    }


def test_an_empty_frame_is_an_empty_list():
    assert dumps({"rows": pl.DataFrame({"a": []})}) == b'{"rows":[]}'


def test_paths_lose_their_folders_which_may_name_a_user():
    assert json.loads(dumps(Path("/home/someone/a.sqlite"))) == "a.sqlite"


def test_numpy_enums_and_sets_become_plain():
    value = {"a": np.int64(3), "b": np.array([1, 2]), "c": NoteLevel.INFO, "d": frozenset({"y", "x"})}
    assert json.loads(dumps(value)) == {"a": 3, "b": [1, 2], "c": "info", "d": ["x", "y"]}


def test_what_has_no_json_form_is_refused_rather_than_guessed():
    with pytest.raises(TypeError, match="object"):
        dumps({"a": object()})
