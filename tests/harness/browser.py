"""A real browser, which sees pages as people do."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import httpx
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LAUNCHED = ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"]
PATIENCE = 20_000  # milliseconds for anything that a page does

SERIOUS = {"serious", "critical"}
"""The violations of axe-core that keep people from using a page."""


@contextmanager
def launched() -> Iterator["Tab"]:
    """Run a headless browser with one tab; skip the tests where there is none, and say so."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=LAUNCHED)
        try:
            yield Tab(browser)
        finally:
            browser.close()


class Tab:
    """A tab that tests use one after another, as a new one takes a second."""

    def __init__(self, browser) -> None:
        self._context = browser.new_context(locale="en-GB")
        self._context.set_default_timeout(PATIENCE)
        self.page = self._context.new_page()
        self._errors = []
        self.page.on("pageerror", lambda error: self._errors.append(str(error)))
        self.page.on("console", self._see)

    def _see(self, said) -> None:
        # Answers that are refused, or never come, are what some tests are about.
        if said.type == "error" and "Failed to " not in said.text:
            self._errors.append(said.text)

    @contextmanager
    def at(self, http: httpx.Client, width: int = 1280, scheme: str = "light"):
        """Visit a console; fail if a page logs an error, as of a script that may not run."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self._base = http.base_url
        yield self.page
        self.page.goto("about:blank")
        self._context.clear_cookies()
        errors, self._errors = self._errors, []
        assert errors == []

    def open(self, path: str) -> None:
        """Open an address below the console's."""
        self.page.goto(str(self._base.join(path)))


@cache
def _axe() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


def violations(page) -> list[str]:
    """Return what axe-core says keeps people from using a page."""
    page.evaluate(_axe())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in SERIOUS
    ]
