"""A browser for the tests of pages: started once for all of them, as starting takes longer than most of them."""

from __future__ import annotations

from pathlib import Path

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
    """One visit to the report, with everything that must not happen on it."""

    def __init__(self, browser, report: Path, at: str = "charts", **context) -> None:
        self.trouble: list[str] = []
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda said: self.trouble.append(f"console {said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self._request(request.url, report.as_uri()))
        self.page.goto(f"{report.as_uri()}#{at}")
        # A function in the page would need `eval`, which the report's policy forbids; an attribute tells as well.
        self.page.wait_for_selector("html[data-charts=drawn]")

    def _dialog(self, dialog) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, address: str, own: str) -> None:
        if address.partition("#")[0] != own:
            self.trouble.append(f"request: {address}")
