"""Tables and documents as Markdown and terminal text."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil

import polars as pl
import pytest

from tests.report import sample
from warplens.errors import SchemaError
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report.brief import Line
from warplens.report.document import Document, Paragraph, Section, Table
from warplens.report.markdown import escaped, fenced, markdown_table, render_markdown
from warplens.report.terminal import brief_text, print_table, wrapped


def terminal(table) -> str:
    stream = io.StringIO()
    print_table(table, stream)
    return stream.getvalue()


def test_a_pipe_in_a_name_does_not_make_a_column():
    table = dataclasses.replace(
        sample.range_tree(), rows=pl.DataFrame({"name": ["a|b"], "depth": [0], "gpu_ns": [1]}), limit=None
    )
    assert markdown_table(table).splitlines()[-1] == r"| a\|b | 1 ns |"


def test_markup_of_names_is_shown_as_text():
    assert escaped("<b> *x* `y` __init__ snake_case [a](b) $m$") == (
        r"&lt;b&gt; \*x\* \`y\` \_\_init\_\_ snake_case \[a\](b) \$m\$"
    )


def test_no_element_of_a_hostile_name_survives_in_markdown():
    text = render_markdown(sample.document())
    assert "<img" not in text
    assert "<script" not in text
    assert set(re.findall(r"<(\w+)", text)) == {"details", "summary", "ul", "li", "br", "code"}


def test_numbers_are_right_aligned_and_rows_are_cut_with_a_word():
    lines = markdown_table(sample.kernel_table(limit=2)).splitlines()
    assert lines[0] == "| Kernel | Total | Share | Calls | Std dev |"
    assert lines[1] == "| :--- | ---: | ---: | ---: | ---: |"
    assert lines[2] == "| gemm | 10.0 ms | 23.4 % | 1 | – |"
    assert lines[-1] == "2 of 40 rows."


def test_the_full_name_of_a_shortened_kernel_is_in_the_folded_list():
    text = render_markdown(sample.document())
    assert "<code>void ns::kernel_02&lt;float&gt;(T1 *)</code>" in text


def test_figures_become_images_with_their_words():
    text = render_markdown(sample.document(), lambda figure: f"images/{figure.id}.png")
    assert "![The budget chart in words](images/budget-chart.png)" in text


def test_a_table_in_a_pipe_is_not_cut_to_eighty_columns():
    text = terminal(sample.kernel_table())
    assert "<img src=x onerror=alert(1)>" in text
    assert "10.0 ms" in text
    assert "15 of 40 rows" in text


def test_brackets_in_names_are_no_terminal_markup():
    rows = pl.DataFrame({"name": ["[red]x[/red] :smile: \x1b[31m"], "depth": [0], "gpu_ns": [5]})
    text = terminal(dataclasses.replace(sample.range_tree(), rows=rows))
    assert "[red]x[/red] :smile: \N{REPLACEMENT CHARACTER}[31m" in text
    assert "\x1b" not in text


def test_a_tree_is_indented():
    lines = [line.rstrip() for line in terminal(sample.range_tree()).splitlines()]
    assert any(line.startswith("   forward") for line in lines)
    assert any(line.startswith("     layer 0") for line in lines)


def test_a_table_without_rows_says_so():
    table = dataclasses.replace(sample.kernel_table(), rows=sample.kernel_table().rows.clear(), empty="No kernels.")
    assert "No kernels." in terminal(table)
    assert markdown_table(table) == "No kernels."


def test_code_keeps_its_lines_in_a_cell_of_markdown():
    rows = pl.DataFrame({"how": ["if a | b:\n    run()"]})
    cell = markdown_table(Table("code", "Code", (Column("how", kind="code"),), rows)).splitlines()[-1]
    assert cell == "| <code>if a &#124; b:</code><br><code>&nbsp; &nbsp; run()</code> |"


def test_the_code_of_a_remedy_is_a_block_to_copy_that_nothing_in_it_can_end():
    assert fenced("if a:\n    run()", "  ") == "  ```\n  if a:\n      run()\n  ```"
    assert fenced("a\n```\n# b").splitlines() == ["````", "a", "```", "# b", "````"]


def test_a_section_named_as_the_one_around_it_has_no_heading_of_its_own():
    inner = (Section("a", "Timeline", (Paragraph("One."),)), Section("b", "Steps", (Paragraph("Two."),)))
    page = render_markdown(Document("Title", "Lead.", (Section("t", "Timeline", (), inner),)))
    assert re.findall(r"^#.*$", page, re.MULTILINE) == ["# Title", "## Timeline", "### Steps"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_commands_stay_whole_and_what_they_answer_fits_the_width(width):
    command, why = "warplens diagnose profile.sqlite", "every finding, with its evidence and what would refute it"
    rows = brief_text([Line("next", "", "quiet", (f"{command}  # {why}",))], width).splitlines()
    assert all(len(row) <= width for row in rows)
    assert rows[0].startswith(f"next        {command}")
    assert " ".join(part.strip() for row in rows for part in row.split("# ")[1:]) == why


def narrow(monkeypatch, columns, rows, width, order=None):
    """The heading of a table on a terminal of this width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    assert shutil.get_terminal_size().columns == width
    declared = tuple(column(name, dtype=dtype, help="") for name, dtype in columns)
    frame = pl.DataFrame(rows, schema=dict(columns), orient="row")
    shown = terminal(Table("narrow-table", "Narrow", declared, frame, order=order))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= width for line in lines)
    return lines[2].split()


