"""The HTML report in a real browser: it draws, sorts, filters, obeys both themes, and nothing leaves the file."""

from __future__ import annotations

import csv

import polars as pl
import pytest

from tests.report import sample
from tests.report.conftest import Visit
from warplens.profile.schema import Column
from warplens.report import text
from warplens.report.document import Document, Paragraph, Section, Table
from warplens.report.html import render_html

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(sample.document()), "utf-8")
    return path


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    from tests.diagnosis import programs
    from warplens.analysis.timeline import Timeline
    from warplens.report.overview.document import report_document
    from warplens.report.overview.numbers import examine

    timelines = [Timeline(programs.record(each)) for each in (programs.unfused_optimizer, programs.large_products)]
    path = tmp_path_factory.mktemp("several") / "report.html"
    path.write_text(render_html(report_document([examine(each, each.window()) for each in timelines])), "utf-8")
    return path


@pytest.fixture
def visit(browser, report):
    visits: list[Visit] = []

    def start(**context) -> Visit:
        visits.append(Visit(browser, report, **context))
        return visits[-1]

    yield start
    for made in visits:
        assert made.trouble == []


def shown(page, table: str) -> list[str]:
    return page.locator(f"#{table} tbody tr:visible > :first-child").all_inner_texts()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_is_drawn_in_both_themes(visit, theme):
    page = visit(color_scheme=theme).page
    for name in sample.all_charts():
        drawing = page.locator(f"[data-chart={name}-chart] svg")
        assert drawing.count() == 1
        box = drawing.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 50
        assert drawing.locator("path, text, rect").count() > 10
        assert page.locator(f"[data-chart={name}-chart]").get_attribute("aria-label") == f"The {name} chart in words"


def test_the_theme_follows_the_system_until_the_reader_chooses(visit):
    page = visit(color_scheme="dark").page
    ground = "getComputedStyle(document.body).backgroundColor"
    fill = "getComputedStyle(document.querySelector('[data-chart=ranked-chart] svg text')).fill"
    assert page.evaluate(ground) == "rgb(15, 18, 21)"
    dark_text = page.evaluate(fill)
    page.click("#warplens-theme")
    assert page.evaluate(ground) == "rgb(247, 247, 246)"
    assert page.evaluate(fill) != dark_text, "charts follow the theme without being drawn again"
    assert page.locator("#warplens-theme").inner_text() == "Dark"


def test_a_hostile_name_is_text_everywhere(visit):
    page = visit().page
    assert page.locator("img, iframe").count() == 0
    assert page.locator("script").count() == 6
    assert sample.HOSTILE in page.locator("h1").text_content()
    assert sample.HOSTILE in page.locator("[data-chart=ranked-chart]").inner_text()
    # The bar of the hostile kernel is the second of the ranking.
    box = page.locator("[data-chart=ranked-chart] svg").bounding_box()
    page.locator("[data-chart=ranked-chart]").scroll_into_view_if_needed()
    box = page.locator("[data-chart=ranked-chart] svg").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 37 + 22)
    assert sample.HOSTILE in page.locator("#warplens-tip").inner_text()
    assert page.locator("#warplens-tip img, #warplens-tip script").count() == 0


def test_a_click_on_a_heading_sorts_and_a_third_one_restores(visit):
    page = visit(at="kernels").page
    heading = page.locator("#kernel-table thead th", has_text="Calls")
    original = shown(page, "kernel-table")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert shown(page, "kernel-table")[0].startswith("kernel_39")
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert shown(page, "kernel-table")[0] == "gemm"
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "none"
    assert shown(page, "kernel-table") == original


def test_what_is_not_known_stands_last_in_either_order(visit):
    page = visit(at="kernels").page
    page.click("#kernel-table button.all")
    heading = page.locator("#kernel-table thead th", has_text="Std dev").locator("button")
    for _ in range(2):
        heading.click()
        assert shown(page, "kernel-table")[-1] == "gemm"


def test_filtering_finds_full_names_too_and_all_rows_can_be_shown(visit):
    page = visit(at="kernels").page
    assert len(shown(page, "kernel-table")) == 15
    page.fill("#kernel-table input[type=search]", "ns::kernel_3")
    assert len(shown(page, "kernel-table")) == 10, "kernel_30 … kernel_39, all beyond the limit"
    assert page.locator("#kernel-table .count").inner_text() == "10 of 40 rows"
    page.fill("#kernel-table input[type=search]", "")
    page.click("#kernel-table button.all")
    assert len(shown(page, "kernel-table")) == 40


def test_a_shortened_name_unfolds_to_the_full_one(visit):
    page = visit(at="kernels").page
    details = page.locator("#kernel-table details.name").first
    details.locator("summary").click()
    assert details.locator("code").inner_text().strip() == sample.HOSTILE_FULL
    assert details.locator("button").inner_text() == "Copy"


