"""How long a report's timeline takes to draw a frame while it is panned: `python -m benchmarks.timeline_frames PAGE`.

Chromium without a GPU draws each of 60 pans over the step it opens on, the analysed window, and the whole profile. The
times are the page's own, of the drawing alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

__all__ = ["frames"]

_PANS = 60
_PAN = """async (key) => {
  const plot = document.querySelector(".timeline .plot");
  for (const kind of ["keydown", "keyup"]) plot.dispatchEvent(new KeyboardEvent(kind, { key, bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return document.querySelector("[data-view=timeline]").dataset.frame;
}"""


def frames(page_file: Path, chromium: str) -> dict[str, tuple[float, float, int]]:
    """For each displayed span, the median and the longest time of a frame in milliseconds, and the most marks."""
    results = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.goto(f"{page_file.resolve().as_uri()}#timeline")
        page.wait_for_selector("[data-view=timeline][data-state=ready]", timeout=120_000)
        for span in ("Step", "Window", "All"):
            page.locator(".timeline .tools button", has_text=span).click()
            page.wait_for_timeout(500)
            said = [page.evaluate(_PAN, "ad"[turn % 2]).split(" ") for turn in range(_PANS)]
            times, marks = [float(each[0]) for each in said], [int(each[2]) for each in said]
            results[span] = median(times), max(times), max(marks)
        browser.close()
    return results


def main() -> None:
    """Prints a line for each span."""
    parser = argparse.ArgumentParser(description="Times of the timeline's frames.")
    parser.add_argument("page", type=Path, help="report.html")
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser")
    options = parser.parse_args()
    for span, (usual, longest, marks) in frames(options.page, options.chromium).items():
        print(f"{span}: median {usual:.1f} ms, longest {longest:.1f} ms, at most {marks} marks")


if __name__ == "__main__":
    main()
