"""The grid document on the shipped captures and on synthetic cells: sentences, tables, status, and plain data."""

from __future__ import annotations

import json

import polars as pl
import pytest

import warplens
from tests import shipped
from tests.analysis.lm_steps import WHOLE, Program, forward_only
from warplens.analysis.timeline import Timeline
from warplens.diagnosis.rules import rule
from warplens.readers import read
from warplens.readers.timings import read_timings
from warplens.report import text as fmt
from warplens.report.document import Paragraph, Table
from warplens.report.jsonout import envelope
from warplens.report.markdown import render_markdown
from warplens.studies.grid.answers import GridCell
from warplens.studies.grid.cells import Unplaced, assign_cells
from warplens.studies.grid.document import grid_data, grid_document
from warplens.studies.grid.grid import answer_grid

FILES = [f"lm_{model}_ctx{context}_{mode}.sqlite.xz" for model, context, mode in (
    ("medium", 128, "forward"), ("small", 512, "train"), ("small", 512, "forward"), ("small", 128, "forward"),
)]  # fmt: skip


@pytest.fixture(scope="module")
def grid():
    cells, unplaced = assign_cells([*FILES, "deit224_bs1_baseline.sqlite.xz"])
    profiles = (
        GridCell(cell.model, cell.context, cell.mode, name, Timeline(read(shipped.capture(name))))
        for name, cell in cells.items()
    )
    return answer_grid(profiles, timings=read_timings(shipped.capture("lm_timings.csv")), batch=4, unplaced=unplaced)


@pytest.fixture(scope="module")
def document(grid):
    return grid_document(grid)


@pytest.fixture(scope="module")
def markdown(document):
    return render_markdown(document)


def table(document, name):
    return next(item for item in document.tables() if item.id == name)


def section(document, name):
    return next(item for item in document.sections if item.id == name)


def answer(document, name):
    return next(block.text for block in section(document, name).all_blocks() if isinstance(block, Paragraph))


def test_models_and_contexts_stand_in_order_of_size(document):
    rows = table(document, "forward-times").rows.select("model", "context", "mode").rows()
    assert rows == [("small", 128, "forward"), ("small", 512, "forward"), ("small", 512, "train"),
                    ("medium", 128, "forward")]  # fmt: skip
    assert table(document, "forward-matrix").rows.columns == ["model", "ctx128", "ctx512"]


def test_missing_cells_of_the_matrix_are_empty_and_say_what_to_run(document, markdown):
    matrix = table(document, "forward-matrix").rows
    assert matrix.row(1)[2] is None  # medium at 512
    todo = table(document, "to-do").rows
    assert "nsys profile --trace=cuda,nvtx --output=medium_ctx512_forward python PROGRAM …" in todo["detail"].to_list()
    assert "--output=medium_ctx512_forward" in markdown


def test_shares_of_each_cell_sum_to_one(document):
    for name in ("category-mix", "step-mix"):
        rows = table(document, name).rows
        assert rows.height
        for row in rows.rows():
            assert sum(row[3:]) == pytest.approx(1.0)
    others = table(document, "other-kernels-1").rows
    assert others.group_by("context").agg(pl.col("share").sum())["share"].to_list() == pytest.approx([1.0, 1.0])


def test_parts_of_a_step_add_up_in_the_table(document):
    for row in table(document, "training-split").rows.iter_rows(named=True):
        parts = row["forward_ns"] + row["backward_ns"] + row["optimizer_ns"] + row["none_ns"]
        assert parts == pytest.approx(row["gpu_ns"])
        assert row["residual_ns"] == 0
        assert max(row["forward_ns"], row["backward_ns"], row["optimizer_ns"]) <= row["gpu_ns"] <= row["wall_ns"]


def test_the_comparison_with_the_programs_clock_is_the_quotient_of_two_medians(grid, document):
    for row in table(document, "python-times").rows.iter_rows(named=True):
        assert row["ratio"] == row["time_ns"] / row["python_ns"]
        assert row["python_count"] == 10
    assert "by the program's own clock" in answer(document, "a")


def test_inference_is_taken_from_the_profile_of_forward_passes(document):
    (row,) = table(document, "matmul-shares").rows.iter_rows(named=True)
    assert row["inference_source"] == "lm_small_ctx512_forward.sqlite.xz"
    assert row["change"] == row["step"] - row["inference"]
    assert row["optimizer"] == 0


def test_files_of_no_cell_are_listed_with_the_reason(document):
    rows = table(document, "unplaced").rows.rows()
    assert [row[0] for row in rows] == ["deit224_bs1_baseline.sqlite.xz"]
    assert "tells no model and no context length" in rows[0][1]