def test_the_range_tree_folds_and_filters_with_its_ancestors(visit):
    page = visit(at="ranges").page
    assert shown(page, "range-table") == ["step", "forward", "backward", sample.HOSTILE, "forward", "backward"]
    page.locator("#range-table button.fold[aria-label='Inside forward']").first.click()
    assert len(shown(page, "range-table")) == 6 + 5
    page.locator("#range-table button.fold[aria-label='Inside step']").click()
    assert shown(page, "range-table") == ["step", sample.HOSTILE, "forward", "backward"]
    page.fill("#range-table input[type=search]", "layer 4")
    assert shown(page, "range-table") == [
        *("step", "forward", "layer 4", "backward", "layer 4"),
        *(sample.HOSTILE, "forward", "layer 4", "backward", "layer 4"),
    ]


def test_sorting_a_tree_keeps_children_with_their_parents(visit):
    page = visit(at="ranges").page
    page.click("#range-table button.all")
    page.locator("#range-table thead th", has_text="GPU time").locator("button").click()
    rows = shown(page, "range-table")
    assert rows[:3] == ["step", "backward", "layer 4"]
    assert rows[7:9] == ["forward", "layer 4"]


@pytest.mark.parametrize("width", [390, 768])
def test_a_phone_scrolls_down_but_not_sideways(visit, width):
    page = visit(viewport={"width": width, "height": 844}).page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("[data-chart=budget-chart] svg").bounding_box()["width"] <= width


