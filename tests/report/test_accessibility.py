"""axe-core finds no serious fault on any room of any kind of report."""

from __future__ import annotations

from pathlib import Path

import pytest

import warplens
from tests.report.conftest import Visit
from tests.shipped import capture, files

pytestmark = pytest.mark.browser

axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")

#: What counts; axe also knows `minor` and `moderate`.
SERIOUS = ("serious", "critical")


def report_on(kind: str, folder: Path) -> Path:
    if kind == "grid":
        from typer.testing import CliRunner

        from warplens.cli.main import app

        named = [str(capture(f"lm_small_ctx{context}.sqlite.xz")) for context in ("128_forward", "256_train")]
        assert CliRunner().invoke(app, ["report", *named, "-o", str(folder), "-f", "html"]).exit_code == 0
        return folder / "grid.html"
    profiles = {
        "training": [capture("lm_small_ctx256_train.sqlite.xz")],
        "decoding": list(files("planted", "lm_decode_one_token__baseline.json.xz")),
        "ranks": list(files("planted", "ddp_straggler-gpu_rank*.json.xz")),
        "several": [capture("deit224_bs1_baseline.sqlite.xz"), capture("copies_and_syncs.sqlite.xz")],
    }[kind]
    return warplens.report(profiles).save(folder / "report.html")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "theme"),
    [("training", "light"), ("decoding", "dark"), ("ranks", "light"), ("several", "dark"), ("grid", "light")],
)
def test_no_room_has_a_serious_fault(browser, tmp_path, kind, theme):
    path = report_on(kind, tmp_path)
    visit = Visit(browser, path, "", color_scheme=theme)
    page = visit.page
    page.evaluate(Path(axe.AXE_FILE_PATH).read_text("utf-8"))
    faults = set()
    for room in page.eval_on_selector_all(".room", "rooms => rooms.map(room => room.id)"):
        page.goto(f"{path.as_uri()}#{room}")
        page.wait_for_timeout(300)
        # What is hidden cannot be reached, and would cost axe most of its time.
        found = page.evaluate("axe.run({include: ['.rooms', '.room:not(.away)']}, {resultTypes: ['violations']})")
        faults |= {
            f"{room}: {fault['id']}: {fault['nodes'][0]['html'][:160]}"
            for fault in found["violations"]
            if fault["impact"] in SERIOUS
        }
    assert sorted(faults) == []
    assert visit.trouble == []
