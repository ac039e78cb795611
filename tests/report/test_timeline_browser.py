"""The timeline in a real browser: it follows links, zooms, pans, searches and measures to the nanosecond."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

import warplens
from tests import shipped
from tests.report.conftest import Visit
from warplens.analysis.timeline import Timeline
from warplens.report.html import render_html
from warplens.report.overview.document import report_document
from warplens.report.overview.numbers import examine
from warplens.report.timeline import timeline_view

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def numbers():
    timeline = Timeline(warplens.read(shipped.capture("copies_and_syncs")))
    return examine(timeline, timeline.window())


@pytest.fixture(scope="module")
def view(numbers):
    return timeline_view(numbers.timeline, numbers.window, numbers.diagnosis, numbers.budgets)


@pytest.fixture(scope="module")
def page_file(numbers, tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "report.html"
    path.write_text(render_html(report_document([numbers])), "utf-8")
    return path


@pytest.fixture
def visit(browser, page_file):
    visits: list[Visit] = []

    def start(view: str = "timeline", *, ready: bool = True, **context):
        visits.append(Visit(browser, page_file, view, **context))
        page = visits[-1].page
        if ready:
            page.wait_for_selector(f"#{view}-view[data-state=ready]")
        return page

    yield start
    for made in visits:
        assert made.trouble == []


def shown(page) -> tuple[int, int]:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    start, end = page.locator("#timeline-view").get_attribute("data-shown").rsplit("-", 1)
    return int(start), int(end)


def test_it_opens_on_the_step_of_median_length(visit, view):
    lengths = sorted(step.duration_ns for step in view.window.steps)
    start, end = shown(visit())
    assert end - start == lengths[(len(lengths) - 1) // 2]
    assert (start + view.origin_ns, end + view.origin_ns) == view.opens


def test_a_finding_links_to_its_worst_moments(visit, view):
    page = visit("findings-room", ready=False)
    worst = view.moments[0]
    page.locator(f"#finding-{worst.finding} .jumps a").first.click()
    page.wait_for_selector("#timeline-view[data-state=ready]")
    start, end = worst.start_ns - view.origin_ns, worst.end_ns - view.origin_ns
    page.wait_for_selector(f"#timeline-view[data-linked='{start}-{end}']")
    assert page.locator("#timeline-view").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_link_of_a_finding_leads_to_its_nanoseconds(visit, view, width):
    page = visit(viewport={"width": width, "height": 844})
    worst = view.moments[0]
    link = page.locator("#timeline-view table a").first
    assert link.inner_text() == worst.finding
    link.click()
    start, end = worst.start_ns - view.origin_ns, worst.end_ns - view.origin_ns
    page.wait_for_selector(f"#timeline-view[data-linked='{start}-{end}']")  # the address changes after the click
    first, last = shown(page)
    assert first <= start < end <= last
    assert last - first < 2 * (end - start)
    assert f"{end - start:,} ns" in page.locator("#timeline-view .said").inner_text()
    assert page.locator("#timeline-view .plot").bounding_box()["width"] < width


def test_an_address_with_a_span_opens_there(visit):
    page = visit("timeline/1000000-2000000", ready=False)
    page.wait_for_selector("#timeline-view[data-state=ready]")
    assert shown(page) == (750_000, 2_250_000)


def test_keys_wheel_and_drag_move_it_as_in_perfetto(visit):
    page = visit()
    plot = page.locator("#timeline-view .plot")
    plot.focus()
    start, end = shown(page)
    page.keyboard.press("w")
    zoomed = shown(page)
    assert start < zoomed[0] < zoomed[1] < end
    page.keyboard.press("d")
    moved = shown(page)
    assert moved[0] > zoomed[0]
    assert abs((moved[1] - moved[0]) - (zoomed[1] - zoomed[0])) <= 1
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 600, box["y"] + 110)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 110)
    page.mouse.up()
    dragged = shown(page)
    assert dragged[0] > moved[0]
    page.mouse.wheel(0, -200)
    wheeled = shown(page)
    assert wheeled[1] - wheeled[0] < dragged[1] - dragged[0]
    page.keyboard.press("0")
    window = shown(page)
    assert window[1] - window[0] > end - start


def test_search_goes_from_hit_to_hit(visit, view):
    page = visit()
    name = next(label for label, _, _ in view.names if label.startswith("copy host"))
    code = [number for number, each in enumerate(view.names) if name in each[0]]
    hits = sum(int((view.levels[0].name == number).sum()) for number in code)
    find = page.get_by_label("Search names in the timeline")
    find.fill(name)
    assert page.locator("#timeline-view .found").inner_text() == f"{hits:,} found"
    find.press("Enter")
    first = page.locator("#timeline-view .said").inner_text()
    assert first.startswith(name)
    find.press("Enter")
    assert page.locator("#timeline-view .said").inner_text() != first
    assert re.fullmatch(rf"\d+ of {hits:,}", page.locator("#timeline-view .found").inner_text())


def test_a_chosen_kernel_says_its_nanoseconds_and_its_launch(visit, view, numbers):
    page = visit()
    page.locator("#timeline-view .plot").focus()
    page.get_by_label("Search names in the timeline").fill("kernel")
    kernels = numbers.timeline.trace.kernels
    page.get_by_label("Search names in the timeline").fill(kernels["name"][0])
    page.get_by_label("Search names in the timeline").press("Enter")
    said = page.locator("#timeline-view .said").inner_text()
    start, length, ago = (
        int(found.replace(",", ""))
        for found in re.search(r"starts at ([\d,]+) ns.*takes ([\d,]+) ns.*launched ([\d,]+) ns", said).groups()
    )
    work = numbers.timeline.work
    row = work.row(by_predicate=pl.col("start_ns") == start + view.origin_ns, named=True)
    assert row["end_ns"] - row["start_ns"] == length
    assert row["start_ns"] - row["launch_start_ns"] == ago


def test_a_drag_with_shift_measures(visit):
    page = visit()
    box = page.locator("#timeline-view .plot").bounding_box()
    start, end = shown(page)
    gutter = page.locator("#timeline-view .labels").bounding_box()["width"] + 6
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + gutter + 100, box["y"] + 120)
    page.mouse.down()
    page.mouse.move(box["x"] + gutter + 300, box["y"] + 120)
    page.mouse.up()
    page.keyboard.up("Shift")
    said = page.locator("#timeline-view .said").inner_text()
    measured = int(re.search(r"Measured: ([\d,]+) ns", said).group(1).replace(",", ""))
    expected = 200 * (end - start) / (box["width"] - gutter)
    assert measured == pytest.approx(expected, rel=0.01)


def test_it_follows_the_theme_and_can_be_read_without_scripts(visit, browser, page_file):
    page = visit(color_scheme="dark")
    canvas = page.locator("#timeline-view canvas")
    dark = canvas.screenshot()
    page.click("#warplens-theme")
    page.wait_for_timeout(100)
    assert canvas.screenshot() != dark
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(page_file.as_uri())
    assert "Timeline of 1 GPU" in plain.locator("#timeline-view").inner_text()
    assert plain.locator("#timeline-view table tbody tr").count() > 0
    context.close()


def test_a_phone_shows_the_worst_moments_whole(visit, view):
    page = visit(viewport={"width": 400, "height": 850})
    cells = page.locator("#timeline-view tbody td:nth-child(2)").all()
    assert len(cells) == len(view.moments)
    for cell in cells:
        box = cell.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 400
        assert box["height"] < 100
    start = page.locator("#timeline-view tbody td:nth-child(4)").first
    assert start.evaluate("cell => getComputedStyle(cell, '::before').content") == '"From "'


def test_paper_keeps_the_colours_of_the_legend(visit):
    page = visit()
    page.emulate_media(media="print")
    swatches = page.locator("#timeline-view .legend i")
    assert swatches.count() > 2
    assert (
        swatches.evaluate_all("all => all.map(each => getComputedStyle(each).printColorAdjust)")
        == ["exact"] * swatches.count()
    )


def test_icicles_have_the_sums_of_the_tables_and_zoom(visit, numbers):
    page = visit("flame")
    figure = page.locator("#flame-view")
    work = numbers.timeline.work_in(numbers.window)
    assert int(figure.get_attribute("data-sum")) == (work["end_ns"] - work["start_ns"]).sum()
    figure.get_by_role("button", name="Kinds of work").click()
    named = [box.get_attribute("aria-label") for box in figure.locator("[role=treeitem]").all()]
    for name, total_ns in numbers.kernels.select("full_name", "total_ns").head(3).iter_rows():
        assert any(text.startswith(f"{name} · {total_ns:,} ns") for text in named)
    second = figure.locator("[role=treeitem]").nth(1)
    label = second.get_attribute("aria-label").split(" · ")[0]
    second.click()
    assert (
        figure.locator("[role=treeitem]").first.bounding_box()["width"]
        > 0.99 * figure.locator(".board").bounding_box()["width"]
    )
    assert figure.locator(".way button").last.inner_text() == label
    assert "100.0 % of what is shown" in figure.locator(".said").inner_text()
    page.keyboard.press("Escape")
    assert figure.locator(".way button").count() == 1


@pytest.mark.slow  # documents of two ranks are made for it alone
def test_a_wait_between_ranks_leads_to_its_span_on_the_common_clock(browser, tmp_path):
    page = warplens.report(shipped.files("planted", "ddp_straggler-gpu_rank*.json.xz")).save(tmp_path / "report.html")
    visit = Visit(browser, page, "run-timeline")
    link = visit.page.locator("#run-timeline-view .places a").first
    span = link.get_attribute("href").rpartition("/")[2]
    link.click()
    visit.page.wait_for_selector(f"#run-timeline-view[data-linked='{span}']")
    start, end = map(int, span.split("-"))
    assert start < end
    # What is shown follows in the next frame, which a busy machine draws late.
    visit.page.wait_for_function(
        "([start, end]) => {"
        " const [from, to] = document.querySelector('#run-timeline-view').dataset.shown.split(/-(?=[0-9]+$)/);"
        " return Number(from) <= start && end <= Number(to) }",
        arg=[start, end],
    )
    assert visit.trouble == []


def test_the_span_is_saved_for_perfetto_with_the_numbers_of_the_profile(visit, view, numbers):
    page = visit()
    start, end = shown(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Perfetto").click()
    trace = json.loads(saved.value.path().read_text("utf-8"))
    drawn = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "stream"]
    begins, ends = (pl.col(name) - view.origin_ns for name in ("start_ns", "end_ns"))
    kernels = numbers.timeline.trace.kernels.filter(ends > start, begins < end)
    work = numbers.timeline.work.filter(ends > start, begins < end)
    saved_spans = {(event["args"]["start_ns"], event["args"]["duration_ns"]) for event in drawn}
    assert kernels.height
    assert saved_spans == set(work.select(begins, pl.col("end_ns") - pl.col("start_ns")).iter_rows())
    assert all(round(1000 * event["ts"]) == event["args"]["start_ns"] for event in drawn)
    assert "Perfetto" in page.locator("#timeline-view .said").inner_text()


def test_a_drag_on_the_strip_selects_a_span(visit, view):
    page = visit()
    box = page.locator("#timeline-view canvas").bounding_box()
    whole = page.evaluate("() => document.querySelector('#timeline-view canvas').clientWidth - 178")
    left, right = box["x"] + 178 + 0.7 * whole, box["x"] + 178 + 0.9 * whole
    page.mouse.move(left, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(right, box["y"] + 10, steps=4)
    page.mouse.up()
    start, end = shown(page)
    page.get_by_role("button", name="All", exact=True).click()
    everything = shown(page)[1]
    assert start == pytest.approx(0.7 * everything, rel=0.01)
    assert end == pytest.approx(0.9 * everything, rel=0.01)
