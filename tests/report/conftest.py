"""A browser for the tests of pages: started once for all of them, as starting takes longer than most of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import pytest

CHROMIUM = Path("/usr/bin/chromium")
#: The browser's own background services would make network requests; these keep it quiet.
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --disable-quic"
)


@pytest.fixture(scope="package")
def browser():
    """Chromium. Until it is closed no test may start a loop of asyncio, which is why it lives no longer than here."""
    playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}")
    with playwright_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET.split())
        yield running
        running.close()


class Visit:
    """One visit to the report, with everything that must not happen on it.

    Visits follow each other in one tab: a new tab takes twice as long to draw the same page.
    """

    _last: ClassVar[WeakKeyDictionary[Any, Visit]] = WeakKeyDictionary()

    def __init__(self, browser, report: Path, at: str = "charts", *, viewport=None, color_scheme="light") -> None:
        self.trouble: list[str] = []
        if (before := self._last.get(browser)) is None:
            self.page = browser.new_context().new_page()
        else:
            self.page = before.page
            before.leave()
        self._last[browser] = self
        self.page.set_viewport_size(viewport or {"width": 1280, "height": 900})
        self.page.emulate_media(media="null", color_scheme=color_scheme)
        self.page.mouse.move(0, 0)
        self.page.set_default_timeout(10_000)
        self._listeners = {
            "console": lambda said: self.trouble.append(f"console {said.type}: {said.text}"),
            "pageerror": lambda error: self.trouble.append(f"error: {error}"),
            "dialog": self._dialog,
            "request": lambda request: self._request(request.url, report.as_uri()),
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)
        self.page.goto(f"{report.as_uri()}#{at}")
        # A function in the page would need `eval`, which the report's policy forbids; an attribute tells as well.
        self.page.wait_for_selector("html[data-charts=drawn]")

    def leave(self) -> None:
        """Nothing of it is left for the next visit."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")

    def _dialog(self, dialog) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, address: str, own: str) -> None:
        if address.partition("#")[0] != own:
            self.trouble.append(f"request: {address}")