def test_every_column_says_whether_it_is_measured_or_modelled(document):
    for item in document.tables():
        for column in item.columns:
            if fmt.is_numeric(column.kind):
                described = f"{item.caption} {column.title} {column.help}".lower()
                assert "measured" in described or "modelled" in described or column.name in NEITHER, (
                    item.id,
                    column.name,
                )


#: Facts about a cell, and counts of what was measured.
NEITHER = {"context", "passes", "steps", "layers", "python_count", "batch"}


def test_nothing_is_estimated(markdown):
    assert "estimated" not in markdown.replace("Nothing is estimated.", "")
    assert "approx" not in markdown


def test_plain_data_holds_the_same_rows(grid, document):
    parsed = json.loads(envelope("grid", FILES, grid_data(grid)))
    questions = parsed["data"]["questions"]
    assert list(questions) == ["a", "b", "c", "d", "e"]
    assert questions["a"]["answer"][0] in answer(document, "a")
    shown = table(document, "forward-times").rows
    assert [row["time_ns"] for row in questions["a"]["forward_times"]] == shown["time_ns"].to_list()
    assert questions["e"]["attention"][0]["flop_ratio"] == 51.2
    assert parsed["data"]["provenance"]["flop_ratio"] == "modelled"
    assert parsed["data"]["unplaced"][0]["source"] == "deit224_bs1_baseline.sqlite.xz"
    assert {row["state"] for row in parsed["data"]["status"]} == {"measured", "missing"}


def test_flops_need_no_batch_for_their_ratio_and_a_batch_for_their_rate():
    name = "lm_small_ctx512_forward.sqlite.xz"
    timeline = Timeline(read(shipped.capture(name)))
    without = grid_document(answer_grid([GridCell("small", 512, "forward", name, timeline)]))
    (row,) = table(without, "attention-ratios").rows.iter_rows(named=True)
    assert row["flop_ratio"] == 51.2
    assert row["scores_flops_per_s"] is None
    assert "--batch" in render_markdown(without)
    assert not [item for item in without.tables() if item.id == "attention-rates"]


def test_an_aborted_cell_is_shown_as_invalid_and_in_no_other_table():
    aborted = Program().step({"forward_pass": WHOLE["forward_pass"], "backward_pass": WHOLE["backward_pass"][:1]})
    whole = Program().step().step().step()
    document = grid_document(
        answer_grid([aborted.cell("xl", 1024, source="oom.sqlite"), whole.cell("small", 512, source="ok.sqlite")])
    )
    (row,) = table(document, "invalid").rows.iter_rows(named=True)
    assert (row["model"], row["context"], row["optimizer_kernels"]) == ("xl", 1024, 0)
    assert "out of memory is suspected" in row["reason"]
    for item in document.tables():
        if (
            item.id not in ("status-matrix", "to-do", "invalid", "profiles", "forward-matrix", "answer-matrix")
            and "model" in item.rows.columns
        ):
            assert "xl" not in item.rows["model"].to_list(), item.id
    assert table(document, "forward-matrix").rows.rows()[1] == ("xl", None, None)
    assert "1 of 2 profiles" in document.lead


def test_a_grid_without_answers_still_says_what_to_do():
    document = grid_document(answer_grid([], unplaced=[Unplaced("a.sqlite", "its name tells no model")]))
    markdown = render_markdown(document)
    assert "a.sqlite" in markdown
    assert "No profile of the grid answers (a)" in markdown
    assert isinstance(document.tables()[0], Table)


def test_a_grid_of_one_profile_is_described_in_the_singular():
    program = Program()
    for _ in range(3):
        program.step(forward_only())
    document = grid_document(answer_grid([program.cell("small", 512, "forward", "one.sqlite")]))
    assert document.lead.startswith("1 profile over 1 model and 1 context length ")
    assert "No times of the program's own clock were given" in answer(document, "a")


def test_the_first_screen_says_what_limits_most_cells_and_what_to_do(grid):
    diagnosed = {name: warplens.diagnose(shipped.capture(name)).diagnosis for name in FILES[:2]}
    found = grid_document(grid, diagnosed).answer
    limits = [diagnosed[name].findings[0] for name in FILES[:2]]
    assert {each.id for each in limits} == {"precision"}
    assert found.verdict.startswith(f"The limit of all 2 profiles: {rule('precision').limiter}.")
    low, high = sorted(each.gain for each in limits)
    assert found.gain == f"{low:.2f}× to {high:.2f}×"
    assert found.do == limits[0].remedies[0].action
    gains = found.tables[0].rows["gain"].to_list()
    assert gains == [f"{each.gain:.2f}×" for each in reversed(limits)]
    measured = {letter: words for letter, _, words in found.others}
    assert measured["e"] == "3 of 4 cells"


def test_without_a_diagnosis_the_first_screen_has_times_alone(document):
    assert document.answer.verdict.startswith("A forward pass takes from")
    assert (document.answer.gain, document.answer.do) == ("", "")