def test_what_a_table_is_about_goes_last_where_the_terminal_is_narrow(monkeypatch):
    columns = [("name", pl.String), ("category", pl.String), ("calls", pl.Int64), ("total_ns", pl.Int64)]
    columns.append(("share", pl.Float64))
    rows = [("a_kernel_of_a_long_name_that_is_folded", "elementwise", 1, 5_000, 0.5), ("b", "gemm", 2, 5_000, 0.5)]
    assert narrow(monkeypatch, columns, rows, 100) == ["Name", "Category", "Calls", "Time", "Share"]
    assert narrow(monkeypatch, columns, rows, 62) == ["Name", "Category", "Time", "Share"]
    assert narrow(monkeypatch, columns, rows, 48) == ["Name", "Time", "Share"]


def test_the_column_by_which_rows_stand_stays_on_a_narrow_terminal(monkeypatch):
    columns = [("name", pl.String), ("median_ns", pl.Int64), ("total_ns", pl.Int64), ("bytes", pl.Int64)]
    rows = [("a_kernel_of_a_long_name", 10, 5_000, 9_000), ("b", 20, 4_000, 8_000)]
    assert narrow(monkeypatch, columns, rows, 40) == ["Name", "Median"]
    assert narrow(monkeypatch, columns, rows, 40, order="bytes") == ["Name", "Bytes"]
    assert narrow(monkeypatch, columns, rows, 40, order="total_ns") == ["Name", "Time"]


def test_a_table_cannot_stand_by_a_column_that_it_lacks():
    with pytest.raises(SchemaError, match="colour"):
        dataclasses.replace(sample.kernel_table(), order="colour")


def test_a_column_that_tells_rows_apart_stays_where_the_first_says_the_same(monkeypatch):
    columns = [("part", pl.String), ("name", pl.String), ("total_ns", pl.Int64), ("share", pl.Float64)]
    rows = [("idle", "waiting for a launch", 5_000, 0.5), ("idle", "synchronization", 5_000, 0.5)]
    assert narrow(monkeypatch, columns, rows, 36)[1:] == ["Name", "Time"]  # without a number it would say nothing


def test_a_reader_who_stops_is_the_commands_to_handle():
    """Rich would end the process with 1, which a gate reads as failed."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        print_table(sample.kernel_table(), Closed())


def test_wrapped_code_runs_when_it_is_copied():
    code = [
        "    f(x)  # what it does, in more words than fit",
        "    # a comment in more words than one line holds",
        "    g()",
    ]

    pieces = [piece for line in code for piece in wrapped(line, 30)]

    assert max(map(len, pieces)) <= 30
    assert [piece.strip() for piece in pieces if not piece.lstrip().startswith("# ")] == ["f(x)", "g()"]
    assert " ".join(" ".join(pieces).replace("#", "").split()) == " ".join(" ".join(code).replace("#", "").split())
