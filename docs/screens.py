"""Pictures of the reports for `explanation/report-screens.md`: five kinds of input on screen, phone and paper.

    python docs/screens.py                  # makes the reports with this version, and the pictures
    python docs/screens.py --pages FOLDER   # pictures of pages made before, FOLDER/CASE.html; --suffix tells them apart

Chromium draws them (Playwright), and packs them as WebP. They are small: what a page looks like, not every word of it.
"""

from __future__ import annotations

import argparse
import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "assets" / "screens"
CHROMIUM = "/usr/bin/chromium"

#: Case → arguments of the command that makes its page, and the page.
CASES: dict[str, tuple[Sequence[str], str]] = {
    "demo": (("demo",), "report.html"),
    "training": (("report", "demo:lm_small_ctx256_train"), "report.html"),
    "decoding": (("report", "data/pairs/development/gpt2_decode_eager__before.pt.trace.json.gz"), "report.html"),
    "ranks": (
        ("report", *(f"data/pairs/ranks/gradients_one_by_one__rank{rank}.pt.trace.json.gz" for rank in range(2))),
        "report.html",
    ),
    "grid": (("data/grid",), "grid.html"),
}

#: View → viewport, what it emulates, and the width of the picture.
VIEWS: dict[str, tuple[tuple[int, int], dict[str, Any], int]] = {
    "light": ((1400, 900), {"color_scheme": "light"}, 900),
    "dark": ((1400, 900), {"color_scheme": "dark"}, 540),
    "phone": ((390, 844), {"color_scheme": "light"}, 280),
    "print": ((794, 1123), {"media": "print", "color_scheme": "light"}, 400),
}

#: Of WebP; text stays legible.
QUALITY = 0.36

#: What takes a picture as a data address to one of another width, as WebP.
PACK = """async ([png, width, quality]) => {
  const image = new Image(); image.src = png; await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width; canvas.height = Math.round(image.height * width / image.width);
  const context = canvas.getContext("2d"); context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


def make(folder: Path) -> dict[str, Path]:
    """The pages of this version."""
    pages = {}
    for case, (arguments, page) in CASES.items():
        command = [sys.executable, "-m", "warplens", "-q", *arguments, "-o", str(folder / case)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)  # noqa: S603 - this very program
        pages[case] = folder / case / page
    return pages


def take(pages: dict[str, Path], suffix: str, views: Sequence[str], all_wide: int | None = None) -> None:
    """The pictures, `CASE-VIEW[-SUFFIX].webp`, and on standard output the lengths of the pages."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        packer = browser.new_page()
        for case, path in pages.items():
            for view in views:
                (width, height), emulated, shown = VIEWS[view]
                page = browser.new_page(viewport={"width": width, "height": height})
                page.emulate_media(**emulated)
                page.goto(path.as_uri())
                page.wait_for_timeout(1000)
                png = base64.b64encode(page.screenshot()).decode()
                webp = packer.evaluate(PACK, [f"data:image/png;base64,{png}", all_wide or shown, QUALITY])
                target = PICTURES / f"{case}-{view}{suffix}.webp"
                target.write_bytes(base64.b64decode(webp))
                length = page.evaluate("document.documentElement.scrollHeight")
                size = f"{target.stat().st_size / 1e3:.0f} kB"
                sys.stdout.write(f"{target.name}: {size}; the page is {length:,} px long\n")
                page.close()
        browser.close()


def main() -> None:
    """Make the pages and their pictures, or the pictures of given pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pages", type=Path, help="folder of pages that exist, CASE.html")
    parser.add_argument("--suffix", default="", help="of the pictures' names, such as -before")
    parser.add_argument("--width", type=int, help="of all pictures, instead of each view's own")
    parser.add_argument("--views", nargs="*", default=list(VIEWS), choices=list(VIEWS))
    given = parser.parse_args()
    if given.pages is not None:
        take({case: given.pages / f"{case}.html" for case in CASES}, given.suffix, given.views, given.width)
        return
    with tempfile.TemporaryDirectory() as folder:
        take(make(Path(folder)), given.suffix, given.views)


if __name__ == "__main__":
    main()
