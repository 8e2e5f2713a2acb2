"""A page of a file in a real browser: what it asks for, and what it complains about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"no Chromium: {CHROMIUM} (.ci/run installs Debian's)"
)

# No sandbox: it does not start as root. The rest keeps Chromium itself from asking the network for anything.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# Catches a hang; a loaded machine takes many seconds to start a browser.
TIMEOUT_MS = 120_000


@dataclass
class Opened:
    """A page that was opened."""

    page: Page
    requests: list[str] = field(default_factory=list)
    """Every address that was asked for, the page's own first."""
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and exceptions of scripts."""

    def check_quiet(self) -> None:
        """Assert that the page asked for nothing but itself, and that nothing went wrong in it."""
        assert self.requests == [self.page.url.partition("#")[0]]
        assert self.complaints == []


@contextmanager
def started_chromium() -> Iterator[Browser]:
    """Start Chromium and end it; one serves all tests of a file."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=TIMEOUT_MS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, where: Path | str, *, width: int = 1280) -> Iterator[Opened]:
    """Open a file or an address in a window of its own, with nothing left from another.

    Args:
        browser: The browser.
        where: The page.
        width: Of the window, in pixels.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light", device_scale_factor=1)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    shown = Opened(page)
    context.on("request", lambda request: shown.requests.append(request.url))
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: shown.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    try:
        page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        yield shown
    finally:
        context.close()