def test_paper_is_light_and_says_where_the_rows_are_that_it_leaves_out(visit):
    page = visit(color_scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')") == "#191c20"
    assert page.locator("#kernel-table tbody tr:visible").count() == 15
    assert page.locator("#kernel-table .count").inner_text() == "15 of 40 rows"
    told = "getComputedStyle(document.querySelector('#kernel-table .count'), '::after').content"
    assert "all of them" in page.evaluate(told)
    assert not page.locator(".rooms").is_visible()


def test_neither_a_table_of_many_columns_nor_a_long_command_is_cut_on_paper(browser, tmp_path):
    shares = [Column(f"part{place}_share", pl.Float64) for place in range(2)]
    columns = [Column("model"), Column("time is"), *shares, *(Column(f"part {at}_ns", pl.Float64) for at in range(12))]
    row = dict.fromkeys((column.name for column in columns), 0.123) | {"model": "2.7B", "time is": "host to GPU end"}
    wide = Table("wide", "Wide", tuple(columns), pl.DataFrame([row | {f"part {at}_ns": 123e6 for at in range(12)}]))
    command = Paragraph(f"ncu -k 'regex:^({'|'.join(f'kernel_number_{at}' for at in range(40))})$' -- python train.py")
    path = tmp_path / "wide.html"
    path.write_text(render_html(Document("Wide", "Wide.", (Section("wide-room", "Wide", (wide, command)),))), "utf-8")
    a4_less_margins = {"width": 688, "height": 1017}
    page = Visit(browser, path, viewport=a4_less_margins).page
    page.emulate_media(media="print")
    assert page.locator("#wide thead th").count() == 16
    assert page.locator("#wide table").bounding_box()["width"] <= a4_less_margins["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == a4_less_margins["width"]


def test_paper_gets_every_answer_and_the_rooms_of_the_profile_that_is_chosen(browser, several):
    page = Visit(browser, several, "room/p2-budget-room").page
    page.emulate_media(media="print")
    assert page.locator("[id='room/p1-answer']").is_visible()
    assert page.locator("[id='room/p2-answer']").is_visible()
    assert page.locator("[id='room/p2-kernels-room']").is_visible()
    assert not page.locator("[id='room/p1-kernels-room']").is_visible()
    assert page.locator(".paper").is_visible(), "what is left out is said"


def test_the_page_can_be_read_without_scripts(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#kernel-table tbody tr:visible").count() == 15
    assert page.locator("#kernel-table .count").inner_text() == "15 of 40 rows", "what needs scripts is said"
    assert page.locator("noscript").count() == 2
    context.close()


def test_a_saved_chart_stands_alone(visit, tmp_path):
    page = visit().page
    with page.expect_download() as download:
        page.click("#budget-chart button.save >> nth=0")
    download.value.save_as(tmp_path / "budget.svg")
    text = (tmp_path / "budget.svg").read_text("utf-8")
    assert text.startswith("<svg")
    assert "var(" not in text
    assert "#1d5ab0" in text
    with page.expect_download() as download:
        page.click("#budget-chart button.save >> nth=1")
    download.value.save_as(tmp_path / "budget.png")
    assert (tmp_path / "budget.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_chart_over_time_zooms_with_a_key_and_a_double_click_restores_it(visit):
    page = visit().page
    chart = page.locator("[data-chart=steps-chart]")
    chart.scroll_into_view_if_needed()

    def labels() -> list[str]:
        return chart.locator("svg .role-axis-label text").all_text_contents()

    whole, top = labels(), page.evaluate("scrollY")
    chart.locator("svg").hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_timeout(300)
    assert labels() != whole
    assert page.evaluate("scrollY") == top
    chart.locator("svg").dblclick()
    page.wait_for_timeout(300)
    assert labels() == whole


def test_the_data_of_a_chart_are_saved_with_the_numbers_that_it_plots(visit, tmp_path):
    page = visit().page
    with page.expect_download() as download:
        page.locator("#memory-chart button.save", has_text="CSV").click()
    download.value.save_as(tmp_path / "memory.csv")
    with (tmp_path / "memory.csv").open(newline="", encoding="utf-8") as file:
        heading, *rows = csv.reader(file)
    spec = sample.all_charts()["memory"].spec(lambda token: token, "")
    (marks,) = spec["datasets"].values()
    assert heading[0].startswith("time since the window's start")
    assert [float(row[0]) for row in rows] == [mark["x"] for mark in marks]
    assert [float(row[1]) for row in rows] == [mark["y"] for mark in marks]


def test_a_saved_table_holds_every_row_with_exact_values_and_full_names(visit, tmp_path):
    page = visit(at="kernels").page
    with page.expect_download() as download:
        page.click("#kernel-table button.csv")
    download.value.save_as(tmp_path / "kernels.csv")
    with (tmp_path / "kernels.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["Kernel", "Total", "Share", "Calls", "Std dev"]
    assert rows[0][:2] == ["gemm", "10000000"]
    assert rows[1][0] == sample.HOSTILE_FULL
    assert len(rows) == 40


def test_one_room_is_shown_at_a_time_and_its_address_leads_there(visit):
    page = visit(at="room/kernels").page
    shown_rooms = page.locator(".room:not(.away)")
    assert shown_rooms.get_attribute("id") == "room/kernels"
    page.locator(".rooms a", has_text="Copies").click()
    page.wait_for_selector("[id='room/nothing']:not(.away)")  # the address changes after the click
    assert page.url.endswith("#room/nothing")
    assert shown_rooms.get_attribute("id") == "room/nothing"
    page.go_back()
    page.wait_for_selector("[id='room/kernels']:not(.away)")
    assert shown_rooms.get_attribute("id") == "room/kernels"
    assert page.locator(".rooms [aria-current]").inner_text() == "Kernels"


def test_the_address_of_a_table_opens_its_room(visit):
    page = visit(at="range-table").page
    assert page.locator("#range-table").is_visible()


def test_a_profile_is_chosen_among_several_and_the_comparison_stays_above_its_answer(browser, several):
    page = Visit(browser, several, "").page
    assert page.locator("#comparison-table").is_visible()
    assert page.locator(".room.answer:visible").get_attribute("id") == "room/p1-answer"
    page.select_option("#warplens-part", "p2")
    assert page.locator(".room.answer:visible").get_attribute("id") == "room/p2-answer"
    page.locator(".rooms ol:visible a", has_text="Budget").click()
    page.wait_for_selector("[id='room/p2-budget-room']:not(.away)")
    assert page.url.endswith("#room/p2-budget-room")
    assert not page.locator("#comparison-table").is_visible()


@pytest.mark.parametrize("width", [390, 1400])
def test_the_first_screen_holds_what_limits_what_it_brings_and_what_to_do(browser, several, width):
    height = {390: 844, 1400: 900}[width]
    page = Visit(browser, several, "room/p1-timeline-room", viewport={"width": width, "height": height}).page
    page.goto(f"{several.as_uri()}#room/p1-answer")
    answer = page.locator("[id='room/p1-answer']")
    top = answer.bounding_box()["y"]
    for part in (".verdict", ".factor", ".action", ".code", ".strip svg >> nth=0"):
        box = answer.locator(part).first.bounding_box()
        assert box["y"] + box["height"] - top <= height, part
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_page_writes_numbers_as_the_report_does(visit):
    page = visit().page
    times = [
        0,
        1,
        999,
        999.4,
        1_000,
        1_234,
        12_345,
        99_960,
        123_456,
        999_600,
        1e6,
        41_712_345,
        59.9e9,
        3.6e12,
        -2_345.0,
    ]
    sizes = [0, 512, 999, 1_000, 70_100_000, 999_960, 2.5e9, 3.1e12]
    shares = [0.0, 0.0004, 0.0005, 0.001, 0.0995, 0.12345, 0.9999, 1.0]
    said = page.evaluate(
        "all => [warplens.duration, warplens.bytes, warplens.share].map((write, kind) => all[kind].map(write))",
        [times, sizes, shares],
    )
    assert said == [[*map(text.duration, times)], [*map(text.data_size, sizes)], [*map(text.share, shares)]]


def test_gains_are_sorted_by_size_and_code_keeps_its_lines(browser, tmp_path):
    code = "with torch.autocast('cuda'):\n    loss = model(x)"
    rows = pl.DataFrame({"id": ["a", "b", "c"], "gain": ["2.00×", ">100×", "13.2×"], "how": [code] * 3})
    columns = (Column("id"), Column("gain", kind="number"), Column("how", kind="code"))
    path = tmp_path / "report.html"
    table = Table("gains", "Gains", columns, rows)
    path.write_text(render_html(Document("Gains", "", (Section("all", "All", (table,)),))), "utf-8")
    visit = Visit(browser, path, at="all")
    visit.page.get_by_role("button", name="Gain").click()
    assert shown(visit.page, "gains") == ["b", "c", "a"]
    assert visit.page.locator("#gains pre").first.inner_text() == code
    assert visit.trouble == []
