"""The HTML file as text: self-contained, escaped, complete without JavaScript."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs import generate_vega
from tests.diagnosis import programs
from tests.report import sample
from warplens.analysis.timeline import Timeline
from warplens.report.document import Document, Paragraph, Section
from warplens.report.html import MOST_ROWS, asset, render_html
from warplens.report.overview import document as overview
from warplens.report.overview.numbers import examine
from warplens.report.theme import css_ink

ROOT = Path(__file__).parents[2]

TEXT_ONLY = Document("plain", "Nothing.", (Section("a", "A", (Paragraph("One < two & three."),)),))


@pytest.fixture(scope="module")
def page():
    return render_html(sample.document())


class Elements(HTMLParser):
    """Every start tag, every text, and every script of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self._in_script: dict[str, str | None] | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_script = dict(attrs) if tag == "script" else None

    def handle_endtag(self, tag):
        self._in_script = None

    def handle_data(self, data):
        if self._in_script is not None:
            self.scripts.append((self._in_script, data))
        else:
            self.text.append(data)


def test_a_hostile_name_is_text_wherever_it_stands(page):
    elements = Elements(page)
    assert not [tag for tag, _ in elements.tags if tag in ("img", "iframe", "object", "embed", "base")]
    assert not [attributes for _, attributes in elements.tags if any(name.startswith("on") for name in attributes)]
    # Names may be broken into pieces, so that long ones can wrap; together they are what was recorded.
    assert "".join(elements.text).count(sample.HOSTILE) >= 6
    # Theme, chart data, further rows, what scripts share, Vega, the page's own: nothing that a name brought along.
    assert len(elements.scripts) == 6


def packed(page: str, name: str):
    """What a page holds for its script under a name, unpacked."""
    (data,) = [text for attributes, text in Elements(page).scripts if attributes.get("id") == name]
    assert not re.search(r"[<>&]", data), "nothing in it can end its script"
    return json.loads(zlib.decompress(base64.b64decode(json.loads(data))))


def test_the_data_of_the_charts_stand_in_the_page_once(page):
    charts = packed(page, "warplens-charts")
    assert set(charts["specs"]) == {f"{name}-chart" for name in sample.all_charts()}
    assert charts["config"]["axis"], "how all of them look"
    assert not [name for name, spec in charts["specs"].items() if "config" in spec]
    assert sample.HOSTILE in json.dumps(charts, ensure_ascii=False)


def test_the_policy_allows_exactly_the_scripts_of_the_page_and_no_eval(page):
    elements = Elements(page)
    (policy,) = [
        attributes["content"]
        for tag, attributes in elements.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    allowed = set(re.findall(r"'sha256-([^']+)'", policy.split("style-src")[0]))
    running = [text for attributes, text in elements.scripts if attributes.get("type") != "application/json"]
    assert {base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in running} == allowed
    assert policy.startswith("default-src 'none'")
    assert "unsafe-" not in policy
    assert not [tag for tag, attributes in elements.tags if "style" in attributes], "styles are the page's own"


def test_nothing_is_fetched_from_elsewhere(page):
    for tag, attributes in Elements(page).tags:
        for name in ("src", "href", "data", "action"):
            address = attributes.get(name)
            assert address is None or address.startswith(("#", "data:")), (tag, address)
    style = "".join(re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style


def test_all_rows_are_in_the_page_and_those_beyond_the_limit_are_packed(page):
    (table,) = re.findall(r'id="kernel-table".*?</table>', page, flags=re.DOTALL)
    (body,) = re.findall(r"<tbody>(.*)</tbody>", table, flags=re.DOTALL)
    assert body.count("<tr") == 15
    assert "15 of 40 rows" in page
    rest = packed(page, "warplens-rows")["kernel-table"]
    assert [place for place, _ in rest] == list(range(15, 40))
    assert all(row.startswith("<tr>") and row.endswith("</tr>") for _, row in rest)
    # A script makes rows of this text: it is as escaped as the page.
    assert sample.HOSTILE not in body + json.dumps(rest)
    assert "ns::kernel_39" in rest[-1][1]


def test_a_table_beyond_what_a_phone_can_hold_says_where_the_rest_is():
    rows = sample.kernel_table().rows
    many = dataclasses.replace(sample.kernel_table(), rows=rows[[0] * (MOST_ROWS + 7)])
    text = render_html(Document("t", "l", (Section("a", "A", (many,)),)))
    assert "7 more rows are in report.json." in text


def test_raw_numbers_are_kept_for_sorting(page):
    assert 'data-v="10000000">10.0 ms</td>' in page
    assert 'data-v="">–</td>' in page


def test_every_id_is_unique_and_every_link_leads_somewhere(page):
    tags = Elements(page).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for tag, attributes in tags if tag == "a"} <= set(ids)


def test_headings_do_not_skip_a_level(page):
    levels = [int(tag[1]) for tag, _ in Elements(page).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper <= level + 1 for level, deeper in itertools.pairwise(levels))


def test_a_page_without_charts_does_not_carry_a_chart_library():
    text = render_html(TEXT_ONLY)
    assert "One &lt; two &amp; three." in text
    assert len(text) < 60_000


def test_a_page_with_charts_stays_near_one_megabyte(page):
    assert len(page.encode()) < 1_500_000


def test_of_very_many_profiles_those_with_the_most_to_gain_are_told_in_full(monkeypatch):
    timelines = [Timeline(programs.record(each)) for each in (programs.large_products, programs.unfused_optimizer)]
    profiles = [examine(each, each.window()) for each in timelines]
    monkeypatch.setattr(overview, "MOST_PARTS", 1)
    document = overview.report_document(profiles)
    gains = [each.diagnosis.findings[0].gain or 0.0 for each in profiles]
    assert gains[1] > gains[0]
    assert [part.id for part in document.parts] == ["p2"], "the page tells the second, whose number stays"
    (table,) = [table for table in document.tables() if table.id == "comparison-table"]
    assert table.rows["part"].to_list() == ["", "p2-answer"], "each has its row; one leads somewhere"
    text = render_html(document)
    assert "The 1 of 2 profiles with the most to gain are told in full" in text
    assert 'href="#room/p1-' not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "shipped",
    [
        *("demo", "data/captures", "data/grid", "data/pairs/development", "data/planted", "data/recordings"),
        pytest.param("data/pairs", marks=pytest.mark.every),
    ],
)
def test_the_page_on_many_shipped_profiles_stays_below_ten_megabytes(shipped, tmp_path):
    from typer.testing import CliRunner

    from warplens.cli.main import app

    asked = ["demo"] if shipped == "demo" else ["report", str(ROOT / shipped)]
    assert CliRunner().invoke(app, [*asked, "-o", str(tmp_path), "--format", "html"]).exit_code == 0
    sizes = {page.name: page.stat().st_size for page in tmp_path.glob("*.html")}
    assert sizes["report.html"] > 1_000_000
    assert max(sizes.values()) < 10_000_000, sizes


def test_the_chart_library_is_the_one_that_charts_are_written_for():
    assert asset("vega.js") == generate_vega.script(), "run python docs/generate_vega.py"
    assert all(chart.draw(css_ink).to_dict(validate=True) for chart in sample.all_charts().values())
